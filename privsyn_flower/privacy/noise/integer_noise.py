"""The nodes' integer noise at the price of Gaussian noise, and what that takes of delta.

Let f be the sum of the users' integer vectors (L2 norm of each at most S), P the distribution of
one coordinate of the honest nodes' summed noise, and Q that of N(0, s^2) rounded to the nearest
integer. As f is a vector of integers, f + round(N(0, s^2 I)) = round(f + N(0, s^2 I)): with Q it is
the Gaussian mechanism of multiplier s / S, post-processed, whoever was sampled into f and however
rounds follow from one another. With P every release lies within d tau of that in total variation,
tau = `coordinate_distance`, and no vector is more likely with Q than with P by a factor above
e^(4.4 d tau). So all of them, chosen adaptively, are (epsilon, delta' + 5.5 eta)-DP with
eta = sum of d tau, where the Gaussians are (epsilon, delta')-DP. (With the total variation alone,
1 + e^epsilon would stand for 5.5.)

A node of w users draws N_Z(0, v w / W_min), a discrete Gaussian, where v = s^2 + 1/12: rounding
adds 1/12. Of the honest survivors take a least set that weighs W_min or more: all but one of it
weigh less, so there are fewer than W_min + 1. What the others add is post-processing. Their sum is
within a hair of N_Z(0, v') with v' >= v, and that within 5e-4 / s^4 of the rounded Gaussian:
`coordinate_distance`.
Proofs: docs/integer-noise.md.
"""

from __future__ import annotations

import math

from privsyn_flower.privacy.accounting.composition import gaussian_mu

SHARE_OF_DELTA = 1e-3  # of every delta: kept for the integers, 5.5 eta at most
PRICE = 5.5  # eta + e^(4.4 eta) - 1 is at most this times eta, for eta up to 1e-3
LEAST_STD = 64.0  # of the summed noise, in integers: from here on 5e-4 / s^4 holds
LEAST_NODE_STD = 2.0  # of the noise of the lightest node there can be: one user's


class TooCoarse(ValueError):
    """Integers so coarse that the nodes' noise is not the Gaussian noise it is charged as."""


def check_positive(**numbers: float) -> None:
    """Raise ValueError, with its name, for one that is not finite and above 0."""
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value} must be finite and above 0")


def gaussian_delta(delta: float) -> float:
    """delta': what of delta is left for the Gaussians; every run is calibrated for it."""
    return delta * (1 - SHARE_OF_DELTA)


def allowed_distance(delta: float) -> float:
    """eta: total variation that all releases under delta may have together, at any epsilon."""
    return SHARE_OF_DELTA * delta / PRICE


def distance_each(epsilon: float, delta: float, releases: int, total_epsilon: float = 0.0) -> float:
    """Total variation that each of a run's releases may have, so that all of them fit.

    total_epsilon: of the ledger, where it has more to give than the run's epsilon; then the run
    takes of the ledger's distance what it takes of its mu^2. A twentieth of that: integers are
    cheap, and devices count the distances of all their runs (`client_apps.node.lifetime`).
    """
    total = max(epsilon, total_epsilon)
    left = gaussian_delta(delta)
    share = (gaussian_mu(epsilon, left) / gaussian_mu(total, left)) ** 2
    return share * allowed_distance(delta) / (20 * max(1, releases))


def node_variance(
    noise_multiplier: float, weight: float, min_weight: float, sensitivity: float
) -> float:
    """v w / W_min: the parameter of the noise of `weight` users, in integers.

    noise_multiplier: s / sensitivity, of the guaranteed noise. Raises ValueError unless every
    number is finite and positive.
    """
    check_positive(
        noise_multiplier=noise_multiplier,
        weight=weight,
        min_weight=min_weight,
        sensitivity=sensitivity,
    )
    s = noise_multiplier * sensitivity
    variance = weight / min_weight * (s * s + 1 / 12)  # a product that overflows is inf
    if not variance < math.inf:
        raise ValueError(f"noise_multiplier * sensitivity = {s} is beyond all bounds")
    return variance


def release_distance(
    length: int, noise_multiplier: float, sensitivity: float, min_weight: float
) -> float:
    """d TV(P, Q): how far, at most, one release's noise is from rounded Gaussian noise.

    length: d, coordinates of a vector. min_weight: W_min, in users. Raises TooCoarse when the
    summed noise, or that of a node of one user, is too small in integers for the bound to hold.
    """
    s = noise_multiplier * sensitivity
    lightest = math.sqrt(node_variance(noise_multiplier, 1.0, min_weight, sensitivity))
    if s < LEAST_STD or lightest < LEAST_NODE_STD:
        raise TooCoarse(
            f"noise_multiplier = {noise_multiplier:g} at sensitivity = {sensitivity:g} is noise "
            f"of standard deviation {s:.4g} in integers (at least {LEAST_STD:g}), {lightest:.4g} "
            f"for a node of one user where W_min = {min_weight:g} (at least {LEAST_NODE_STD:g}): "
            "raise sensitivity, that is, count in smaller units"
        )
    return length * coordinate_distance(s, lightest, min_weight)


def coordinate_distance(s: float, lightest: float, nodes: float) -> float:
    """TV(P, Q) of one coordinate, at most. s >= LEAST_STD, lightest >= LEAST_NODE_STD.

    lightest: least standard deviation of one of the `nodes` summands. The first term is the
    distance of N_Z(0, s^2 + 1/12) to Q (measured with 60 digits: 4.863e-4 / s^4), the second that
    of the sum to N_Z. log(Q / P) is nowhere above 4.4 times this (measured: 2.083e-3 / s^4).
    """
    return 5e-4 / (s * s) / (s * s) + 2.1 * nodes * math.exp(-((math.pi * lightest) ** 2))


def least_sensitivity(
    length: int, noise_multiplier: float, min_weight: float, allowed: float
) -> float:
    """The least sensitivity, in integers, at which `release_distance` is at most `allowed`.

    Half of it for each term. Raises ValueError unless every number is finite and positive.
    """
    node_variance(noise_multiplier, 1.0, min_weight, 1.0)
    check_positive(allowed=allowed)
    per_coordinate = allowed / (2 * length)
    lightest = math.sqrt(max(0.0, math.log(2.1 * min_weight / per_coordinate))) / math.pi
    s: float = max(
        LEAST_STD,
        (5e-4 / per_coordinate) ** 0.25,
        max(LEAST_NODE_STD, lightest) * math.sqrt(min_weight),
    )
    return s * (1 + 1e-9) / noise_multiplier
