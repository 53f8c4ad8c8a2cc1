"""Signals of text that nobody can use, from synthetic and public text alone."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.evaluation import quality as module
from privsyn_flower.evaluation.quality import (
    LONGEST,
    SHOWN,
    WORD_LIST,
    faults,
    quality,
    sentences,
    side_by_side,
)

PUBLIC = [
    "the list of all values is returned by the function",
    "a list of values in the order of their names",
    "return the mean of the rows and the number of them",
    "open the file and read the first line of it",
]


def test_nothing_is_said_of_no_text() -> None:
    assert quality([], PUBLIC) == {} and faults({}) == sentences({}) == []


def test_one_text_alone_has_its_own_figures() -> None:
    found = quality(["only this"], [])
    assert found["public"] == {} and found["compared"] == 1 and sentences(found) == []
    assert found["synthetic"] == {
        "repetitive": 0.0, "words": [2, 2, 2], "distinct": [1.0, 1.0, 0.0], "shared_runs": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("texts", [[""], ["", "  \n"], ["..."], ["🙂 🙂", "12 34"]])
def test_texts_without_a_word_are_measured(texts: list[str]) -> None:
    found = quality(texts, PUBLIC)
    assert found["synthetic"]["unknown_words"] == 0.0 and faults(found) == []
    assert quality(PUBLIC, texts)["texts"] == len(PUBLIC)


@pytest.mark.parametrize(
    ("text", "public", "fault"),
    [
        ("kata tidak dikenal", PUBLIC, True),
        ("The list, of values!", PUBLIC, False),
        ("春眠不觉晓", ["春晓不觉眠", "处处闻啼鸟"], False),
        ("def return array", ["春晓不觉眠", "处处不觉晓"], True),
    ],
)
def test_words_that_no_public_text_has(text: str, public: list[str], fault: bool) -> None:
    found = faults(quality([text], public))
    assert bool(found) == fault and all("of the written words are in no pub" in f for f in found)


def test_english_words_count_where_public_text_is_english(monkeypatch: pytest.MonkeyPatch) -> None:
    text = ["some people never sleep before midnight"]  # words that PUBLIC has not
    found = quality(text, PUBLIC)
    assert found["word_list"] == WORD_LIST and found["synthetic"]["unknown_words"] == 0.0
    german = ["der Hund läuft über die Straße", "die Katze schläft auf dem Sofa"]
    found = quality(text, german)
    assert found["word_list"] == "" and found["synthetic"]["unknown_words"] == 1.0
    monkeypatch.setattr(module, "shipped", lambda name: None)
    try:
        module._word_list.cache_clear()
        assert quality(text, PUBLIC)["word_list"] == WORD_LIST  # of the package with MiniLM
        monkeypatch.setattr(module, "minilm_package", lambda: None)
        module._word_list.cache_clear()
        assert quality(text, PUBLIC)["word_list"] == ""  # public text is all there is
    finally:
        module._word_list.cache_clear()


def test_half_of_the_words_may_be_unknown_and_no_more() -> None:
    at, above = ["list values xqza xqzb"], ["list xqzc xqza xqzb"]
    assert faults(quality(at, PUBLIC)) == []
    (told,) = faults(quality(above, PUBLIC))
    assert "most words are not words: 75%" in told and "models.generator" in told


def test_a_loop_repeats_itself_and_a_refrain_does_not() -> None:
    loop = "open the file and read " * 6
    refrain = "open the file and close it, then return the list and open the file and leave"
    assert quality([loop, loop, refrain], PUBLIC)["synthetic"]["repetitive"] == 0.6667
    (told,) = faults(quality([loop, loop, refrain], PUBLIC))
    assert told.startswith("most texts repeat themselves: in 67% of them more than 20%")
    assert faults(quality([loop, refrain], PUBLIC)) == []  # half of them is not most
    assert faults(quality([loop], [loop, loop])) == []  # as public text does


def test_copies_are_no_fault_and_said() -> None:
    found = quality([PUBLIC[0].upper(), PUBLIC[1] + "!", "read the names of the rows"], PUBLIC)
    assert found["copies"] == 0.6667 and faults(found) == []
    (told,) = sentences(found)
    assert told.startswith("most texts are copies of public text: 67% have the very words of one")
    assert sentences(quality([PUBLIC[0], "read the names"], PUBLIC)) == []


def test_lengths_distinct_words_and_shared_runs() -> None:
    texts = ["a b c d e", "a b c d f", "g h i j k"]
    own = quality(texts, [])["synthetic"]
    assert own["words"] == [5, 5, 5] and own["distinct"] == [0.7333, 0.75, 0.7778]
    assert own["shared_runs"] == 0.3333  # "a b c d" of two texts, of six runs


def test_sets_of_unequal_size_are_compared_at_equal_numbers() -> None:
    rng = random.Random(0)
    texts = [" ".join(rng.choices("abcdefghij", k=8)) for _ in range(400)]
    found = quality(texts, texts[:20])
    assert found["compared"] == 20 and found["texts"] == 400
    assert found["synthetic"]["distinct"] == quality(texts[::20], [])["synthetic"]["distinct"]


TEXTS = st.lists(st.text(max_size=40), max_size=6)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS)
def test_any_texts_have_shares_and_go_into_a_summary(texts: list[str], public: list[str]) -> None:
    found = quality(texts, public)
    assert json.loads(json.dumps(found, allow_nan=False)) == found

    def shares(part: dict[str, Any]) -> list[float]:
        keys = ("repetitive", "shared_runs", "unknown_words")
        return [*part.get("distinct", []), *(part[key] for key in keys if key in part)]

    if texts:
        both = [*shares(found["synthetic"]), *shares(found["public"]), found["copies"]]
        assert all(0.0 <= share <= 1.0 for share in both)
        assert found["copies"] == quality(texts[::-1], public)["copies"]
    assert all(isinstance(told, str) for told in sentences(found))


def test_every_nth_text_of_each_kind() -> None:
    many = [f"text {n}" for n in range(10 * SHOWN)]
    found = side_by_side(public=many, seeds=many[:2], synthetic=[])
    assert found == {"public": many[::10], "seeds": many[:2]}
    assert list(side_by_side(seeds=many, public=many)) == ["seeds", "public"]


def test_long_texts_are_cut() -> None:
    found = side_by_side(public=["x" * (LONGEST + 1)])
    assert found == {"public": ["x" * LONGEST]}
