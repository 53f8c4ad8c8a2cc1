"""Paired bootstrap over users: how far a difference would move with other held-out users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privsyn_flower.arrays import F64, I64

BLOCK = 256  # resamples weighed at once


@dataclass(frozen=True)
class Interval:
    """A point estimate and a percentile interval."""

    value: float
    low: float
    high: float

    def as_list(self) -> list[float]:
        """[value, low, high], rounded for JSON."""
        return [round(number, 6) for number in (self.value, self.low, self.high)]


def paired_bootstrap(
    methods: Mapping[str, F64],
    differences: Sequence[tuple[str, str]],
    rng: np.random.Generator,
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> dict[str, dict[str, Interval]]:
    """Users' sums per method -> intervals of every method and of differences of pairs.

    methods: name -> (u, 2) per user: numerator (correct tokens, or loss) and denominator
    (tokens); the same users in the same order everywhere, and each resample draws the same users
    for all methods (Efron and Tibshirani 1993, chapter 13: percentile intervals; Koehn 2004 for
    the pairing). The statistic is micro: sum of numerators over sum of denominators.
    Returns {"value": {name: ...}, "difference": {"b-a": ...}}, where "b-a" is b minus a for the
    pair ("b", "a"). Raises ValueError on unequal shapes, no users or no tokens.
    """
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(f"{confidence=} must be in (0, 1) and {resamples=} at least 1")
    shapes = {name: sums.shape for name, sums in methods.items()}
    users = next(iter(shapes.values()), (0,))[0]
    if users == 0 or any(shape != (users, 2) for shape in shapes.values()):
        raise ValueError(f"sums of shapes {shapes}: every method needs (users, 2), users > 0")
    if any(sums[:, 1].sum() <= 0 for sums in methods.values()):
        raise ValueError("no held-out user has a token to predict")
    weights = rng.multinomial(users, np.full(users, 1 / users), size=resamples)
    drawn = {name: ratios(weights, sums) for name, sums in methods.items()}
    point = {name: float(sums[:, 0].sum() / sums[:, 1].sum()) for name, sums in methods.items()}
    tail = 50 * (1 - confidence)

    def interval(value: float, samples: F64) -> Interval:
        low, high = np.nanpercentile(samples, [tail, 100 - tail])
        return Interval(value, float(low), float(high))

    return {
        "value": {name: interval(point[name], drawn[name]) for name in methods},
        "difference": {
            f"{one}-{two}": interval(point[one] - point[two], drawn[one] - drawn[two])
            for one, two in differences
        },
    }


def ratios(weights: I64, sums: F64) -> F64:
    """(r, u) draws and (u, 2) sums -> (r,) ratios; NaN where only users without tokens came."""
    parts = []
    for start in range(0, len(weights), BLOCK):
        totals = weights[start : start + BLOCK] @ sums
        with np.errstate(invalid="ignore", divide="ignore"):
            parts.append(totals[:, 0] / totals[:, 1])
    return np.concatenate(parts)
