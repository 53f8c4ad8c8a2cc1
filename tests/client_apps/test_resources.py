"""Which group a node is of, by its owner; votes within topics, by hand and from hostile servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps import private_training
from privsyn_flower.client_apps.node.device import open_node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records import NodeRecords
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.text import load_embedder
from tests.client_apps.rig import NAMES, USERS, asked, bare
from tests.conftest import node_context, sentences
from tests.rigs import dropin
from tests.rigs.client_apps_votes import EMBEDDER, TICKET, ask, node, noise, reply, vector
from tests.rigs.dropin import home

__all__ = ["home"]

NUMBERS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]  # the topics of ten candidates; of topic 3 there is none


def ballot(**changes: Any) -> Query:
    embedder = load_embedder(EMBEDDER)
    rows = embedder.embed(sentences(10, 99))
    query = Query.votes(rows, bound=1.0, model=embedder.fingerprint)
    return replace(query.within_topics(embedder.embed(sentences(4, 7)), NUMBERS), **changes)


def refusal(message: Any, query: Query) -> Refusal | str:
    with pytest.raises(wire.WireError) as caught:
        wire.read_answer(message, TICKET, query.length, 32)
    return caught.value.code


# The group of a node ---------------------------------------------------------------------------


@pytest.mark.parametrize("own", ["strong", "weak", ""])
def test_a_node_answers_for_its_own_group_alone(tmp_path: Path, loopback: Any, own: str) -> None:
    """A question that names none is of a run without groups, whatever the node is."""
    plain, _ = ask()
    here = node(tmp_path)
    here = replace(here, facts=replace(here.facts, resources=own))
    for at, group in enumerate(("strong", "weak", "")):
        query, ticket = plain.only_for(group), replace(TICKET, attempt=at + 1)
        message = wire.ask(query, ticket, noise(1e-5), 1, 5, 60.0)
        if group in ("", own):
            answer = reply(message, here)
            assert len(wire.read_answer(answer, ticket, query.length, 32).residues)
        else:
            closed = replace(here, load=lambda: pytest.fail("private text was opened"))
            assert refusal(reply(message, closed), query) is Refusal.SETUP


def test_the_owner_says_it_in_the_node_config(tmp_path: Path, loopback: Any) -> None:
    (tmp_path / "users.jsonl").write_text('{"user_id": "u", "text": "weak"}\n')
    config = {"data": str(tmp_path / "users.jsonl"), "cache": str(tmp_path / "cache")}
    for value in ("strong", "weak", ""):
        facts = open_node(node_context({**config, "resources": value})).facts
        told = greeting.answer_hello(greeting.hello(1, 5.0), facts)
        assert greeting.read_hello(told).resources == value
    assert open_node(node_context(config)).facts.resources == ""
    with pytest.raises(wire.WireError, match="resources = 'phone'"):
        open_node(node_context({**config, "resources": "phone"}))


def test_a_node_that_names_another_group_is_of_none(loopback: Any) -> None:
    facts = greeting.Hello(1, 0, True, resources="everything")
    answer = greeting.answer_hello(greeting.hello(1, 5.0), facts)
    assert greeting.read_hello(answer).resources == ""


def test_drop_in_nodes_know_their_group(tmp_path: Path, loopback: Any) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('queries = ["update"]\naggregation = ["plain"]\n')

    @private_training
    def train(message: Any, context: Any) -> Any:
        pytest.fail("the function was called")

    config = {"cache": str(tmp_path / "node"), "policy": str(policy), "resources": "weak"}
    context = node_context(config)
    told = greeting.read_hello(train(greeting.hello(1, 5.0, "train"), context))
    assert told.resources == "weak" and told.deployed
    query = dropin.question().only_for("strong")
    message = wire.ask(query, dropin.TICKET, dropin.noise(query), 1, 1, 60.0)
    refused = train(message, context)
    with pytest.raises(wire.WireError) as caught:
        wire.read_answer(refused, dropin.TICKET, query.length, 32)
    assert caught.value.code is Refusal.SETUP


def test_a_node_stays_in_the_group_in_which_it_began_a_run(tmp_path: Path) -> None:
    """An owner who changes it pays in the next run; this run's other group charges other users."""
    records = NodeRecords(tmp_path / "node.sqlite")
    for run in ("run", "run-topics", "run"):
        records.join(run, "strong")
    with pytest.raises(wire.WireError, match="begun with resources = 'strong'") as caught:
        NodeRecords(tmp_path / "node.sqlite").join("run-votes", "weak")
    assert caught.value.code is Refusal.POLICY
    records.join("another", "weak")
    with pytest.raises(wire.WireError, match="run of 257 characters") as caught:
        records.join("r" * 257, "weak")
    assert caught.value.code is Refusal.POLICY


