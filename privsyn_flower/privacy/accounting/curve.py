"""Other accounts of the same noise: its privacy curve, and the papers' looser accountant.

One pair of epsilon and delta is what a run was calibrated for. The noise fixes them all, and no
pair says what the curve does: the same epsilon and delta can belong to different curves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from privsyn_flower.privacy.accounting.composition import (
    FINAL_INTERVAL,
    FINEST_INTERVAL,
    MOST_CONVOLVED,
    ORDERS,
    SMALLEST_DELTA,
    AccountingError,
    Kinds,
    Releases,
    check_delta,
    check_multiplier,
    check_plan,
    composed_epsilon,
    gaussian_epsilon,
    mu_squared,
    pld_epsilon,
    renyi_bound,
)
from privsyn_flower.privacy.noise.integer_noise import SHARE_OF_DELTA

PER_DECADE = 4
DECADES_BELOW = 3  # of the run's own delta; the share for the integers is the end of the curve

Curve = list[tuple[float, float]]


def privacy_curve(releases: Releases, delta: float) -> Curve:
    """Pairs (epsilon, delta) that hold for these releases, with growing epsilon.

    releases: as `composed_epsilon` has them. delta: the run's, whose pair is one of them. All of
    them hold at once; each is an upper bound, exact where no rate is below 1. The share of the
    run's delta that pays for integers is in every delta, as in the run's own. Raises as
    `composed_epsilon` where the run's own pair does.
    """
    check_delta("delta", delta)
    return list(_points(tuple(sorted(releases.items())), delta))


@functools.lru_cache(maxsize=8)  # a summary is written twice; sampled releases take seconds
def _points(kinds: Kinds, delta: float) -> tuple[tuple[float, float], ...]:
    exact = functools.partial(composed_epsilon, dict(kinds))
    own = exact(_gaussians(delta, 1.0))
    if not 0 < own < math.inf:
        return ()
    at = _sampled(kinds, delta, own) if any(rate < 1.0 for (_, rate), _ in kinds) else None
    points: Curve = []
    for step in range(-DECADES_BELOW * PER_DECADE, 13 * PER_DECADE):
        times = 10.0 ** (step / PER_DECADE)
        gaussians = _gaussians(delta, times)
        if gaussians >= 0.5:
            break
        if at is not None and gaussians < SMALLEST_DELTA and step:
            continue  # there, Renyi bounds hold: true ones, but of another curve
        try:
            epsilon = own if step == 0 else at(gaussians) if at else exact(gaussians)
        except AccountingError:
            continue  # one pair less; a curve must not end a run
        if 0 < epsilon < math.inf:
            # What holds at a smaller delta holds here.
            epsilon = min([epsilon, *(one for one, _ in points[-1:])])
            points.append((epsilon, delta * SHARE_OF_DELTA + gaussians if step else delta))
    return tuple(reversed(points))


def _gaussians(delta: float, times: float) -> float:
    """So many times what the Gaussians have of the run's delta."""
    return delta * (1 - SHARE_OF_DELTA) * times


def _sampled(kinds: Kinds, delta: float, own: float) -> Callable[[float], float]:
    """Epsilon of Poisson-sampled releases at any delta, by one privacy loss distribution: as fine
    as that which gave the run's own pair. Where that one had none, as the run's own pair."""
    ours = _gaussians(delta, 1.0)
    if ours < SMALLEST_DELTA or sum(count for _, count in kinds) > MOST_CONVOLVED:
        return functools.partial(composed_epsilon, dict(kinds))
    total = math.fsum(count * mu_squared(z) for (z, _), count in kinds)
    unsampled = functools.partial(gaussian_epsilon, 1 / math.sqrt(total))
    scale = max(1.0, unsampled(ours) / 50)
    interval = FINAL_INTERVAL * scale
    if own < min(pld_epsilon(kinds, ours, interval), unsampled(ours)):
        interval = FINEST_INTERVAL * scale
    return lambda gaussians: min(pld_epsilon(kinds, gaussians, interval), unsampled(gaussians))


def renyi_epsilon(
    noise_multiplier: float, rounds: int, delta: float, *, sampling_rate: float = 1.0
) -> float:
    """What a Renyi accountant says (Mironov 2017; Mironov, Talwar, Zhang 2019): looser.

    For comparison with the papers. With sampling the fractional orders are infinite series that
    can fail (a public accountant answers -29.87 for noise 15.5, 50 rounds, rate 0.5); integer
    orders are finite sums, so they come first and the fractional ones only where the best order is
    small. Raises as `epsilon` does.
    """
    check_plan(rounds, delta, sampling_rate)
    check_multiplier(noise_multiplier)
    if rounds == 0 or noise_multiplier == 0:
        return math.inf if rounds else 0.0

    def value(rate: float, orders: tuple[int, ...] | None) -> tuple[float, float]:
        return renyi_bound((((noise_multiplier, rate), rounds),), delta, orders)

    best, _ = value(1.0, None)
    if sampling_rate < 1.0:
        sampled, order = value(sampling_rate, ORDERS)
        if order < 11:
            sampled = min(sampled, value(sampling_rate, None)[0])
        best = min(best, sampled)
    return best
