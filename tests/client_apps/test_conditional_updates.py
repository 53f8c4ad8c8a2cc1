"""Updates on pairs of a topic's keywords and a text: the node finds the topic, and keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps import updates
from privsyn_flower.client_apps.answers import guarded
from privsyn_flower.client_apps.answers import reply as answered
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.updates import UPDATE, update_tokens
from privsyn_flower.common.randomness import seeded
from privsyn_flower.data import EmbeddingCache
from privsyn_flower.privacy.clipping import clip_l2
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.noise import encoded_length
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.text.embedders import load_embedder
from privsyn_flower.training import LocalTraining
from privsyn_flower.training.conditions import ROWS, WORDS, Conditions
from privsyn_flower.training.models import load_model
from tests.conftest import node_context
from tests.rigs.conditional_updates import (
    SOURCE,
    about,
    base,  # noqa: F401
    by_hand,
    topics,
)
from tests.rigs.models import one_thread  # noqa: F401 - a fixture
from tests.rigs.updates import (
    CANARY,
    CLIP,
    TICKET,
    USERS,
    WEIGHT,
    answer,
    decoded,
    even,  # noqa: F401 - a fixture
    node,
    noise,
    private,
    question,
    start,
)
from tests.rigs.wire import refusal
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

PEOPLE = {name: texts for name, texts in USERS.items() if name != "long"}


def test_a_questions_topics_are_read_once(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its first check, and not again by the next and the answer."""
    reads, real = [], Conditions.from_query

    def read(*arguments: Any) -> Any:
        reads.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(Conditions, "from_query", read)
    query, device = about(base), node(tmp_path, base)
    for _ in range(2):
        updates.check_update(query, device)
        answer(query, device, PEOPLE)
    assert len(reads) == 1
    updates.check_update(about(base), device)
    assert len(reads) == 2  # another question's are its own


def test_each_text_is_learned_from_the_keywords_of_its_own_topic(
    tmp_path: Path, base: Path
) -> None:
    query, device = about(base, indicator=0.0), node(tmp_path, base)
    got = decoded(answer(query, device, PEOPLE), query)
    deltas = [by_hand(base, query, user) for user in ("short", "some", "canary")]
    want = sum(clip_l2(delta, CLIP) for delta in deltas)
    assert np.abs(got - want).max() < 8 / noise(query).scale < 2e-3 * np.abs(want).max()
    plain = decoded(answer(question(base, indicator=0.0), device, PEOPLE), query)
    assert np.abs(got - plain).max() > 1e-3


@pytest.mark.usefixtures("even")
def test_no_user_changes_another(tmp_path: Path, base: Path) -> None:
    """Brute force over neighbours, in the integers that travel; each with a node of its own."""
    query = about(base)

    def said(users: Any, name: str) -> Any:
        return answer(query, node(tmp_path / name, base), users)

    whole = said(PEOPLE, "whole")
    for name in PEOPLE:
        rest = said({n: texts for n, texts in PEOPLE.items() if n != name}, f"no-{name}")
        alone = said({name: PEOPLE[name]}, f"only-{name}")
        assert np.array_equal(whole - rest, alone)
        assert int(alone @ alone) <= noise(query).sensitivity ** 2
        assert alone.any() == (name not in ("empty", "blank"))
        other = said({**PEOPLE, name: ["something else entirely", "tea"]}, f"other-{name}")
        assert np.array_equal(other - rest, said({name: ["something else entirely", "tea"]}, name))


