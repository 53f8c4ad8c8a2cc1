"""Near duplicates: the rule, its priority, and its agreement with a plain implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.common import units
from privsyn_flower.data.dedup import NearDuplicates, keep_first, keep_own


def words(start: int, count: int) -> str:
    return " ".join(f"w{i}" for i in range(start, start + count))


def plain(texts: list[str], gram: int) -> list[int]:
    """The rule, word for word."""
    taken: set[tuple[str, ...]] = set()
    kept = []
    for i, text in enumerate(texts):
        own = units.words(text)
        grams = {tuple(own[k : k + gram]) for k in range(max(1, len(own) - gram + 1))} - {()}
        if grams and not grams & taken:
            taken |= grams
            kept.append(i)
    return kept


def test_thirteen_shared_words_are_too_many_and_twelve_are_not() -> None:
    base = words(0, 30)
    assert keep_first([[base, words(17, 30)]]) == [[0]]  # shares w17..w29: 13 words
    assert keep_first([[base, words(18, 30)]]) == [[0, 1]]


def test_case_and_punctuation_do_not_count() -> None:
    base = words(0, 20)
    assert keep_first([[base], [base.upper().replace(" ", ", ") + "!"]]) == [[0], []]


def test_text_is_removed_from_the_side_of_lower_priority() -> None:
    shared = words(0, 20)
    sides = [[shared], [shared, words(100, 20)], [words(90, 25), words(200, 20)]]
    assert keep_first(sides) == [[0], [1], [1]]


def test_a_refused_text_does_not_block_others() -> None:
    first, second, third = words(0, 20), words(5, 30), words(22, 20)
    assert keep_first([[first, second, third]]) == [[0, 2]]  # third overlaps only the refused


def test_short_texts_are_compared_whole() -> None:
    assert keep_first([["two words", "Two, words!", "two", "two words more", ""]]) == [[0, 2, 3]]


def test_scripts_without_spaces_are_compared_by_word() -> None:
    shared = "今天天气很好我们一起去公园散步吧然后回家吃饭看电视休息"
    assert keep_first([[shared + "他说", "她说" + shared, "完全不同的一句话在这里没有重复"]]) == [
        [0, 2]
    ]


def test_texts_of_marks_or_emoji_are_texts() -> None:
    assert keep_own(["😀😀", "😀 😀", "👍", "!!!", "?", "नमस्ते", "नमस्ता", " "]) == [0, 2, 3, 4, 5, 6]


def test_release_gives_the_text_back() -> None:
    near = NearDuplicates([words(0, 20), words(0, 20)])
    assert near.take(0)
    assert not near.take(1)
    near.release(0)
    assert near.take(1)


def test_no_text_at_all() -> None:
    assert keep_first([[], []]) == [[], []]


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from("abc"), max_size=9).map(" ".join), max_size=12),
    gram=st.integers(1, 4),
)
def test_agrees_with_the_plain_rule(texts: list[str], gram: int) -> None:
    (kept,) = keep_first([texts], gram)
    assert kept == keep_own(texts, gram) == plain(texts, gram)


@pytest.mark.slow
def test_many_texts_take_seconds() -> None:
    rng = np.random.default_rng(0)
    vocabulary = np.array([f"word{i}" for i in range(5000)])
    texts = [" ".join(row) for row in vocabulary[rng.integers(0, 5000, size=(20_000, 45))]]
    assert keep_first([texts, texts[:100]]) == [list(range(20_000)), []]
