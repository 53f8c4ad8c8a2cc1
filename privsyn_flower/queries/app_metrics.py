"""Metrics of somebody else's app: one user's numbers within public bounds, as one bounded vector.

An evaluate function of Flower's returns named numbers and how many examples they are about, and
FedAvg averages them by these. Here a metric m with the public bounds [low, high] becomes
c = 2 (m - low) / (high - low) - 1 in [-1, 1], a user's weight w lies in [0, 1], and the vector is
[w, w c_1, ..., w c_k]. Its norm is at most sqrt(1 + k). Only the noisy sum over users is released;
the ratio of a coordinate to the first is the weighted mean of c, which gives that of m.

The middle of the bounds is 0, not low: the norm is the same, and the mean of a metric has half of
the noise that it would have with m in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.arrays import F64
from privsyn_flower.queries.metrics import (
    GridEncoder,
    Ratio,
    encoded_sum,
    noisy_ratio,
    within,
)

MOST_METRICS = 16
LARGEST_COUNT = 2**53  # of examples that are told apart: above it floats skip whole numbers

Bounds = Sequence[tuple[float, float]]


def app_metrics_bound(metrics: int) -> float:
    """Norm that no user's vector exceeds: sqrt(1 + metrics). Raises ValueError out of 1..16."""
    if not 1 <= metrics <= MOST_METRICS:
        raise ValueError(f"{metrics} metrics: from 1 to {MOST_METRICS} fit one evaluation")
    return math.sqrt(1 + metrics)


def check_bounds(bounds: Bounds) -> None:
    """Raises ValueError unless every (low, high) is finite with low < high."""
    for low, high in bounds:
        # Their difference is divided by: it must be a number, too.
        if not (low < high and high - low < math.inf):
            raise ValueError(f"bounds ({low}, {high}) must be finite, the first below the second")


def user_app_metrics(
    examples: ArrayLike, values: ArrayLike, *, bounds: Bounds, max_examples: int
) -> F64:
    """Each user's bounded vector: (u, 1 + k) float64, PRIVATE.

    examples: (u,) what each user's metrics are about. values: (u, k) the metrics, cut to `bounds`.
    max_examples: 0 gives every user the weight 1; else the weight is min(examples, max_examples)
    / max_examples, so that a user with more examples than that weighs no more. A user with NaN or
    infinity, or without examples, is zeros. Raises ValueError on shapes and on parameters, which
    are public.
    """
    count, found = np.asarray(examples, dtype=np.float64), np.asarray(values, dtype=np.float64)
    app_metrics_bound(len(bounds))
    check_bounds(bounds)
    if not 0 <= max_examples <= LARGEST_COUNT:
        raise ValueError(f"max_examples = {max_examples} must be from 0 to {LARGEST_COUNT}")
    if count.ndim != 1 or found.shape != (len(count), len(bounds)):
        raise ValueError(
            f"examples {count.shape}, values {found.shape}: expected (u,) and (u, {len(bounds)})"
        )
    usable = np.isfinite(count) & (count > 0) & np.isfinite(found).all(axis=1)  # (u,)
    count, found = np.where(usable, count, 0.0), np.where(usable[:, None], found, 0.0)  # (u, k)
    weight = np.minimum(count, max_examples) / max_examples if max_examples else usable * 1.0
    low, high = np.array(bounds, dtype=np.float64).T  # (k,), (k,)
    centred = (2 * ((found.clip(low, high) - low) / (high - low)) - 1).clip(-1, 1)  # (u, k)
    return np.concatenate([weight[:, None], weight[:, None] * centred], axis=1)


def shard_app_metrics(
    examples: ArrayLike,
    values: ArrayLike,
    *,
    bounds: Bounds,
    max_examples: int,
    plan: GridEncoder | None = None,
    counted: ArrayLike | None = None,
) -> NDArray[Any]:
    """Sum over a node's users of their vectors (see `user_app_metrics`): (1 + k,), PRIVATE.

    plan: each user's vector is encoded as integers by itself (`encoded_sum`); without: float64.
    counted: (u,) whether each user is summed, as there.
    """
    vectors = user_app_metrics(examples, values, bounds=bounds, max_examples=max_examples)
    return encoded_sum(vectors, plan, counted)


# --- the server's side: from the released sum to means --------------------------------------


def read_app_metrics(
    released: ArrayLike, noise_std: float, *, bounds: Bounds, z: float
) -> list[Ratio]:
    """The released sum (1 + k,) -> each metric's mean with its interval; post-processing.

    noise_std: of every coordinate. z: standard deviations of the intervals, which cover the noise
    of this release and nothing else. Raises TooNoisyError when the sum of the users' weights
    cannot be told from zero.
    """
    weight, *sums = (float(value) for value in np.asarray(released))
    means = []
    for total, (low, high) in zip(sums, bounds, strict=True):
        ratio = noisy_ratio(
            total,
            weight,
            noise_std,
            noise_std,
            z,
            counted="sum of the users' weights",
            remedy="more users or fewer metrics, lower max_examples",
        )
        middle, half = low + (high - low) / 2, (high - low) / 2
        scaled = (middle + half * value for value in (ratio.value, ratio.low, ratio.high))
        means.append(within(Ratio(*scaled), low, high))
    return means
