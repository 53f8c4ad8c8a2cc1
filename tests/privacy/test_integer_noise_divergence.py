"""Hockey-stick divergences of the nodes' integer noise, by brute force, against the Gaussian's.

At s = 4 every probability can be summed: the noise of several nodes, each a discrete Gaussian, on
sums that differ by one user's integers. What is claimed is delta(epsilon) of the Gaussian mechanism
and PRICE times the distance of all releases (docs/proofs/integer-noise.md), here with far coarser
integers than the code allows.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from privsyn_flower.privacy.accounting import composed_epsilon, gaussian_mu
from privsyn_flower.privacy.noise import integer_noise
from privsyn_flower.privacy.noise.integer_noise import (
    gaussian_delta,
    node_variance,
    release_distance,
)
from tests.privacy.lattice import noise_array

S, REACH = 4.0, 80  # noise in integers; beyond 16 of its standard deviations there is nothing
MIN_WEIGHT = 4
EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0)
COHORTS = ([1, 1, 1, 1], [1, 1, 2], [4], [1, 2, 2])  # honest survivors, by weight
RATES = (0.02, 0.2, 0.7)
TOO_SMALL = 0.9**2  # of a variance: 10 % less noise


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(integer_noise, "LEAST_STD", S)


def noise_of(weights, sensitivity, share=1.0):
    """Probabilities of the survivors' summed noise: (2 REACH + 1,)."""
    variances = [
        share * node_variance(S / sensitivity, w, MIN_WEIGHT, sensitivity) for w in weights
    ]
    return noise_array(variances, REACH)


def shifted(mass, by):
    """The same noise on a sum that is larger by so many integers, along each axis."""
    for axis, steps in enumerate(by):
        moved = np.roll(mass, steps, axis)
        edge = [slice(None)] * mass.ndim
        edge[axis] = slice(0, steps) if steps >= 0 else slice(steps, None)
        moved[tuple(edge)] = 0.0  # what fell off the other end is below 1e-50
        mass = moved
    return mass


def divergence(p, q, epsilon):
    """max over sets A of p(A) - e^epsilon q(A)."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def gaussian_delta_at(mu, epsilon):
    """Balle and Wang 2018, Theorem 8."""
    return ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def extra(epsilon, length, sensitivity, releases=1):
    """What the integers add to delta."""
    each = release_distance(length, S / sensitivity, sensitivity, MIN_WEIGHT)
    return integer_noise.PRICE * releases * each


# --- without sampling -----------------------------------------------------------------------


def check_one(weights, by, sensitivity, share=1.0):
    """One release of len(by) coordinates, of which a user's integers are `by`."""
    line = noise_of(weights, sensitivity, share)
    noise = line if len(by) == 1 else np.multiply.outer(line, line)
    moved = shifted(noise, by)
    for epsilon in EPSILONS:
        claimed = gaussian_delta_at(sensitivity / S, epsilon) + extra(epsilon, len(by), sensitivity)
        assert divergence(noise, moved, epsilon) <= claimed
        assert divergence(moved, noise, epsilon) <= claimed


@pytest.mark.parametrize("weights", COHORTS)
@pytest.mark.parametrize("sensitivity", [1, 2, 3, 4, 6, 9])
def test_one_coordinate(weights, sensitivity):
    for by in range(-sensitivity, sensitivity + 1):
        check_one(weights, (by,), sensitivity)


@pytest.mark.parametrize("weights", COHORTS)
@pytest.mark.parametrize("by", [(3, 4), (-4, 3), (5, 0), (0, -5), (3, -3), (2, 4), (1, 1)])
def test_two_coordinates(weights, by):
    check_one(weights, by, 5)


@pytest.mark.parametrize("by", [(4,), (3, 4), (4, 0)])
def test_a_tenth_less_noise_is_too_little(by):
    with pytest.raises(AssertionError):
        check_one([1, 1, 2], by, int(math.hypot(*by)), TOO_SMALL)


@pytest.mark.parametrize("by", [(4,), (3, 4)])
def test_a_user_beyond_the_sensitivity_is_not_covered(by):
    with pytest.raises(AssertionError):
        check_one([1, 1, 2], by, 3)


# --- sampled users --------------------------------------------------------------------------


def sampled_delta(epsilon, rate, mu, *, present):
    """Of one Poisson-sampled Gaussian release: of the user's presence, or of their absence.

    Present, the user's integers are in the sum with probability `rate`; the ratio of the two
    densities rises with x, so that the best set is a half-line. epsilon: any numbers, an array.
    """
    grown = np.exp(epsilon)

    def where(ratio):  # x / s at which 1 - rate + rate exp(mu x / s - mu^2 / 2) is `ratio`
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(0.0, ratio - (1 - rate)) / rate) / mu + mu / 2

    if present:
        x = where(grown)
        mixed = (1 - rate) * ndtr(-x) + rate * ndtr(mu - x)
        return mixed - grown * ndtr(-x)
    x = where(1 / grown)
    return ndtr(x) - grown * ((1 - rate) * ndtr(x) + rate * ndtr(x - mu))


