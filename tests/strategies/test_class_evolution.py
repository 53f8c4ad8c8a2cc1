"""PE, Aug-PE and PrE-Text with classes: who competes with whom, and whose class a text has."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest

from privsyn_flower.config import ConfigError, PeConfig, PreTextConfig, RunConfig
from privsyn_flower.data import label_of
from privsyn_flower.protocol.question import MOST_CLASSES
from privsyn_flower.strategies import NothingSurvived, PrEText, PrivateEvolution
from privsyn_flower.text import load_embedder
from tests.conftest import sentences
from tests.rigs.private_evolution import Numbered, calls

LABELS = ("good", "bad", "odd")
FIRST = {name: [f"{name} {text}" for text in sentences(40, i)] for i, name in enumerate(LABELS)}
BIG = {name: [f"{name} text number {i}" for i in range(100)] for name in LABELS}
MANY = ",".join(map(str, range(MOST_CLASSES + 1)))
RANKED = {"selection": "rank", "copies": 3}


def strategy(rounds: int = 3, seed: int = 0, initial: Any = FIRST, **options: Any) -> Any:
    given = {"population": 7, "lookahead": 1, "threshold": 0.0, **options}
    return PrivateEvolution(
        initial,
        embedder=load_embedder("ngram-64"),
        variation=Numbered(),
        rounds=rounds,
        config=PeConfig(**given),
        seed=seed,
    )


def names(method: Any) -> list[str]:
    return [LABELS[i] for i in method.classes]


def begins_with_its_class(texts: list[str], classes: list[str]) -> bool:
    return all(text.startswith(name) for text, name in zip(texts, classes, strict=True))


@pytest.mark.parametrize("options", [{}, RANKED])
def test_every_class_has_its_share_in_every_round(options: dict[str, Any]) -> None:
    """7 survivors of 3 classes: 3, 2 and 2, each with L candidates; a variation keeps its class."""
    method, rng = strategy(**options), np.random.default_rng(0)
    copies = options.get("copies", 1)
    for rnd in (1, 2, 3):
        assert len(method.population) == 7 * copies
        assert begins_with_its_class(method.population, names(method))
        counts = [names(method).count(name) for name in LABELS]
        assert counts == [3 * copies, 2 * copies, 2 * copies]
        method.learn(rnd, rng.normal(3, 2, 7 * copies), 1.0)
        assert all(text.startswith(label_of(text)) for text in method.seeds)
        assert {label_of(text) for text in method.seeds} == set(LABELS)


@pytest.mark.parametrize("options", [{}, {**RANKED, "lookahead": 2}])
def test_the_question_says_the_class_of_each_candidate(options: dict[str, Any]) -> None:
    method = strategy(**options)
    query = method.ask(1)
    assert query.kind == "votes" and query.length == len(method.population)
    assert json.loads(query.options["labels"]) == query.labels == list(LABELS)
    assert [LABELS[i] for i in query.extra["classes"]] == names(method)


def test_aug_pe_takes_the_best_of_each_class() -> None:
    method = strategy(**RANKED)
    first, classes = list(method.population), names(method)
    votes = np.random.default_rng(3).normal(0, 5, 21)
    votes[np.array(classes) == "good"] += 100  # its class has all the votes, and 3 survivors
    method.learn(1, votes, 1.0)
    wanted = []
    for name, size in zip(LABELS, (3, 2, 2), strict=True):
        places = [i for i in range(21) if classes[i] == name]
        wanted += [first[i] for i in sorted(places, key=lambda i: -votes[i])[:size]]
    assert method.seeds == method.population[:7] == wanted
    assert calls(method) == [[text for text in wanted for _ in range(2)]]


def test_pe_draws_each_class_by_its_own_votes() -> None:
    """A class of few votes is drawn from by their shares in it, not in all."""
    method = strategy(seed=4, population=300, initial=BIG)
    first, classes = np.array(method.population), np.array(names(method))
    votes = np.zeros(300)
    votes[classes == "good"] = 1000.0
    few = np.flatnonzero(classes == "bad")[:2]
    votes[few] = [1.0, 3.0]
    votes[classes == "odd"] = 5.0
    method.learn(1, votes, 1.0)
    drawn = [text for text in calls(method)[0] if text.startswith("bad")]
    assert len(drawn) == 100 and set(drawn) == set(first[few])
    assert drawn.count(first[few[1]]) == pytest.approx(75, abs=15)


def test_a_class_without_votes_stays_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    method = strategy(threshold=1.0, threshold_unit="votes")
    votes = np.where(np.array(names(method)) == "bad", -4.0, 5.0)
    with caplog.at_level(logging.WARNING, logger="privsyn_flower"):
        method.learn(1, votes, 1.0)
    assert "no candidate of class 'bad' has more than H votes" in caplog.text
    assert begins_with_its_class(method.population, names(method))
    with pytest.raises(NothingSurvived, match=r"pe\.threshold"):
        method.learn(2, np.full(7, -4.0), 1.0)


@pytest.mark.parametrize("options", [{}, RANKED])
def test_a_restored_strategy_goes_on_alike(options: dict[str, Any]) -> None:
    one, two, again = (strategy(**options) for _ in range(3))
    votes = np.random.default_rng(0).normal(3, 2, size=(4, len(one.population)))
    for rnd in (1, 2, 3):
        one.learn(rnd, votes[rnd], 1.0)
    two.learn(1, votes[1], 1.0)
    again.restore(json.loads(json.dumps(two.state())))
    assert list(map(label_of, again.seeds)) == list(map(label_of, two.seeds))
    for rnd in (2, 3):
        again.learn(rnd, votes[rnd], 1.0)
    assert one.state() == again.state()
    assert list(map(label_of, one.seeds)) == list(map(label_of, again.seeds))


def test_the_same_text_may_stand_for_two_classes() -> None:
    alike = {name: [f"text {i}" for i in range(3)] for name in LABELS}
    method = strategy(population=3, initial=alike, **RANKED)
    method.learn(1, np.arange(9.0), 1.0)
    assert [label_of(text) for text in method.seeds] == list(LABELS)


def test_pretext_keeps_the_survivors_of_all_rounds_with_their_classes() -> None:
    method = PrEText(
        FIRST,
        embedder=load_embedder("ngram-64"),
        variation=Numbered(),
        rounds=2,
        config=PreTextConfig(population=6, lookahead=1, threshold=0.0, labels="good, bad, odd"),
    )
    method.learn(1, np.arange(6.0), 1.0)
    before = list(method.seeds)
    method.learn(2, np.arange(6.0), 1.0)
    assert method.seeds[: len(before)] == before and len(method.seeds) > len(before)
    assert all(text.startswith(label_of(text)) for text in method.seeds)


@pytest.mark.parametrize(
    ("initial", "options", "says"),
    [
        (FIRST, {"population": 2}, r"pe\.population = 2 for 3 classes"),
        (FIRST, {"neighbors": 3}, r"2 candidates.*pe\.neighbors = 3"),
        (FIRST, {"labels": "good, bad"}, r"pe\.labels.*good, bad, odd"),
        (FIRST["good"], {"labels": "good, bad"}, r"no classes: give them class by class"),
        ({"good": FIRST["good"], "bad": ["one"]}, {}, r"1 distinct.*of 3 of class 'bad'"),
    ],
)
def test_classes_that_cannot_begin(initial: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        strategy(initial=initial, **options)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"pe.labels": "a, b", "data.source": "hub:x"}, r"pe\.labels needs data\.label-column"),
        ({"pe.labels": "a, a"}, r"pe\.labels.*a class twice"),
        ({"pe.labels": " , ", "data.label-column": "k"}, r"pe\.labels = ' , ' names no class"),
        (
            {"pe.labels": MANY, "pe.population": 2000, "data.label-column": "k"},
            r"pe\.labels names 1025 classes: at most 1024",
        ),
        ({"pe.labels": "a, b, c", "pe.population": 2}, r"pe\.population = 2 for 3 classes"),
        (
            {"pe.labels": "a, b", "pe.initial": "model", "pe.prompt": "Write"},
            r"pe\.prompt = 'Write' must hold \{label\}",
        ),
        ({"pe.initial": "model", "pe.prompt": "A {label} one"}, r"pe\.prompt.*\{label\}"),
        (
            {"pe.labels": "a, b", "data.label-column": "label", "sft.epochs": 1},
            r"sft\.epochs = 1 with pe\.labels",
        ),
        ({"evaluation.task": "classification"}, r"pe\.labels = ''.*'pretext', 'pe'"),
        (
            {"evaluation.task": "classification", "pe.labels": "a", "data.label-column": "k"},
            r"pe\.labels = 'a': at least 2",
        ),
    ],
)
def test_keys_that_do_not_fit(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RunConfig.from_flat({"method": "pe", **values})


def test_as_many_classes_as_a_question_has() -> None:
    most = MANY.rpartition(",")[0]
    assert len(PreTextConfig(labels=most, population=2000).labels.split(",")) == MOST_CLASSES


def test_the_classes_are_those_of_the_method() -> None:
    own = {"data.label-column": "label", "pretext.labels": "a, b", "popri.labels": "c, d"}
    assert list(RunConfig.from_flat({"method": "pretext", **own}).classes) == ["a", "b"]
    given = {"data.label-column": "label", "pe.labels": "e, f", "popri.labels": "c, d"}
    assert list(RunConfig.from_flat({"method": "pe", **given}).classes) == ["e", "f"]
