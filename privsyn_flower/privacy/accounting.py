"""Epsilon from noise, and noise from epsilon, for rounds of Gaussian sums.

Units: a noise multiplier is the standard deviation of the released noise divided by the L2
bound of one user's vector. Adjacency is zero-out (one user's vector becomes zero), which for
Gaussian and Poisson-sampled Gaussian sums has the privacy curve of add-or-remove-one at
sensitivity 1.

Rounds without sampling compose in closed form: independent Gaussian releases with multipliers
s_1..s_T are one release with (sum s_i^-2)^-1/2 (Dong, Roth, Su 2019, "Gaussian differential
privacy", Corollary 3.3), whose exact epsilon is that of Balle and Wang 2018 (arXiv 1805.06530,
Theorem 8). Poisson-sampled rounds use a privacy loss distribution (PLD). `rdp` exists for
parity with the papers; it is looser.

dp_accounting is imported inside the functions: a device that only answers never needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

Accountant = Literal["pld", "rdp"]

FINAL_INTERVAL = 1e-4  # discretisation of the privacy loss for a number that is claimed
SEARCH_INTERVAL = 1e-3  # while searching: still an upper bound, five times faster
# The closed form subtracts nearly equal numbers once the noise is very large. Epsilon falls
# with noise, so the value at this multiplier is an upper bound beyond it.
LARGEST_MULTIPLIER = 1e6
# Below it one round has epsilon > 5000 at any useful delta; searching there serves nobody.
SMALLEST_MULTIPLIER = 1e-2
_HEADROOM = 1e-9  # calibrated noise is this much larger: rounding in sums of mu^2 stays covered


class AccountingError(ArithmeticError):
    """The accountant returned a number that cannot be an epsilon."""


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Exact epsilon of one Gaussian release.

    noise_multiplier >= 0 (0 gives inf, inf gives 0); 0 < delta < 1. The result is rounded
    up by 1e-12. Raises ValueError on arguments, AccountingError on numerical failure.
    Source: Balle and Wang 2018, Theorem 8, as in `dp_accounting.get_epsilon_gaussian`.
    """
    _check_multiplier(noise_multiplier)
    _check_delta(delta)
    if noise_multiplier == 0:
        return math.inf
    if math.isinf(noise_multiplier):
        return 0.0
    import numpy as np
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    sigma = min(noise_multiplier, LARGEST_MULTIPLIER)
    with np.errstate(divide="ignore"):
        value = float(get_epsilon_gaussian(sigma, delta))
    # zCDP conversion (Bun and Steinke 2016, Proposition 1.3): never below the exact value.
    ceiling = 0.5 / sigma**2 + math.sqrt(2 * math.log(1 / delta)) / sigma
    if not 0 <= value <= ceiling * (1 + 1e-9) + 1e-12:
        raise AccountingError(
            f"epsilon = {value} for noise_multiplier = {noise_multiplier}, delta = {delta} "
            f"is outside [0, {ceiling}]: numerical failure"
        )
    return value + 1e-12 * max(1.0, value) if value > 0 else 0.0


def compose_gaussians(noise_multipliers: Iterable[float]) -> float:
    """The one Gaussian that equals all of these together: (sum s^-2)^-1/2; inf for none."""
    inverse_squares = []
    for multiplier in noise_multipliers:
        _check_multiplier(multiplier)
        if multiplier == 0:
            return 0.0
        inverse_squares.append((1 / multiplier) ** 2)
    total = math.fsum(inverse_squares)
    return 1 / math.sqrt(total) if total > 0 else math.inf


def epsilon(
    noise_multiplier: float,
    rounds: int,
    delta: float,
    *,
    sampling_rate: float = 1.0,
    accountant: Accountant = "pld",
) -> float:
    """Epsilon of `rounds` Gaussian sums at one noise multiplier.

    sampling_rate: probability with which each user takes part in a round, independently
    (Poisson), hidden from the adversary; 1.0 claims no amplification. Raises ValueError on
    arguments, AccountingError on numerical failure.
    """
    return _epsilon(noise_multiplier, rounds, delta, sampling_rate, accountant, FINAL_INTERVAL)


def calibrate(
    target_epsilon: float,
    rounds: int,
    delta: float,
    *,
    sampling_rate: float = 1.0,
    accountant: Accountant = "pld",
) -> float:
    """Smallest noise multiplier whose epsilon does not exceed `target_epsilon`.

    The safe end of a bisection: within 1e-9 (closed form) or 1e-4 (sampled, rdp) of the
    smallest, and never below it. Raises ValueError when no multiplier between 0.01 and
    1e6 (times sqrt(rounds)) meets the target.
    """
    if not 0 < target_epsilon < math.inf:
        raise ValueError(f"target_epsilon = {target_epsilon} must be finite and above 0")
    _check_rounds(rounds)
    if rounds == 0:
        raise ValueError("rounds = 0: at least 1 round is needed to calibrate noise")
    _check_plan(delta, sampling_rate, accountant)
    root = math.sqrt(rounds)

    def composed(sigma: float) -> float:
        return gaussian_epsilon(sigma, delta)

    exact = root * _smallest(composed, target_epsilon, 1.0, tolerance=1e-10) * (1 + _HEADROOM)
    if sampling_rate == 1.0 and accountant == "pld":
        return exact

    def searched(multiplier: float) -> float:
        return _epsilon(multiplier, rounds, delta, sampling_rate, accountant, SEARCH_INTERVAL)

    # Started from the unsampled exact value, the search stays away from 0, where PLDs explode.
    found = _smallest(searched, target_epsilon, exact, tolerance=1e-6)
    while (
        epsilon(found, rounds, delta, sampling_rate=sampling_rate, accountant=accountant)
        > target_epsilon
    ):
        found *= 1 + 1e-5
    return found


