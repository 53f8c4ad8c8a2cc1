"""How far the nodes' integer noise is from rounded Gaussian noise: 60 digits against the bounds."""

from __future__ import annotations

import itertools
import math
from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf
from scipy import stats

from privsyn_flower.privacy.accounting import gaussian_mu
from privsyn_flower.privacy.encoding.quantize import node_noise_integers
from privsyn_flower.privacy.encoding.sizing import distance_each, least_sensitivity
from privsyn_flower.privacy.noise import integer_noise
from privsyn_flower.privacy.noise.integer_noise import (
    LEAST_NODE_STD,
    LEAST_STD,
    SHARE_OF_DELTA,
    TooCoarse,
    allowed_distance,
    coordinate_distance,
    gaussian_delta,
    node_variance,
    release_distance,
)
from tests.privacy.lattice import (
    TWELFTH,
    discrete_gaussian,
    distance,
    of_sum,
    reach_of,
    rounded_gaussian,
)

deltas = st.floats(-12, -2).map(lambda exponent: 10.0**exponent)


def measured(s, added=TWELFTH):
    """TV of N_Z(0, s^2 + added) and N(0, s^2) rounded."""
    reach = reach_of(s * s + 1)
    lattice = discrete_gaussian(mpf(s) ** 2 + added, reach)
    return distance(lattice, rounded_gaussian(mpf(s) ** 2, reach))


# --- one discrete Gaussian ------------------------------------------------------------------


@cache
def he(k):
    """E |He_k(Z)| of a standard normal Z: exact between the polynomial's roots."""
    polynomial = np.polynomial.hermite_e.herme2poly([0] * k + [1])
    roots = [mpf(float(r)) for r in np.sort(np.roots(polynomial[::-1]).real)]

    def part(z):
        value = sum(int(c) * z**i for i, c in enumerate(polynomial))
        return abs(value) * mpmath.npdf(z)

    return mpmath.quad(part, [-mpmath.inf, *roots, mpmath.inf])


def proven(s):
    """The bound of docs/privacy.md on TV(N_Z(0, s^2 + 1/12), round N(0, s^2)).

    The uniform on +-1/2 and N(0, 1/12) have the same moments up to the third: 1/5760 is half of
    1/24 of what their fourth ones are apart, 1/448 and 15/1728 are their sixth ones. A sum over
    the integers is an integral and half of the integral of the slope. theta: the lattice's sum of
    a Gaussian density, less 1.
    """
    fourth = (he(4) + he(5) / (2 * s)) / 5760 / s**4
    sixth = (mpf(1) / 448 + mpf(15) / 1728) / 1440 * (he(6) + he(7) / (2 * s)) / s**6
    theta = 3 * mpmath.exp(-2 * mpmath.pi**2 * s**2)
    return fourth + sixth + theta / 2


@pytest.mark.parametrize(
    ("s", "constant"), [(4, 4.77), (8, 4.84), (16, 4.859), (32, 4.862), (64, 4.862)]
)
def test_the_law_of_the_fourth_power(s, constant):
    found = measured(s) * s**4 * 10**4
    assert abs(found - constant) < 0.01
    law = he(4) / 5760 * 10**4
    assert found < 4.863 and abs(law - 4.8622) < 1e-4
    assert abs(found - law) < 1.5 / s**2  # which it converges to


@pytest.mark.slow
@pytest.mark.parametrize("s", [4, 4.5, 5.3, 7.07, 11.7, 20, 40, math.sqrt(3000), LEAST_STD])
def test_the_bound_is_above_what_is_measured_and_close(s):
    found, bound = measured(s), coordinate_distance(s, 100.0, 1.0)
    assert 0.9 * bound < found <= bound
    if s >= 40:
        assert found < proven(mpf(s))


def test_the_constant_is_proven_from_40_on():
    """s^4 times the proven bound falls with s, so its ends suffice."""
    for s in (40, 41, LEAST_STD, 1e3, 1e6, 1e12):
        assert proven(mpf(s)) * mpf(s) ** 4 <= mpf("5e-4")
        assert proven(mpf(s)) <= coordinate_distance(s, 1e6, 1.0)
    assert proven(mpf(30)) * 30**4 > mpf("5e-4")  # so the least noise has to be checked
    assert LEAST_STD >= 40


def test_without_what_rounding_adds_the_noises_are_apart():
    """The variance must be s^2 + 1/12: with s^2 the distance is 0.02 / s^2."""
    for s in (4, 16):
        assert abs(measured(s, added=0) * s**2 - 0.0202) < 0.0003
        assert measured(s, added=0) > 100 * coordinate_distance(s, 100.0, 1.0) * s / 16


