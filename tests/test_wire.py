"""The wire format: round trip, size bounds, and refusal of what is malformed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privsyn_flower import exchange, greeting, wire
from privsyn_flower.exchange import record_bytes
from privsyn_flower.greeting import Hello
from privsyn_flower.question import Noise, Query, Ticket
from privsyn_flower.wire import Refusal, WireError

TICKET = Ticket("run", "votes", 3, 1)
NOISE = Noise(2.5, 4096.0, 24, 85.0, 5.0)


def query(m: int = 20, d: int = 384) -> Query:
    rows = np.random.default_rng(0).normal(size=(m, d)).astype(np.float32)
    return Query.votes(rows, bound=1.0, model="m", clip="worst-case", samples_cap=4)


def test_round_trip(loopback: Any) -> None:
    sent = query()
    got, ticket, noise = wire.read_ask(wire.ask(sent, TICKET, NOISE, 7, 5, 60.0), 5)
    assert (ticket, noise) == (TICKET, NOISE)
    assert np.array_equal(got.question(), sent.question())
    assert (got.kind, got.length, got.bound, got.model) == ("votes", 20, 1.0, "m")
    assert dict(got.options) == dict(sent.options)


def test_bytes_per_candidate(loopback: Any) -> None:
    message = wire.ask(query(m=1024), TICKET, NOISE, 7, 5, 60.0)
    assert record_bytes(message.content) / 1024 <= 450
    reply = wire.answer(message, TICKET, np.zeros(1024, np.uint64), 24)
    assert 3 <= record_bytes(reply.content) / 1024 <= 4


@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 5)),
        elements=st.floats(-(2.0**99), 2.0**99, width=32),
    )
)
def test_quantisation_error_is_half_a_step(rows: Any) -> None:
    coded = Query.votes(rows, bound=1.0, model="m")
    step = np.abs(rows).max(axis=1, keepdims=True) / 127
    assert (np.abs(coded.question() - rows) <= step * 0.5001 + 1e-35).all()


@pytest.mark.parametrize("bad", [np.zeros((0, 3)), np.full((2, 2), np.nan), np.zeros(4)])
def test_wrong_candidates_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="candidates of shape"):
        Query.votes(bad, bound=1.0, model="m")


def test_residues_travel_and_nothing_else(loopback: Any) -> None:
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    vector = np.random.default_rng(1).integers(0, 2**24, size=20).astype(np.uint64)
    reply = wire.answer(message, TICKET, vector, 24)
    assert set(reply.content) == {"answer"}
    assert set(reply.content.config_records["answer"]) == {
        "protocol",
        "run",
        "query",
        "round",
        "attempt",
        "code",
        "vector",
    }
    assert np.array_equal(wire.read_answer(reply, TICKET, 20, 24).residues, vector)


def _tampered(change: dict[str, Any]) -> Message:
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    head = message.content.config_records["ask"]
    for key, value in change.items():
        head[key] = value
    return message


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"protocol": 1}, Refusal.PROTOCOL),
        ({"bound": -1.0}, Refusal.MALFORMED),
        ({"bound": float("nan")}, Refusal.MALFORMED),
        ({"noise-multiplier": 0.0}, Refusal.MALFORMED),
        ({"sampling-rate": 1.5}, Refusal.MALFORMED),
        ({"bits": 4}, Refusal.MALFORMED),
        ({"min-weight": "many"}, Refusal.MALFORMED),
        ({"round": 0}, Refusal.MALFORMED),
        ({"weight": 6}, Refusal.SETUP),
    ],
)
def test_nodes_refuse_malformed_queries(loopback: Any, change: Any, code: Refusal) -> None:
    with pytest.raises(WireError) as caught:
        wire.read_ask(_tampered(change), 5)
    assert caught.value.code is code


def test_nodes_refuse_questions_that_are_not_int8_rows(loopback: Any) -> None:
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    message.content["question"] = ArrayRecord([np.zeros((20, 4)), np.ones(20, np.float32)])
    with pytest.raises(WireError, match="int8 rows"):
        wire.read_ask(message, 5)
    del message.content["question"]
    with pytest.raises(WireError, match="unreadable"):
        wire.read_ask(message, 5)


def test_hello(loopback: Any) -> None:
    message = greeting.hello(5, 10.0)
    facts = Hello(weight=3, partition=2, deployed=True)
    assert greeting.read_hello(greeting.answer_hello(message, facts)) == facts
    head = ConfigRecord({"protocol": 7})
    old = exchange.outgoing(RecordDict({"ask": head}), 5, greeting.HELLO, ttl=10.0)
    with pytest.raises(WireError) as caught:
        greeting.read_hello(greeting.answer_hello(old, facts))
    assert caught.value.code is Refusal.PROTOCOL


@pytest.mark.parametrize("data", [b"", b"PK", "text", 3, [1.0], b"x" * 100_000])
def test_hostile_answers_are_malformed_and_nothing_else(loopback: Any, data: Any) -> None:
    """Whatever a node sends, the run refuses its answer and goes on."""
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    reply = wire.answer(message, TICKET, np.zeros(20, np.uint64), 24)
    reply.content.config_records["answer"]["vector"] = data
    with pytest.raises(WireError) as caught:
        wire.read_answer(reply, TICKET, 20, 24)
    assert caught.value.code is Refusal.MALFORMED


@pytest.mark.parametrize("data", [b"", b"PK", b"\x93NUMPY\x01\x00v\x00{", b"x" * 100_000])
def test_hostile_questions_are_malformed_and_nothing_else(loopback: Any, data: bytes) -> None:
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    array = Array(dtype="int8", shape=(20, 384), stype="numpy.ndarray", data=data)
    message.content["question"] = ArrayRecord({"rows": array, "scales": array})
    with pytest.raises(WireError) as caught:
        wire.read_ask(message, 5)
    assert caught.value.code is Refusal.MALFORMED


def test_the_digest_survives_the_way(loopback: Any) -> None:
    """Numbers that are whole on the server arrive as floats."""
    noise = Noise(2, 4096, 24, 85, 5)
    asked = query()
    got = wire.read_ask(wire.ask(asked, TICKET, noise, 7, 5, 60.0), 5)
    assert wire.question_digest(*got) == wire.question_digest(asked, TICKET, noise)


def test_the_digest_covers_every_number_and_array() -> None:
    asked = query()
    seen = {wire.question_digest(asked, TICKET, NOISE)}
    for change in (
        {"bound": 2.0},
        {"model": "n"},
        {"rows": asked.rows + 1},
        {"scales": asked.scales * 2},
    ):
        seen.add(wire.question_digest(replace(asked, **change), TICKET, NOISE))
    for noise in ({"multiplier": 3.0}, {"min_weight": 1.0}, {"sampling_rate": 0.5}):
        seen.add(wire.question_digest(asked, TICKET, replace(NOISE, **noise)))
    seen.add(wire.question_digest(asked, replace(TICKET, attempt=2), NOISE))
    assert len(seen) == 9


def test_refusals_are_bound_to_their_ticket(loopback: Any) -> None:
    reply = wire.refuse(wire.ask(query(), TICKET, NOISE, 7, 5, 60.0), Refusal.POLICY)
    head = dict(reply.content.config_records["answer"])
    assert head == {
        "run": "run", "query": "votes", "round": 3, "attempt": 1, "protocol": 2, "code": "policy"
    }  # fmt: skip
