"""What noise of nodes and of an aggregator is and costs, and what nodes are asked to enforce."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.accounting import gaussian_epsilon
from privsyn_flower.privacy.correlated import (
    Participation,
    epsilon_correlated,
    factorization,
)
from privsyn_flower.privacy.encoding.dense import encode_dense
from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.privacy.ledger import BudgetExceeded
from privsyn_flower.privacy.ledger.filters import SLACK, new_header
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.privacy.planning import evaluation_phases
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.noise import Noise, encoded_bound, integer_plan, total_variation
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise
from privsyn_flower.strategies.engine.cohort import RoundPlan, TooFewNodes
from privsyn_flower.strategies.engine.mechanisms import NodeNoise
from privsyn_flower.strategies.engine.rounds import Rounds
from privsyn_flower.strategies.engine.session import trusted_noise
from tests.rigs.answers import Device, expected, question
from tests.rigs.mechanisms import (
    BANDED,
    DELTA,
    EPSILON,
    PLAN,
    TWICE,
    KeyRig,
    T,
    Voting,
    aggregator,
    book,
    keys,
    noise_of,
    releases,
    rig,
    rounded,
    with_key,
)
from tests.rigs.rounds import Counting, VotingNode, crash_in, nodes

__all__ = ["keys", "nodes", "rig"]


class Updating(Voting):
    """The same with a dense question."""

    def ask(self, rnd: int) -> Query:
        self.asked.append(rnd)
        parameters = np.full(8, rnd, dtype=np.uint8)
        rotation = bytes([rnd]) * 32
        return Query.update(
            parameters, length=300, bound=0.5, model="m", rotation=rotation, options=self.options
        )


class UpdatingNode(VotingNode):
    """Answers a vector of norm `bound` for each of its users."""

    def __call__(self, message: Message) -> Message | None:
        if greeting.is_hello(message):
            return greeting.answer_hello(message, self.facts)
        query, ticket, noise = wire.read_ask(message, self.facts.weight)
        self.seen.append((ticket, noise))
        vector = np.full(query.length, query.bound / math.sqrt(query.length))
        encoded = encode_dense(vector, integer_plan(query, noise), query.rotation)
        return wire.answer(message, ticket, to_modulus(encoded * 25, noise.bits), noise.bits)


def evaluation_noise(mechanism: AggregatorNoise, keys: Path) -> AggregatorNoise:
    """Of a question beside rounds with that noise."""
    rounds = Phase(
        rounds=mechanism.factorization.rounds,
        source="aggregator",
        correlation=mechanism.factorization,
        participation=mechanism.participation,
    )
    [evaluation] = evaluation_phases(rounds.with_multiplier(mechanism.z), 1)
    return trusted_noise(evaluation, keys, "r-evaluation")


# What the noise is, and what it costs ----------------------------------------------------


def test_each_release_is_the_sum_with_its_rounds_noise(rig: KeyRig) -> None:
    mechanism = aggregator(with_key(rig.keys))
    strategy = Voting(T)
    assert rig.engine(strategy, mechanism).run() == T
    assert np.array_equal(
        np.round(releases(rig.folder), 9), rounded(rig.folder, mechanism, [4.0] * T)
    )
    assert strategy.stds == pytest.approx(list(BANDED.release_std() * mechanism.z))
    _, noise = rig.nodes[100].seen[0]
    assert (noise.source, noise.scale) == ("aggregator", 0.0)
    assert noise.multiplier == pytest.approx(
        mechanism.z * math.sqrt(2) / BANDED.sensitivity(TWICE), rel=1e-12
    )
    row = RunFolder(rig.folder / "run").metrics()[0]
    assert row["mechanism"] == BANDED.name and row["candidates"] == 4
    assert row["guaranteed_noise_std"] == row["noise_std"] == strategy.stds[0]


def test_noise_of_a_dense_sum_is_for_the_norm_after_rounding(tmp_path: Path, loopback: Any) -> None:
    nodes = {100 + i: UpdatingNode(25, i) for i in range(4)}
    rig = KeyRig(tmp_path, loopback, nodes)
    mechanism = aggregator(with_key(rig.keys))
    assert rig.engine(Updating(T), mechanism).run() == T
    _, noise = nodes[100].seen[0]
    reach = noise.sensitivity / noise.scale
    assert 0.5 < reach < 0.5 * 1.01
    drawn = noise_of(tmp_path, mechanism, 512)  # of the padding, too
    for released, unit in zip(releases(tmp_path), drawn, strict=True):
        left = released - mechanism.z * reach * unit[:300]
        assert left == pytest.approx(np.full(300, 100 * 0.5 / math.sqrt(300)), abs=1e-3)
    rows = RunFolder(tmp_path / "run").metrics()
    wanted = BANDED.release_std() * mechanism.z * reach
    assert [row["noise_std"] for row in rows] == pytest.approx(list(wanted), rel=1e-12)
    assert "candidates" not in rows[0] and rows[0]["bytes_up_per_node"] > 300


@pytest.mark.parametrize(
    ("name", "participation", "options"),
    [
        ("independent", Participation(T), {}),
        ("tree", Participation(T, 2), {"min-separation": 2}),
        ("tree-honaker", Participation(T, 1, 1), {"max-participations": 1}),
        ("banded", Participation(T, 2, 1), {"min-separation": 2, "max-participations": 1}),
        ("blt", Participation(T, 3), {"min-separation": 3}),
    ],
)
def test_the_ledger_says_what_the_released_prefix_cost(
    rig: KeyRig, name: str, participation: Participation, options: dict[str, int]
) -> None:
    matrix = factorization(name, T, participation=participation)
    mechanism = aggregator(rig.keys, matrix, participation)
    strategy = Voting(T)
    strategy.options = options  # type: ignore[misc]
    run = rig.engine(strategy, mechanism)
    assert run.run() == T
    spent = [row["epsilon_so_far"] for row in run.folder.metrics()]
    prefixes = matrix.cumulative_sensitivity(participation)
    wanted = [gaussian_epsilon(mechanism.z / prefix, gaussian_delta(DELTA)) for prefix in prefixes]
    assert spent == pytest.approx(wanted, rel=1e-6)
    whole = epsilon_correlated(mechanism.z, gaussian_delta(DELTA), matrix, participation)
    assert EPSILON * (1 - 1e-6) < whole <= EPSILON
    assert run.ledger.spent_epsilon() <= EPSILON * (1 + 1e-9)
    with pytest.raises(BudgetExceeded):  # nothing is left, not even for a hundred times the noise
        run.ledger.reserve(
            run="x", query="q", round=1, attempt=1, noise_multiplier=100 * mechanism.multiplier
        )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_user_moves_a_prefix_by_more_than_it_is_charged(data: st.DataObject) -> None:
    """The filter's condition on every path: sum of squared means <= sum of charges, at any stop."""
    coefficients = np.array([1.0, 0.5])
    matrix = factorization("banded", T, bands=2)
    assert np.allclose(coefficients, matrix.coefficients)  # type: ignore[attr-defined]
    mechanism = AggregatorNoise(matrix, TWICE, 1.7, Path("unused"), "r")
    first = data.draw(st.integers(0, T - 1))
    later = [r for r in range(T) if r >= first + 2]
    second = data.draw(st.sampled_from([*later, None]) if later else st.none())
    rows = np.zeros((T, 3))
    for rnd in {first, second} - {None}:
        vector = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=3, max_size=3)))
        rows[rnd] = vector / max(1.0, float(np.linalg.norm(vector)))
    moved = coefficients[0] * rows + coefficients[1] * np.vstack([np.zeros(3), rows[:-1]])
    plan, noise = PLAN, Noise(1.0, 1.0, 8, 1.0)
    charged = [mechanism.charge(plan, noise, r)["noise_multiplier"] ** -2 for r in range(1, T + 1)]
    paths = np.cumsum((moved**2).sum(axis=1)) / mechanism.z**2
    assert (paths <= np.cumsum(charged) * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", ["tree", "banded", "independent"])
def test_nodes_count_no_less_than_any_participations_cost(keys: Path, name: str) -> None:
    """One of two rounds costs three quarters of both in a tree, not one half."""
    participation = Participation(T, min_separation=4)
    matrix = factorization(name, T, participation=participation, bands=T)
    mechanism = aggregator(keys, matrix, participation)
    strategy = Voting(T)
    strategy.options = {"min-separation": 4}  # type: ignore[misc]
    told = mechanism.noise(PLAN, strategy.ask(1)).multiplier
    costs = [
        (matrix.sensitivity(Participation(T, 4, count)) / mechanism.z) ** 2 / count
        for count in (1, 2)
    ]
    assert told**-2 == pytest.approx(max(costs), rel=1e-9)
    assert told <= mechanism.multiplier * (1 + 1e-12)
    assert (told < 0.999 * mechanism.multiplier) == (name != "independent")
    # One participation in noise of its own is what it is charged.
    beside = evaluation_noise(mechanism, keys)
    assert beside.noise(PLAN, Counting(1).ask(1)).multiplier == beside.z == mechanism.multiplier


def test_an_evaluation_beside_the_rounds_fits_the_total(rig: KeyRig) -> None:
    mechanism = aggregator(rig.keys, evaluations=1)
    assert rig.engine(mechanism=mechanism).run() == T
    ledger = book(rig.folder)
    assert ledger.spent_epsilon() < EPSILON * 0.95
    folder, plan = RunFolder(rig.folder / "evaluation"), replace(PLAN, run="r-evaluation")
    for _ in range(2):  # the second reads the first one's release
        Rounds(
            rig.grid,
            Counting(1),
            plan,
            folder,
            ledger,
            PlainSum(),
            mechanism=evaluation_noise(mechanism, rig.keys),
        ).run()
    charges = ledger.charges(run="r-evaluation")
    assert [charge.noise_multiplier for charge in charges] == [mechanism.multiplier]
    assert EPSILON * (1 - 1e-6) < ledger.spent_epsilon() <= EPSILON * (1 + 1e-9)
    assert list(rig.keys.iterdir()) == []


# What is asked of the nodes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "plan", "words"),
    [
        ({"max-participations": 2}, PLAN, "min-separation = 1"),
        ({"min-separation": 1, "max-participations": 2}, PLAN, "min-separation = 1"),
        ({"min-separation": 2}, PLAN, "max-participations = 0"),
        ({"min-separation": 2, "max-participations": 3}, PLAN, "max-participations = 3"),
        (Voting.options, replace(PLAN, cycle=1), "cycle = 1"),
        (Voting.options, replace(PLAN, sampling_rate=0.5), "sampling-rate = 0.5"),
    ],
)
def test_the_nodes_are_asked_to_enforce_what_the_noise_counts_on(
    keys: Path, options: dict[str, Any], plan: RoundPlan, words: str
) -> None:
    strategy = Voting(T)
    strategy.options = options  # type: ignore[misc]
    with pytest.raises(ValueError, match=words):
        aggregator(keys).noise(plan, strategy.ask(1))