# --- sums -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stds",
    [
        [2, 2],
        [2.5, 2.5],
        [2, 2, 2],
        [2, 2, 2, 2],
        [2] * 8,
        [2, 3],
        [2, 2, 5.5],
        [3, 3.3, 4.1, 2.2, 7],
        [math.sqrt(5), math.sqrt(7)],
        [2, 40],
    ],
)
def test_sums_are_discrete_gaussians_but_for_almost_nothing(stds):
    squares = [mpf(std) ** 2 for std in stds]
    summed = of_sum(squares)
    found = distance(summed, discrete_gaussian(sum(squares), len(summed) // 2))
    bound = coordinate_distance(mpmath.inf, min(stds), len(stds))
    assert bound == pytest.approx(2.1 * len(stds) * math.exp(-((math.pi * min(stds)) ** 2)))
    assert 0 < found <= bound
    if stds in ([2, 2], [2.5, 2.5]):  # the worst case; the bound is four times as much
        assert found > bound / 5


def test_sums_of_coarse_noise_are_further_away():
    """Measured before: 7.5e-7 for four of standard deviation 1, 6.8e-15 for 1.5."""
    for std, found in ((1, 7.5e-7), (1.5, 6.8e-15), (2, 3.8e-26)):
        summed = of_sum([mpf(std) ** 2] * 4)
        lattice = discrete_gaussian(4 * mpf(std) ** 2, len(summed) // 2)
        assert float(distance(summed, lattice)) == pytest.approx(found, rel=0.05)


# --- who survives ---------------------------------------------------------------------------

WEIGHTS, MIN_WEIGHT, S = [1, 1, 2, 3], 4, 4.0  # the lightest node has a standard deviation of 2.004


def patterns():
    """Every set of honest survivors whose weight reaches W_min."""
    nodes = range(len(WEIGHTS))
    sets = itertools.chain.from_iterable(itertools.combinations(nodes, k) for k in range(1, 5))
    return [chosen for chosen in sets if sum(WEIGHTS[i] for i in chosen) >= MIN_WEIGHT]


@pytest.mark.parametrize("chosen", patterns())
def test_every_dropout_pattern_has_at_least_the_planned_noise(chosen, monkeypatch):
    """Its exact distribution is close to rounded Gaussian noise of s' >= s."""
    monkeypatch.setattr(integer_noise, "LEAST_STD", S)
    z, sensitivity = 0.5, 2 * S
    weights = [WEIGHTS[i] for i in chosen]
    summed = of_sum([mpf(node_variance(z, w, MIN_WEIGHT, sensitivity)) for w in weights])
    wider = sum(weights) / mpf(MIN_WEIGHT) * (mpf(S) ** 2 + TWELFTH) - TWELFTH
    assert wider >= mpf(S) ** 2 * (1 - mpf(2) ** -50)
    privacy_plan = release_distance(1, z, sensitivity, MIN_WEIGHT)
    found = distance(summed, rounded_gaussian(wider, len(summed) // 2))
    assert found <= privacy_plan
    if sum(weights) == MIN_WEIGHT:
        assert found > privacy_plan / 2  # and no closer to noise of another size:
        assert distance(summed, rounded_gaussian(1.01 * wider, len(summed) // 2)) > privacy_plan


def test_patterns_are_those_with_enough_weight():
    assert len(patterns()) == 8 and (0, 1) not in patterns() and (0, 3) in patterns()


def test_what_colluders_take_off_leaves_the_honest_nodes_noise():
    """All survivors' noise less that of the colluders: the honest sum, with its variance."""
    z, sensitivity, weights, colluding = 1.5, 100.0, [3, 5, 2, 6], (1, 2)
    min_weight = sum(weights) - sum(weights[i] for i in colluding)
    rng = np.random.default_rng(8)
    shares = [node_noise_integers(20_000, w, min_weight, z, sensitivity, rng) for w in weights]
    left = np.sum(shares, axis=0) - sum(shares[i] for i in colluding)
    assert np.array_equal(left, shares[0] + shares[3])
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 20_000)
    assert low <= (left.astype(float) ** 2).sum() / (150.0**2 + 1 / 12) <= high


def test_the_variance_of_a_node():
    """Shares add up to s^2 + 1/12 at W_min."""
    assert node_variance(2.0, 3, 12, 10.0) == pytest.approx((400 + 1 / 12) / 4, rel=1e-15)
    whole = sum(node_variance(2.0, w, 12, 10.0) for w in (1, 4, 7))
    assert whole == pytest.approx(400 + 1 / 12, rel=1e-14)
    for bad in (0.0, -1.0, math.nan, math.inf):
        for i, name in enumerate(("noise_multiplier", "weight", "min_weight", "sensitivity")):
            numbers = [1.0] * 4
            numbers[i] = bad
            with pytest.raises(ValueError, match=f"{name} = {bad}"):
                node_variance(*numbers)


# --- the numbers of a release ---------------------------------------------------------------


def test_release_distance():
    """A coordinate's distance, times the coordinates."""
    for d, z, sensitivity, w_min in ((1, 2.0, 4096.0, 100.0), (18_000, 0.5, 1024.0, 8.5)):
        s = z * sensitivity
        lightest = math.sqrt((s * s + 1 / 12) / w_min)
        wanted = d * (5e-4 / s**4 + 2.1 * w_min * math.exp(-((math.pi * lightest) ** 2)))
        assert release_distance(d, z, sensitivity, w_min) == pytest.approx(wanted, rel=1e-12)
    # The design's example: 18,000 coordinates at s = 2^10, 50 releases.
    assert 50 * release_distance(18_000, 1.0, 1024.0, 100.0) == pytest.approx(4e-10, rel=0.03)


@pytest.mark.parametrize(
    ("z", "sensitivity", "w_min"),
    [(0.015, 4096.0, 2.0), (0.5, 127.0, 2.0), (1.0, 4096.0, 2.0**22.1)],
)
def test_coarse_noise_is_refused_and_its_numbers_are_named(z, sensitivity, w_min):
    words = rf"noise_multiplier = {z:g} at sensitivity = {sensitivity:g} .*W_min = {w_min:g} "
    with pytest.raises(TooCoarse, match=words.replace("+", r"\+")) as caught:
        release_distance(10, z, sensitivity, w_min)
    assert f"{z * sensitivity:.4g} in integers" in str(caught.value)
    assert f"{z * sensitivity / math.sqrt(w_min):.3g}" in str(caught.value)
    assert "at least 64" in str(caught.value) and "at least 2)" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_the_least_noise_is_allowed():
    assert release_distance(1, 1.0, LEAST_STD, 900.0) > 0
    assert release_distance(1, 1.0, 4096.0, (4096 / LEAST_NODE_STD) ** 2) > 0


@settings(deadline=None, max_examples=300)
@given(
    length=st.integers(1, 10**8),
    z=st.floats(0.01, 1e3),
    w_min=st.floats(1, 1e7),
    allowed=st.floats(-80, -3).map(lambda exponent: 10.0**exponent),
)
def test_least_sensitivity_is_the_inverse_of_release_distance(length, z, w_min, allowed):
    sensitivity = least_sensitivity(length, z, w_min, allowed)
    assert 0 < release_distance(length, z, sensitivity, w_min) <= allowed
    try:
        more = release_distance(length, z, 0.97 * sensitivity, w_min)
    except TooCoarse:
        return
    # Each term has half of what is allowed; 3 % outweigh the 1/12 of the variance.
    assert more > allowed / 2


@pytest.mark.parametrize("allowed", [0.0, -1e-9, math.nan, math.inf])
def test_bad_values_of_least_sensitivity(allowed):
    with pytest.raises(ValueError, match=f"allowed = {allowed}"):
        least_sensitivity(10, 1.0, 10.0, allowed)
    with pytest.raises(ValueError, match="min_weight = 0"):
        least_sensitivity(10, 1.0, 0.0, 1e-9)


# --- what it takes of delta -----------------------------------------------------------------


@given(delta=deltas)
def test_the_integers_take_a_thousandth_of_delta(delta):
    """delta' + 5.5 eta is delta, and no more."""
    paid = mpf(allowed_distance(delta)) * mpf("5.5")
    assert paid <= mpf(delta) / 1000 * (1 + mpf("1e-12"))
    assert gaussian_delta(delta) + paid <= mpf(delta) * (1 + mpf("1e-15"))
    assert paid > 0.999 * SHARE_OF_DELTA * delta and SHARE_OF_DELTA == 1e-3


@settings(deadline=None)
@given(
    epsilon=st.floats(0.05, 30),
    more=st.floats(1, 20),
    delta=deltas,
    releases=st.integers(0, 5000),
)
def test_the_releases_of_a_run_fit(epsilon, more, delta, releases):
    """Of a run alone, and of as many runs as the ledger's mu^2 has room for."""
    each = distance_each(epsilon, delta, releases)
    assert 0 < each * max(1, releases) <= allowed_distance(delta) / 2 * (1 + 1e-12)
    assert distance_each(epsilon, delta, releases, epsilon / 2) == each
    total = epsilon * more
    shared = distance_each(epsilon, delta, releases, total)
    left = gaussian_delta(delta)
    runs = math.floor((gaussian_mu(total, left) / gaussian_mu(epsilon, left)) ** 2 * (1 + 1e-9))
    assert runs * releases * shared <= allowed_distance(delta)
