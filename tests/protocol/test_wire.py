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

from privsyn_flower.protocol import greeting, messaging, wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.messaging import record_bytes
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.packing import pack_rows
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from tests.rigs.wire import NOISE, TICKET, query


def scores(m: int = 18, d: int = 384, dimension: int = 0, spread: Any = 1.0) -> Query:
    rows = (spread * np.random.default_rng(0).normal(size=(m, d))).astype(np.float32)
    names = ["news", "mail", "notes"]
    groups = [m // 6] * 6
    return Query.scores(
        rows,
        bound=1.0,
        model="m",
        groups=groups,
        classes=names * 2,
        labels=names,
        dimension=dimension,
    )


def test_round_trip(loopback: Any) -> None:
    sent = query()
    got, ticket, noise = wire.read_ask(wire.ask(sent, TICKET, NOISE, 7, 5, 60.0), 5)
    assert (ticket, noise) == (TICKET, NOISE)
    assert np.array_equal(got.question(), sent.question())
    assert (got.kind, got.length, got.bound, got.model) == ("votes", 20, 1.0, "m")
    assert dict(got.options) == dict(sent.options)


@pytest.mark.parametrize("dimension", [0, 16])
def test_extra_arrays_travel(loopback: Any, dimension: int) -> None:
    sent = scores(dimension=dimension)
    got, *_ = wire.read_ask(wire.ask(sent, TICKET, NOISE, 7, 5, 60.0), 5)
    names = ["classes", "groups", *(["projection"] if dimension else [])]
    assert sorted(got.extra) == sorted(sent.extra) == names
    for name, array in sent.extra.items():
        assert got.extra[name].dtype == array.dtype and np.array_equal(got.extra[name], array)
    assert got.extra["groups"].tolist() == [3] * 6
    assert got.extra["classes"].tolist() == [0, 1, 2, 0, 1, 2]
    assert dict(got.options) == dict(sent.options)
    assert np.array_equal(got.question(), sent.question())
    assert wire.question_digest(got, TICKET, NOISE) == wire.question_digest(sent, TICKET, NOISE)
    head, *_ = wire.read_head(wire.ask(sent, TICKET, NOISE, 7, 5, 60.0))
    assert not head.extra and not head.rows.size


def test_bytes_of_a_round_of_scores(loopback: Any) -> None:
    """18,000 candidates: at most 7 MB, and 2 MB in 160 of 384 dimensions."""
    spread = np.exp(-np.arange(384) / 80)  # about that of embeddings of text
    for dimension, most in ((0, 7e6), (160, 2e6)):
        asked = scores(18_000, dimension=dimension, spread=spread)
        message = wire.ask(asked, TICKET, NOISE, 7, 5, 60.0)
        assert 0.5 * most < record_bytes(message.content) <= most


def test_a_projection_keeps_the_inner_products_that_matter() -> None:
    """Candidates that lie in few dimensions lose nothing but the rounding to steps."""
    rng = np.random.default_rng(3)
    rows = (rng.normal(size=(60, 8)) @ rng.normal(size=(8, 64))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for dimension in (8, 20):  # 20: most directions hold nothing
        asked = Query.scores(rows, bound=1.0, model="m", groups=[60], dimension=dimension)
        columns = asked.options["dimension"]
        assert dimension <= columns <= 2 * dimension
        assert asked.rows.shape == (60, columns)
        assert asked.extra["projection"].shape == (64, columns)
        np.testing.assert_allclose(asked.question() @ rows.T, rows @ rows.T, atol=0.03)


def test_directions_that_matter_much_have_finer_steps_than_int8_has_room_for() -> None:
    """Where one direction dwarfs the others, eight bits of it would drown them."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(500, 32)) * np.where(np.arange(32) < 1, 1, 0.02)
    rows[:, 0] = 1 + 0.2 * rows[:, 0]
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    asked = Query.scores(rows, bound=1.0, model="m", groups=[500], dimension=31)
    assert asked.rows.shape[1] > 31
    wrong = np.abs(asked.question()[:, 0] - rows[:, 0]).max()
    assert wrong < 2e-3 < np.abs(rows[:, 0]).max() / 255


def test_candidates_without_a_direction_can_be_projected() -> None:
    asked = Query.scores(np.zeros((6, 32)), bound=1.0, model="m", groups=[6], dimension=4)
    assert not asked.question().any() and asked.question().shape == (6, 32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": [3] * 5}, "sum to the 18"),
        ({"groups": [0, 18]}, "from 1 to 65535"),
        ({"groups": [9.0, 9.0]}, "whole numbers"),
        ({"classes": ["news"] * 5}, "6 prompts"),
        ({"classes": ["spam"] * 6}, r"\['spam'\]"),
        ({"labels": ["news", "news"]}, "distinct"),
        ({"labels": []}, "distinct"),
        ({"dimension": 384}, "popri.dimension"),
        ({"dimension": -1}, "popri.dimension"),
        ({"candidates": np.full((18, 384), np.nan)}, "finite"),
        ({"candidates": np.zeros((0, 384))}, "finite"),
    ],
)
def test_wrong_score_questions_are_named(change: dict[str, Any], words: str) -> None:
    arguments = {
        "candidates": np.ones((18, 384), np.float32),
        "groups": [3] * 6,
        "classes": ["news"] * 6,
        "labels": ["news", "mail"],
    } | change
    with pytest.raises(ValueError, match=words):
        Query.scores(arguments.pop("candidates"), bound=1.0, model="m", **arguments)


@pytest.mark.parametrize(
    "names",
    ["classes", "groups,classes", "classes,classes", "classes,Groups", "a,b,c", "../x,y", "x" * 99],
)
def test_hostile_names_of_extra_arrays_are_malformed(loopback: Any, names: str) -> None:
    message = wire.ask(scores(), TICKET, NOISE, 7, 5, 60.0)
    message.content.config_records["ask"]["extra"] = names
    with pytest.raises(WireError) as caught:
        wire.read_ask(message, 5)
    assert caught.value.code is Refusal.MALFORMED


def test_hostile_extra_arrays_are_malformed(loopback: Any) -> None:
    """Pickles, no arrays at all, one too many: refused without a look at what is in them."""
    pickled = np.array([{"a": 1}], dtype=object)
    asked = scores()
    for sent in (
        [*asked.packed, np.zeros(1)],
        asked.packed[:1],
        [asked.rows, asked.scales],
    ):
        message = wire.ask(asked, TICKET, NOISE, 7, 5, 60.0)
        message.content["question"] = ArrayRecord(sent)
        with pytest.raises(WireError) as caught:
            wire.read_ask(message, 5)
        assert caught.value.code is Refusal.MALFORMED
    for data in (b"", b"\x93NUMPY\x01\x00", pickled.dumps()):
        message = wire.ask(asked, TICKET, NOISE, 7, 5, 60.0)
        bad = Array(dtype="uint16", shape=(6,), stype="numpy.ndarray", data=data)
        good = [Array(array) for array in asked.packed]
        message.content["question"] = ArrayRecord(dict(zip("abc", [*good[:2], bad], strict=True)))
        with pytest.raises(WireError) as caught:
            wire.read_ask(message, 5)
        assert caught.value.code is Refusal.MALFORMED


def test_an_empty_question_is_no_head(loopback: Any) -> None:
    """What looks like a head in `check` must never be answered."""
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    message.content["question"] = ArrayRecord(
        [pack_rows(np.zeros((0, 0), np.int8), np.zeros(0, np.float32))]
    )
    with pytest.raises(WireError, match="empty"):
        wire.read_ask(message, 5)


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


def test_nodes_refuse_questions_that_are_not_packed_rows(loopback: Any) -> None:
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    message.content["question"] = ArrayRecord([np.zeros((20, 4))])
    with pytest.raises(WireError, match="no packed rows"):
        wire.read_ask(message, 5)
    for scale in (np.inf, np.nan, 3e38):  # times 127 the last is not finite
        scales = np.full(20, scale, np.float32)
        message.content["question"] = ArrayRecord([pack_rows(query().rows, scales)])
        with pytest.raises(WireError, match="not finite, or too large"):
            wire.read_ask(message, 5)
    del message.content["question"]
    with pytest.raises(WireError, match="unreadable"):
        wire.read_ask(message, 5)


def test_hello(loopback: Any) -> None:
    message = greeting.hello(5, 10.0)
    facts = Hello(weight=3, partition=2, deployed=True)
    reply = greeting.answer_hello(message, facts)
    assert greeting.read_hello(reply) == facts
    assert all(r.count_bytes() for m in (message, reply) for r in m.content.values())
    weak = greeting.answer_hello(greeting.hello(5, 10.0), replace(facts, resources="weak"))
    assert greeting.read_hello(weak) == replace(facts, resources="weak")
    weak.content.config_records["answer"]["resources"] = ""  # what older nodes say of none
    del weak.content.config_records["answer"]["evaluates"]
    assert greeting.read_hello(weak) == facts
    plain = greeting.answer_hello(message, replace(facts, evaluates=False))
    assert greeting.read_hello(plain) == replace(facts, evaluates=False)
    head = ConfigRecord({"protocol": wire.PROTOCOL + 1})
    old = messaging.outgoing(RecordDict({"hello": head}), 5, greeting.HELLO, ttl=10.0)
    with pytest.raises(WireError) as caught:
        greeting.read_hello(greeting.answer_hello(old, facts))
    assert caught.value.code is Refusal.PROTOCOL


def test_only_who_gave_its_facts_is_greeted_by_another_type(loopback: Any) -> None:
    def node(partition: int, **other: Any) -> Any:
        def answered(message: Message) -> Message | None:
            if (answer := other.get(message.metadata.message_type, ...)) is not ...:
                return answer and answer(message)
            return greeting.answer_hello(message, facts(partition))

        return answered

    def facts(partition: int) -> Hello:
        return Hello(3, partition, deployed=True, evaluates=partition != 7)

    refuses = lambda message: wire.refuse(message, Refusal.SETUP)  # noqa: E731
    grid = loopback({
        1: node(1), 2: node(2, train=refuses), 3: node(3, train=None),
        4: node(4, evaluate=refuses), 5: node(5, evaluate=None),
        6: node(6, evaluate=lambda message: 1 / 0), 7: node(7),
    })  # fmt: skip
    types = ("train", "evaluate")
    found = greeting.greet(grid, list(grid.nodes), types, 0.1, lambda done, total: None)
    assert found.pop(1) == facts(1)
    told = {n: (own.message_type, own.absence.text) for n, own in found.items()}  # type: ignore[union-attr]
    assert told == {
        2: ("train", "refused: node-setup"),
        4: ("evaluate", "refused: node-setup in evaluate"),
        6: ("evaluate", "failed (Flower error code 2) in evaluate"),
        7: ("evaluate", "have no @private_evaluation"),
    }
    sent = [(m.metadata.message_type, m.metadata.dst_node_id) for m in grid.sent]
    assert sent == [*(("train", n) for n in range(1, 8)), *(("evaluate", n) for n in (1, 4, 5, 6))]
    alone = greeting.greet(grid, [7], ("evaluate",), 0.1, lambda done, total: None)
    assert alone == {7: facts(7)}


@pytest.mark.parametrize("data", [b"", b"PK", "text", 3, [1.0], b"x" * 100_000])
def test_hostile_answers_are_malformed_and_nothing_else(loopback: Any, data: Any) -> None:
    """Whatever a node sends, the run refuses its answer and goes on."""
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    reply = wire.answer(message, TICKET, np.zeros(20, np.uint64), 24)
    reply.content.config_records["answer"]["vector"] = data
    with pytest.raises(WireError) as caught:
        wire.read_answer(reply, TICKET, 20, 24)
    assert caught.value.code is Refusal.MALFORMED


@pytest.mark.parametrize("shape", [(2**31,), (2**40,), (2**20, 2**20), (-1,), (3,)])
def test_nothing_is_allocated_for_bytes_that_did_not_come(
    loopback: Any, shape: tuple[int, ...]
) -> None:
    import tracemalloc

    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(16)
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    array = Array("float64", (2,), "numpy.ndarray", data)
    message.content["question"] = ArrayRecord({"rows": array})
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="unreadable") as raised:
            wire.read_ask(message, 5)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert raised.value.code is Refusal.MALFORMED


@pytest.mark.parametrize("data", [b"", b"PK", b"\x93NUMPY\x01\x00v\x00{", b"x" * 100_000])
def test_hostile_questions_are_malformed_and_nothing_else(loopback: Any, data: bytes) -> None:
    message = wire.ask(query(), TICKET, NOISE, 7, 5, 60.0)
    array = Array(dtype="int8", shape=(20, 384), stype="numpy.ndarray", data=data)
    message.content["question"] = ArrayRecord({"rows": array})
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
    whole = scores(dimension=16)
    for name, array in whole.extra.items():
        changed = replace(whole, extra={**whole.extra, name: array + array.dtype.type(1)})
        less = replace(whole, extra={k: v for k, v in whole.extra.items() if k != name})
        seen |= {wire.question_digest(asked, TICKET, NOISE) for asked in (whole, changed, less)}
    assert len(seen) == 9 + 7


def test_refusals_are_bound_to_their_ticket(loopback: Any) -> None:
    reply = wire.refuse(wire.ask(query(), TICKET, NOISE, 7, 5, 60.0), Refusal.POLICY)
    head = dict(reply.content.config_records["answer"])
    assert head == {
        "run": "run",
        "query": "votes",
        "round": 3,
        "attempt": 1,
        "protocol": wire.PROTOCOL,
        "code": "policy",
    }


@pytest.mark.parametrize("sent", [query(), scores(), scores(dimension=16)])
def test_flower_can_count_the_bytes_of_questions_and_replies(loopback: Any, sent: Query) -> None:
    asked = wire.ask(sent, TICKET, NOISE, 7, 5, 60.0)
    replies = [
        wire.answer(asked, TICKET, np.ones(sent.length, np.uint64), NOISE.bits),
        *(wire.refuse(asked, Refusal.POLICY, key) for key in ("", "queries")),
    ]
    for message in (asked, *replies):
        assert all(record.count_bytes() for record in message.content.values())


def test_empty_strings_have_a_size() -> None:
    config = ConfigRecord({"kind": "update", "words": "", "bytes": b""})
    without = ConfigRecord({"kind": "update"})
    found, rest = (record_bytes(RecordDict({"c": one})) for one in (config, without))
    assert found == rest + len("words") + len("bytes")