def sampled_twice_delta(epsilon, rate, mu, *, present):
    """Of two such releases: the second's divergence at what the first has left of epsilon."""
    x = np.linspace(-14, 14 + mu, 4001)
    mixed = (1 - rate) * stats.norm.pdf(x) + rate * stats.norm.pdf(x - mu)
    loss = np.log1p(rate * np.expm1(mu * x - mu * mu / 2))
    first, left = (mixed, epsilon - loss) if present else (stats.norm.pdf(x), epsilon + loss)
    second = sampled_delta(left, rate, mu, present=present)
    return float(np.sum(first * second) * (x[1] - x[0]))  # smooth: the error is below 1e-12


def check_sampled(weights, rate, sensitivity, share=1.0):
    noise = noise_of(weights, sensitivity, share)
    for by in (sensitivity, -sensitivity, sensitivity - 1):
        mixed = (1 - rate) * noise + rate * shifted(noise, (by,))
        for epsilon in EPSILONS:
            more = extra(epsilon, 1, sensitivity)
            for p, q, present in ((mixed, noise, True), (noise, mixed, False)):
                claimed = sampled_delta(epsilon, rate, sensitivity / S, present=present)
                assert divergence(p, q, epsilon) <= claimed + more


@pytest.mark.parametrize("weights", COHORTS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("sensitivity", [2, 4, 7])
def test_sampled(weights, rate, sensitivity):
    """Both directions: the user's presence, and their absence."""
    check_sampled(weights, rate, sensitivity)


@pytest.mark.parametrize("rate", RATES)
def test_a_tenth_less_noise_is_too_little_for_a_sampled_sum(rate):
    with pytest.raises(AssertionError):
        check_sampled([1, 1, 2], rate, 4, TOO_SMALL)


# --- two releases ---------------------------------------------------------------------------


def check_twice(weights, sensitivity, share=1.0):
    """The second question depends on the first release, and so does what the user says."""
    noise = noise_of(weights, sensitivity, share)
    other = noise_of([*weights, 1], sensitivity, share)  # more answer when the first is above 0
    first = shifted(noise, (sensitivity,))
    above = np.arange(-REACH, REACH + 1) > 0
    seconds = np.where(above[:, None], other, noise)
    moved = np.where(above[:, None], shifted(other, (-sensitivity,)), first)
    p, q = noise[:, None] * seconds, first[:, None] * moved
    mu = math.sqrt(2) * sensitivity / S
    for epsilon in EPSILONS:
        claimed = gaussian_delta_at(mu, epsilon) + extra(epsilon, 1, sensitivity, releases=2)
        assert max(divergence(p, q, epsilon), divergence(q, p, epsilon)) <= claimed


@pytest.mark.parametrize("weights", COHORTS)
@pytest.mark.parametrize("sensitivity", [1, 3, 4, 6])
def test_two_adaptive_releases(weights, sensitivity):
    check_twice(weights, sensitivity)


def test_a_tenth_less_noise_is_too_little_for_two():
    with pytest.raises(AssertionError):
        check_twice([1, 1, 2], 4, TOO_SMALL)


def sampled_twice(weights, rate, sensitivity, share=1.0):
    """Probabilities of two sampled releases, with the user and without."""
    noise = noise_of(weights, sensitivity, share)
    mixed = (1 - rate) * noise + rate * shifted(noise, (sensitivity,))
    return np.multiply.outer(mixed, mixed), np.multiply.outer(noise, noise)


def check_sampled_twice(weights, rate, sensitivity, share=1.0):
    with_user, without = sampled_twice(weights, rate, sensitivity, share)
    for epsilon in EPSILONS:
        more = extra(epsilon, 1, sensitivity, releases=2)
        for p, q, present in ((with_user, without, True), (without, with_user, False)):
            claimed = sampled_twice_delta(epsilon, rate, sensitivity / S, present=present)
            assert divergence(p, q, epsilon) <= claimed + more + 1e-12


@pytest.mark.parametrize("weights", [[1, 1, 2], [1, 2, 2]])
@pytest.mark.parametrize("rate", RATES)
def test_two_sampled_releases(weights, rate):
    check_sampled_twice(weights, rate, 4)


@pytest.mark.parametrize("rate", RATES)
def test_a_tenth_less_noise_is_too_little_for_two_sampled_releases(rate):
    with pytest.raises(AssertionError):
        check_sampled_twice([1, 1, 2], rate, 4, TOO_SMALL)


# --- what is claimed ------------------------------------------------------------------------


def check_claim(rate, releases, sensitivity, delta, share=1.0):
    """The accounting's epsilon holds at delta, where the integers' part of it is large enough.

    At s = 4 a thousandth of delta is not; what it has to be is added.
    """
    plan = {(S / sensitivity, rate): releases}
    epsilon = composed_epsilon(plan, gaussian_delta(delta))
    p, q = sampled_twice([1, 1, 2], rate, sensitivity, share)
    if releases == 1:
        p, q = p.sum(1), q.sum(1)
    claimed = gaussian_delta(delta) + extra(epsilon, 1, sensitivity, releases)
    assert max(divergence(p, q, epsilon), divergence(q, p, epsilon)) <= claimed
    return epsilon


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("releases", [1, 2])
@pytest.mark.parametrize("delta", [1e-2, 1e-3])
def test_the_claimed_epsilon_holds(rate, releases, delta):
    epsilon = check_claim(rate, releases, 4, delta)
    if rate == 1.0:
        assert gaussian_mu(epsilon, gaussian_delta(delta)) == pytest.approx(releases**0.5, rel=1e-6)
    with pytest.raises(AssertionError):
        check_claim(rate, releases, 4, delta, TOO_SMALL)
