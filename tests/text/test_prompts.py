"""The expand prompt and its parsing, beside what the papers' code does on the same strings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.text.prompts import (
    TooFewTextsError,
    expand,
    expand_prompt,
    parse_completion,
)

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "expand_prompt_and_parse.json").read_text("utf-8")
)


def test_prompt_is_the_papers() -> None:
    assert expand_prompt(GOLDEN["examples"]) == GOLDEN["pretext_prompt"]
    # The other code base's template ends in a literal backslash-n: a defect.
    assert expand_prompt(GOLDEN["examples"]) != GOLDEN["popri_prompt_as_shipped"]


def test_prompt_counts() -> None:
    assert expand_prompt(["a"], total=2) == (
        "List of 2 diverse original text samples:\nOriginal Text Sample 1\na\n"
        "Original Text Sample 2\n"
    )
    with pytest.raises(ValueError, match="6 examples in a list of 6"):
        expand_prompt(["a"] * 6)
    with pytest.raises(ValueError, match="0 examples"):
        expand_prompt([])


def test_parse_golden() -> None:
    """The paper's rule on the reference's inputs; three of seven differ from its code, which
    drops a sample of two paragraphs and everything from a word in "Origin..." on."""
    parsed = [parse_completion(text) for text in GOLDEN["raw_outputs"]]
    assert parsed == [
        "A clean sample about beer.",
        "Two paras here now ok",
        None,
        "one two three four",
        "Originally this dies at once",
        None,
        "Text with the Origin of species inside it",
    ]
    kept = [text for text in parsed if text is not None]
    assert set(GOLDEN["pretext_parsed"]) < set(kept)
    assert kept != GOLDEN["pretext_parsed"]
    assert GOLDEN["popri_parsed"][6] == "Text with the" != parsed[6]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three four\nOriginal Text Sam", "one two three four"),
        ("one two three four\nO", "one two three four"),
        ("one two three four\n Original ", "one two three four"),
        ("one two three four\nOriginals stay", "one two three four Originals stay"),
        ("the one and only Original", "the one and only Original"),
        ("one two three four Original Text Sample 5\nnext", "one two three four"),
        ("a\tb\n\nc  d", "a b c d"),
        ("Original", None),
        ("", None),
        ("Original Text Sample 5\none two three four", None),
    ],
)
def test_parse_edges(text: str, expected: str | None) -> None:
    assert parse_completion(text) == expected


def test_min_words() -> None:
    assert parse_completion("one two three", min_words=3) == "one two three"
    assert parse_completion("", min_words=1) is None


class Echo:
    """A generator whose completions come from a function of a running number."""

    def __init__(self, write) -> None:  # type: ignore[no-untyped-def]
        self.write, self.calls = write, 0
        self.prompts: list[str] = []

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        assert n == 1
        rows = []
        for prompt in prompts:
            self.prompts.append(prompt)
            rows.append([self.write(self.calls)])
            self.calls += 1
        return rows


SEEDS = [f"seed number {i} of the set" for i in range(10)]


def run(generator: Echo, samples: int, seeds: Sequence[str] = SEEDS, **options: int) -> list[str]:
    return expand(
        seeds, generator, samples=samples, rng=np.random.default_rng(0), progress=False, **options
    )


def test_expand_draws_distinct_seeds_per_prompt() -> None:
    generator = Echo(lambda i: f"new text number {i}\nOriginal Text Sample 5\n")
    texts = run(generator, 50)
    assert texts == [f"new text number {i}" for i in range(50)]
    used = set()
    for prompt in generator.prompts:
        lines = prompt.splitlines()
        seeds = lines[2:7:2]
        assert len(set(seeds)) == 3 and set(seeds) <= set(SEEDS)
        assert prompt == expand_prompt(seeds)
        used |= set(seeds)
    assert used == set(SEEDS)


def test_expand_removes_duplicates_seeds_and_short_texts() -> None:
    def write(i: int) -> str:
        return [f"a fine text number {i}", "always the same text", SEEDS[i % 10], "short"][i % 4]

    texts = run(Echo(write), 30)
    assert len(texts) == len(set(texts)) == 30
    assert not set(texts) & set(SEEDS)
    assert texts.count("always the same text") == 1


def test_expand_asks_only_for_what_is_missing() -> None:
    generator = Echo(lambda i: f"a fine text number {i}" if i % 2 else "short")
    assert len(run(generator, 40)) == 40
    assert generator.calls <= 100


def test_expand_gives_up_with_a_clear_error() -> None:
    generator = Echo(lambda i: f"text number {i % 7} is repeated")
    with pytest.raises(TooFewTextsError, match=r"60 completions gave 7 .*expand\.samples = 20"):
        run(generator, 20, max_rounds=3)
    assert generator.calls == 60


def test_expand_is_deterministic_in_rng() -> None:
    first, second, third = (Echo(lambda i: f"new text number {i}") for _ in range(3))
    run(first, 10), run(second, 10)
    expand(SEEDS, third, samples=10, rng=np.random.default_rng(1), progress=False)
    assert first.prompts == second.prompts != third.prompts


def test_expand_seed_count() -> None:
    generator = Echo(lambda i: f"new text number {i}")
    assert run(generator, 0) == [] and generator.calls == 0
    with pytest.raises(ValueError, match=r"seeds-per-prompt = 3: must lie in \[1, 2\]"):
        run(generator, 5, ["a", "b", "a", " b ", ""])
    assert len(run(generator, 5, seeds_per_prompt=7)) == 5


def test_expand_reports_progress() -> None:
    seen: list[tuple[str, float, float]] = []
    expand(
        SEEDS,
        Echo(lambda i: f"new text number {i}"),
        samples=5,
        rng=np.random.default_rng(0),
        progress=lambda stage, done, total, note="": seen.append((stage, done, total)),
    )
    assert seen[-1] == ("expanding", 5, 5)