def test_numbers_out_of_range_are_refused(keys: Path) -> None:
    with pytest.raises(ValueError, match="z = 0"):
        AggregatorNoise(BANDED, TWICE, 0.0, keys, "r")
    with pytest.raises(ValueError, match="rounds = 4"):
        AggregatorNoise(BANDED, Participation(4), 1.0, keys, "r")


# Noise of the nodes, and the secure sum ---------------------------------------------------


def test_noise_of_the_nodes_for_a_dense_sum() -> None:
    query = Updating(1).ask(1)
    mechanism, plan = NodeNoise(), replace(PLAN, noise_multiplier=2.5)
    noise = mechanism.noise(plan, query)
    assert noise.source == "nodes" and noise.multiplier == 2.5 and noise.sensitivity >= 4096
    assert integer_plan(query, noise).scale == noise.scale > 0
    reach = encoded_bound(query, noise)
    assert 0.5 < reach <= 0.505
    std = mechanism.released_std(1, plan, query, noise, 100)
    assert std == pytest.approx(2.5 * reach * math.sqrt(100 / 75))
    charge = mechanism.charge(query, noise, 1)
    assert charge["noise_multiplier"] == 2.5
    assert 0 < charge["total_variation"] == total_variation(query, noise) <= plan.distance


def test_a_secure_sum_gets_the_aggregators_noise(tmp_path: Path, loopback: Any, keys: Path) -> None:
    from privsyn_flower.strategies.engine.aggregation import SecureAggregation

    devices = {100 + i: Device(tmp_path, i) for i in range(4)}
    matrix, always = factorization("independent", 1), Participation(1)
    mechanism = aggregator(with_key(keys), matrix, always)

    class Asking(Counting):
        def ask(self, rnd: int) -> Query:
            return question()

    plan = replace(PLAN, users=20, stage_timeout=0.5, round_timeout=0.5)
    rig = KeyRig(tmp_path, loopback, devices)
    run = rig.engine(Asking(1), mechanism, aggregation=SecureAggregation(), plan=plan)
    assert run.run() == 1
    (released,) = releases(tmp_path, 1)
    want = expected(question(), [0, 1, 2, 3])
    (unit,) = noise_of(tmp_path, mechanism, len(want))
    assert released - mechanism.z * question().bound * unit == pytest.approx(want, abs=0.02)
    rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["ledger", "reserve", "commit"]  # never "sent"


