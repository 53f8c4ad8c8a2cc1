"""An aggregator's noise is on the residues: whatever a node sends, they say no more than a noisy
sum, and noise that is correlated over rounds still cancels."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy import Ledger
from privsyn_flower.privacy.correlated import Participation, factorization
from privsyn_flower.privacy.encoding.dense import (
    DensePlan,
    encode_dense,
    padded_length,
    rotate,
    unrotate,
)
from privsyn_flower.privacy.encoding.quantize import from_modulus, to_modulus
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise, encoded_length, integer_plan
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import ModularSum, PlainSum
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import AggregatorNoise
from privsyn_flower.strategies.engine.rounds import Rounds

LENGTH, BITS = 3000, 24


def update(rotation: bytes = bytes(32), length: int = LENGTH, bound: float = 1.0) -> Query:
    return Query.update(
        np.zeros(1, np.uint8), length=length, bound=bound, model="m", rotation=rotation, options={}
    )


def votes(length: int) -> Query:
    return Query.votes(np.eye(length), bound=2.0, model="m")


def numbers(query: Query, bits: int = BITS) -> Noise:
    scale = 4096 / query.bound / 1.01 if query.dense else 0.0
    return Noise(1.0, 4096.0, bits, 1.0, scale=scale, source="aggregator")


# One sum ----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 70),
    dense=st.booleans(),
    bits=st.sampled_from([16, 24, 32]),
    multiplier=st.floats(0.01, 1e4),
    seed=st.integers(0, 2**32),
)
def test_what_a_node_adds_comes_out_as_it_went_in(
    length: int, dense: bool, bits: int, multiplier: float, seed: int
) -> None:
    """Noise does not know what it is added to: no residues change what it hides."""
    query = update(length=length) if dense else votes(length)
    noise, size = numbers(query, bits), encoded_length(query)
    rng = np.random.default_rng(seed)
    own, hostile = rng.integers(0, 2**bits, (2, size), dtype=np.uint64)
    unit = rng.standard_normal(size)
    sums = [ModularSum(r.copy(), query, noise, 1.0) for r in (own, (own + hostile) % 2**bits)]
    for one in sums:
        one.add(unit, multiplier)
    first, second = (one.residues for one in sums)
    assert second.max() < 2**bits
    assert np.array_equal((first + hostile) % 2**bits, second)


@pytest.mark.parametrize("length", [LENGTH, 5])
def test_noise_is_for_one_users_integers_on_every_coordinate(length: int) -> None:
    """In padding, too: what is left of the sum there must not come out without noise."""
    query = update(length=length)
    noise, size = numbers(query), padded_length(length)
    unit = np.random.default_rng(1).standard_normal(size)
    one = ModularSum(np.zeros(size, dtype=np.uint64), query, noise, 1.0)
    one.add(unit, 3.0)
    integers = from_modulus(one.residues, BITS)
    assert integers == pytest.approx(3.0 * 4096 * rotate(unit, query.rotation), abs=0.5 + 1e-6)
    back = unrotate(integers, query.rotation, size)
    assert back == pytest.approx(3.0 * 4096 * unit, abs=5)
    assert one.decoded(2.0).vector == pytest.approx(back[:length] / noise.scale)
    assert one.decoded(2.0).noise_std == 2.0 * 4096 / noise.scale


# A run with a hostile node ----------------------------------------------------------------


class Asks:
    """A dense question with a rotation of its own in every round."""

    def __init__(self, rounds: int, length: int = LENGTH) -> None:
        self.rounds, self.length = rounds, length
        self.released: list[np.ndarray[Any, Any]] = []

    def ask(self, rnd: int) -> Query:
        return update(bytes([rnd]) * 32, self.length)

    def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
        self.released.append(released)
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


class Node:
    """Five users with one vector; a hostile node sends half the modulus instead."""

    def __init__(self, partition: int, vector: np.ndarray[Any, Any], hostile: bool = False) -> None:
        self.facts, self.vector, self.hostile = Hello(5, partition, False), vector, hostile
        self.sent: list[np.ndarray[Any, Any]] = []
        self.asked: list[tuple[Query, Noise]] = []

    def __call__(self, message: Message) -> Message | None:
        if greeting.is_hello(message):
            return greeting.answer_hello(message, self.facts)
        query, ticket, noise = wire.read_ask(message, self.facts.weight)
        plan = integer_plan(query, noise)
        assert isinstance(plan, DensePlan)
        integers = 5 * encode_dense(self.vector, plan, query.rotation)
        if self.hostile:
            integers = np.full(plan.padded_length, 2 ** (noise.bits - 1))
        self.sent.append(integers)
        self.asked.append((query, noise))
        return wire.answer(message, ticket, to_modulus(integers, noise.bits), noise.bits)


def run(
    tmp_path: Path, loopback: Any, nodes: list[Node], mechanism: AggregatorNoise, rounds: int
) -> Asks:
    strategy = Asks(rounds)
    ledger = Ledger.open(
        tmp_path / "ledger.jsonl", population="p", total_epsilon=100.0, total_delta=1e-6
    )
    plan = RoundPlan("r", 5 * len(nodes), 1.0, 0, 0.75, nodes=len(nodes), round_timeout=0.5)
    grid = loopback({10 + node.facts.partition: node for node in nodes})
    folder = RunFolder(tmp_path / "run")
    Rounds(grid, strategy, plan, folder, ledger, PlainSum(), mechanism=mechanism).run()
    return strategy


def vectors(count: int) -> list[np.ndarray[Any, Any]]:
    drawn = np.random.default_rng(5).standard_normal((count, LENGTH))
    return [one / np.linalg.norm(one) for one in drawn]


def test_half_the_modulus_shows_no_signs_of_the_bare_sum(tmp_path: Path, loopback: Any) -> None:
    """Sums that are shifted to the edge of the range wrap around, or not, by their sign: read off
    the release, that was the sign without noise wherever noise came after."""
    once = Participation(1)
    mechanism = AggregatorNoise(factorization("independent", 1), once, 5.0, tmp_path / "k", "r")
    honest = [Node(i, vector) for i, vector in enumerate(vectors(4))]
    hostile = Node(9, np.zeros(LENGTH), hostile=True)
    released = run(tmp_path, loopback, [*honest, hostile], mechanism, 1).released[0]
    query, noise = hostile.asked[0]
    truth = np.sum([node.sent[0] for node in honest], axis=0)
    back = rotate(released, query.rotation) * noise.scale
    right = float(((back < 0) == (truth >= 0)).mean())
    std = 5.0 * noise.sensitivity
    # With the noise below the modulus, a sign is as good as the noise lets it be.
    share = [0.5 * math.erfc(-abs(value) / std / math.sqrt(2)) for value in truth]
    assert abs(right - float(np.mean(share))) < 5 * 0.5 / math.sqrt(len(truth)) + 0.02
    assert right < 0.65 and float(np.abs(truth).mean()) < std


@pytest.mark.parametrize("name", ["blt", "banded", "tree-honaker"])
def test_correlated_noise_cancels_over_rounds_with_other_rotations(
    tmp_path: Path, loopback: Any, name: str
) -> None:
    rounds = 6
    always = Participation(rounds)
    matrix = factorization(name, rounds, participation=always, bands=4, buffers=2)
    mechanism = AggregatorNoise(matrix, always, 2.0, tmp_path / "k", "r")
    nodes = [Node(i, vector) for i, vector in enumerate(vectors(4))]
    released = run(tmp_path, loopback, nodes, mechanism, rounds).released
    noise = nodes[0].asked[0][1]
    unit = 2.0 * noise.sensitivity / noise.scale
    left = np.array(released) - 5 * np.sum([node.vector for node in nodes], axis=0)
    assert left.std(axis=1) == pytest.approx(unit * matrix.release_std(), rel=0.07)
    prefixes = np.cumsum(left, axis=0).std(axis=1)
    assert prefixes == pytest.approx(unit * matrix.prefix_std(), rel=0.07)
    assert np.abs(left.mean(axis=1)).max() < 6 * unit * matrix.release_std().max() / LENGTH**0.5


# The range --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    dense=st.booleans(),
    users=st.integers(10, 5000),
    z=st.floats(0.01, 500),
    name=st.sampled_from(["independent", "tree", "banded"]),
    colluding=st.sampled_from([0.0, 0.2]),
)
def test_the_range_has_room_for_the_loudest_release(
    dense: bool, users: int, z: float, name: str, colluding: float
) -> None:
    rounds = 16
    always = Participation(rounds)
    matrix = factorization(name, rounds, participation=always)
    mechanism = AggregatorNoise(matrix, always, z, Path("unused"), "r")
    plan = RoundPlan("r", users, 1.0, min_surviving_weight=0.6, colluding_weight=colluding)
    query = update() if dense else votes(40)
    noise = mechanism.noise(plan, query)
    tail = 9.0 * z * noise.sensitivity * matrix.release_std().max()
    most = noise.sensitivity * (users if not dense else users * 0.15)
    assert most + tail < 2 ** (noise.bits - 1)
    if not dense:  # and no more bits than that needs, whatever W_min is
        assert most + 1.2 * tail + 50 > 2 ** (noise.bits - 9) or noise.bits == 8
    quiet = replace(mechanism, z=0.01).noise(plan, query)
    assert quiet.bits <= noise.bits and noise.source == "aggregator"
