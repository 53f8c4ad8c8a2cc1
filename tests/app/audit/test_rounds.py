"""The audit of a whole run of noise that is correlated over the rounds, an aggregator's or nodes'.

Honest runs pass. Each broken part is caught: of the noise, its key's stream, the nodes' schedule,
the sensitivity and the charges.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.app.audit import Audit, AuditError, audit, described, measure
from privsyn_flower.app.audit.measure import (
    aggregator_setting,
    audited_phase,
    worst_turn,
)
from privsyn_flower.app.audit.statistics import (
    correlation_test,
    filtered,
    halves,
    tree_noise,
    whitening,
)
from privsyn_flower.app.audit.trials import run_trials
from privsyn_flower.client_apps import updates as updates_app
from privsyn_flower.client_apps.node import records
from privsyn_flower.client_apps.node.schedule import Schedule
from privsyn_flower.config import ConfigError
from privsyn_flower.privacy.correlated import Participation, factorization
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.correlated.stream import Stream
from privsyn_flower.privacy.correlated.toeplitz import Toeplitz
from privsyn_flower.privacy.correlated.trees import Tree
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.strategies.engine.aggregation import ModularSum
from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise
from privsyn_flower.strategies.engine.session import trusted_noise
from tests.rigs import audit_audit as rig
from tests.rigs.audit_audit import calm  # noqa: F401

pytestmark = pytest.mark.slow

TRIALS = 4000
EPSILON = 6.0
SETTINGS: dict[str, Any] = {
    "method": "dp-ftrl",
    "training.noise": "aggregator",
    "rounds": 4,
    "epsilon": EPSILON,
    "data.users": 60,
    "aggregation": "plain",
    "ftrl.mechanism": "banded",
    "ftrl.min-separation": 2,
}


configured = partial(rig.configured, SETTINGS)


def measured(trials: int = TRIALS, kind: str = "", **changed: Any) -> Audit:
    return audit(configured(**changed), trials, kind)


# --- honest ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(
    ("tight", "changed"),
    [
        (0.5, {"aggregation": "secure", "ftrl__mechanism": "blt", "ftrl__buffers": 2}),
        (0.5, {"ftrl__schedule": "nodes"}),
        (0.4, {"ftrl__mechanism": "tree"}),  # the releases tell less than the nodes of the tree
        (0.3, {"ftrl__mechanism": "tree-honaker", "ftrl__min_separation": 1}),
        (
            0.3,
            {
                "ftrl__mechanism": "tree-restart",
                "ftrl__restart_every": 2,
                "ftrl__completion": True,
            },
        ),
        (0.5, {"method": "dp-fedavg", "ftrl__mechanism": "blt", "ftrl__min_separation": 1}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_an_honest_run_passes_and_the_bound_is_tight(tight: float, changed: dict[str, Any]) -> None:
    found = measured(**changed)
    assert (found.kind, found.rounds, found.noise_source) == ("update", 4, "aggregator")
    assert not found.contradiction, found
    assert found.claimed_epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert found.lower_bound > tight * EPSILON
    assert found.noise_variance_ratio == pytest.approx(1.0, abs=0.03)
    assert "all 4 rounds" in described(found)


@pytest.mark.usefixtures("calm")
def test_an_evaluation_costs_one_participation() -> None:
    found = measured(kind="evaluation")
    noise = trusted_noise(audited_phase(configured(), "update"))
    assert (found.rounds, found.correlation_p_value) == (1, None)
    assert found.noise_multiplier == noise.multiplier
    assert not found.contradiction, found
    assert found.lower_bound > 0.4 * found.claimed_epsilon
    assert "of an aggregator" in described(found)


@pytest.mark.usefixtures("calm")
def test_a_schedule_that_ends_before_the_rounds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ftrl\.max-participations = 1"):
        measured(ftrl__max_participations=1)


def test_many_rounds_have_fewer_trials_and_too_many_rounds_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "MOST_NUMBERS", 4 * 8 * 300)
    assert measured().trials == 300
    monkeypatch.setattr(measure, "MOST_NUMBERS", 4 * 8 * 199)
    with pytest.raises(AuditError, match="lower rounds"):
        measured()


# --- rows of a matrix, which nodes answer -----------------------------------------------------

ROWS: dict[str, Any] = {
    "training__noise": "nodes",
    "spare_rounds": 0,
    "min_surviving_weight": 0.7,
    "colluding_weight": 0.1,
}


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("changed", [{"aggregation": "secure"}, {"ftrl__bands": 3}])
def test_honest_rows_pass_and_the_bound_is_tight(changed: dict[str, Any]) -> None:
    """With colluders, whose noise is known, and nodes that are lost in every round."""
    found = measured(**ROWS, **changed)
    assert (found.rounds, found.noise_source) == (4, "nodes")
    assert not found.contradiction, found
    assert found.claimed_epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert 0.5 * EPSILON < found.lower_bound < EPSILON
    assert found.noise_variance_ratio == pytest.approx(1.0, abs=0.03)
    assert "all 4 rounds" in described(found) and "weight W_min" in described(found)


def test_rows_with_a_tenth_less_noise_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rig.noise_times(monkeypatch, 0.9)
    found = measured(600, **ROWS)
    assert found.contradiction and "less noise than is charged" in described(found)
    assert found.noise_variance_ratio == pytest.approx(0.81, abs=0.05)


def test_noise_that_two_rows_share_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = dict[Any, Any]()

    def again(draw: Any, *numbers: Any) -> Any:
        drawn.setdefault(numbers, []).append(draw(*numbers))
        return drawn[numbers][len(drawn[numbers]) % 2 - 1]

    rig.noise_with(monkeypatch, again)
    found = measured(600, **ROWS | {"colluding_weight": 0.0})
    assert found.contradiction and "rounds share noise" in described(found)


def test_a_node_that_multiplies_by_too_much_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    row = IntegerMatrix.row

    def more(self: IntegerMatrix, rnd: int, vector: Any) -> Any:
        found = row(self, rnd, vector)
        return found if found is None else 2 * found

    monkeypatch.setattr(IntegerMatrix, "row", more)
    found = measured(**ROWS)
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


# --- broken ---------------------------------------------------------------------------------


def test_noise_ten_percent_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    add = ModularSum.add
    monkeypatch.setattr(ModularSum, "add", lambda self, unit, z: add(self, unit, 0.9 * z))
    found = measured(600)
    assert found.contradiction
    assert found.noise_variance_ratio == pytest.approx(0.81, abs=0.05)


def test_noise_of_a_round_on_another_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Stream.noise
    monkeypatch.setattr(Stream, "noise", lambda self, rnd: noise(self, max(1, rnd - 1)))
    for mechanism in ("banded", "tree"):
        found = measured(600, ftrl__mechanism=mechanism)
        assert found.contradiction
        assert found.correlation_p_value is not None and found.correlation_p_value < 1e-6
        assert "rounds share noise" in described(found)


def test_a_separation_that_nodes_ignore_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    always = lambda self, places, round: np.ones(len(places), dtype=bool)  # noqa: E731
    monkeypatch.setattr(Schedule, "due", always)
    monkeypatch.setattr(records, "admitted", lambda *a: [True] * len(a[3]))
    found = measured()
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was promised before is computed again, and not remembered."""
    privacy_plan.cache_clear()
    yield
    privacy_plan.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_a_sensitivity_of_one_participation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(self: Toeplitz, participation: Participation) -> Any:
        return np.pad(self.coefficients, (0, self.rounds - self.bands))

    monkeypatch.setattr(Toeplitz, "worst_user", once)
    found = measured()
    assert found.claimed_epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


