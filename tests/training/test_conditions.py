"""The conditions of a question: what travels, what is refused, and a text's own condition."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.data import LabelledText
from privsyn_flower.queries.votes import vote_histogram
from privsyn_flower.strategies.synthesis.topic_counts import topic_question
from privsyn_flower.text.topics import TopicModel
from privsyn_flower.training import conditions as module
from privsyn_flower.training.conditions import ROWS, SCALES, WORDS, ConditionOptions, Conditions
from tests.fuzz import fuzz_settings

EMBEDDER = "e" * 64


def topics(count: int = 4, dimension: int = 6, seed: int = 0) -> TopicModel:
    rows = np.random.default_rng(seed).standard_normal((count, dimension))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    words = tuple((f"word{number}", "lemma") for number in range(count))
    return TopicModel(rows.astype(np.float32), words, EMBEDDER)


def asked(**values: Any) -> Conditions:
    return Conditions(**{"topics": topics(), "document_type": "abstract", **values})


def sent(conditions: Conditions) -> tuple[dict[str, Any], dict[str, Any]]:
    return conditions.to_options(), conditions.to_arrays()


def test_what_travels_says_the_same_on_the_other_side() -> None:
    want = asked(labels=("tea", "x"), max_source=33)
    got = Conditions.from_query(*sent(want))
    assert got is not None and got.topics is not None and want.topics is not None
    assert (got.document_type, got.labels, got.max_source) == ("abstract", ("tea", "x"), 33)
    assert got.topics.keywords == want.topics.keywords and got.topics.embedder == EMBEDDER
    assert np.abs(got.topics.rows - want.topics.rows).max() < 0.02  # int8
    assert Conditions.from_query({"clip-norm": 1.0}, {}) is None
    without = Conditions(None, max_source=5)
    assert Conditions.from_query(*sent(without)) == without and not without.to_arrays()
    assert "" not in without.to_options().values()  # Flower cannot count the bytes of those


def test_a_text_is_conditioned_on_the_topic_that_it_votes_for() -> None:
    """The histogram and the training mean the same topic: both go by the quantised rows."""
    want = asked()
    got = Conditions.from_query(*sent(want))
    assert got is not None and got.topics is not None and want.topics is not None
    rows = np.random.default_rng(1).standard_normal((500, 6)).astype(np.float32)
    counts = np.bincount(got.topics.assign(rows), minlength=4)
    question = topic_question(want.topics, 1.0).question()
    assert np.array_equal(counts, vote_histogram(rows, question, metric="cosine"))


def test_a_text_without_a_topic_is_left_out() -> None:
    conditions = asked(labels=("tea", "coffee"))
    model = conditions.topics
    assert model is not None
    texts = [
        LabelledText("one", "tea"),
        LabelledText("two", "coffee"),
        LabelledText("three", "milk"),
        "four",
    ]
    rows = np.stack([model.rows[2], np.full(6, np.nan, "f4"), model.rows[0], model.rows[1]])
    kept, told = conditions.pairs(texts, rows)
    assert kept == ["one"]  # the others have no finite row, or no class in the list
    assert told == ["Document Type: abstract\nLabel: tea\nKeywords: word2, lemma"]
    kept, told = asked().pairs(texts, rows)
    assert kept == ["one", "three", "four"] and told[2].endswith("Keywords: word1, lemma")
    assert conditions.pairs(texts, rows[:0]) == ([], [])  # the embedder failed
    bare = Conditions(None)
    assert bare.pairs(["one", "two"], rows[:0]) == (["one", "two"], ["", ""])


def packed(value: Any) -> Any:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


ARRAYS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no rows": lambda a: {ROWS: a[ROWS][:0]},
    "fewer rows": lambda a: {ROWS: a[ROWS][:-1]},
    "rows of floats": lambda a: {ROWS: a[ROWS].astype(np.float32)},
    "flat rows": lambda a: {ROWS: a[ROWS].ravel()},
    "no dimension": lambda a: {ROWS: a[ROWS][:, :0]},
    "endless dimensions": lambda a: {ROWS: np.ones((4, 8193), np.int8)},
    "a row of zeros": lambda a: {ROWS: a[ROWS] * np.array([[1], [0], [1], [1]], np.int8)},
    "fewer scales": lambda a: {SCALES: a[SCALES][:-1]},
    "double scales": lambda a: {SCALES: a[SCALES].astype(np.float64)},
    "a scale that is not finite": lambda a: {SCALES: np.full(4, np.inf, np.float32)},
    "a negative scale": lambda a: {SCALES: -a[SCALES]},
    "words of too many bytes": lambda a: {WORDS: np.full((1 << 20) + 1, 32, np.uint8)},
    "no words": lambda a: {WORDS: a[WORDS][:0]},
    "words that are no bytes": lambda a: {WORDS: a[WORDS].astype(np.int16)},
    "words that are no JSON": lambda a: {WORDS: a[WORDS][:-1]},
    "deep words": lambda a: {WORDS: np.frombuffer(b"[" * 100_000, np.uint8)},
    "words of fewer topics": lambda a: {WORDS: packed([["a"]] * 3)},
    "a topic without words": lambda a: {WORDS: packed([["a"], [], ["a"], ["a"]])},
    "too many words": lambda a: {WORDS: packed([["a"] * 11] * 4)},
    "an empty word": lambda a: {WORDS: packed([[""]] * 4)},
    "an endless word": lambda a: {WORDS: packed([["a" * 1000]] * 4)},
    "a word of two lines": lambda a: {WORDS: packed([["a\nb"]] * 4)},
    "numbers": lambda a: {WORDS: packed([[1]] * 4)},
    "a list": lambda a: {WORDS: packed({"a": 1})},
}


@pytest.mark.parametrize("change", ARRAYS)
def test_arrays_that_do_not_fit_are_refused(change: str) -> None:
    options, arrays = sent(asked())
    with pytest.raises(ValueError, match=r"topic|ctcl"):
        Conditions.from_query(options, {**arrays, **ARRAYS[change](arrays)})


@pytest.mark.parametrize(
    "values",
    [
        {"topics": 65_536},
        {"topics": -1},
        {"topics": True},
        {"topics": 0},  # of an embedder
        {"embedder": ""},
        {"embedder": "e" * 1000},
        {"document_type": 7},
        {"document_type": "d" * 201},
        {"labels": 2},
        {"labels": "yes"},
        {"labels": "[]"},
        {"labels": "[1]"},
        {"labels": '[""]'},
        {"labels": '["a", "a"]'},
        {"labels": "[" * 100_000},
        {"labels": json.dumps([str(number) for number in range(1025)])},
        {"max_source": 0},
        {"max_source": 1025},
        {"max_source": 2.0},
    ],
)
def test_numbers_out_of_bounds_are_refused(values: dict[str, Any]) -> None:
    options, arrays = sent(asked())
    changed = {f"condition.{key.replace('_', '-')}": value for key, value in values.items()}
    with pytest.raises(ValueError, match=r"condition|topics"):
        Conditions.from_query({**options, **changed}, arrays)
    for key in set(changed) - {"condition.embedder", "condition.document-type", "condition.labels"}:
        missing = {name: value for name, value in options.items() if name != key}
        with pytest.raises(ValueError, match="missing"):
            ConditionOptions.from_options(missing)
    with pytest.raises(ValueError, match="not known"):
        ConditionOptions.from_options({**options, "condition.more": 1})


def test_what_no_node_would_take_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"ctcl\.max-source"):
        asked(max_source=5000)
    monkeypatch.setattr(module, "MOST_WORD_BYTES", 20)
    with pytest.raises(ValueError, match=r"ctcl\.topic-count"):
        asked().to_arrays()


ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=300))
ODD_ARRAYS = st.one_of(
    st.binary(max_size=64).map(lambda raw: np.frombuffer(raw, np.uint8)),
    st.recursive(ODD, lambda inner: st.lists(inner, max_size=4), max_leaves=12).map(packed),
    st.lists(st.floats(width=32), min_size=4, max_size=4).map(lambda v: np.array(v, np.float32)),
    st.lists(st.integers(-128, 127), max_size=24).map(lambda v: np.array(v, np.int8)),
    st.lists(st.integers(-128, 127), min_size=24, max_size=24).map(
        lambda v: np.array(v, np.int8).reshape(4, 6)
    ),
)


@pytest.mark.fuzz
def test_whatever_is_sent_is_a_model_or_a_value_error() -> None:
    options, arrays = sent(asked())

    @fuzz_settings(per_second=150)
    @given(
        st.dictionaries(st.sampled_from([*options, "condition.x"]), ODD, max_size=2),
        st.dictionaries(st.sampled_from(list(arrays)), ODD_ARRAYS, max_size=2),
    )
    def fuzzed(odd: dict[str, Any], odd_arrays: dict[str, Any]) -> None:
        try:
            found = Conditions.from_query({**options, **odd}, {**arrays, **odd_arrays})
        except ValueError:
            return
        assert found is not None
        rows = np.ones((2, 6), np.float32)
        texts, told = found.pairs(["a", "b"], rows)
        assert len(texts) == len(told) == 2 and all(len(one) < 2000 for one in told)

    fuzzed()
