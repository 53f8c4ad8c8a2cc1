"""Noise from epsilon: the smallest multiplier, or the most releases, that keeps one.

What is found here is not taken on trust: `composition` prices it again, when a run's plan is made
(`plan_privacy`) and when its ledger is (`ledger.filters`), and refuses what costs more.

A look at what a multiplier costs may compose privacy loss distributions, which takes a tenth of a
second and more. Epsilon falls in the multiplier, and its logarithm in the multiplier's is almost a
straight line.

`infeasibilities`: whether a run's numbers can give anything, by public numbers only. Its lengths
are in bounds of one user's answer, so that the bound itself does not matter: `answers` users whose
answers are equal and whole sum to `answers`.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from privsyn_flower.privacy.accounting.composition import (
    FINAL_INTERVAL,
    LARGEST_MULTIPLIER,
    SEARCH_INTERVAL,
    Releases,
    check_delta,
    check_plan,
    check_positive,
    composed_epsilon,
    gaussian_mu,
    mu_squared,
)
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.wording import at_most

if TYPE_CHECKING:
    from privsyn_flower.privacy.ledger.filters import Plan

# Below it one round has epsilon > 5000 at any useful delta; searching there serves nobody.
SMALLEST_MULTIPLIER = 1e-2
_HEADROOM = 1e-9  # calibrated noise is this much larger: rounding in sums of mu^2 stays covered

EpsilonOf = Callable[[float], float]  # noise multiplier -> epsilon, at some delta
CLOSE = 1e-3  # of epsilon: as near to the target as `closer` must come


def calibrate(
    target_epsilon: float, rounds: int, delta: float, *, sampling_rate: float = 1.0
) -> float:
    """Smallest noise multiplier whose epsilon does not exceed `target_epsilon`.

    The safe end of a bisection: within 1e-9 (closed form; for an epsilon below 1e-3, within 1e-11
    of epsilon) of the smallest, or at an epsilon within a thousandth of the target (sampled), and
    never below the smallest. Other arguments as in
    `epsilon`. Raises ValueError when no multiplier between 0.01 and 1e6 (times sqrt(rounds)) meets
    the target.
    """
    check_plan(rounds, delta, sampling_rate)
    return calibrate_beside(target_epsilon, {sampling_rate: rounds}, delta)


def calibrate_beside(
    target_epsilon: float,
    wanted: Mapping[float, int],
    delta: float,
    beside: Releases = MappingProxyType({}),
) -> float:
    """As `calibrate`, one multiplier for releases of several rates (rate -> how many), and other
    releases beside them, whose noise is given and whose cost is taken off first.

    Raises ValueError, too, when the others leave nothing.
    """
    check_positive("target_epsilon", target_epsilon)
    check_delta("delta", delta)
    rounds = sum(wanted.values())
    if rounds == 0:
        raise ValueError("rounds = 0: at least 1 round is needed to calibrate noise")
    exact = math.sqrt(rounds) * _one_release(target_epsilon, delta, beside)

    def together(multiplier: float, interval: float) -> float:
        events = Counter(beside)
        for rate, count in wanted.items():
            events[(multiplier, rate)] += count
        return composed_epsilon(events, delta, interval)

    step = _HEADROOM
    # `epsilon` rounds tiny ones up by more. The others need no dp_accounting, which takes a second.
    while target_epsilon < 1e-3 and together(exact, FINAL_INTERVAL) > target_epsilon:
        exact, step = exact * (1 + step), 2 * step
    if all(rate == 1.0 for rate in wanted) and all(rate == 1.0 for _, rate in beside):
        return exact
    if beside and together(exact, FINAL_INTERVAL) > target_epsilon:
        raise ValueError(_nothing_left(target_epsilon, delta))
    # Started from the unsampled exact value, the search stays away from 0, where PLDs explode.
    found = smallest(
        lambda z: together(z, SEARCH_INTERVAL), target_epsilon, exact, SMALLEST_MULTIPLIER
    )
    if together(found, FINAL_INTERVAL) < target_epsilon * (1 - CLOSE):
        finely = functools.partial(together, interval=FINAL_INTERVAL)
        found = closer(finely, target_epsilon, found)
    while together(found, FINAL_INTERVAL) > target_epsilon:
        found *= 1 + 1e-5
    return found


def _one_release(target_epsilon: float, delta: float, beside: Releases) -> float:
    """Multiplier of the one unsampled release that may stand beside the others."""
    mu = gaussian_mu(target_epsilon, delta)
    left = mu * mu - math.fsum(count * mu_squared(z) for (z, _), count in beside.items())
    if beside and any(rate < 1.0 for _, rate in beside):
        left = max(left, mu * mu * 1e-6)  # sampling amplifies: the search says what is left
    if left <= 0:
        raise ValueError(_nothing_left(target_epsilon, delta))
    one = (1 / math.sqrt(left) if beside else 1 / mu) * (1 + _HEADROOM)
    if not SMALLEST_MULTIPLIER <= one <= LARGEST_MULTIPLIER:
        way = "raise epsilon or delta" if one > 1 else "lower epsilon"
        raise ValueError(
            f"target_epsilon = {target_epsilon} at delta = {delta:.6g} needs a noise multiplier of "
            f"{one:.3g} for one round, outside {SMALLEST_MULTIPLIER:g} to {LARGEST_MULTIPLIER:g}: "
            f"{way}"
        )
    return one


def _nothing_left(target_epsilon: float, delta: float) -> str:
    return (
        f"the noise that is given costs all of epsilon = {target_epsilon} at delta = {delta:.6g}, "
        "and nothing is left for the rest: raise it, or lower its share"
    )


def most_releases(
    noise_multiplier: float,
    sampling_rate: float,
    target_epsilon: float,
    delta: float,
    *,
    beside: tuple[tuple[float, float, int], ...] = (),
) -> int:
    """How many releases of this kind keep epsilon: the largest number whose `epsilon` does.

    beside: (multiplier, rate, how many) of others.
    """

    def fits(count: int) -> bool:
        events = Counter({(noise_multiplier, sampling_rate): count})
        for multiplier, rate, others in beside:
            events[(multiplier, rate)] += others
        return composed_epsilon(events, delta) <= target_epsilon

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high > low + 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def sampled_plan(kinds: Plan, epsilon: float, delta: float, total_epsilon: float) -> Plan:
    """What the ledger of a run with sampling is made for.

    kinds: of the run, which cost at most epsilon. total_epsilon: of the ledger, where it is larger:
    then as many more releases of the first kind as it has room for.
    """
    if total_epsilon <= epsilon:
        return kinds
    first, *others = kinds
    more = most_releases(*first[:2], total_epsilon, gaussian_delta(delta), beside=tuple(others))
    return (first._replace(releases=more), *others)


# --- searches of a decreasing function ----------------------------------------------------------


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


# Share of the users who must say the same thing to stand out by one standard deviation; above it
# a run is doubtful. A choice of this project: the papers' settings stay far below it.
DOUBTFUL_SHARE = 0.1


@dataclass(frozen=True)
class Infeasibility:
    """hopeless: the numbers cannot give a use, or a privacy, worth the name; else doubtful."""

    text: str
    hopeless: bool


def infeasibilities(
    *,
    epsilon: float,
    delta: float,
    users: int,
    noise: float,
    answers: float,
    summed: str = "a released sum",
    key: str = "data.users",
) -> list[Infeasibility]:
    """What is wrong with the numbers; empty when nothing is.

    users: the declared population. noise: standard deviation of one coordinate of `summed`.
    answers: users in that sum, on average. key: what the caller calls users.
    """
    found = [
        _delta_infeasibility(delta, users, key),
        _noise_infeasibility(epsilon, noise, answers, summed, key),
    ]
    return [infeasibility for infeasibility in found if infeasibility is not None]


def _delta_infeasibility(delta: float, users: int, key: str) -> Infeasibility | None:
    """A delta of 1 / users allows to publish one user chosen at random, whole."""
    if delta * users < 1:
        return None
    return Infeasibility(
        f"delta = {delta:g} is not below 1 / {key} = {1 / users:g}: it would allow to publish the "
        "text of a user drawn at random; lower delta, best far below that",
        hopeless=True,
    )


def _noise_infeasibility(
    epsilon: float, noise: float, answers: float, summed: str, key: str
) -> Infeasibility | None:
    if noise < DOUBTFUL_SHARE * answers:
        return None
    facts = (
        f"epsilon = {at_most(epsilon)}: the noise of {summed} has a standard deviation of "
        f"{noise:,.4g} in bounds of one user's answer, and {answers:,.4g} is all that the "
        "users in it reach when they agree"
    )
    way = f"raise epsilon, or ask more users ({key})"
    if noise >= answers:
        return Infeasibility(f"{facts}, so nothing can be learnt: {way}", hopeless=True)
    share = noise / answers
    return Infeasibility(
        f"{facts}: what fewer than {share:.0%} of them share does not stand out; {way}",
        hopeless=False,
    )
