"""How fine a query's integers are, and how wide the modulus that holds their sum.

Chosen so that the result is useful. What privacy depends on is checked elsewhere: a user's norm by
`quantize.truncate`, the noise by `integer_noise.release_distance`, all releases together by the
ledger. A sum that wraps around is as private as one that does not, and of no use.
"""

from __future__ import annotations

import math

from privsyn_flower.privacy.accounting.composition import gaussian_mu
from privsyn_flower.privacy.encoding.quantize import SENSITIVITY, IntegerPlan
from privsyn_flower.privacy.noise.integer_noise import (
    LEAST_NODE_STD,
    LEAST_STD,
    allowed_distance,
    check_positive,
    gaussian_delta,
    node_variance,
)

_LOG_WRAP = 60 * math.log(2.0)  # noise leaves the range with probability 2^-60 at most


class WrapAround(ValueError):
    """A sum would leave the range of its modulus."""


def plan_histogram(
    bound: float,
    length: int,
    *,
    noise_multiplier: float,
    weight: float,
    min_weight: float,
    sensitivity: float = SENSITIVITY,
) -> IntegerPlan:
    """The encoding of a query of `length` coordinates whose clipped vectors have norm `bound`.

    weight: users that all nodes together stand for. min_weight: W_min. noise_multiplier: std of
    the guaranteed noise / sensitivity, 0 where the nodes add none. The least bits are chosen that
    hold the sum with the noise of all nodes. Raises WrapAround when 56 bits do not, ValueError on
    other values.
    """
    check_positive(bound=bound)
    if length < 1:
        raise ValueError(f"length = {length} must be at least 1")
    needed = _needed(length, noise_multiplier, weight, min_weight, sensitivity)
    bits = next((b for b in range(8, 57, 8) if needed < 2 ** (b - 1)), 56)
    plan = IntegerPlan(bound, sensitivity, sensitivity / bound, bits, length)
    check_plan(plan, noise_multiplier, weight, min_weight)
    return plan


def check_plan(
    plan: IntegerPlan, noise_multiplier: float, weight: float, min_weight: float
) -> None:
    """Raise WrapAround unless the plan's modulus holds the sum with the noise of all nodes.

    noise_multiplier: as in `plan_histogram`.
    """
    needed = _needed(plan.length, noise_multiplier, weight, min_weight, plan.sensitivity)
    if needed >= 2 ** (plan.bits - 1):
        raise WrapAround(
            f"bits = {plan.bits}: the modulus 2^{plan.bits} holds sums up to "
            f"{2 ** (plan.bits - 1) - 1}, but weight = {weight} users of sensitivity "
            f"{plan.sensitivity} and their noise (noise_multiplier = {noise_multiplier}, "
            f"min_weight = {min_weight}) reach {needed}: raise bits, or lower sensitivity, "
            "noise_multiplier or weight"
        )


def _needed(
    length: int, noise_multiplier: float, weight: float, min_weight: float, sensitivity: float
) -> int:
    """Least magnitude that no coordinate exceeds, but with probability 2^-60 of the noise."""
    noise = (noise_multiplier, weight, min_weight)
    return math.ceil(weight * sensitivity + sum_tail(*noise, sensitivity, length))


def sum_tail(
    noise_multiplier: float, weight: float, min_weight: float, sensitivity: float, length: int
) -> float:
    """`noise_tail` of the noise of all nodes; 0 where noise_multiplier is 0: they add none."""
    variance = node_variance(noise_multiplier or 1.0, weight, min_weight, sensitivity)
    return noise_tail(variance, length) if noise_multiplier else 0.0


def noise_tail(variance: float, length: int) -> float:
    """Magnitude that the noise passes in none of `length` draws, but for 2^-60.

    variance: of a discrete Gaussian or the sum of those of a sum, which is subgaussian as a
    Gaussian is (Canonne, Kamath, Steinke 2020, Lemma 10): P(X >= t) <= exp(-t^2 / (2 variance)),
    with the union over coordinates and signs.
    """
    return math.sqrt(2 * (math.log(2.0 * length) + _LOG_WRAP) * variance)


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
