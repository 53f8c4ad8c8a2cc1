"""Means over repeated runs: intervals over seeds, and over users whom the runs have in common.

Two sources of chance, told apart: another seed (choices, generation, noise), and other held-out
users. Neither interval covers the other's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privsyn_flower.arrays import F64
from privsyn_flower.evaluation.bootstrap import Interval, ratios


def over_seeds(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Mean of one figure of several runs, with Student's t interval; None for fewer than two.

    The seeds are taken for independent draws of a normal distribution. Three of them give an
    interval of 2.5 standard deviations to each side.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"{confidence=} must be in (0, 1)")
    count = len(values)
    if count < 2:
        return None
    from scipy.special import stdtrit

    mean = float(np.mean(values))
    reach = float(stdtrit(count - 1, (1 + confidence) / 2))
    half = reach * float(np.std(values, ddof=1)) / float(np.sqrt(count))
    return Interval(mean, mean - half, mean + half)


def over_users(
    runs: Sequence[F64],
    others: Sequence[F64] = (),
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Mean over runs of a figure, or of its difference to `others`; percentile interval over users.

    runs: for each run (u, 2), users' numerators (correct tokens, or loss) and denominators
    (tokens); the same users in the same order everywhere. others: as many, of the runs that are
    paired with them; empty: no difference. A resample draws the users once for all runs (Efron and
    Tibshirani 1993, chapter 13), so the seeds stay as they are. Raises ValueError on unequal
    shapes, no runs, no users or no tokens.
    """
    shapes = {sums.shape for sums in (*runs, *others)}
    users = runs[0].shape[0] if runs else 0
    if users == 0 or shapes != {(users, 2)} or (others and len(others) != len(runs)):
        raise ValueError(
            f"sums of shapes {sorted(shapes)} in {len(runs)} and {len(others)} runs: every run "
            "needs (users, 2), users > 0, and every pair two runs"
        )
    if any(sums[:, 1].sum() <= 0 for sums in (*runs, *others)):
        raise ValueError("no held-out user has a token to predict")
    weights = rng.multinomial(users, np.full(users, 1 / users), size=resamples)
    once = np.ones((1, users), dtype=np.int64)

    def mean(draws: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> F64:
        found = sum(ratios(draws, sums) for sums in runs) - sum(ratios(draws, s) for s in others)
        value: F64 = np.asarray(found, dtype=np.float64) / len(runs)
        return value

    tail = 50 * (1 - confidence)
    low, high = np.nanpercentile(mean(weights), [tail, 100 - tail])
    return Interval(float(mean(once)[0]), float(low), float(high))
