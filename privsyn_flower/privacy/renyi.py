"""Renyi differential privacy (RDP): Skellam noise, Poisson sampling, conversion to epsilon.

Integer noise has no known exact privacy curve, only a bound on its Renyi divergence, and that
at integer orders; so everything here is a bound, at integer orders unless said otherwise.
Units: `noise_multiplier` is the standard deviation of the noise on the sum divided by
`sensitivity`, the L2 bound of one user's integer vector.

numpy only, except where the Gaussian of the papers needs dp_accounting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Optimal orders grow like 1 / epsilon: dense where epsilon is large, 2 % apart where it is small.
LARGEST_ORDER = 2**16
ORDERS: NDArray[np.int64] = np.unique(
    np.concatenate([np.arange(2, 129), np.geomspace(129, LARGEST_ORDER, 316).astype(np.int64)])
)
# A sampled bound of order a is a sum over all orders up to a.
LARGEST_SAMPLED_ORDER = 4096
_HEADROOM = 1e-9  # of a budget and of sampled sums: rounding in long sums stays covered


class AccountingError(ArithmeticError):
    """The accountant returned a number that cannot be an epsilon."""


def skellam_rdp(
    noise_multiplier: float,
    sensitivity: float,
    orders: ArrayLike,
    dimension: int | None = None,
) -> NDArray[np.float64]:
    """RDP of one integer-valued sum with Skellam noise at integer `orders` >= 2: same shape.

    Every coordinate's noise has variance (noise_multiplier * sensitivity)^2; sensitivity: L2
    norm of one user's integer vector. dimension bounds its L1 norm by sqrt(dimension) *
    sensitivity; without one the bound is sensitivity^2, which integers never exceed.
    Raises ValueError on arguments. Source: Agarwal, Kairouz, Liu 2021, "The Skellam mechanism
    for differentially private federated learning", Theorem 3.5.
    """
    check_positive("noise_multiplier", noise_multiplier)
    check_sensitivity(sensitivity)
    order = _integer_orders(orders)
    l1 = float(sensitivity) ** 2
    if dimension is not None:
        if dimension < 1:
            raise ValueError(f"dimension = {dimension} must be at least 1")
        l1 = min(math.sqrt(dimension) * sensitivity, l1)
    ratio = np.float64(noise_multiplier) ** 2
    variance = ratio * sensitivity**2
    with np.errstate(divide="ignore", over="ignore"):  # hardly any noise: infinite
        extra = ((2 * order - 1) / ratio + 6 * l1 / variance) / (4 * variance)
        rdp: NDArray[np.float64] = order / (2 * ratio) + np.minimum(extra, 1.5 * l1 / variance)
    return rdp


def poisson_sampled_rdp(
    rdp_of_integer_order: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    rate: float,
    orders: ArrayLike,
) -> NDArray[np.float64]:
    """RDP of any mechanism behind Poisson sampling at `rate`, at integer `orders` >= 2.

    rdp_of_integer_order: RDP of the mechanism itself; called once, with 2, 3, ..., largest
    order. The result never exceeds it: sampling costs no privacy (quasi-convexity). Raises
    ValueError on arguments. Source: Zhu and Wang 2019, "Poisson subsampled Renyi differential
    privacy", Theorem 5, for add-or-remove-one and zero-out, both directions.
    """
    check_rate("rate", rate)
    order = _integer_orders(orders)
    largest = int(order.max())
    full = rdp_of_integer_order(np.arange(2, largest + 1))
    if rate == 1.0:
        return full[order - 2]
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, largest + 1)))])
    k = np.arange(2, largest + 1)
    # The theorem's sum minus the binomial series, which is 1: all terms are positive, so the
    # logarithm of 1 + sum keeps its digits where the sum is tiny.
    power = (k - 1) * full
    with np.errstate(divide="ignore"):
        excess = power + np.log(np.where(k == 2, 0.0, 2.0) - np.expm1(-power))
    excess += k * math.log(rate) - log_factorial[k]
    found = np.empty(order.shape)
    for place, a in enumerate(order):
        used = k[: a - 1]
        terms = excess[: a - 1] - log_factorial[a - used] + (a - used) * math.log1p(-rate)
        log_sum = float(np.logaddexp.reduce(terms)) + log_factorial[a]
        found[place] = np.logaddexp(0.0, log_sum) / (a - 1) * (1 + _HEADROOM)
    return np.minimum(found, full[order - 2])


def rdp_to_epsilon(rdp: ArrayLike, orders: ArrayLike, delta: float) -> tuple[float, float]:
    """The smallest epsilon that RDP at some `orders` > 1 gives at `delta`, and its order.

    Source: Canonne, Kamath, Steinke 2020, "The discrete Gaussian for differential privacy",
    Proposition 12. Raises ValueError on arguments, AccountingError when rdp has a NaN.
    """
    check_delta("delta", delta)
    order = np.asarray(orders, dtype=np.float64)
    values = np.asarray(rdp, dtype=np.float64) + _conversion(order, delta)
    if order.size == 0 or values.shape != order.shape or not (order > 1).all():
        raise ValueError(f"orders = {orders!r} must be above 1, one for each value of rdp")
    if np.isnan(values).any():
        raise AccountingError("rdp has a value that is not a number")
    best = int(values.argmin())
    return max(0.0, float(values[best])), float(order[best])


def filter_budget(
    total_epsilon: float, total_delta: float, order: int | None = None
) -> tuple[int, float]:
    """(order, largest RDP at it) that together imply the total; best for Gaussians, or given.

    Whatever composes to this RDP at this order, however adaptively, is (total_epsilon,
    total_delta)-DP. Raises ValueError when no order up to 65536 leaves a budget. Source: Feldman
    and Zrnic 2021, "Individual privacy accounting via a Renyi filter", Section 4.
    """
    check_positive("total_epsilon", total_epsilon)
    check_delta("total_delta", total_delta)
    budgets = total_epsilon - _conversion(ORDERS.astype(np.float64), total_delta)
    # A Gaussian's RDP is proportional to the order: the best one buys the most per order.
    best = int((budgets / ORDERS).argmax())
    if order is not None:
        best = int(np.flatnonzero(order == ORDERS)[0])
    budget = float(budgets[best]) * (1 - _HEADROOM)
    if not budget > 0:
        raise ValueError(
            f"total epsilon = {total_epsilon} at delta = {total_delta} is below what RDP of an "
            f"order up to {LARGEST_ORDER} can show: raise epsilon or delta"
        )
    return int(ORDERS[best]), budget


def skellam_multiplier(rdp: float, order: int, sensitivity: float) -> float:
    """Smallest noise multiplier whose `skellam_rdp` (without dimension) at `order` is <= rdp."""
    check_positive("rdp", rdp)
    check_sensitivity(sensitivity)
    # With u = 1 / multiplier^2 the bound is order u / 2 + min(c u^2, 1.5 u): the larger root.
    half, c = order / 2, (2 * order + 5) / (4 * float(sensitivity) ** 2)
    u = max(rdp / (half + 1.5), 2 * rdp / (half + math.sqrt(half**2 + 4 * c * rdp)))
    return (1 + _HEADROOM) / math.sqrt(u)


def delta_left(epsilon: float, delta: float, total_variation: float) -> float:
    """What is left of delta for exact noise at this epsilon; 0 or less: nothing.

    What lies within distance t of an (e, d)-DP mechanism on every input is (e, d + (1 + exp(e)) t)
    -DP, and the distances of several releases add up.
    """
    if total_variation == 0:
        return delta
    return delta - (1 + math.exp(min(epsilon, 700.0))) * total_variation


def with_total_variation(
    epsilon_at: Callable[[float], float], delta: float, total_variation: float
) -> float:
    """Epsilon at `delta` of what lies within `total_variation` of a mechanism (`delta_left`).

    epsilon_at: the mechanism's epsilon as a decreasing function of its delta. inf when no
    epsilon up to 700 meets delta.
    """
    if total_variation == 0:
        return epsilon_at(delta)
    found = 0.0
    for _ in range(100):  # rises to the least fixed point; stops above it
        left = delta_left(found, delta, total_variation)
        needed = epsilon_at(left) if left > 0 else math.inf
        if needed <= found or math.isinf(needed):
            return max(found, needed)
        found = needed * (1 + 1e-9)
    return math.inf


def sampled_skellam_rdp(
    noise_multiplier: float, sensitivity: float, rate: float, orders: ArrayLike
) -> NDArray[np.float64]:
    """RDP of one Skellam sum in which each user takes part with probability `rate`."""
    if rate == 1.0:
        return skellam_rdp(noise_multiplier, sensitivity, orders)

    def full(order: NDArray[np.int64]) -> NDArray[np.float64]:
        return skellam_rdp(noise_multiplier, sensitivity, order)

    return poisson_sampled_rdp(full, rate, orders)


def skellam_epsilon(
    noise_multiplier: float, rounds: int, delta: float, sampling_rate: float, sensitivity: float
) -> float:
    """Epsilon of `rounds` Skellam sums, at the best integer order. For a fixed plan."""
    return _best_order(noise_multiplier, rounds, delta, sampling_rate, sensitivity)[0]


def plan_order(
    noise_multiplier: float, rounds: int, delta: float, sampling_rate: float, sensitivity: float
) -> int:
    """The order at which `skellam_epsilon` is had: what a ledger for this plan filters at."""
    return int(_best_order(noise_multiplier, rounds, delta, sampling_rate, sensitivity)[1])


def _best_order(
    noise_multiplier: float, rounds: int, delta: float, sampling_rate: float, sensitivity: float
) -> tuple[float, float]:
    best = rdp_to_epsilon(
        rounds * skellam_rdp(noise_multiplier, sensitivity, ORDERS), ORDERS, delta
    )
    if sampling_rate == 1.0:
        return best
    orders = ORDERS[ORDERS <= LARGEST_SAMPLED_ORDER]
    sampled = sampled_skellam_rdp(noise_multiplier, sensitivity, sampling_rate, orders)
    return min(best, rdp_to_epsilon(rounds * sampled, orders, delta))


def gaussian_rdp_epsilon(
    noise_multiplier: float, rounds: int, delta: float, sampling_rate: float
) -> float:
    """RDP (Mironov 2017; Mironov, Talwar, Zhang 2019), converted by dp_accounting.

    With sampling the fractional orders are infinite series that can fail (a public accountant
    answers -29.87 for noise 15.5, 50 rounds, rate 0.5); integer orders are finite sums, so
    they come first and the fractional ones only where the best order is small.
    """
    from dp_accounting.rdp import RdpAccountant

    def value(rate: float, orders: list[int] | None) -> tuple[float, float]:
        accountant = RdpAccountant(orders)
        accountant.compose(sampled_event(noise_multiplier, rate), rounds)
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


def sampled_event(noise_multiplier: float, sampling_rate: float) -> Any:
    """dp_accounting's event of one Gaussian sum, Poisson-sampled when the rate is below 1."""
    import dp_accounting

    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    if sampling_rate == 1.0:
        return event
    return dp_accounting.PoissonSampledDpEvent(sampling_rate, event)


