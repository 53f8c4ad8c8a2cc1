"""What a user has spent: the published bound, composed, and never more than the limit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.client_apps.lifetime import cost, rdp, spent_epsilon
from privsyn_flower.privacy.accounting import epsilon
from privsyn_flower.privacy.renyi import filter_budget, skellam_rdp

MULTIPLIERS = st.lists(st.tuples(st.floats(0.3, 50), st.floats(1, 1e6)), min_size=1, max_size=8)


@given(plan=MULTIPLIERS, order=st.integers(2, 512))
def test_the_sums_bound_the_composed_rdp(plan: list[tuple[float, float]], order: int) -> None:
    costs = [cost(z, s) for z, s in plan]
    ours = rdp(sum(a for a, _ in costs), sum(b for _, b in costs), order)
    exact = sum(float(skellam_rdp(z, s, [order])[0]) for z, s in plan)
    assert ours >= exact * (1 - 1e-9)
    theorem = sum(order / (2 * z**2) + (2 * order + 5) / (4 * z**4 * s**2) for z, s in plan)
    assert ours == pytest.approx(theorem)


@given(total=st.floats(0.05, 30), delta=st.floats(1e-9, 1e-3), share=st.floats(0.01, 1))
def test_what_the_filter_lets_through_is_within_epsilon(
    total: float, delta: float, share: float
) -> None:
    order, budget = filter_budget(total, delta)
    gaussian = share * budget * 2 / order
    assert spent_epsilon(gaussian, 0.0, delta) <= total
    assert spent_epsilon(budget * 2 / order, 0.0, delta) == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize(("z", "sensitivity"), [(2.31, 4096.0), (11.3, 64.0), (3.0, 4.0)])
def test_what_was_spent_is_what_the_server_claims(z: float, sensitivity: float) -> None:
    gaussian, correction = cost(z, sensitivity)
    claimed = epsilon(z, 11, 3e-6, mechanism="skellam", sensitivity=sensitivity)
    ours = spent_epsilon(11 * gaussian, 11 * correction, 3e-6)
    assert claimed * (1 - 1e-9) <= ours == pytest.approx(claimed, rel=1e-3)


def test_nothing_spent_is_nothing() -> None:
    assert spent_epsilon(0.0, 0.0, 1e-6) == 0.0


def test_hardly_any_noise_is_more_than_any_limit() -> None:
    assert rdp(*cost(1e-200, 1), 2) == math.inf


@pytest.mark.parametrize("z", [0.0, -1.0, math.inf, math.nan])
def test_noise_out_of_range_is_named(z: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        cost(z, 4096)


@pytest.mark.parametrize("sensitivity", [0.0, 0.5, math.inf, math.nan])
def test_sensitivity_out_of_range_is_named(sensitivity: float) -> None:
    with pytest.raises(ValueError, match="sensitivity"):
        cost(1.0, sensitivity)