# The rota --------------------------------------------------------------------------------


def asked_in(nodes: dict[int, VotingNode]) -> dict[int, list[int]]:
    return {node: [ticket.round for ticket, _ in voting.seen] for node, voting in nodes.items()}


def test_nodes_take_turns_and_keep_their_places(rig: KeyRig) -> None:
    plan = replace(PLAN, cycle=2)
    crash_in(2, rig.engine(plan=plan))
    assert asked_in(rig.nodes) == {100: [1], 101: [2], 102: [1], 103: [2]}
    _, noise = rig.nodes[100].seen[0]
    assert noise.min_weight == 38  # 0.75 of the 50 users whose turn it is, rounded up
    # The first node is gone and others have come, in front of it by their ids.
    gone = rig.nodes.pop(100)
    more = {1: VotingNode(10, 7), 2: VotingNode(10, 8)}
    later = KeyRig(rig.folder, rig.loopback, {**more, **rig.nodes})
    run = later.engine(plan=replace(plan, nodes=5))
    assert run.run() == T
    assert asked_in(rig.nodes) == {101: [2, 4], 102: [1, 3, 5], 103: [2, 4]}
    assert asked_in(more) == {1: [3, 5], 2: [4]} and len(gone.seen) == 1
    weights = [row["surviving_weight"] for row in run.folder.metrics()]
    assert weights == [50, 50, 35, 60, 35]