def _smallest(
    epsilon_of: Callable[[float], float], target: float, start: float, *, tolerance: float
) -> float:
    """The upper end of a bisection of a decreasing function, around `start`."""
    high = start
    while epsilon_of(high) > target:
        if high >= LARGEST_MULTIPLIER:
            raise ValueError(
                f"target_epsilon = {target} is below {epsilon_of(high):.3g}, the least that a "
                f"noise multiplier of {high:.3g} gives: raise epsilon or delta"
            )
        high = min(2 * high, max(LARGEST_MULTIPLIER, start))
    low = high / 2
    while epsilon_of(low) <= target:
        if low <= SMALLEST_MULTIPLIER:
            raise ValueError(
                f"target_epsilon = {target} is above {epsilon_of(low):.3g}, the epsilon at the "
                f"smallest noise multiplier searched ({low:.3g}): lower epsilon"
            )
        high, low = low, low / 2
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        if epsilon_of(middle) > target:
            low = middle
        else:
            high = middle
    return high


def _epsilon(
    noise_multiplier: float,
    rounds: int,
    delta: float,
    sampling_rate: float,
    accountant: Accountant,
    interval: float,
) -> float:
    _check_multiplier(noise_multiplier)
    _check_rounds(rounds)
    _check_plan(delta, sampling_rate, accountant)
    if rounds == 0 or math.isinf(noise_multiplier):
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    if accountant == "rdp":
        return _rdp_epsilon(noise_multiplier, rounds, delta, sampling_rate)
    unsampled = gaussian_epsilon(noise_multiplier / math.sqrt(rounds), delta)
    if sampling_rate == 1.0:
        return unsampled
    sampled = _pld_epsilon(noise_multiplier, rounds, delta, sampling_rate, interval, unsampled)
    return min(sampled, unsampled)  # both are upper bounds: sampling never costs privacy


def _pld_epsilon(
    noise_multiplier: float,
    rounds: int,
    delta: float,
    sampling_rate: float,
    interval: float,
    unsampled: float,
) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    # The estimate is pessimistic at any interval; a coarser one keeps little noise cheap.
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        max(interval, interval * unsampled / 50),
    )
    accountant.compose(_sampled_event(noise_multiplier, sampling_rate), rounds)
    value = float(accountant.get_epsilon(delta))
    if not value >= 0:
        raise AccountingError(
            f"epsilon = {value} by pld for noise_multiplier = {noise_multiplier}, rounds = "
            f"{rounds}, delta = {delta}, sampling_rate = {sampling_rate}: numerical failure"
        )
    return value


def _rdp_epsilon(noise_multiplier: float, rounds: int, delta: float, sampling_rate: float) -> float:
    """RDP (Mironov 2017; Mironov, Talwar, Zhang 2019), converted by dp_accounting.

    With sampling the fractional orders are infinite series that can fail (a public accountant
    answers -29.87 for noise 15.5, 50 rounds, rate 0.5); integer orders are finite sums, so
    they come first and the fractional ones only where the best order is small.
    """
    from dp_accounting.rdp import RdpAccountant

    def value(rate: float, orders: list[int] | None) -> tuple[float, float]:
        accountant = RdpAccountant(orders)
        accountant.compose(_sampled_event(noise_multiplier, rate), rounds)
        best, order = accountant.get_epsilon_and_optimal_order(delta)
        return float(best), float(order)

    best, _ = value(1.0, None)
    if sampling_rate < 1.0:
        sampled, order = value(sampling_rate, [*range(2, 64), 128, 256, 512, 1024])
        if order < 11:
            sampled = min(sampled, value(sampling_rate, None)[0])
        best = min(best, sampled)
    if not 0 <= best < math.inf:
        raise AccountingError(
            f"epsilon = {best} by rdp for noise_multiplier = {noise_multiplier}, rounds = "
            f"{rounds}, delta = {delta}, sampling_rate = {sampling_rate}: numerical failure"
        )
    return best


def _sampled_event(noise_multiplier: float, sampling_rate: float) -> Any:
    import dp_accounting

    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    if sampling_rate == 1.0:
        return event
    return dp_accounting.PoissonSampledDpEvent(sampling_rate, event)


def _check_multiplier(noise_multiplier: float) -> None:
    if not noise_multiplier >= 0:
        raise ValueError(f"noise_multiplier = {noise_multiplier} must be at least 0")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta} must be above 0 and below 1")


def _check_rounds(rounds: int) -> None:
    if rounds != int(rounds) or rounds < 0:
        raise ValueError(f"rounds = {rounds} must be a whole number, at least 0")


def _check_plan(delta: float, sampling_rate: float, accountant: str) -> None:
    _check_delta(delta)
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"sampling_rate = {sampling_rate} must be above 0 and at most 1")
    if accountant not in ("pld", "rdp"):
        raise ValueError(f"accountant = {accountant!r} must be 'pld' or 'rdp'")
