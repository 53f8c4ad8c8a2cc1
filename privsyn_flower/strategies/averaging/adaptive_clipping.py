"""Adaptive clipping: the clip norm follows a quantile of the users' update norms.

Andrew et al. 2021 (arXiv 1905.03871), "Differentially private learning with adaptive clipping",
Algorithm 1. Each user also says whether its update was within the clip norm. That bit is one more
coordinate of the same bounded vector, so it has no charge of its own: it takes its share of the
joint bound.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

logger = logging.getLogger("privsyn_flower")

FRACTION_STD = 1 / 20  # of the noise on the fraction; the paper's sigma_b = m / 20
LARGEST_INDICATOR = 0.5  # few users: the model's noise grows by no more than 12 %


@dataclass(frozen=True)
class AdaptiveClipping:
    """Public numbers of the rule.

    target_quantile: gamma, share of users whose updates the clip norm shall hold. learning_rate:
    eta_C.
    """

    target_quantile: float
    learning_rate: float

    def indicator_for(self, noise_multiplier: float, users: float) -> float:
        """s: the coordinate is s C for an update within the clip norm C, and -s C for a longer one.

        A user's vector has norm C sqrt(1 + s^2), so at noise multiplier z the model's noise grows
        to z sqrt(1 + s^2), and the fraction within, over n users, has noise of standard deviation
        z sqrt(1 + s^2) / (2 s n). The paper's is 1/20, which this s gives: 1 / sqrt((n / 10 z)^2
        - 1), about 10 z / n. With z_u = z sqrt(1 + s^2) on updates and sigma_b = z_u / (2 s) on
        counts, z_u^-2 + (2 sigma_b)^-2 = z^-2: the paper's Theorem 1, with the joint z.
        """
        if not 0 < noise_multiplier < math.inf:
            raise ValueError(
                f"noise_multiplier = {noise_multiplier}: adaptive clipping derives its indicator "
                "from the run's noise multiplier, which must be above 0"
            )
        ratio = 2 * FRACTION_STD * users / noise_multiplier
        if ratio**2 >= 1 + LARGEST_INDICATOR**-2:
            return 1 / math.sqrt(ratio**2 - 1)
        noise = noise_multiplier * math.sqrt(1 + LARGEST_INDICATOR**-2) / (2 * users)
        logger.warning(
            "adaptive clipping: %g users at noise multiplier %.3g: the fraction of updates within "
            "the clip norm has noise of standard deviation %.2f; more users make it smaller",
            users,
            noise_multiplier,
            noise,
        )
        return LARGEST_INDICATOR

    def within(self, mean_sign: float) -> float:
        """The noisy fraction of users within the clip norm; noise may take it out of [0, 1].

        mean_sign: the sum of +1 and -1 over a fixed number of users. Who did not answer counts
        half as within.
        """
        return (mean_sign + 1) / 2

    def next_norm(self, clip_norm: float, within: float) -> float:
        """C <- C exp(-eta_C (b - gamma)), b the fraction within."""
        return clip_norm * math.exp(-self.learning_rate * (within - self.target_quantile))
