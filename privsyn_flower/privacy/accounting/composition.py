"""Epsilon from noise, for rounds of Gaussian sums; `calibration` has noise from epsilon.

Units: a noise multiplier is the standard deviation of the released noise divided by the L2
bound of one user's vector. Adjacency is zero-out (one user's vector becomes zero), which for
Gaussian and Poisson-sampled Gaussian sums has the privacy curve of add-or-remove-one at
sensitivity 1. The nodes' integer noise is accounted as the Gaussian that it is a rounding of;
`integer_noise` says why, and what it leaves of delta.

Rounds without sampling compose in closed form: independent Gaussian releases with multipliers
s_1..s_T are one release with (sum s_i^-2)^-1/2 (Dong, Roth, Su 2019, arXiv 1905.02383, "Gaussian
differential privacy", Corollary 3.3), whose exact epsilon is that of Balle and Wang 2018 (arXiv
1805.06530, Theorem 8). Poisson-sampled rounds have the least of three upper bounds (`tightest`):
that closed form, a privacy loss distribution (PLD), and Renyi differential privacy.

dp_accounting is imported inside the functions: a device that only answers does without.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Literal

FINAL_INTERVAL = 1e-4  # discretisation of the privacy loss for a number that is claimed
SEARCH_INTERVAL = 1e-3  # while searching: still an upper bound, five times faster
# Where the two above are loose: 2,000 rounds of noise 0.94 at rate 0.002 cost 0.946 by this one,
# and 0.974 or 1.667 by those.
FINEST_INTERVAL = 1e-5
# Privacy losses are convolved in float64, whose rounding is of the size of a smaller delta.
SMALLEST_DELTA = 9e-13
MOST_CONVOLVED = 10**6  # each adds to a PLD's pessimism: beyond, Renyi bounds are tighter
ORDERS = (*range(2, 64), 128, 256, 512, 1024)  # whole ones, whose bounds are finite sums
_ROUGH = 0.02  # relative difference of two intervals that a third is tried for
# The closed form subtracts nearly equal numbers once the noise is very large. Epsilon falls
# with noise, so the value at this multiplier is an upper bound beyond it.
LARGEST_MULTIPLIER = 1e6

Releases = Mapping[tuple[float, float], int]  # (noise multiplier, sampling rate) -> how many
Kinds = tuple[tuple[tuple[float, float], int], ...]  # the same, to be a key
Accountant = Literal["exact", "pld", "renyi"]


class AccountingError(ArithmeticError):
    """The accountant returned a number that cannot be an epsilon."""


# --- one Gaussian ---------------------------------------------------------------------------


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Exact epsilon of one Gaussian release.

    noise_multiplier >= 0 (0 gives inf, inf gives 0); 0 < delta < 1. The result is rounded
    up by 1e-12. Raises ValueError on arguments, AccountingError on numerical failure.
    Source: Balle and Wang 2018, Theorem 8, as in `dp_accounting.get_epsilon_gaussian`.
    """
    check_multiplier(noise_multiplier)
    check_delta("delta", delta)
    if noise_multiplier == 0:
        return math.inf
    if math.isinf(noise_multiplier):
        return 0.0
    sigma = min(noise_multiplier, LARGEST_MULTIPLIER)
    value = _exact_epsilon(sigma, delta)
    # zCDP conversion (Bun and Steinke 2016, Proposition 1.3): never below the exact value.
    ceiling = 0.5 / sigma**2 + math.sqrt(2 * math.log(1 / delta)) / sigma
    if not 0 <= value <= ceiling * (1 + 1e-9) + 1e-12:
        raise AccountingError(
            f"epsilon = {value} for noise_multiplier = {noise_multiplier}, delta = {delta} "
            f"is outside [0, {ceiling}]: numerical failure"
        )
    return value + 1e-12 * max(1.0, value) if value > 0 else 0.0


