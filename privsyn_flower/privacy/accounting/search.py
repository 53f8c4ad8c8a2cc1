"""Searches for the noise multiplier that just keeps an epsilon, in few looks at what one costs.

A look may compose privacy loss distributions, which takes a tenth of a second and more. Epsilon
falls in the multiplier, and its logarithm in the multiplier's is almost a straight line.
"""

from __future__ import annotations

import math
from collections.abc import Callable

EpsilonOf = Callable[[float], float]  # noise multiplier -> epsilon, at some delta
CLOSE = 1e-3  # of epsilon: as near to the target as `closer` must come


def smallest(epsilon_of: EpsilonOf, target: float, high: float, least: float) -> float:
    """The upper end of a bisection of a decreasing function that keeps the target at `high`.

    Where it crosses the target is found by secants before (`_crossing`); the bisection then asks
    for values between those two places alone, of the twenty that it needs. Raises ValueError when
    the target is kept even at `least`.
    """
    low = high / 2
    while (value := epsilon_of(low)) <= target:
        if low <= least:
            raise ValueError(
                f"target_epsilon = {target} is above {value:.3g}, the epsilon at the "
                f"smallest noise multiplier searched ({low:.3g}): lower epsilon"
            )
        high, low = low, low / 2
    below, above = _crossing(epsilon_of, target, low, value, high)
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        costly = middle <= below or (middle < above and epsilon_of(middle) > target)
        low, high = (middle, high) if costly else (low, middle)
    return high


def _crossing(
    epsilon_of: EpsilonOf, target: float, low: float, value: float, high: float
) -> tuple[float, float]:
    """Two multipliers close to each other, of which the smaller costs more than the target.

    By secants of the logarithms, between which epsilon is almost a straight line, each a little
    beyond the place where it should cross: so both come close. value: epsilon at `low`.
    """
    place, gap, slope = math.log(low), math.log(value / target), -1.0
    for _ in range(8):
        beyond = 2e-7 if gap > 0 else -2e-7
        following = place - gap / slope + beyond
        if not low < math.exp(following) < high:  # a bend: halve what is left
            following = math.log(math.sqrt(low * high))
        before, gap = gap, math.log(max(epsilon_of(math.exp(following)), 1e-300) / target)
        slope = min(-0.01, (gap - before) / (following - place))
        place = following
        low, high = (math.exp(place), high) if gap > 0 else (low, math.exp(place))
        if high < low * (1 + 1e-6):
            break
    return low, high


def closer(epsilon_of: EpsilonOf, target: float, high: float) -> float:
    """A multiplier below `high`, which keeps the target, that keeps it too, and within CLOSE.

    By secants of the logarithms, between which epsilon is almost a straight line: three or four
    values in place of a bisection's fourteen, which take a tenth of a second each and more.
    """
    aim = math.log(target * (1 - CLOSE / 2))
    low, place, slope = 0.0, math.log(high), -1.0
    gap = math.log(epsilon_of(high)) - aim
    for _ in range(20):
        following = place - gap / slope
        if not low < math.exp(following) < high:  # a bend: halve what is left
            following = math.log(math.sqrt(max(low, high / 2) * high))
        value = epsilon_of(math.exp(following))
        if value <= target:
            high = math.exp(following)
            if value > target * (1 - CLOSE):
                break
        else:
            low = math.exp(following)
        before, gap = gap, math.log(value) - aim
        slope = min(-0.01, (gap - before) / (following - place))
        place = following
    return high
