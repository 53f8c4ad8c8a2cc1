"""What the integers cost in delta: the ratio of lemmas 2 and 3 in docs/proofs/integer-noise.md."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
from mpmath import mpf

from privsyn_flower.client_apps.node.lifetime import Limit, cost
from privsyn_flower.privacy.accounting import calibrate
from privsyn_flower.privacy.encoding.sizing import distance_each, least_sensitivity
from privsyn_flower.privacy.noise.integer_noise import (
    PRICE,
    SHARE_OF_DELTA,
    allowed_distance,
    coordinate_distance,
    gaussian_delta,
    node_variance,
    release_distance,
)
from tests.privacy.lattice import TWELFTH, discrete_gaussian, of_sum, rounded_gaussian

RATIO = 4.4  # of the logarithms' bound to that of the total variation


def log_ratios(variance, noise, most):
    """log of the rounded Gaussian of this variance over the noise, at 0 .. most - 1."""
    middle = len(noise) // 2
    rounded = rounded_gaussian(variance, most)[most : 2 * most]
    return [mpmath.log(x / noise[middle + n]) for n, x in enumerate(rounded)]


@pytest.mark.parametrize("s", [4, 16, 64])
def test_the_rounded_gaussian_is_nowhere_much_likelier(s):
    noise = discrete_gaussian(mpf(s) ** 2 + TWELFTH, 15 * s)
    found = log_ratios(mpf(s) ** 2, noise, 10 * s)
    top = max(found) * s**4
    assert 0.97 / 480 < top < 1 / 480  # proved: 2.2e-3 from s = 40 on
    rises = [b > a for a, b in itertools.pairwise(found)]
    assert rises == sorted(rises, reverse=True)  # it rises, and then falls for ever


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [1, 3], [2, 3]])
def test_the_sum_of_nodes_is_within_what_is_charged(weights):
    z, sensitivity, w_min, s = 2.0, 4.0, 4.0, 8.0
    variances = [node_variance(z, w, w_min, sensitivity) for w in weights]
    noise = of_sum([mpf(v) for v in variances])
    below = mpmath.fsum(map(mpf, variances)) - TWELFTH
    bound = coordinate_distance(s, math.sqrt(node_variance(z, 1.0, w_min, sensitivity)), w_min)
    assert max(log_ratios(below, noise, 8 * int(s))) < RATIO * bound


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.5])
def test_the_price_covers_both_parts(delta):
    eta = allowed_distance(delta)
    assert eta + math.expm1(RATIO * eta) <= SHARE_OF_DELTA * delta
    assert 1e-3 + math.expm1(RATIO * 1e-3) <= PRICE * 1e-3
    assert gaussian_delta(delta) + PRICE * eta <= delta * (1 + 1e-15)


@pytest.mark.parametrize("epsilon", [1.0, 7.58, 20.0])
def test_a_higher_lifetime_never_allows_less(epsilon):
    z = calibrate(epsilon, 2, gaussian_delta(1e-6))
    each = distance_each(epsilon, 1e-6, 2)
    sensitivity = max(4096.0, least_sensitivity(18_000, z, 850, each))
    one = cost(z, release_distance(18_000, z, sensitivity, 850))
    limits = [Limit.of(lifetime, 1e-6) for lifetime in (5.0, 10.0, 20.0, 50.0, 1e3)]
    answers = [min(at.gaussian / one.gaussian, at.distance / one.distance) for at in limits]
    assert answers == sorted(answers) and answers[-1] > 10