def test_a_question_that_is_refused_binds_no_node(tmp_path: Path, loopback: Any) -> None:
    """The owner may then name the other group, and the run still has this node's answer."""
    plain, _ = ask()
    here = node(tmp_path)
    weak = replace(here, facts=replace(here.facts, resources="weak"))
    strict = replace(weak, policy=Policy(queries=["scores"], aggregation=["plain"]))
    query = plain.only_for("weak")
    message = wire.ask(query, TICKET, noise(1e-5), 1, 5, 60.0)
    assert refusal(reply(message, strict), query) is Refusal.POLICY
    strong = replace(here, facts=replace(here.facts, resources="strong"))
    message = wire.ask(plain.only_for("strong"), TICKET, noise(1e-5), 1, 5, 60.0)
    assert len(wire.read_answer(reply(message, strong), TICKET, query.length, 32).residues)


# Votes within topics ---------------------------------------------------------------------------


def test_a_text_votes_among_the_candidates_of_its_topic(tmp_path: Path, loopback: Any) -> None:
    query = ballot()
    got = vector(reply(wire.ask(query, TICKET, noise(1e-5), 1, 5, 60.0), node(tmp_path)), query)
    embedder, want = load_embedder(EMBEDDER), np.zeros(10)
    rows, topics, silent = query.question(), embedder.embed(sentences(4, 7)), 0
    for name in NAMES[:5]:
        counts = np.zeros(10)
        for text in embedder.embed(list(USERS[name])):
            topic = int((topics @ text).argmax())
            own = np.flatnonzero(np.array(NUMBERS) == topic)
            silent += not len(own)
            if len(own):
                counts[own[((rows[own] - text) ** 2).sum(axis=1).argmin()]] += 1
        want += counts / max(1.0, np.linalg.norm(counts))
    assert silent and np.count_nonzero(want) > 2  # some texts are of the topic without candidates
    assert np.allclose(got, want, atol=5 / 4096)


def test_one_user_moves_no_more_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loopback: Any
) -> None:
    """Whatever its texts, and of however many topics: none, all, or not a number."""
    bare(monkeypatch)
    one = asked("votes", tmp_path, tmp_path)
    one.query = ballot()
    rest = {name: USERS[name] for name in NAMES[1:]}
    worlds = [
        rest,
        *({"u0": texts, **rest} for texts in (sentences(8, 50), sentences(1, 51), [""])),
    ]
    got = [one.integers(one.answer(one.message(at), own), at) for at, own in enumerate(worlds, 1)]
    moved = [change.astype(object) for change in (one - got[0] for one in got[1:])]
    assert 0 < max(int(change @ change) for change in moved) <= one.noise.sensitivity**2


@pytest.mark.parametrize(
    "change",
    [
        {"topics": np.zeros((4, 63), np.int8)},
        {"topics": np.zeros(4, np.int8)},
        {"topics": np.zeros((4, 64), np.float32)},
        {"topics": np.zeros((2, 64), np.int8)},
        {"topic-scales": np.ones(3, np.float32)},
        {"topic-scales": np.full(4, np.nan, np.float32)},
        {"topic-scales": np.full(4, 3e38, np.float32)},  # times 127 it is not finite
        {"topic-scales": np.ones(4, np.float64)},
        {"classes": np.full(10, 4, np.uint16)},
        {"classes": None},
        {"topic-scales": None},
    ],
)
def test_malformed_topics_are_refused_before_private_text_is_opened(
    tmp_path: Path, loopback: Any, change: dict[str, Any]
) -> None:
    extra = {**ballot().extra, **change}
    query = ballot(extra={name: array for name, array in extra.items() if array is not None})
    message = wire.ask(query, TICKET, noise(1e-5), 1, 5, 60.0)
    closed = node(tmp_path, lambda: pytest.fail("private text was opened"))
    assert refusal(reply(message, closed), query) is Refusal.MALFORMED
    labelled = ballot(options={**ballot().options, "labels": '["a", "b", "c", "d"]'})
    message = wire.ask(labelled, TICKET, noise(1e-5), 1, 5, 60.0)
    assert refusal(reply(message, closed), labelled) is Refusal.MALFORMED