@functools.lru_cache(maxsize=4096)  # a run's statement, ledger and summary ask for the same
def _exact_epsilon(sigma: float, delta: float) -> float:
    import numpy as np

    exact = accountants("dp_accounting.gaussian_mechanism").get_epsilon_gaussian
    with np.errstate(divide="ignore"):
        return float(exact(sigma, delta))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu = 1 / noise multiplier whose Gaussian release is (epsilon, delta)-DP.

    A bisection of Balle and Wang 2018, Theorem 8, in the standard library; it ends on the safe
    side, within 1e-9. Raises ValueError unless epsilon is finite and positive and 0 < delta < 1.
    """
    check_positive("epsilon", epsilon)
    check_delta("delta", delta)

    def too_much(mu: float) -> bool:
        x = mu / 2 - epsilon / mu
        lost = _normal_cdf(x)
        # What underflows counts as 0, and rounding as lost: delta is never understated.
        kept = _normal_cdf(x - mu) - 4 * math.ulp(0.0)
        gained = math.exp(epsilon + math.log(kept)) if kept > 0 else 0.0
        return lost - gained + 1e-15 * (1 + x * x) * lost > delta * (1 - 1e-12)

    low, high = 0.0, 1.0
    while not too_much(high):
        low, high = high, 2 * high
    while high > low * (1 + 1e-11) + 1e-300:
        middle = (low + high) / 2
        low, high = (low, middle) if too_much(middle) else (middle, high)
    return low


def mu_squared(noise_multiplier: float) -> float:
    """1 / noise_multiplier^2, what a release takes from a sum of mu^2; inf for hardly any noise."""
    inverse = 1 / noise_multiplier if noise_multiplier else math.inf
    return inverse * inverse  # a product that overflows is inf, a power an error


def compose_gaussians(noise_multipliers: Iterable[float]) -> float:
    """The one Gaussian that equals all of these together: (sum s^-2)^-1/2; inf for none."""
    inverse_squares = []
    for multiplier in noise_multipliers:
        check_multiplier(multiplier)
        if multiplier == 0:
            return 0.0
        inverse_squares.append(mu_squared(multiplier))
    total = math.fsum(inverse_squares)
    return 1 / math.sqrt(total) if total > 0 else math.inf


# --- rounds ---------------------------------------------------------------------------------


def epsilon(
    noise_multiplier: float, rounds: int, delta: float, *, sampling_rate: float = 1.0
) -> float:
    """Epsilon of `rounds` noisy sums at one noise multiplier.

    sampling_rate: probability with which each user takes part in a round, independently
    (Poisson), hidden from the adversary; 1.0 claims no amplification. delta is all the Gaussians'
    (`gaussian_delta`). Raises ValueError on arguments, AccountingError on numerical failure.
    """
    check_plan(rounds, delta, sampling_rate)
    return composed_epsilon({(noise_multiplier, sampling_rate): rounds}, delta)


account = epsilon  # the public name, a verb beside `calibrate`


def composed_epsilon(releases: Releases, delta: float, interval: float = FINAL_INTERVAL) -> float:
    """Epsilon of all these releases together: that of `tightest`."""
    return tightest(releases, delta, interval)[0]


def tightest(
    releases: Releases, delta: float, interval: float = FINAL_INTERVAL
) -> tuple[float, Accountant]:
    """Epsilon of all these releases, of a plan that is fixed before the first, and how it is found.

    The least of three upper bounds. `exact`: the closed form, in which sampling counts for nothing.
    `pld`: privacy loss distributions; at FINAL_INTERVAL a finer interval is tried where that
    matters. `renyi`: Renyi bounds, tried where PLDs are loose, and in their place below
    SMALLEST_DELTA and beyond MOST_CONVOLVED releases.
    """
    releases = {key: count for key, count in releases.items() if count}
    squares = [count * mu_squared(z) for (z, _), count in releases.items()]
    for multiplier, rate in releases:
        check_multiplier(multiplier)
        check_rate("sampling_rate", rate)
    total = math.fsum(squares)
    unsampled = gaussian_epsilon(1 / math.sqrt(total) if total > 0 else math.inf, delta)
    noisy = {key: count for key, count in releases.items() if not math.isinf(key[0])}
    if all(rate == 1.0 for _, rate in noisy) or math.isinf(unsampled):
        return unsampled, "exact"
    kinds = tuple(sorted(noisy.items()))

    def at(interval: float) -> tuple[float, Accountant]:
        # The estimate is pessimistic at any interval; a coarser one keeps little noise cheap.
        return pld_epsilon(kinds, delta, max(interval, interval * unsampled / 50)), "pld"

    bounds: list[tuple[float, Accountant]] = [(unsampled, "exact")]
    if delta < SMALLEST_DELTA or sum(noisy.values()) > MOST_CONVOLVED:
        return min(*bounds, (renyi_bound(kinds, delta)[0], "renyi"))
    bounds.append(at(interval))
    if interval == FINAL_INTERVAL and at(SEARCH_INTERVAL)[0] > (1 + _ROUGH) * min(bounds)[0]:
        bounds += [at(FINEST_INTERVAL), (renyi_bound(kinds, delta)[0], "renyi")]
    return min(bounds)


@functools.lru_cache(maxsize=256)
def renyi_bound(
    kinds: Kinds, delta: float, orders: tuple[int, ...] | None = ORDERS
) -> tuple[float, float]:
    """Epsilon by Renyi bounds, and the order it is least at. orders: None for the library's."""
    adjacency = accountants("dp_accounting").NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = accountants("dp_accounting.rdp").RdpAccountant(orders, adjacency)
    for (multiplier, rate), count in kinds:
        accountant.compose(sampled_event(multiplier, rate), count)
    best, order = (float(value) for value in accountant.get_epsilon_and_optimal_order(delta))
    if not 0 <= best < math.inf:
        raise AccountingError(
            f"epsilon = {best} by Renyi orders for {dict(kinds)} at delta = {delta}: numerical "
            "failure"
        )
    return best, order


