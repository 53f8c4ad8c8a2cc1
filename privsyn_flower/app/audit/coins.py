"""What an audit says about users' coins: how often they come up, and whether they are independent.

The rate is what is claimed; everything else is counted in the trials.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privsyn_flower.arrays import F64, Bools


@dataclass(frozen=True)
class Coins:
    """The tosses of all users in all trials, and what became of the canary's.

    heads: share of the tosses that came up. taken: share of the sums for which the canary was
    there that have its vector. Their p-values are two-sided, against the rate; more often than it
    is what contradicts the claim. shared_p_value: of coins that are independent of each other.
    """

    tosses: int
    heads: float
    heads_p_value: float
    taken: float
    taken_p_value: float
    shared_p_value: float

    def faults(self, rate: float, level: float) -> list[str]:
        """What contradicts coins of this rate: nothing, or in words."""
        found = []
        if self.heads > rate and self.heads_p_value < level:
            found.append("coins come up more often than is claimed")
        if self.taken > rate and self.taken_p_value < level:
            found.append("the canary is in more of the sums than its coin lets it be")
        if self.shared_p_value < level:
            found.append("users share coins")
        return found


def counted_coins(tosses: Bools, taken: Bools, rate: float) -> Coins:
    """tosses (T, U): of all users in every trial. taken (n,): whether the canary's vector is in
    each of the sums that it was there for."""
    return Coins(
        tosses.size,
        float(tosses.mean()),
        rate_test(int(tosses.sum()), tosses.size, rate),
        float(taken.mean()),
        rate_test(int(taken.sum()), taken.size, rate),
        sharing_test(tosses),
    )


def rate_test(heads: int, tosses: int, rate: float) -> float:
    """Two-sided p-value of this many heads among independent coins of a rate; exact."""
    from scipy.stats import binom

    tails = binom.cdf(heads, tosses, rate), binom.sf(heads - 1, tosses, rate)
    return min(1.0, 2 * float(min(tails)))


def sharing_test(tosses: Bools) -> float:
    """p-value of independent coins (T, U), of users in one trial and in one and the next.

    Fisher's exact test of every pair: given how often each of two coins came up, how often both
    did is hypergeometric, at any rate. The least of them, times how many there are (Bonferroni).
    """
    heads = tosses.astype(np.float64)
    pairs = np.triu_indices(tosses.shape[1], 1)
    beside = _fisher(heads, heads)[pairs]
    after = _fisher(heads[:-1], heads[1:]).ravel()
    found = np.concatenate([beside, after])
    return min(1.0, float(found.min()) * len(found))


def _fisher(left: F64, right: F64) -> F64:
    """Two-sided p-values for each column of one and each of the other: (T, U), (T, V) -> (U, V)."""
    from scipy.stats import hypergeom

    both, numbers = left.T @ right, (left.sum(axis=0)[:, None], right.sum(axis=0)[None])
    fewer = hypergeom.cdf(both, len(left), *numbers)
    more = hypergeom.sf(both - 1, len(left), *numbers)
    p_values: F64 = 2 * np.minimum(fewer, more)
    return p_values
