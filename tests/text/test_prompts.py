"""The expand prompt and its parsing, beside what the papers' code does on the same strings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from privsyn_flower.text.prompts import (
    HEADED,
    HEADING,
    REPEATED,
    SHORT,
    ExamplePrompts,
    InstructionPrompts,
    LabelledText,
    Prompt,
    TooFewTextsError,
    expand,
    expand_prompt,
    generate,
    parse_completion,
    prompt_source,
    read_text,
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


def test_lengths_are_units_in_every_script() -> None:
    text = "今天天气很好，我们去公园散步吧。"
    assert parse_completion(text) == text  # 8 units, one word by its spaces
    assert parse_completion("今天。") is None
    source = InstructionPrompts("Write.")
    assert read_text(source, text, 4, max_words=3) == "今天天气很好，"
    assert read_text(source, "one two three four", 4, max_words=3) == "one two three"


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
    texts = expand(
        seeds, generator, samples=samples, rng=np.random.default_rng(0), progress=False, **options
    )
    assert {one.label for one in texts} <= {""}
    return [one.text for one in texts]


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


def test_expand_by_class_shows_seeds_of_one_class_and_says_which() -> None:
    """Each text has the class of the seeds in its prompt; the classes are asked for alike."""
    by_class = {name: [f"{name} seed {i} of the set" for i in range(5)] for name in ("good", "bad")}
    generator = Echo(lambda i: f"new text number {i}")
    texts = expand(by_class, generator, samples=20, rng=np.random.default_rng(0), progress=False)
    labels = [one.label for one in texts]
    assert labels.count("good") == labels.count("bad") == 10
    for prompt, one in zip(generator.prompts, texts, strict=True):
        assert all(line.startswith(one.label) for line in prompt.splitlines()[2:7:2])
    few = Echo(lambda i: f"another text number {i}")
    options = {"samples": 6, "rng": np.random.default_rng(0), "progress": False}
    texts = expand({**by_class, "odd": ["odd one", "odd two"]}, few, **options)
    odd = [p for p, one in zip(few.prompts, texts, strict=True) if one.label == "odd"]
    assert len(odd) == 2 and all("odd one" in p and "odd two" in p for p in odd)
    with pytest.raises(ValueError, match=r"seeds-per-prompt = 3: must lie in \[1, 2\]"):
        expand({"a": ["x", "y"], "b": ["z"]}, few, **options)


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


def examples_in(prompt: Prompt) -> list[str]:
    return prompt.text.splitlines()[2:-1:2]


@pytest.mark.parametrize("examples", [1, 2, 3, 7])
def test_example_prompts_show_distinct_public_texts(examples: int) -> None:
    source = ExamplePrompts([*SEEDS, SEEDS[0], " "], examples)
    prompts = source.draw(200, np.random.default_rng(0))
    shown = [examples_in(prompt) for prompt in prompts]
    assert all(len(set(texts)) == len(texts) == examples for texts in shown)
    assert {text for texts in shown for text in texts} == set(SEEDS) == set(source.shown)
    assert prompts[0].text == expand_prompt(shown[0], total=max(6, examples + 1))
    assert {prompt.label for prompt in prompts} == {""} and source.labels == ()
    assert source.draw(200, np.random.default_rng(0)) == prompts
    assert source.draw(200, np.random.default_rng(1)) != prompts


def test_example_prompts_by_class_show_texts_of_the_class_in_equal_numbers() -> None:
    pool = {label: [f"{label} {i}" for i in range(5)] for label in ("up", "down", "side")}
    source = ExamplePrompts(pool, 2)
    prompts = source.draw(20, np.random.default_rng(0))
    counts = Counter(prompt.label for prompt in prompts)
    assert sorted(counts.values()) == [6, 7, 7] and source.labels == tuple(pool)
    for prompt in prompts:
        assert set(examples_in(prompt)) <= set(pool[prompt.label])
    # Which class is left short is drawn: no class loses in every round.
    lasts = {
        min(labels, key=labels.__getitem__)
        for seed in range(20)
        if (labels := Counter(p.label for p in source.draw(20, np.random.default_rng(seed))))
    }
    assert lasts == set(pool)


def test_too_few_examples_name_the_key() -> None:
    with pytest.raises(ValueError, match=r"popri\.examples.*\[1, 10\]"):
        ExamplePrompts(SEEDS, 11)
    with pytest.raises(ValueError, match="of class 'b'"):
        ExamplePrompts({"a": SEEDS, "b": ["one"]}, 2)


def test_instructions_name_the_class() -> None:
    source = InstructionPrompts("Write a {label} review: ", ["good", "bad", "good"])
    prompts = source.draw(4, np.random.default_rng(0))
    assert sorted(prompts, key=lambda p: p.label) == [
        *[Prompt("Write a bad review: ", "bad")] * 2,
        *[Prompt("Write a good review: ", "good")] * 2,
    ]
    assert InstructionPrompts("Write.").draw(2, np.random.default_rng(0)) == [Prompt("Write.")] * 2


@pytest.mark.parametrize(
    ("instruction", "labels"), [("", ()), (" \n", ()), ("Write.", ("a",)), ("A {label}.", ())]
)
def test_instructions_that_do_not_fit(instruction: str, labels: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"popri\.instruction"):
        InstructionPrompts(instruction, labels)


def test_an_instruction_has_no_headings() -> None:
    text = f"one {HEADING} two\n\nOriginal"
    whole, listed = InstructionPrompts("Write."), ExamplePrompts(SEEDS)
    assert read_text(whole, text, 1) == f"one {HEADING} two Original"
    assert read_text(listed, text, 1) == "one"
    assert read_text(whole, "one two", 3) is None
    assert read_text(whole, "one  two three", 3, 2) == "one two"


def test_the_source_that_the_keys_describe() -> None:
    assert isinstance(prompt_source([], examples=0, instruction="Write."), InstructionPrompts)
    plain = prompt_source(SEEDS, examples=2)
    assert isinstance(plain, ExamplePrompts) and plain.examples == 2
    with pytest.raises(ValueError, match=r"popri\.labels.*data\.label-column"):
        prompt_source(SEEDS, examples=2, labels=["a"])
    with pytest.raises(ValueError, match=r"popri\.instruction is used with popri\.examples = 0"):
        prompt_source(SEEDS, examples=2, instruction="Write.")


def test_generated_texts_carry_their_class_and_are_cut() -> None:
    source = InstructionPrompts("Write about {label}.", ["tea", "beer"])

    class Writer(Echo):
        def complete(
            self, prompts: Sequence[str], n: int, rng: np.random.Generator
        ) -> list[list[str]]:
            rows = super().complete(prompts, n, rng)
            return [[f"{p.split()[2]} {row[0]}"] for p, row in zip(prompts, rows, strict=True)]

    writer = Writer(lambda i: f"number {i // 2} and some more")
    texts = generate(
        source,
        writer,
        samples=40,
        rng=np.random.default_rng(0),
        max_words=3,
        exclude=["tea. number 0"],
        progress=False,
    )
    assert len({one.text for one in texts}) == 40
    assert LabelledText("tea. number 0", "tea") not in texts
    assert LabelledText("beer. number 0", "beer") in texts
    assert all(one.text.startswith(one.label) and len(one.text.split()) == 3 for one in texts)
    assert abs(Counter(one.label for one in texts)["tea"] - 20) <= 2


def test_what_gives_no_text_is_counted_by_cause() -> None:
    """A model may repeat the headings of its prompt in other letters: such a text is none."""

    class Listing:
        def complete(self, prompts: Sequence[str], count: int, rng: Any) -> list[list[str]]:
            found = ["one", "ORIGINAL text Sample 5 of the list", "a seed of mine", "new text here"]
            return [[found[i % 4]] for i in range(len(prompts))]

    dropped = Counter[str]()
    with pytest.raises(TooFewTextsError, match="too short") as caught:
        expand(
            ["a seed of mine", "another seed"], cast(Any, Listing()), samples=2, min_words=3,
            seeds_per_prompt=1, rng=np.random.default_rng(0), dropped=dropped, progress=False,
        )  # fmt: skip
    assert [one.text for one in caught.value.texts] == ["new text here"]
    assert dropped[SHORT] and dropped[HEADED] and dropped[REPEATED]
    assert sum(dropped.values()) == 8 - 1
