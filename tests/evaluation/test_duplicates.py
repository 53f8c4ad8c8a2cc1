"""Near-duplicates against a brute-force count, on hand-made and on random texts."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from privsyn_flower.evaluation import duplicates
from privsyn_flower.evaluation.duplicates import near_duplicates


def grams(text: str, size: int) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def brute(ours: list[str], theirs: list[str], run: int, shingle: int) -> dict[str, float]:
    """The same figures by comparing every pair."""
    longest, sharing, similar, largest = 0, 0, 0, 0.0
    for text in ours:
        best, runs = 0.0, 0
        for other in theirs:
            size = 1
            while grams(text, size) & grams(other, size):
                size += 1
            runs = max(runs, size - 1)
            one, two = grams(text, shingle), grams(other, shingle)
            best = max(best, len(one & two) / max(1, len(one | two)))
        longest, largest = max(longest, runs), max(largest, best)
        sharing += runs >= run
        similar += best >= 0.5
    return {
        "share": sharing / len(ours),
        "similar_share": similar / len(ours),
        "longest_shared_words": longest,
        "largest_jaccard": largest,
    }


def random_texts(seed: int, count: int, source: list[str]) -> list[str]:
    """Random words, some runs of which are copied out of `source`."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        words = [f"w{k}" for k in rng.integers(200, size=int(rng.integers(3, 40)))]
        if source and rng.random() < 0.5:
            lent = source[int(rng.integers(len(source)))].split()
            start = int(rng.integers(len(lent)))
            words[2:2] = lent[start : start + int(rng.integers(1, 25))]
        texts.append(" ".join(words))
    return texts


@pytest.mark.parametrize("seed", range(6))
def test_same_as_comparing_every_pair(seed: int) -> None:
    theirs = random_texts(seed, 12, [])
    ours = random_texts(100 + seed, 15, theirs)
    found = near_duplicates(ours, theirs, run=6, shingle=3)
    for name, value in brute(ours, theirs, 6, 3).items():
        assert found[name] == pytest.approx(value, abs=1e-4), name
    assert 0 < found["share"] < 1


def test_words_count_not_their_form() -> None:
    reference = ["The cell, once divided, keeps half of its PROTEIN in each of the daughters."]
    text = "we saw: the cell once divided keeps half of its protein and so on"
    found = near_duplicates([text, "nothing of the kind"], reference)
    assert found["longest_shared_words"] == 9
    assert found["share"] == 0.5
    assert found["copies"] == 0.0
    assert near_duplicates([text], reference, run=10)["share"] == 0.0


def test_a_run_must_lie_within_one_text_of_either_side() -> None:
    halves = ["one two three four", "five six seven eight"]
    whole = ["one two three four five six seven eight"]
    assert near_duplicates(halves, whole)["longest_shared_words"] == 4
    assert near_duplicates(whole, halves)["longest_shared_words"] == 4
    assert near_duplicates(whole, halves)["share"] == 0.0


def test_copies_of_any_length() -> None:
    found = near_duplicates(["Short one.", "short", "unlike"], ["short one", "other"])
    assert found["copies"] == found["share"] == pytest.approx(1 / 3, abs=1e-5)
    assert found["texts"] == 3 and found["reference_texts"] == 2


@pytest.mark.parametrize(
    ("ours", "theirs"), [([], ["a b"]), (["a b"], []), ([], []), (["!"], ["?"])]
)
def test_nothing_to_compare(ours: list[str], theirs: list[str]) -> None:
    found = near_duplicates(ours, theirs)
    assert found["share"] == found["copies"] == found["similar_share"] == 0.0
    assert found["longest_shared_words"] == 0


def test_similar_texts_without_a_long_run() -> None:
    words = [f"w{k}" for k in range(40)]
    changed = [("x" if k % 10 == 9 else word) for k, word in enumerate(words)]
    found = near_duplicates([" ".join(changed)], [" ".join(words)], run=10, shingle=2)
    assert found["share"] == 0.0
    assert found["longest_shared_words"] == 9
    assert found["largest_jaccard"] == pytest.approx(32 / (39 + 39 - 32), abs=1e-3)
    assert found["similar_share"] == 1.0


@pytest.mark.parametrize("wrong", [{"run": 0}, {"shingle": 0}, {"similar": 0.0}, {"similar": 1.5}])
def test_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        near_duplicates(["a"], ["b"], **wrong)  # type: ignore[arg-type]


def test_a_phrase_that_very_many_texts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks bound the memory, whatever the texts share, and change nothing."""
    phrase = "all rights are reserved by the authors of this paper"
    ours = [f"{phrase} a{i} b{i} c{i}" for i in range(50)]
    theirs = [f"{phrase} x{i} y{i}" for i in range(300)]
    once = near_duplicates(ours, theirs)
    assert once["longest_shared_words"] == 10
    assert once["largest_jaccard"] == pytest.approx(6 / (9 + 8 - 6), abs=1e-3)
    monkeypatch.setattr(duplicates, "PAIRS", 1000)
    assert near_duplicates(ours, theirs) == once


def test_pairs_are_not_compared_one_by_one() -> None:
    """2,000,000 pairs of 30 words: seconds, where a comparison of each would take minutes."""
    rng = np.random.default_rng(0)

    def texts(count: int) -> list[str]:
        return [" ".join(row) for row in rng.zipf(1.3, size=(count, 30)).astype(str)]

    ours = texts(200)
    clock = time.process_time()
    near_duplicates(ours, texts(10_000))
    assert time.process_time() - clock < 10