def test_a_turn_that_is_too_light_asks_nobody(rig: KeyRig) -> None:
    plan = replace(PLAN, cycle=2, colluding_weight=0.15, node_timeout=0.2)
    with pytest.raises(TooFewNodes, match=r"cycle = 2\) stands for 50 users"):
        rig.engine(plan=plan).run()
    few = replace(PLAN, cycle=5, node_timeout=0.2)
    with pytest.raises(TooFewNodes, match="4 nodes"):
        rig.engine(plan=few).run()
    assert not any(node.seen for node in rig.nodes.values())


def test_a_plan_has_a_rota_or_a_draw() -> None:
    for wrong in ({"cycle": -1}, {"cycle": 2, "cohort_nodes": 3}):
        with pytest.raises(ValueError, match=r"cycle = .* exclude each other"):
            replace(PLAN, **wrong)


def test_the_hello_travels_as_the_plan_says(rig: KeyRig) -> None:
    types: list[str] = []

    def noting(node: VotingNode) -> Callable[[Message], Message | None]:
        def answer(message: Message) -> Message | None:
            if greeting.is_hello(message):
                types.append(message.metadata.message_type)
                return greeting.answer_hello(message, node.facts)
            return node(message)

        return answer

    noted = {at: noting(node) for at, node in rig.nodes.items()}
    plan = replace(PLAN, greetings=("train",))
    assert KeyRig(rig.folder, rig.loopback, noted).engine(plan=plan).run() == T
    assert types == ["train"] * 4


@pytest.mark.parametrize("evaluations", [0, 2])
def test_a_calibrated_run_of_many_rounds_fits_its_total(keys: Path, evaluations: int) -> None:
    """To the rounding that the filter allows, the rounds that cost nothing included."""
    participation = Participation(2000, min_separation=100, max_participations=10)
    matrix = factorization("banded", 2000, bands=40)
    mechanism = aggregator(keys, matrix, participation, evaluations=evaluations)
    query, noise = Voting(1).ask(1), Noise(1.0, 1.0, 8, 1.0)
    multipliers = [
        mechanism.charge(query, noise, rnd)["noise_multiplier"] for rnd in range(1, 2001)
    ] + [mechanism.multiplier] * evaluations
    spent = math.fsum((1 / multiplier) ** 2 for multiplier in multipliers)
    budget = new_header("p", EPSILON, DELTA, False).budget
    assert budget is not None and 1 - 1e-6 < spent / budget <= 1 + SLACK
    # Ten times 40 rounds have a part of the worst user; the rest costs nothing.
    assert sum(multiplier > 1e6 for multiplier in multipliers) == 1600
