"""Epsilon from noise, and noise from epsilon, for rounds of Gaussian or Skellam sums.

Units: a noise multiplier is the standard deviation of the released noise divided by the L2
bound of one user's vector. Adjacency is zero-out (one user's vector becomes zero), which for
Gaussian and Poisson-sampled Gaussian sums has the privacy curve of add-or-remove-one at
sensitivity 1.

Rounds without sampling compose in closed form: independent Gaussian releases with multipliers
s_1..s_T are one release with (sum s_i^-2)^-1/2 (Dong, Roth, Su 2019, "Gaussian differential
privacy", Corollary 3.3), whose exact epsilon is that of Balle and Wang 2018 (arXiv 1805.06530,
Theorem 8). Poisson-sampled rounds use a privacy loss distribution (PLD). Integer (Skellam)
noise has RDP bounds only (renyi.py). For Gaussians `rdp` exists for parity with the papers; it
is looser.

dp_accounting is imported inside the functions: a device that only answers never needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from privsyn_flower.privacy.renyi import (
    AccountingError,
    check_delta,
    check_positive,
    check_rate,
    check_sensitivity,
    delta_left,
    filter_budget,
    gaussian_rdp_epsilon,
    sampled_event,
    skellam_epsilon,
    skellam_multiplier,
    with_total_variation,
)

Accountant = Literal["pld", "rdp"]
Mechanism = Literal["gaussian", "skellam"]
ACCOUNTANTS: dict[str, tuple[Accountant, ...]] = {"gaussian": ("pld", "rdp"), "skellam": ("rdp",)}

SENSITIVITY = (
    4096.0  # integer L2 norm of one user's vector; above it Skellam is as good as Gaussian
)

FINAL_INTERVAL = 1e-4  # discretisation of the privacy loss for a number that is claimed
SEARCH_INTERVAL = 1e-3  # while searching: still an upper bound, five times faster
# The closed form subtracts nearly equal numbers once the noise is very large. Epsilon falls
# with noise, so the value at this multiplier is an upper bound beyond it.
LARGEST_MULTIPLIER = 1e6
# Below it one round has epsilon > 5000 at any useful delta; searching there serves nobody.
SMALLEST_MULTIPLIER = 1e-2
_HEADROOM = 1e-9  # calibrated noise is this much larger: rounding in sums of mu^2 stays covered


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Exact epsilon of one Gaussian release.

    noise_multiplier >= 0 (0 gives inf, inf gives 0); 0 < delta < 1. The result is rounded
    up by 1e-12. Raises ValueError on arguments, AccountingError on numerical failure.
    Source: Balle and Wang 2018, Theorem 8, as in `dp_accounting.get_epsilon_gaussian`.
    """
    _check_multiplier(noise_multiplier)
    check_delta("delta", delta)
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
    accountant: Accountant | None = None,
    mechanism: Mechanism = "gaussian",
    sensitivity: float = SENSITIVITY,
    total_variation: float = 0.0,
) -> float:
    """Epsilon of `rounds` noisy sums at one noise multiplier.

    sampling_rate: probability with which each user takes part in a round, independently
    (Poisson), hidden from the adversary; 1.0 claims no amplification. accountant: None for the
    tightest one that knows the mechanism (pld for gaussian, rdp for skellam). sensitivity: L2
    norm of one user's integer vector (skellam). total_variation: distance of one round's noise
    from exact noise; every round costs (1 + exp(epsilon)) times it in delta.
    Raises ValueError on arguments, AccountingError on numerical failure.
    """
    _check_multiplier(noise_multiplier)
    plan = _Plan(rounds, delta, sampling_rate, accountant, mechanism, sensitivity, total_variation)
    value = plan.epsilon(noise_multiplier)
    if math.isinf(value) and noise_multiplier > 0 and total_variation > 0:
        raise plan.nothing_left("any epsilon")
    return value


def calibrate(
    target_epsilon: float,
    rounds: int,
    delta: float,
    *,
    sampling_rate: float = 1.0,
    accountant: Accountant | None = None,
    mechanism: Mechanism = "gaussian",
    sensitivity: float = SENSITIVITY,
    total_variation: float = 0.0,
) -> float:
    """Smallest noise multiplier whose epsilon does not exceed `target_epsilon`.

    The safe end of a bisection: within 1e-9 (closed form) or 1e-4 (sampled, rdp) of the
    smallest, and never below it. Unsampled skellam: the smallest at the order that a ledger with
    this total has (`filter_budget`), so that all rounds fit into it. Other arguments as in
    `epsilon`. Raises ValueError when no multiplier between 0.01 and 1e6 (times sqrt(rounds))
    meets the target.
    """
    check_positive("target_epsilon", target_epsilon)
    plan = _Plan(rounds, delta, sampling_rate, accountant, mechanism, sensitivity, total_variation)
    if rounds == 0:
        raise ValueError("rounds = 0: at least 1 round is needed to calibrate noise")
    exact = plan.unsampled(target_epsilon)
    if sampling_rate == 1.0 and (mechanism == "skellam" or accountant != "rdp"):
        return exact

    def searched(multiplier: float) -> float:
        return plan.epsilon(multiplier, SEARCH_INTERVAL)

    # Started from the unsampled exact value, the search stays away from 0, where PLDs explode.
    found = _smallest(searched, target_epsilon, exact, tolerance=1e-6)
    while plan.epsilon(found) > target_epsilon:
        found *= 1 + 1e-5
    return found


