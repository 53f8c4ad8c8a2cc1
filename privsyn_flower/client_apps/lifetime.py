"""What one user has spent over a node's life, as two numbers that give the RDP at every order.

A participation in a Skellam sum of noise multiplier z and integer sensitivity S costs, at an
integer order a >= 2, with L1 sensitivity <= S^2,

    rdp(a) <= a / (2 z^2) + (2a + 5) / (4 z^4 S^2)

(Agarwal, Kairouz, Liu 2021, "The Skellam mechanism for differentially private federated
learning", Theorem 3.5). So the sums of 1/z^2 (`gaussian`) and of 1/(z^4 S^2) (`correction`)
are all that has to be kept. No amplification by sampling is taken into account.

Where a trusted aggregator adds Gaussian noise, z is that of independent Gaussian noise of the same
cost for each participation, and rdp(a) = a / (2 z^2). The second term is charged there too: it
only makes the account larger, by a part in 10^6 at the usual S = 4096.

The server chooses z after it has seen earlier releases. A limit that holds against that is
checked at one order that was fixed before (`privacy.renyi.filter_budget`).
"""

from __future__ import annotations

from privsyn_flower.privacy.renyi import (
    ORDERS,
    check_positive,
    check_sensitivity,
    rdp_to_epsilon,
)


def cost(noise_multiplier: float, sensitivity: float) -> tuple[float, float]:
    """(gaussian, correction) of one participation; inf where hardly any noise is promised.

    noise_multiplier: guaranteed noise std / sensitivity. sensitivity: integer L2 norm that one
    user's vector cannot exceed. Raises ValueError unless both are finite and positive.
    """
    check_positive("noise_multiplier", noise_multiplier)
    check_sensitivity(sensitivity)
    inverse = 1 / noise_multiplier
    # Products, not powers: a product that overflows is inf, which every limit refuses.
    gaussian = inverse * inverse
    return gaussian, gaussian / sensitivity * (gaussian / sensitivity)


def rdp(gaussian: float, correction: float, order: int) -> float:
    """RDP at an integer order >= 2 of everything that the two sums stand for."""
    return order / 2 * gaussian + (2 * order + 5) / 4 * correction


def spent_epsilon(gaussian: float, correction: float, delta: float) -> float:
    """Epsilon at `delta` of what was spent, at the best order; 0 when nothing was.

    For display: it holds for noise fixed before the first release, and is never above the
    lifetime epsilon whose filter let it through.
    """
    if gaussian == 0 and correction == 0:
        return 0.0
    curve = ORDERS / 2 * gaussian + (2 * ORDERS + 5) / 4 * correction
    return rdp_to_epsilon(curve, ORDERS, delta)[0]