@pytest.mark.usefixtures("even")
def test_whose_topics_cannot_be_computed_counts_nothing(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedder fails on one user's text: that user is zeros, the others are as without it."""
    query = about(base)
    want = answer(
        query,
        node(tmp_path / "without", base),
        {name: texts for name, texts in PEOPLE.items() if name != "canary"},
    )
    real = type(load_embedder("ngram-64", "cpu", progress=False)).embed

    def embed(self: Any, texts: Any) -> Any:
        if CANARY in " ".join(texts):
            raise MemoryError(CANARY)
        return real(self, texts)

    monkeypatch.setattr(type(load_embedder("ngram-64", "cpu", progress=False)), "embed", embed)
    device = node(tmp_path / "with", base)
    assert np.array_equal(answer(query, device, PEOPLE), want)
    none = answer(query, node(tmp_path / "alone", base), {"canary": PEOPLE["canary"]})
    assert not none.any()


@pytest.mark.usefixtures("even")
def test_embeddings_come_from_the_cache_that_votes_fill(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, device = about(base), node(tmp_path, base)
    want = answer(query, device, PEOPLE)
    kind = type(load_embedder("ngram-64", "cpu", progress=False))
    monkeypatch.setattr(kind, "embed", lambda *_: pytest.fail("embedded twice"))
    from privsyn_flower.data import caches

    caches._memo.clear()  # another process, later
    assert np.array_equal(answer(query, device, PEOPLE), want)
    assert (device.cache / "embeddings" / "embeddings.sqlite").is_file()
    assert EmbeddingCache(device.cache / "embeddings", topics().embedder).forget("some")


@pytest.mark.usefixtures("even")
def test_without_conditions_every_text_follows_the_same_words(tmp_path: Path, base: Path) -> None:
    """Vanilla fine-tuning: no topics travel, and no embedder is asked for."""
    query = about(base, Conditions(None, max_source=SOURCE))
    assert set(query.extra) == {"parameters"}
    device = replace(node(tmp_path, base), embedder="no-such-embedder")
    got = answer(query, device, {"some": USERS["some"]})
    options = LocalTraining.from_options(query.options)
    rng = seeded(options.seed, query.rotation.hex(), "order", "some")
    with load_model(base, "cpu").load(start(base), options.trained) as loaded:
        want = loaded.train(USERS["some"], options, rng, [""] * 3, SOURCE)
    values = decoded(got, query)[:-1]
    assert np.abs(values - clip_l2(want, CLIP)).max() < 8 / noise(query).scale


def said_by(query: Query, device: Node) -> Any:
    """The reply to a whole message."""
    message = wire.ask(query, TICKET, noise(query), 1, WEIGHT, 60.0)
    return guarded(message, lambda: answered(message, node_context({}), device, UPDATE))


def refused(query: Query, device: Node) -> Refusal:
    return refusal(wire.read_answer, said_by(query, device), TICKET, encoded_length(query), 32)


def edited(base: Path, *, options: Any = None, extra: Any = None) -> Query:
    query = about(base)
    return replace(
        query,
        options={**query.options, **(options or {})},
        extra={**query.extra, **(extra or {})},
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": {ROWS: np.zeros((5, 64), np.int8)}},
        {"extra": {ROWS: np.ones((4, 64), np.int8)}},
        {"extra": {WORDS: np.full((1 << 20) + 1, 32, np.uint8)}},
        {"extra": {"more": np.zeros(3, np.uint8)}},
        {"options": {"condition.topics": 70_000}},
        {"options": {"condition.topics": 0, "condition.embedder": ""}},  # with the arrays
        {"options": {"condition.max-source": 1000}},  # beyond the positions
        {"options": {"condition.more": 1}},
    ],
    ids=lambda changes: str(list(next(iter(changes.values())))),
)
def test_what_does_not_fit_is_refused_before_private_text_is_opened(
    tmp_path: Path, base: Path, loopback: Any, changes: Any
) -> None:
    query = edited(base, **changes)
    assert refused(query, node(tmp_path, base, private)) is Refusal.MALFORMED


def test_topics_of_another_embedder_are_refused(tmp_path: Path, base: Path, loopback: Any) -> None:
    query = edited(base, options={"condition.embedder": "0" * 64})
    assert refused(query, node(tmp_path, base, private)) is Refusal.EMBEDDER
    device = replace(node(tmp_path, base, private), embedder="no-such-embedder")
    assert refused(about(base), device) is Refusal.MODEL


def test_the_owner_bounds_conditions_too(
    tmp_path: Path, base: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Their tokens go through the model, and their embedder is one more model."""
    query = about(base)
    most = update_tokens(query)
    assert most == 100 * 2 * (12 + SOURCE)
    allowed = Policy(
        queries=("update",), aggregation=("plain",), trusted_aggregator=True,
        min_surviving_weight=1.0, max_tokens=most, allowed_models=(query.model, topics().embedder),
    )  # fmt: skip
    longer = allowed.model_copy(update={"max_tokens": most - 1})
    other = allowed.model_copy(update={"allowed_models": (query.model,)})
    assert refused(query, node(tmp_path, base, private, policy=longer)) is Refusal.POLICY
    assert refused(query, node(tmp_path, base, private, policy=other)) is Refusal.POLICY
    assert "allowed-models" in caplog.text
    message = said_by(query, node(tmp_path, base, dict, policy=allowed))
    assert message.content["answer"]["code"] == "ok"


def test_the_topic_of_a_text_stays_on_the_node(
    tmp_path: Path, base: Path, loopback: Any, caplog: Any, capfd: Any
) -> None:
    """Nothing but the vector goes back, and no log names a topic, not even the node's own."""
    caplog.set_level("DEBUG")
    message = said_by(about(base), node(tmp_path, base, lambda: PEOPLE))
    record = message.content.config_records["answer"]
    assert set(record) == {"protocol", "run", "query", "round", "attempt", "code", "vector"}
    assert list(message.content.array_records) == list(message.content.metric_records) == []
    local = tmp_path / "node" / "node.log"
    heard = caplog.text + "".join(capfd.readouterr())
    heard += local.read_text() if local.is_file() else ""
    assert "xylophone" not in heard
    assert not any(word in heard for words in topics().keywords for word in words if len(word) > 4)


def test_topics_of_another_width_are_refused_before_a_text_is_opened(
    tmp_path: Path, base: Path
) -> None:
    query = about(base)
    half = np.ascontiguousarray(query.extra[ROWS][:, :32])
    narrow = replace(query, extra={**query.extra, ROWS: half})

    def closed() -> Any:
        raise AssertionError("opened")

    with pytest.raises(WireError, match="topic-rows of 32 dimensions, this embedder's have 64"):
        UPDATE.check(narrow, node(tmp_path, base, closed))
    UPDATE.check(query, node(tmp_path, base, closed))