def check_positive(name: str, value: float) -> None:
    """Raises ValueError unless the value is finite and above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} = {value} must be finite and above 0")


def check_sensitivity(sensitivity: float) -> None:
    """Raises ValueError unless it can be the L2 norm of an integer vector that is not 0."""
    if not 1 <= sensitivity <= 2**60:
        raise ValueError(
            f"sensitivity = {sensitivity} must be between 1 and 2^60: the L2 norm of one user's "
            "integer vector (scale * bound)"
        )


def check_delta(name: str, value: float) -> None:
    """Raises ValueError unless the value lies in (0, 1)."""
    if not 0 < value < 1:
        raise ValueError(f"{name} = {value} must be above 0 and below 1")


def check_rate(name: str, value: float) -> None:
    """Raises ValueError unless the value lies in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} = {value} must be above 0 and at most 1")


def _conversion(order: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """What epsilon exceeds the RDP by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        excess: NDArray[np.float64] = np.log1p(-1 / order) - (math.log(delta) + np.log(order)) / (
            order - 1
        )
    return excess


def _integer_orders(orders: ArrayLike) -> NDArray[np.int64]:
    given = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if given.size == 0 or not (np.isfinite(given) & (given >= 2) & (given % 1 == 0)).all():
        raise ValueError(f"orders = {orders!r} must be whole numbers, at least 2")
    return given.astype(np.int64)