def test_charges_below_the_cost_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    charged = AggregatorNoise._charged_multiplier
    monkeypatch.setattr(
        AggregatorNoise, "_charged_multiplier", lambda self, rnd: 2 * charged(self, rnd)
    )
    found = measured()
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


@pytest.mark.parametrize("fault", ["layers", "twice"])
def test_users_who_are_too_long_are_caught(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def changed(real: Any, deltas: Any, options: dict[str, Any]) -> Any:
        def more() -> Any:
            for delta in deltas:
                middle = len(delta) // 2 if fault == "layers" else len(delta)
                first = np.where(np.arange(len(delta)) < middle, delta, 0)
                yield from (first, delta - first if fault == "layers" else first)

        return real(more(), **{**options, "sampled": None})

    rig.sums_with(monkeypatch, updates_app, "shard_updates", changed)
    found = measured(12_000)
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


# --- the schedule and the statistics --------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["tree", "banded", "independent"]),
    rounds=st.integers(2, 16),
    turns=st.integers(1, 6),
    most=st.integers(0, 3),
)
def test_the_canary_has_the_worst_turn(
    tmp_path_factory: pytest.TempPathFactory, name: str, rounds: int, turns: int, most: int
) -> None:
    turns = min(turns, rounds)
    pattern = Participation(rounds, turns, most)
    matrix = factorization(name, rounds, participation=pattern)
    noise = AggregatorNoise(matrix, pattern, 1.0, tmp_path_factory.getbasetemp(), "run")
    rows = tree_noise(matrix) if isinstance(matrix, Tree) else None
    covariance = rows @ rows.T if rows is not None else np.eye(rounds)
    if isinstance(matrix, Toeplitz):
        inverse = np.array([np.roll(matrix.inverse(), t) for t in range(rounds)]).T
        covariance = np.tril(inverse) @ np.tril(inverse).T
    changes = []
    for turn in range(turns):
        taken = np.zeros(rounds)
        taken[turn::turns][: pattern.most] = 1.0
        changes.append(float(taken @ np.linalg.solve(covariance, taken)))
    assert changes[worst_turn(noise, turns)] == pytest.approx(max(changes))
    assert max(changes) <= matrix.sensitivity(pattern) ** 2 * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["users", "nodes"])