@dataclass(frozen=True)
class _Plan:
    """All that an epsilon depends on, but the noise. Raises ValueError on arguments."""

    rounds: int
    delta: float
    sampling_rate: float
    accountant: Accountant | None
    mechanism: Mechanism
    sensitivity: float
    total_variation: float

    def __post_init__(self) -> None:
        if self.rounds != int(self.rounds) or self.rounds < 0:
            raise ValueError(f"rounds = {self.rounds} must be a whole number, at least 0")
        check_delta("delta", self.delta)
        check_rate("sampling_rate", self.sampling_rate)
        check_sensitivity(self.sensitivity)
        if self.mechanism not in ACCOUNTANTS:
            raise ValueError(f"mechanism = {self.mechanism!r} must be 'gaussian' or 'skellam'")
        known = ACCOUNTANTS[self.mechanism]
        if self.accountant is not None and self.accountant not in known:
            words = " or ".join(map(repr, known))
            raise ValueError(
                f"accountant = {self.accountant!r} must be {words} for mechanism = "
                f"{self.mechanism!r}"
            )
        if not 0 <= self.total_variation < 1:
            raise ValueError(f"total_variation = {self.total_variation} must be in [0, 1)")

    def epsilon(self, noise_multiplier: float, interval: float = FINAL_INTERVAL) -> float:
        """Epsilon at this noise; inf when nothing of delta is left for it."""
        if self.rounds == 0:
            return 0.0
        if noise_multiplier == 0:
            return math.inf

        def at(delta: float) -> float:
            if math.isinf(noise_multiplier):
                return 0.0
            plan = (noise_multiplier, self.rounds, delta, self.sampling_rate)
            if self.mechanism == "skellam":
                return skellam_epsilon(*plan, self.sensitivity)
            if self.accountant == "rdp":
                return gaussian_rdp_epsilon(*plan)
            return _pld_epsilon(*plan, interval)

        return with_total_variation(at, self.delta, self.rounds * self.total_variation)

    def unsampled(self, target: float) -> float:
        """The smallest noise multiplier without sampling, by the mechanism's best accountant."""
        left = delta_left(target, self.delta, self.rounds * self.total_variation)
        if left <= 0:
            raise self.nothing_left(f"epsilon = {target}")
        if self.mechanism == "skellam":
            order, budget = filter_budget(target, left)
            return skellam_multiplier(budget / self.rounds, order, self.sensitivity)

        def composed(sigma: float) -> float:
            return gaussian_epsilon(sigma, left)

        least = _smallest(composed, target, 1.0, tolerance=1e-10)
        return math.sqrt(self.rounds) * least * (1 + _HEADROOM)

    def nothing_left(self, at: str) -> ValueError:
        return ValueError(
            f"total_variation = {self.total_variation} in each of {self.rounds} rounds leaves "
            f"nothing of delta = {self.delta} at {at}: raise delta, or draw exact noise"
        )


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


def _pld_epsilon(
    noise_multiplier: float,
    rounds: int,
    delta: float,
    sampling_rate: float,
    interval: float,
) -> float:
    unsampled = gaussian_epsilon(noise_multiplier / math.sqrt(rounds), delta)
    if sampling_rate == 1.0:
        return unsampled
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    # The estimate is pessimistic at any interval; a coarser one keeps little noise cheap.
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        max(interval, interval * unsampled / 50),
    )
    accountant.compose(sampled_event(noise_multiplier, sampling_rate), rounds)
    value = float(accountant.get_epsilon(delta))
    if not value >= 0:
        raise AccountingError(
            f"epsilon = {value} by pld for noise_multiplier = {noise_multiplier}, rounds = "
            f"{rounds}, delta = {delta}, sampling_rate = {sampling_rate}: numerical failure"
        )
    return min(value, unsampled)  # both are upper bounds: sampling never costs privacy


def _check_multiplier(noise_multiplier: float) -> None:
    if not noise_multiplier >= 0:
        raise ValueError(f"noise_multiplier = {noise_multiplier} must be at least 0")