@functools.lru_cache(maxsize=256)  # seconds, and a run's plan, ledger and sentence ask the same
def pld_epsilon(releases: Kinds, delta: float, interval: float) -> float:
    """By privacy loss distributions: ((noise multiplier, sampling rate), how many) of each kind."""
    value = float(_pld(releases, interval).get_epsilon(delta))
    if not value >= 0:
        raise AccountingError(
            f"epsilon = {value} by pld for {dict(releases)} at delta = {delta}: numerical failure"
        )
    return value


@functools.lru_cache(maxsize=3)  # the intervals of one plan, which is asked at many deltas
def _pld(releases: Kinds, interval: float) -> Any:
    """The accountant of these releases, composed: it is only asked from here on."""
    adjacency = accountants("dp_accounting").NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = accountants("dp_accounting.pld").PLDAccountant(adjacency, interval)
    for (multiplier, rate), count in releases:
        accountant.compose(sampled_event(multiplier, rate), count)
    return accountant


def sampled_event(noise_multiplier: float, sampling_rate: float) -> Any:
    """dp_accounting's event of one Gaussian sum, Poisson-sampled when the rate is below 1."""
    events = accountants("dp_accounting")
    event = events.GaussianDpEvent(noise_multiplier)
    if sampling_rate == 1.0:
        return event
    return events.PoissonSampledDpEvent(sampling_rate, event)


def accountants(module: str) -> Any:
    """A module of dp_accounting. Raises ModuleNotFoundError that names the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'privsyn-flower[strategies]'",
            name=error.name,
        ) from error


# --- arguments ------------------------------------------------------------------------------


def check_positive(name: str, value: float) -> None:
    """Raises ValueError unless the value is finite and above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} = {value} must be finite and above 0")


def check_delta(name: str, value: float) -> None:
    """Raises ValueError unless the value lies in (0, 1)."""
    if not 0 < value < 1:
        raise ValueError(f"{name} = {value} must be above 0 and below 1")


def check_rate(name: str, value: float) -> None:
    """Raises ValueError unless the value lies in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} = {value} must be above 0 and at most 1")


def check_plan(rounds: int, delta: float, sampling_rate: float) -> None:
    """Raises ValueError unless so many rounds at this delta and rate can be accounted."""
    if rounds != int(rounds) or rounds < 0:
        raise ValueError(f"rounds = {rounds} must be a whole number, at least 0")
    check_delta("delta", delta)
    check_rate("sampling_rate", sampling_rate)


def check_multiplier(noise_multiplier: float) -> None:
    """Raises ValueError unless the multiplier is at least 0."""
    if not noise_multiplier >= 0:
        raise ValueError(f"noise_multiplier = {noise_multiplier} must be at least 0")


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2
