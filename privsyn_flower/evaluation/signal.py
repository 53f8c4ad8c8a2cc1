"""Is there more in a release than noise? A test on released numbers, whose noise is known.

A release r (d,) is a sum s plus noise, independent of coordinate to coordinate, of known standard
deviation sigma. Its excess is |r|^2 / (d sigma^2) - 1. From s = 0, |r|^2 / sigma^2 has the
chi-squared distribution of d degrees of freedom: mean d and variance 2 d, so the excess is 0 with a
sampling error of sqrt(2 / d). Otherwise it is |s|^2 / (d sigma^2) on average: the squared ratio of
the signal's norm to the noise's.

Votes and scores tell candidates apart by their differences alone: what all candidates of a group
have in common is taken out first, and with it one degree of freedom a group (Cochran's theorem).

Everything here is computed from what was released already: post-processing, which costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privsyn_flower.common.arrays import F64

# Of the noise's variance: so much more may be the users' rounding to integers, which is no signal.
# A user adds at most 1/4 in integers, the noise at least (4096 z)^2: it covers 67,000 z^2 users.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Excess:
    """value: |r|^2 / (degrees sigma^2) - 1 of a release. degrees: of freedom, at least 1."""

    value: float
    degrees: int

    @property
    def error(self) -> float:
        """Its standard deviation on pure noise."""
        return math.sqrt(2.0 / self.degrees)

    @property
    def signal_to_noise(self) -> float:
        """The estimated norm of the signal over the noise's, at least 0."""
        return math.sqrt(max(0.0, self.value))


def excess(released: F64, noise_std: float, groups: Sequence[int] = ()) -> Excess | None:
    """The excess of a release (d,). groups: sizes of the groups whose means are taken out, d in
    all; none: nothing is. None where no coordinate is left, or there is no noise."""
    values = np.asarray(released, dtype=np.float64)
    degrees = len(values) - len(groups)
    if degrees < 1 or noise_std <= 0:
        return None
    if groups:
        starts = np.concatenate([[0], np.cumsum(groups)[:-1]]).astype(np.intp)
        means = np.add.reduceat(values, starts) / np.asarray(groups)
        values = values - np.repeat(means, groups)
    scaled = values / noise_std
    return Excess(float(scaled @ scaled) / degrees - 1.0, degrees)


def p_value(excesses: Sequence[Excess], *, independent: bool = True) -> float:
    """How often pure noise has at least such an excess; 1 without releases.

    independent: of release to release, which are added up then. Else, as where an aggregator
    correlates the noise over the rounds, the largest counts, as many times as there are
    (Bonferroni), whatever the dependence.
    """
    from scipy.special import chdtrc

    if not excesses:
        return 1.0
    sums = [one.degrees * (1.0 + one.value) / (1.0 + TOLERANCE) for one in excesses]
    degrees = [one.degrees for one in excesses]
    if independent:
        return float(chdtrc(sum(degrees), sum(sums)))
    least = min(float(chdtrc(d, total)) for d, total in zip(degrees, sums, strict=True))
    return min(1.0, len(excesses) * least)
