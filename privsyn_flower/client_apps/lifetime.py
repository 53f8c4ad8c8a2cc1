"""What one user has spent over a node's life: two numbers, and the filter that limits them.

A participation in a Skellam sum of noise multiplier z and integer sensitivity S costs, at an
integer order a >= 2, with L1 sensitivity <= S^2,

    rdp(a) <= a / (2 z^2) + (2a + 5) / (4 z^4 S^2)

(Agarwal, Kairouz, Liu 2021, "The Skellam mechanism for differentially private federated
learning", Theorem 3.5). So the sums of 1/z^2 (`gaussian`) and of 1/(z^4 S^2) (`correction`)
give the composed RDP at every order. No amplification by sampling is taken into account.

The server chooses z after it has seen earlier releases. A limit that holds against that must be
checked at one order, fixed in advance (Feldman and Zrnic 2021, "Individual privacy accounting
via a Renyi filter"): `limit` fixes it by (epsilon, delta) alone.
"""

from __future__ import annotations

import math

ORDERS = range(2, 513)
_ROUNDING = 1e-9  # kept back from the limit: a sum of a million floats is off by far less


def cost(noise_multiplier: float, sensitivity: float) -> tuple[float, float]:
    """(gaussian, correction) of one participation.

    noise_multiplier: guaranteed noise std / sensitivity. sensitivity: integer L2 norm that one
    user's vector cannot exceed. Raises ValueError unless both are finite and above 0.
    """
    for name, value in (("noise_multiplier", noise_multiplier), ("sensitivity", sensitivity)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value} must be finite and above 0")
    inverse = 1 / noise_multiplier
    # Products, not powers: a huge product becomes inf, which every limit refuses.
    gaussian = inverse * inverse
    correction = gaussian / sensitivity * (gaussian / sensitivity)
    return gaussian, correction


def rdp(gaussian: float, correction: float, order: int) -> float:
    """RDP at an integer order >= 2 of everything that the two sums stand for."""
    return order / 2 * gaussian + (2 * order + 5) / 4 * correction


def limit(epsilon: float, delta: float) -> tuple[int, float]:
    """(order, rdp): the filter that keeps a user within (epsilon, delta), however noise adapts.

    The order in 2..512 that lets most Gaussian noise through. Raises ValueError when no order
    leaves anything to spend, and on epsilon or delta out of range.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon = {epsilon} must be finite and above 0")
    budgets = {order: epsilon - _conversion(order, delta) for order in ORDERS}
    best = max(ORDERS, key=lambda order: budgets[order] / order)
    if budgets[best] <= 0:
        least = min(_conversion(order, delta) for order in ORDERS)
        raise ValueError(
            f"epsilon = {epsilon} at delta = {delta} must be above {least:.4f}: "
            "nobody could ever take part"
        )
    return best, budgets[best] * (1 - _ROUNDING)


def spent_epsilon(gaussian: float, correction: float, delta: float) -> float:
    """Epsilon of what was spent, at the best order: for display, holds for plans fixed before.

    0 when nothing was spent. Never above the epsilon of the `limit` it was kept under.
    """
    if gaussian == 0 and correction == 0:
        return 0.0
    found = (rdp(gaussian, correction, order) + _conversion(order, delta) for order in ORDERS)
    return max(0.0, min(found))


def _conversion(order: int, delta: float) -> float:
    """What (epsilon, delta) adds to the RDP at an order.

    Canonne, Kamath, Steinke 2020, "The discrete Gaussian for differential privacy", Prop. 12.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta} must be above 0 and below 1")
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
