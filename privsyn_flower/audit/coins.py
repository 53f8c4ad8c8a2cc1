"""What an audit says about users' coins: how often they come up, and whether they are independent.

The rate is what is claimed; everything else is counted in the trials.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privsyn_flower.audit.statistics import Bools, Floats


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
    """p-value of independent coins (T, U), by Pearson's test: heads in a trial are binomial.

    At the rate that the coins have, which costs a degree of freedom; counts that are expected
    fewer than five times are put together. 1.0 where coins are too rare or too frequent to tell.
    """
    from scipy.stats import binom, chi2

    trials, users = tosses.shape
    expected = trials * binom.pmf(np.arange(users + 1), users, tosses.mean())
    seen = np.bincount(tosses.sum(axis=1), minlength=users + 1).astype(np.float64)
    edges = _edges(expected)
    if len(edges) < 3:
        return 1.0
    expected, seen = (np.add.reduceat(counts, edges) for counts in (expected, seen))
    statistic = float((np.square(seen - expected) / expected).sum())
    return float(chi2.sf(statistic, len(edges) - 2))


def _edges(expected: Floats) -> list[int]:
    """Where bins begin that expect at least five trials each; one bin at least."""
    edges, running = [0], 0.0
    for at, count in enumerate(expected):
        if running >= 5 and expected[at:].sum() >= 5:
            edges.append(at)
            running = 0.0
        running += count
    return edges
