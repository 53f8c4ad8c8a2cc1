"""RDP of integer noise: against exact divergences, other accountants, and its own limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.renyi import (
    ORDERS,
    AccountingError,
    delta_left,
    filter_budget,
    gaussian_rdp_epsilon,
    poisson_sampled_rdp,
    rdp_to_epsilon,
    skellam_epsilon,
    skellam_multiplier,
    skellam_rdp,
    with_total_variation,
)

DELTA = 3e-6


def skellam_pmf(variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Support (odd length, centred) and probabilities by the inverse Fourier transform."""
    half = int(20 * math.sqrt(variance) + 60)
    size = 2 * half + 1
    angles = 2 * np.pi * np.arange(size) / size
    characteristic = np.exp(variance * (np.cos(angles) - 1))
    pmf = np.fft.ifft(characteristic).real
    return np.arange(-half, half + 1), np.maximum(np.roll(pmf, half), 0)


def exact_divergence(p: np.ndarray, q: np.ndarray, order: int) -> float:
    keep = (p > 1e-14) & (q > 1e-14)  # below that the transform is rounding
    terms = order * np.log(p[keep]) - (order - 1) * np.log(q[keep])
    return float(np.logaddexp.reduce(terms)) / (order - 1)


@pytest.mark.parametrize("multiplier", [0.8, 2.0, 6.0])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_bound_holds_for_exact_skellam_and_is_close(multiplier, shift):
    _, p = skellam_pmf((multiplier * shift) ** 2)
    for order in (2, 3, 5):
        exact = exact_divergence(np.roll(p, shift), p, order)
        bound = skellam_rdp(multiplier, shift, [order], dimension=1)[0]
        assert exact <= bound + 1e-6
        # The theorem's own slack grows as the noise gets coarse.
        assert bound <= exact * (1.02 if multiplier * shift > 15 else 4.0)


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01])
def test_the_sampled_bound_holds_for_exact_skellam_in_both_directions(rate):
    _, p = skellam_pmf(2.0**2 * 4)
    shifted = np.roll(p, 2)
    mixture = (1 - rate) * p + rate * shifted

    def unsampled(orders):
        return np.array([exact_divergence(shifted, p, int(a)) for a in orders])

    for order in (2, 3, 6, 12):
        bound = poisson_sampled_rdp(unsampled, rate, [order])[0]
        assert exact_divergence(mixture, p, order) <= bound + 1e-6
        assert exact_divergence(p, mixture, order) <= bound + 1e-6
        assert bound <= unsampled([order])[0]


@pytest.mark.parametrize("rate", [0.3, 0.05])
def test_the_theorem_on_sampling_written_out(rate):
    def rdp(orders):
        return skellam_rdp(2.5, 16, orders)

    for a in (2, 3, 8, 20):
        each = [0.0, 0.0, *rdp(np.arange(2, a + 1))]
        total = (1 - rate) ** (a - 1) * (a * rate - rate + 1)
        for k in range(2, a + 1):
            term = math.comb(a, k) * (1 - rate) ** (a - k) * rate**k * math.exp((k - 1) * each[k])
            total += term if k == 2 else 3 * term
        wanted = min(math.log(total) / (a - 1), each[a])
        assert poisson_sampled_rdp(rdp, rate, [a])[0] == pytest.approx(wanted, rel=1e-6)


def test_sampling_is_never_worse_than_none_and_meets_it_at_one():
    def rdp(orders):
        return skellam_rdp(1.3, 64, orders)

    orders = np.arange(2, 200)
    before = np.zeros(orders.shape)
    for rate in (1e-4, 0.01, 0.3, 0.9, 1.0):
        found = poisson_sampled_rdp(rdp, rate, orders)
        assert (found <= rdp(orders)).all() and (found >= before).all()
        before = found
    np.testing.assert_array_equal(before, rdp(orders))


def test_sampled_sums_keep_their_digits_at_a_tiny_rate():
    """Order 2 in closed form: log(1 + rate^2 (exp(rdp) - 1)), far below 1 ulp of the sum's 1."""
    rate, rdp = 1e-9, 1e-6
    found = poisson_sampled_rdp(lambda orders: np.full(orders.shape, rdp), rate, [2])[0]
    assert found == pytest.approx(rate**2 * math.expm1(rdp), rel=1e-6)


@pytest.mark.parametrize("dimension", [None, 1024])
def test_the_formula_written_out(dimension):
    z, s, a = 1.7, 40.0, 9
    l1 = s * s if dimension is None else min(math.sqrt(dimension) * s, s * s)
    mu = (z * s) ** 2
    wanted = a * s**2 / (2 * mu) + min(
        ((2 * a - 1) * s**2 + 6 * l1) / (4 * mu**2), 3 * l1 / (2 * mu)
    )
    assert skellam_rdp(z, s, [a], dimension)[0] == pytest.approx(wanted, rel=1e-12)


