"""What an audit computes from its trials: bounds on mu, and tests of the noise.

No claim enters here but the standard deviation that the noise should have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privsyn_flower.common.arrays import F64, I64, Bools
from privsyn_flower.privacy.correlated import Factorization
from privsyn_flower.privacy.correlated.toeplitz import Toeplitz
from privsyn_flower.privacy.correlated.trees import Tree

# Thresholds far out have few hits or alarms; at a lower confidence chance would prefer them.
CHOOSING = 1 - 1e-8

Halves = tuple[F64, F64]


def epsilon_lower_bound(
    present: Halves, absent: Halves, delta: float, confidence: float, sampled: Bools | None = None
) -> float:
    """epsilon >= this with probability `confidence`, of a release that the canary may be in.

    present: the statistic of trials whose sums have the canary's vector. sampled (n,): for each
    trial with the canary, whether its vector was in the sum; None: it always was.

    With sampling the pair is N(0, 1) against (1 - q) N(0, 1) + q N(mu, 1). The auditor sees who is
    sampled, so mu is bounded by the trials in which the canary was, and q by how often it was:
    given the sampling, the noise is independent of it, and the two confidences multiply. Epsilon
    grows with mu and with q, because less of either is post-processing of more. Nothing is taken
    from the claim, so that a rate that is not kept makes the bound larger.
    """
    if sampled is None:
        return sampled_epsilon(mu_lower_bound(present, absent, confidence), 1.0, delta)
    level = confidence ** (1 / 3)
    rate = _least_rate(int(sampled.sum()), len(sampled), level)
    return sampled_epsilon(mu_lower_bound(present, absent, level**2), rate, delta)


def sampled_epsilon(mu: float, rate: float, delta: float) -> float:
    """Epsilon of N(0, 1) against (1 - rate) N(0, 1) + rate N(mu, 1), rounded down.

    Exact, of one release: Neyman and Pearson's best tests are thresholds in both directions. Not
    from the accountant, whose numbers are upper bounds.
    """
    from scipy.stats import norm

    if not (mu > 0 and rate > 0):
        return 0.0

    def lost(epsilon: float) -> float:
        """The delta that this epsilon leaves."""
        grown = epsilon + math.log1p(-(1 - rate) * math.exp(-epsilon))  # log(e^epsilon - 1 + rate)
        above = mu / 2 + (grown - math.log(rate)) / mu
        found = rate * norm.sf(above - mu) - math.exp(grown + norm.logsf(above))
        room = math.exp(-epsilon) - 1 + rate
        if room > 0:
            below = mu / 2 + math.log(room / rate) / mu
            mixed = (1 - rate) * norm.cdf(below) + rate * norm.cdf(below - mu)
            found = max(found, norm.cdf(below) - math.exp(epsilon) * mixed)
        return float(found)

    if lost(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while lost(high) > delta:
        low, high = high, 2 * high
    while high > low + 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if lost(middle) > delta else (low, middle)
    return low


def _least_rate(sampled: int, draws: int, level: float) -> float:
    """The sampling rate is at least this with probability `level` (Clopper and Pearson 1934)."""
    from scipy.stats import beta

    return float(beta.ppf(1 - level, sampled, draws - sampled + 1)) if sampled else 0.0


def mu_lower_bound(present: Halves, absent: Halves, confidence: float) -> float:
    """mu >= this with probability `confidence`: Phi^-1(hits) - Phi^-1(false alarms), 0 at least.

    present, absent: the statistic with and without the canary, each in two independent parts.
    One threshold of 199 is chosen on the first parts; Clopper-Pearson intervals of the second
    ones, at the root of the confidence each because they are independent, certify it.
    """
    pooled = np.concatenate([present[0], absent[0]])
    thresholds = np.quantile(pooled, np.linspace(0.005, 0.995, 199))
    best = np.argmax(_mu_at(thresholds, present[0], absent[0], CHOOSING))
    certified = _mu_at(thresholds[best : best + 1], present[1], absent[1], confidence)
    return max(0.0, float(certified[0]))


def _mu_at(thresholds: F64, present: F64, absent: F64, confidence: float) -> F64:
    """The bound on mu that each threshold (k,) gives: (k,), -inf where it gives none."""
    from scipy.stats import beta, norm

    level = math.sqrt(confidence)
    hits = (present[None] > thresholds[:, None]).sum(axis=1)
    alarms = (absent[None] > thresholds[:, None]).sum(axis=1)
    # Clopper and Pearson 1934; beta.ppf has no value at the ends, where the limits are 0 and 1.
    low = np.where(hits > 0, beta.ppf(1 - level, np.maximum(hits, 1), len(present) - hits + 1), 0.0)
    rest = len(absent) - alarms
    high = np.where(rest > 0, beta.ppf(level, alarms + 1, np.maximum(rest, 1)), 1.0)
    # The limits 0 and 1 each give -inf by themselves, never inf - inf.
    bound: F64 = norm.ppf(low) - norm.ppf(high)
    return bound


def variance_test(noise: F64, std: float) -> tuple[float, float]:
    """Measured variance of noise of mean 0 / std^2, and its two-sided chi-square p-value.

    The nodes' integer noise at these variances is Gaussian for this purpose.
    """
    from scipy.stats import chi2

    freedom = noise.size
    statistic = float(np.square(noise / std).sum())
    p_value = 2 * min(chi2.cdf(statistic, freedom), chi2.sf(statistic, freedom))
    return statistic / freedom, min(1.0, float(p_value))


def correlation_test(noise: F64) -> float:
    """p-value of noise of mean 0 that is independent between rounds: (R, n) -> of R > 1 rounds.

    n times the squared correlation of two rounds is chi-square with one degree of freedom.
    """
    from scipy.stats import chi2

    rounds, size = noise.shape
    products = noise @ noise.T
    squares = np.diag(products)
    correlations = products / np.sqrt(squares[:, None] * squares[None])
    above = correlations[np.triu_indices(rounds, 1)]
    return float(chi2.sf(size * np.square(above).sum(), len(above)))


def filtered(noise: F64, shifts: F64, which: I64, put: F64) -> F64:
    """The matched filter on every trial: (T,), of noise of one size, or 0 where nothing shifts.

    noise (R, T, L): of releases whose noise is independent and of one size everywhere, less all
    that users put into them. shifts (k, R, L): what the canary changes, known to the adversary, who
    knows all texts and which others are sampled; where a user changes others' vectors too (a clip
    of sums, not of users) it has their part in it. which (T,): the shift of each trial. put (T,):
    how much of it is in the releases.
    """
    found = np.zeros(noise.shape[1])
    for at, shift in enumerate(shifts):
        norm = float(np.linalg.norm(shift))
        here = which == at
        if norm > 0:
            along = np.tensordot(noise[:, here], shift / norm, axes=([0, 2], [0, 1]))
            found[here] = along + put[here] * norm
    return found


def halves(statistic: F64, chosen: Bools) -> Halves:
    """The statistic of the chosen trials (T,), (T,), of the first half of all and of the second."""
    first = np.arange(len(statistic)) < len(statistic) // 2
    return statistic[chosen & first], statistic[chosen & ~first]


def whitening(matrix: Factorization) -> F64:
    """What makes the noise of a run's releases independent, of unit variance each: (R, R).

    The releases have noise C^-1 z, so C does it. A tree has more nodes than rounds, and C is no
    square: there it is the inverse of the Cholesky factor of the noise's covariance, which is
    all that the releases tell. It is lower triangular: a prefix of a run is a prefix here.
    """
    from scipy.linalg import solve_triangular, toeplitz

    if isinstance(matrix, Toeplitz):
        column = np.zeros(matrix.rounds)
        column[: matrix.bands] = matrix.coefficients
        found: F64 = np.tril(toeplitz(column))
        return found
    if not isinstance(matrix, Tree):
        raise ValueError(f"{matrix.name}: nothing is known that makes its noise independent")
    rows = tree_noise(matrix)
    factor = np.linalg.cholesky(rows @ rows.T)
    inverse: F64 = solve_triangular(factor, np.eye(matrix.rounds), lower=True)
    return inverse


def tree_noise(matrix: Tree) -> F64:
    """The noise of each release as a sum of the nodes' own: (R, nodes)."""
    recurrence = matrix.recurrence()
    places: dict[tuple[int, int], int] = {}
    # R leaves, fewer nodes above them, and for each tree that is completed those on one path.
    nodes = 3 * matrix.rounds + 64

    def draw(rnd: int, leaf: int) -> F64:
        unit = np.zeros(nodes)
        unit[places.setdefault((rnd, leaf), len(places))] = 1.0
        return unit

    rows, records = np.empty((matrix.rounds, nodes)), dict[int, F64]()
    for rnd in range(1, matrix.rounds + 1):
        noise, record = recurrence.step(rnd, draw, records.__getitem__)
        rows[rnd - 1] = noise
        live = set(recurrence.live(rnd + 1))
        records = {past: kept for past, kept in records.items() if past in live}
        records[rnd] = record.copy()
    return rows[:, : len(places)]