def test_the_canary_takes_part_in_the_rounds_of_its_turn(tmp_path: Path, schedule: str) -> None:
    config = configured(ftrl__schedule=schedule, ftrl__mechanism="tree", rounds=7,
                        ftrl__min_separation=3)  # fmt: skip
    phase = audited_phase(config, "update")
    turn = worst_turn(trusted_noise(phase), 3)
    setting = aggregator_setting(config, phase)
    found = run_trials(measure.KINDS["update"](config, tmp_path), setting, 2)
    assert found.shifts.shape[:2] == (1, 7) and found.put == pytest.approx([1, 0])
    taken = np.flatnonzero(np.abs(found.shifts[0]).sum(axis=1))
    assert taken.tolist() == list(range(turn, 7, 3))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("independent", {}),
        ("banded", {"bands": 3}),
        ("tree", {}),
        ("tree-honaker", {}),
        ("tree-restart", {"restart_every": 5, "completion": True}),
        ("tree-restart", {"restart_every": 4}),
    ],
)
def test_whitened_noise_is_independent(name: str, options: dict[str, Any]) -> None:
    matrix = factorization(name, 13, **options)
    white = whitening(matrix)
    assert np.allclose(white, np.tril(white)) and (np.diag(white) > 0).all()
    if isinstance(matrix, Tree):
        rows = tree_noise(matrix)
    else:
        assert isinstance(matrix, Toeplitz)
        rows = np.tril(np.array([np.roll(matrix.inverse(), t) for t in range(13)]).T)
    assert np.allclose(white @ rows @ rows.T @ white.T, np.eye(13), atol=1e-9)
    assert np.allclose(np.linalg.norm(rows, axis=1), matrix.release_std())
    assert np.allclose(np.linalg.norm(np.cumsum(rows, axis=0), axis=1), matrix.prefix_std())


def test_the_correlation_test_has_its_level_and_finds_shared_noise() -> None:
    rng = np.random.default_rng(3)
    p_values = [correlation_test(rng.normal(0, 2, (5, 300))) for _ in range(1000)]
    assert np.mean(np.array(p_values) < 0.1) == pytest.approx(0.1, abs=0.04)
    noise = rng.normal(0, 2, (5, 3000))
    noise[4] += 0.2 * noise[1]
    assert correlation_test(noise) < 1e-9


def test_the_filter_looks_at_all_rounds() -> None:
    present = np.arange(8) % 2 == 0
    shift = np.array([[3.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
    noise = np.zeros((3, 8, 2))
    noise[2, 1] = [7.0, 10.0]
    found = filtered(noise, shift[None], np.zeros(8, dtype=np.int64), present * 1.0)
    assert np.array_equal(np.concatenate(halves(found, present)), np.full(4, 5.0))
    assert np.array_equal(np.concatenate(halves(found, ~present)), [8.0, 0.0, 0.0, 0.0])


def test_the_filter_takes_each_trials_own_shift() -> None:
    shifts = np.array([[[3.0, 0.0]], [[0.0, -2.0]], [[0.0, 0.0]]])
    which, put = np.array([0, 1, 1, 2]), np.array([1.0, 1.0, 0.0, 0.0])
    noise = np.array([[[1.0, 9.0], [9.0, 1.0], [9.0, 1.0], [9.0, 9.0]]])
    assert np.allclose(filtered(noise, shifts, which, put), [4.0, 1.0, -1.0, 0.0])
