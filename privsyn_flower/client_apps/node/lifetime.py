"""What a user has spent over a node's life, and the most that one may.

What was spent is two sums. A participation in a sum of noise multiplier z costs mu^2 = 1 / z^2, for
the nodes' noise as for a trusted aggregator's (`privacy.noise.integer_noise`); and the nodes'
integers are some total variation away from that. No amplification by sampling is taken into
account. The server chooses z after it has seen earlier releases. The sum of mu^2 is a filter that
holds against that (Smith and Thakurta 2022, arXiv 2210.17520, "Fully adaptive composition for
Gaussian differential privacy"); distances add up however they are chosen.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from privsyn_flower.privacy.accounting.composition import check_positive, gaussian_mu
from privsyn_flower.privacy.noise.integer_noise import allowed_distance, gaussian_delta


class Spent(NamedTuple):
    """gaussian: sum of mu^2. distance: sum of total variations."""

    gaussian: float
    distance: float


NOTHING = Spent(0.0, 0.0)


class Limit(NamedTuple):
    """The most that one user may spend in a node's life."""

    gaussian: float
    distance: float

    @classmethod
    def of(cls, epsilon: float, delta: float) -> Limit:
        """The sums that together imply (epsilon, delta), however the noise was chosen."""
        mu = gaussian_mu(epsilon, gaussian_delta(delta))
        return cls(mu * mu, allowed_distance(delta))

    def allows(self, spent: Spent) -> bool:
        """Whether this much is within the limit."""
        return spent.gaussian <= self.gaussian and spent.distance <= self.distance


def cost(noise_multiplier: float, distance: float) -> Spent:
    """Of one participation; inf where hardly any noise is announced.

    noise_multiplier: guaranteed noise std / L2 bound of one user's vector. distance: total
    variation of the noise from (rounded) Gaussian noise. Raises ValueError unless the first is
    finite and positive, the second at least 0.
    """
    check_positive("noise_multiplier", noise_multiplier)
    if not distance >= 0:
        raise ValueError(f"distance = {distance} must be at least 0")
    inverse = 1 / noise_multiplier
    return Spent(inverse * inverse, distance)  # what overflows is inf, which every limit refuses


def spent_epsilon(spent: Spent, delta: float) -> float:
    """Epsilon at `delta` of what was spent; inf when the integers allow none up to 700.

    For display: it holds for noise fixed before the first release, and is never above the
    lifetime epsilon whose limit let it through.
    """
    if spent.gaussian == 0 and spent.distance == 0:
        return 0.0
    low, high = 1e-9, 700.0
    if Limit.of(high, delta).gaussian < spent.gaussian:
        return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        enough = Limit.of(middle, delta).gaussian >= spent.gaussian
        low, high = (low, middle) if enough else (middle, high)
    return high if spent.distance <= allowed_distance(delta) else math.inf