@dataclass(frozen=True)
class SamplingTest:
    """Who was sampled, of all users in all trials, and how often the canary was.

    sampled: share of the draws. canary: share of the sums for which the canary was there that have
    its vector. Their p-values are two-sided, against the rate; more often than it is what
    contradicts the claim. independence_p_value: of users who are sampled independently.
    """

    draws: int
    sampled: float
    sampled_p_value: float
    canary: float
    canary_p_value: float
    independence_p_value: float

    def faults(self, rate: float, level: float) -> list[str]:
        """What contradicts sampling at this rate: nothing, or in words."""
        found = []
        if self.sampled > rate and self.sampled_p_value < level:
            found.append("users are sampled more often than is claimed")
        if self.canary > rate and self.canary_p_value < level:
            found.append("the canary is in more of the sums than its sampling allows")
        if self.independence_p_value < level:
            found.append("users are not sampled independently")
        return found


def sampling_test(draws: Bools, canary: Bools, rate: float) -> SamplingTest:
    """draws (T, U): whether each user was sampled in every trial. canary (n,): whether the canary's
    vector is in each of the sums that it was there for."""
    return SamplingTest(
        draws.size,
        float(draws.mean()),
        rate_test(int(draws.sum()), draws.size, rate),
        float(canary.mean()),
        rate_test(int(canary.sum()), canary.size, rate),
        independence_test(draws),
    )


def rate_test(sampled: int, draws: int, rate: float) -> float:
    """Two-sided p-value of so many sampled among independent draws at a rate; exact."""
    from scipy.stats import binom

    tails = binom.cdf(sampled, draws, rate), binom.sf(sampled - 1, draws, rate)
    return min(1.0, 2 * float(min(tails)))


def independence_test(draws: Bools) -> float:
    """p-value of independent draws (T, U), of users in one trial and in one and the next.

    Fisher's exact test of every pair: given how often each of two was sampled, how often both
    did is hypergeometric, at any rate. The least of them, times how many there are (Bonferroni).
    """
    sampled = draws.astype(np.float64)
    pairs = np.triu_indices(draws.shape[1], 1)
    beside = _fisher(sampled, sampled)[pairs]
    after = _fisher(sampled[:-1], sampled[1:]).ravel()
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
