"""Updates on the wire: a dense question as a train message, and whose noise its sum carries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy import clip_l2
from privsyn_flower.privacy.encoding.dense import DensePlan, dense_numbers, encode_dense
from privsyn_flower.privacy.encoding.quantize import IntegerPlan, to_modulus
from privsyn_flower.privacy.encoding.sizing import WrapAround, plan_histogram
from privsyn_flower.protocol import greeting, messaging, wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.messaging import record_bytes
from privsyn_flower.protocol.noise import (
    Noise,
    Source,
    check_range,
    decode_sum,
    encoded_bound,
    encoded_length,
    integer_plan,
)
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal, WireError

TICKET = Ticket("run", "update", 3, 1)
ROTATION = bytes(range(32))
OPTIONS: dict[str, Any] = {"clip-norm": 0.5, "indicator": 0.0, "cycle": 4, "training.epochs": 1}


def update(length: int = 100, size: int = 64, bound: float = 0.5) -> Query:
    return Query.update(
        np.arange(size, dtype=np.uint8),
        length=length,
        bound=bound,
        model="m",
        rotation=ROTATION,
        options=OPTIONS,
    )


def noise_of(
    query: Query, multiplier: float = 1.0, weight: float = 20.0, source: Source = "nodes"
) -> Noise:
    own = multiplier if source == "nodes" else 0.0
    plan = dense_numbers(query.bound, query.length, own, weight, 0.8 * weight)
    return Noise(
        multiplier, plan.sensitivity, plan.bits, 0.8 * weight, scale=plan.scale, source=source
    )


def votes() -> Query:
    return Query.votes(np.eye(5), bound=2.0, model="m")


def sent(query: Query, noise: Noise) -> Message:
    return wire.ask(query, TICKET, noise, 7, 5, 60.0)


# --- the way ----------------------------------------------------------------------------------


def test_an_update_travels_as_flowers_own_training(loopback: Any) -> None:
    query = update()
    for source in ("nodes", "aggregator"):
        noise = noise_of(query, source=source)
        message = sent(query, noise)
        assert message.metadata.message_type == "train"
        got, ticket, got_noise = wire.read_ask(message, 5)
        assert (got.kind, ticket, got_noise) == ("update", TICKET, noise)
        assert (got.length, got.bound, got.model) == (100, 0.5, "m")
        assert dict(got.options) == {**OPTIONS, "encoding": "dense", "rotation": ROTATION.hex()}
        assert got.rotation == ROTATION and got.dense and not got.rows.size
        parameters = got.extra["parameters"]
        assert parameters.dtype == np.uint8 and parameters.tolist() == list(range(64))
        assert wire.question_digest(got, ticket, noise) == wire.question_digest(
            query, TICKET, noise
        )


def test_the_parameters_are_nearly_all_that_travels(loopback: Any) -> None:
    query = update(size=100_000)
    assert record_bytes(sent(query, noise_of(query)).content) < 100_000 + 2_000
    head, *_ = wire.read_head(sent(query, noise_of(query)))
    assert not head.extra and head.options == {**query.options}


@pytest.mark.parametrize("kind", ["votes", "scores", "evaluation", "update", "my-own"])
def test_message_types_are_told_apart(kind: str) -> None:
    assert wire.kind_of(wire.message_type(kind)) == kind
    assert (wire.message_type(kind) == "train") == (kind == "update")


@pytest.mark.parametrize(
    "type_", ["query", "query.update", "evaluate.mine", "train.mine", "system"]
)
def test_other_message_types_are_no_question(type_: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.kind_of(type_)
    assert caught.value.code is Refusal.KIND


def test_the_digest_covers_what_is_new() -> None:
    query = update()
    noise = noise_of(query)
    seen = {wire.question_digest(query, TICKET, noise)}
    for other in (
        replace(query, extra={"parameters": query.extra["parameters"] + np.uint8(1)}),
        replace(query, options={**query.options, "rotation": bytes(32).hex()}),
        replace(query, options={**query.options, "cycle": 5}),
        replace(query, length=101),
    ):
        seen.add(wire.question_digest(other, TICKET, noise))
    for change in ({"scale": noise.scale * 0.99}, {"source": "aggregator"}):
        seen.add(wire.question_digest(query, TICKET, replace(noise, **change)))
    assert len(seen) == 7


def test_a_secure_sum_has_the_encoded_length() -> None:
    for length, padded in ((100, 128), (4096, 4096), (5000, 5120)):
        query = update(length)
        noise = noise_of(query)
        assert encoded_length(query) == padded
        assert wire.session_for(query, TICKET, noise).length == padded
    assert (
        encoded_length(votes())
        == wire.session_for(votes(), TICKET, Noise(1.0, 4096.0, 24, 5.0)).length
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"noise-source": "somebody"}, Refusal.MALFORMED),
        ({"noise-source": 1}, Refusal.MALFORMED),
        ({"scale": -1.0}, Refusal.MALFORMED),
        ({"scale": float("inf")}, Refusal.MALFORMED),
        ({"scale": 1e6, "sensitivity": 4e5}, Refusal.MALFORMED),  # scale * bound = 5e5
        ({"scale": 0.0, "bound": 1e-300, "sensitivity": 1e9}, Refusal.MALFORMED),
        ({"sensitivity": 2.0**31}, Refusal.MALFORMED),
        ({"bits": 40}, Refusal.MALFORMED),
        ({"option.encoding": ""}, Refusal.MALFORMED),
        ({"option.encoding": "sparse"}, Refusal.MALFORMED),
        ({"option.rotation": "00"}, Refusal.MALFORMED),
        ({"option.rotation": "zz" * 32}, Refusal.MALFORMED),
        ({"option.rotation": 7}, Refusal.MALFORMED),
        ({"protocol": 3}, Refusal.PROTOCOL),
    ],
)
def test_malformed_updates_are_refused(loopback: Any, change: Any, code: Refusal) -> None:
    query = update()
    message = sent(query, noise_of(query))
    wire.read_head(message)
    for key, value in change.items():
        message.content.config_records["ask"][key] = value
    for read in (wire.read_head, wire.read_ask):
        with pytest.raises(WireError) as caught:
            read(message)
        assert caught.value.code is code


@pytest.mark.parametrize(
    "change", [{"option.encoding": "dense"}, {"scale": 4096.0}, {"sensitivity": 0.5}, {"bits": 64}]
)
def test_malformed_histograms_are_refused(loopback: Any, change: dict[str, Any]) -> None:
    """Dense numbers on votes, a scale beyond the sensitivity, no encoding at all."""
    message = sent(votes(), Noise(1.0, 4096.0, 24, 5.0))
    for key, value in change.items():
        message.content.config_records["ask"][key] = value
    with pytest.raises(WireError) as caught:
        wire.read_ask(message, 5)
    assert caught.value.code is Refusal.MALFORMED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": np.zeros(4)}, "float64"),
        ({"parameters": np.zeros((2, 2), np.uint8)}, r"\(2, 2\)"),
        ({"parameters": np.zeros(0, np.uint8)}, r"\(0,\)"),
        ({"rotation": b"short"}, "rotation has 5 bytes"),
        ({"length": 0}, "length = 0"),
    ],
)
def test_wrong_updates_are_named(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {
        "parameters": np.zeros(4, np.uint8),
        "length": 3,
        "bound": 1.0,
        "model": "m",
        "rotation": ROTATION,
        "options": {},
    } | change
    with pytest.raises(ValueError, match=words):
        Query.update(arguments.pop("parameters"), **arguments)
    with pytest.raises(ValueError, match="rotation has 0 bytes"):
        _ = votes().rotation


# --- the numbers ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    length=st.integers(1, 6000),
    bound=st.floats(1e-4, 1e3),
    users=st.integers(1, 30),
    data=st.data(),
)
def test_sums_decode(length: int, bound: float, users: int, data: Any) -> None:
    """The decoded sum is the users' sum, but for each one's rounding."""
    query = update(length, bound=bound)
    source = data.draw(st.sampled_from(["nodes", "aggregator"]))
    noise = noise_of(query, weight=users, source=source)
    plan = integer_plan(query, noise)
    assert isinstance(plan, DensePlan) and plan.length == length
    rng = np.random.default_rng(length)
    vectors = [clip_l2(rng.standard_normal(length), bound) for _ in range(users)]
    total = np.zeros(encoded_length(query), dtype=np.uint64)
    for vector in vectors:
        encoded = encode_dense(vector, plan, query.rotation)
        assert np.linalg.norm(encoded / plan.scale) <= encoded_bound(query, noise) * (1 + 1e-12)
        total += to_modulus(encoded, noise.bits)
    got = decode_sum(total, query, noise)
    assert got.shape == (length,) and got.dtype == np.float64 and got.flags.writeable
    # Roundings have a standard deviation of 1/2 at most; the rotation spreads them.
    error = np.linalg.norm(got - np.sum(vectors, axis=0)) * plan.scale
    assert error <= 3 * (users * plan.padded_length) ** 0.5 + 1e-4 * users * plan.scale * bound


def test_histograms_are_as_before() -> None:
    query, noise = votes(), Noise(1.5, 4096.0, 24, 5.0)
    plan = integer_plan(query, noise)
    assert isinstance(plan, IntegerPlan) and plan.scale == 2048.0
    assert encoded_bound(query, noise) == 2.0
    residues = to_modulus(plan.encode_users(np.array([0, 1, -1, 0, 1.0]), np.zeros(5, np.intp)), 24)
    assert decode_sum(residues, query, noise).tolist() == [0, 1, -1, 0, 1]
    finer = replace(noise, scale=1024.0)
    assert integer_plan(query, finer).scale == 1024.0 and encoded_bound(query, finer) == 4.0


@pytest.mark.parametrize("kind", ["update", "votes"])
def test_the_range_holds_the_noise_where_there_is_any(kind: str) -> None:
    """Chosen for 20 users without the nodes' noise, it has no room for noise or many more users."""
    if kind == "update":
        query = update()
        alone = noise_of(query, multiplier=3.0, source="aggregator")
    else:
        query = votes()
        plan = plan_histogram(
            2.0, 5, noise_multiplier=0.0, weight=20.0, min_weight=16.0, sensitivity=1600.0
        )
        assert plan.bits == 16
        alone = Noise(3.0, 1600.0, 16, 16.0, source="aggregator")
    check_range(query, alone, 20.0)
    with pytest.raises(WrapAround, match="noise_multiplier = 0"):
        check_range(query, alone, 25.0)
    with pytest.raises(WrapAround, match="noise_multiplier = 3"):
        check_range(query, replace(alone, source="nodes"), 20.0)


# --- the greeting -----------------------------------------------------------------------------


@pytest.mark.parametrize("type_", [greeting.HELLO, wire.TRAIN])
def test_a_greeting_is_told_from_a_question_of_the_same_type(loopback: Any, type_: str) -> None:
    facts = Hello(weight=3, partition=2, deployed=True)
    message = greeting.hello(5, 10.0, type_)
    assert message.metadata.message_type == type_ and greeting.is_hello(message)
    assert greeting.read_hello(greeting.answer_hello(message, facts)) == facts
    query = update()
    assert not greeting.is_hello(sent(query, noise_of(query)))
    with pytest.raises(WireError) as caught:
        wire.read_head(message)
    assert caught.value.code in (Refusal.MALFORMED, Refusal.KIND)
    old = messaging.outgoing(
        RecordDict({"hello": ConfigRecord({"protocol": 3})}), 5, type_, ttl=9.0
    )
    with pytest.raises(WireError) as caught:
        greeting.read_hello(greeting.answer_hello(old, facts))
    assert caught.value.code is Refusal.PROTOCOL
