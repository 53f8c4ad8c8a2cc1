"""The longest common span, against a search of all pairs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.app.inspect.copies import BINS, SpanIndex, described, measure, tokens
from tests.app.inspect.rigs import texts

TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=9), min_size=1, max_size=5)


def naive(ours: list[str], theirs: list[list[str]]) -> int:
    """The longest run of ours that stands in one of theirs, by trying all."""
    runs = {tuple(ours[i:j]) for i, j in product(range(len(ours)), range(len(ours) + 1)) if i < j}
    within = {
        tuple(one[i:j]) for one in theirs for i in range(len(one)) for j in range(i, len(one) + 1)
    }
    return max(map(len, runs & within), default=0)


@given(TEXTS, TEXTS, st.data())
def test_as_a_naive_search(
    ours: list[list[str]], theirs: list[list[str]], data: st.DataObject
) -> None:
    chosen = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(theirs), max_size=len(theirs)))
    )
    lengths, places = SpanIndex(ours, theirs).longest(chosen)
    wanted = [one for one, is_chosen in zip(theirs, chosen, strict=True) if is_chosen]
    assert lengths.tolist() == [naive(one, wanted) for one in ours]
    for text, length, place in zip(ours, lengths, places, strict=True):
        assert naive(text[place : place + length], wanted) == length


def test_a_long_text_copied_whole_and_one_of_one_word() -> None:
    long = ["x"] * 5000
    lengths, _ = SpanIndex([long, ["y"]], [["x"] * 3000, ["z"]]).longest(np.array([True, True]))
    assert lengths.tolist() == [3000, 0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Don't stop, Anna!", ["don", "t", "stop", "anna"]),
        ("ไปกิน pizza", [*"ไปกิน", "pizza"]),
        ("我们去 3 次", [*"我们去", "3", "次"]),
    ],
)
def test_a_token_is_a_word_or_where_there_are_no_spaces_a_character(
    text: str, found: list[str]
) -> None:
    assert tokens(text) == found


def test_both_sides_are_compared_in_equal_numbers() -> None:
    private = {f"p{i}": ["a b c d", "e f"] for i in range(30)}
    found = measure(texts(["a b c d x", "q"], private, {"h": ["a b z", "y"]}))
    assert found["private"]["users"] == 30 and found["equal"]["users"] == 1
    assert found["equal"]["quantiles"]["1"] == 4 and found["held_out"]["quantiles"]["1"] == 2
    assert list(found["private"]["texts_by_least_tokens"].values())[:3] == [1, 0, 1]
    assert len(found["private"]["texts_by_least_tokens"]) == len(BINS)
    assert found["longest"] == [{"row": 0, "tokens": 4, "span": "a b c d"}]


def test_characters_are_said_to_be_counted() -> None:
    told = "\n".join(described(measure(texts(["我们去公园"], {"p": ["我们去"]}))))
    assert "text 1: 3 tokens" in told and "a character is a token (1 synthetic texts" in told