def test_the_settings_of_the_papers():
    orders = [*range(2, 129), 256]
    value, order = rdp_to_epsilon(20 * skellam_rdp(19.3, 4, orders, 1024), orders, DELTA)
    assert value == pytest.approx(0.9974, abs=5e-5) and order == 20
    assert skellam_epsilon(19.3, 20, DELTA, 1.0, 4096) == pytest.approx(
        gaussian_rdp_epsilon(19.3, 20, DELTA, 1.0), abs=1e-3
    )


@settings(deadline=None, max_examples=60)
@given(
    z=st.floats(0.05, 1e4), s=st.floats(1, 1e6), order=st.integers(2, 60000), slack=st.floats(0, 1)
)
def test_more_noise_and_finer_integers_cost_less(z, s, order, slack):
    value = skellam_rdp(z, s, [order])[0]
    assert skellam_rdp(z * (1 + slack), s, [order])[0] <= value
    assert skellam_rdp(z, s * (1 + slack), [order])[0] <= value * (1 + 1e-12)
    assert skellam_rdp(z, s, [order], dimension=7)[0] <= value
    assert value >= order / (2 * z * z)


@settings(deadline=None, max_examples=80)
@given(rdp=st.floats(1e-9, 100), order=st.integers(2, 60000), s=st.floats(1, 1e6))
def test_the_multiplier_is_the_smallest(rdp, order, s):
    z = skellam_multiplier(rdp, order, s)
    assert skellam_rdp(z, s, [order])[0] <= rdp
    assert skellam_rdp(z * (1 - 1e-7), s, [order])[0] > rdp


def test_conversion_against_dp_accounting():
    from dp_accounting.rdp import compute_epsilon

    orders = ORDERS[ORDERS < 3000]
    for z in (0.7, 5.0, 80.0, 900.0):
        rdp = orders / (2 * z * z)
        wanted, _ = compute_epsilon(orders, rdp, DELTA)
        assert rdp_to_epsilon(rdp, orders, DELTA)[0] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("target", [1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0])
def test_the_grid_of_orders_is_fine_enough(target):
    """Within 0.1 % of the best integer order of all, at every epsilon that anyone asks for."""
    order, budget = filter_budget(target, DELTA)
    every = np.arange(2, 2**17)
    best, _ = rdp_to_epsilon(budget / order * every, every, DELTA)
    assert target * (1 - 1e-3) <= best <= target


@settings(deadline=None, max_examples=40)
@given(target=st.floats(1e-3, 50), log_delta=st.floats(-15, -1))
def test_the_filter_spends_no_more_than_its_total(target, log_delta):
    delta = 10.0**log_delta
    order, budget = filter_budget(target, delta)
    value, _ = rdp_to_epsilon([budget], [order], delta)
    assert target * (1 - 1e-3) <= value <= target
    # The order is the best for the Gaussian that just fits, and one that epsilon is taken at.
    best, _ = rdp_to_epsilon(budget / order * ORDERS, ORDERS, delta)
    assert order in ORDERS and best == pytest.approx(value, rel=1e-9)


def test_total_variation_costs_delta():
    def at(delta):
        return skellam_epsilon(19.3, 20, delta, 1.0, 4096)

    assert with_total_variation(at, DELTA, 0.0) == at(DELTA)
    value = with_total_variation(at, DELTA, 2e-8)
    assert at(delta_left(value, DELTA, 2e-8)) <= value  # the statement itself
    assert at(DELTA) < value < at(DELTA - 8e-8)
    assert with_total_variation(at, DELTA, 1e-6) == math.inf
    assert with_total_variation(lambda _: 0.0, DELTA, 1e-6) == 0.0
    assert delta_left(1e9, DELTA, 1e-300) < 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: skellam_rdp(0.0, 4, [2]), "noise_multiplier = 0.0"),
        (lambda: skellam_rdp(1.0, 0.5, [2]), "sensitivity = 0.5"),
        (lambda: skellam_rdp(1.0, math.nan, [2]), "sensitivity = nan"),
        (lambda: skellam_rdp(1.0, 4, [2.5]), "whole numbers"),
        (lambda: skellam_rdp(1.0, 4, [1]), "at least 2"),
        (lambda: skellam_rdp(1.0, 4, [2], dimension=0), "dimension = 0"),
        (lambda: poisson_sampled_rdp(lambda a: a * 1.0, 0.0, [2]), "rate = 0.0"),
        (lambda: rdp_to_epsilon([1.0], [2], 1.0), "delta = 1.0"),
        (lambda: rdp_to_epsilon([1.0, 2.0], [2], 0.1), "one for each"),
        (lambda: rdp_to_epsilon([1.0], [1], 0.1), "above 1"),
        (lambda: filter_budget(0.0, DELTA), "total_epsilon = 0.0"),
        (lambda: filter_budget(1e-7, 1e-12), "raise epsilon or delta"),
        (lambda: skellam_multiplier(0.0, 2, 4), "rdp = 0.0"),
    ],
)
def test_errors_name_value_and_bound(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_failures_are_not_numbers():
    with pytest.raises(AccountingError, match="not a number"):
        rdp_to_epsilon([math.nan, 1.0], [2, 3], DELTA)
    assert skellam_epsilon(1e-200, 1, DELTA, 1.0, 4096) == math.inf
