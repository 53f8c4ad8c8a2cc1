"""The whole privacy curve of a run, against dp_accounting and the closed form in other words."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.accounting import composition
from privsyn_flower.privacy.accounting.composition import (
    SMALLEST_DELTA,
    AccountingError,
    composed_epsilon,
)
from privsyn_flower.privacy.accounting.curve import Curve, _points, privacy_curve
from privsyn_flower.privacy.noise.integer_noise import SHARE_OF_DELTA, gaussian_delta
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.privacy.planning import plan_privacy
from privsyn_flower.server_apps.privacy_plan import privacy_plan, statement
from tests.rigs.accounting import accountant, exact_delta

DELTA = 3e-6


def falls(curve: Curve) -> bool:
    """Epsilon grows and delta falls from one pair to the next."""
    pairs = itertools.pairwise(curve)
    return len(curve) > 10 and all(a[0] < b[0] and a[1] > b[1] for a, b in pairs)


@settings(max_examples=15, deadline=None)
@given(
    z=st.floats(0.5, 30.0), rounds=st.integers(1, 40), delta=st.floats(1e-9, 1e-3),
)  # fmt: skip
def test_without_sampling_it_is_the_gaussians_curve(z: float, rounds: int, delta: float) -> None:
    curve = privacy_curve({(z, 1.0): rounds}, delta)
    assert falls(curve) or not composed_epsilon({(z, 1.0): rounds}, 0.01)
    assert (composed_epsilon({(z, 1.0): rounds}, gaussian_delta(delta)), delta) in curve
    for epsilon, total in curve:
        gaussians = total - SHARE_OF_DELTA * delta
        assert exact_delta(z / math.sqrt(rounds), epsilon) == pytest.approx(gaussians, rel=1e-6)


@pytest.mark.slow
def test_the_default_run_against_dp_accounting() -> None:
    """Its accountant by privacy loss distributions, which rounds up, at the pairs of the curve."""
    made = privacy_plan(RunConfig())
    curve = made.curve
    assert falls(curve) and (made.epsilon, DELTA) in curve
    composed = accountant({(made.main.equivalent, 1.0): made.main.most})
    for epsilon, delta in curve[::12]:
        found = composed.get_epsilon(delta - SHARE_OF_DELTA * DELTA)
        assert epsilon <= found + 1e-9 and epsilon == pytest.approx(found, rel=2e-3)


@pytest.mark.slow
def test_sampled_users() -> None:
    noise = {(2.0, 0.2): 5}
    curve = privacy_curve(noise, DELTA)
    own = composed_epsilon(noise, gaussian_delta(DELTA))
    assert falls(curve) and (own, DELTA) in curve
    composed = accountant(noise)
    for epsilon, delta in curve[::12]:
        gaussians = delta - SHARE_OF_DELTA * DELTA
        assert epsilon == pytest.approx(composed.get_epsilon(gaussians), rel=1e-3)
        assert epsilon <= composed_epsilon({(z, 1.0): n for (z, _), n in noise.items()}, gaussians)


def test_below_the_accountants_precision_no_sampling_is_counted_so_no_pair_is_told() -> None:
    noise = {(4.0, 0.5): 3}
    curve = privacy_curve(noise, 1e-10)
    assert (composed_epsilon(noise, gaussian_delta(1e-10)), 1e-10) in curve
    assert min(delta for _, delta in curve) >= SMALLEST_DELTA


def test_phases_of_several_kinds_and_correlated_rounds() -> None:
    for values in (
        {"method": "dp-ftrl", "training.noise": "aggregator", "training.evaluate": True},
        {"method": "ctcl", "training.noise": "nodes", "ctcl.histogram-multiplier": 20.0},
    ):
        config = RunConfig.from_flat(values)
        made, said = privacy_plan(config), statement(config)
        assert falls(made.curve) and (said.epsilon, said.delta) in made.curve
        assert said.rho_zcdp is not None
        mu = math.sqrt(2 * said.rho_zcdp)
        for epsilon, delta in made.curve[::8]:
            gaussians = delta - SHARE_OF_DELTA * said.delta
            assert exact_delta(1 / mu, epsilon) == pytest.approx(gaussians, rel=1e-6)


def test_little_noise_and_much() -> None:
    for epsilon in (0.01, 300.0):
        made = plan_privacy(epsilon, DELTA, [Phase(rounds=3)])
        curve = made.curve
        assert (made.epsilon, DELTA) in curve
        assert all(a[0] < b[0] and a[1] > b[1] for a, b in itertools.pairwise(curve))
    assert privacy_curve({(0.0, 1.0): 1}, DELTA) == []  # infinite
    assert privacy_curve({(math.inf, 1.0): 1}, DELTA) == []  # 0 at any delta


def test_a_pair_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not end a run that has its result."""
    whole, real = privacy_curve({(3.0, 1.0): 2}, DELTA), composition.composed_epsilon

    def failing(releases: composition.Releases, delta: float) -> float:
        if delta > 100 * DELTA:
            raise AccountingError("numerical failure")
        return real(releases, delta)

    _points.cache_clear()
    monkeypatch.setattr("privsyn_flower.privacy.accounting.curve.composed_epsilon", failing)
    part = privacy_curve({(3.0, 1.0): 2}, DELTA)
    _points.cache_clear()
    assert part == [pair for pair in whole if pair[1] <= 101 * DELTA] and 10 < len(part) < 30


def test_delta_must_be_one() -> None:
    with pytest.raises(ValueError, match=r"delta = 0\.0 must"):
        privacy_curve({(3.0, 1.0): 2}, 0.0)
