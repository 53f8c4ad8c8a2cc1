"""Model updates: one user's delta, clipped over all layers jointly, as one bounded vector.

McMahan et al. 2018 (arXiv 1710.06963), "Learning differentially private recurrent language models",
Algorithm 1 (flat clipping). With adaptive clipping one coordinate more says whether the delta was
within the clip norm (Andrew et al. 2021, arXiv 1905.03871, "Differentially private learning with
adaptive clipping").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.common.arrays import F64, I64

_SAFE = 1e100  # entries up to it have squares that do not overflow
_PART = 1 << 13  # short enough that no BLAS starts threads for it, which cost more than they give


def update_bound(clip_norm: float, indicator: float) -> float:
    """L2 norm of the most that one user says: clip_norm * sqrt(1 + indicator^2).

    Raises ValueError unless clip_norm is finite and above 0 and indicator finite and at least 0.
    """
    if not 0 < clip_norm < math.inf:
        raise ValueError(f"clip_norm = {clip_norm} must be finite and above 0")
    if not 0 <= indicator < math.inf:
        raise ValueError(f"indicator = {indicator} must be finite and at least 0")
    return clip_norm * math.sqrt(1 + indicator * indicator)


def user_update(delta: ArrayLike | None, *, clip_norm: float, indicator: float) -> F64 | None:
    """One user's bounded vector: (d,) PRIVATE -> (d,), or (d + 1,) where indicator > 0.

    delta: all layers behind each other; clipped to L2 norm `clip_norm` in float64. The last
    coordinate is indicator * clip_norm, positive if the delta was no longer than `clip_norm`,
    else negative; so the norm is at most `update_bound`. None: the user has no usable delta
    (None, or NaN or infinity in it) and is zeros everywhere. Raises ValueError on another shape
    and on parameters, which are public.
    """
    update_bound(clip_norm, indicator)
    if delta is None:
        return None
    values = np.asarray(delta)
    if values.ndim != 1 or values.dtype.kind not in "fiu":
        raise ValueError(f"delta is {values.dtype} {values.shape}, expected numbers (d,)")
    vector = np.empty(len(values) + (indicator > 0))  # (d,) or (d + 1,)
    body = vector[: len(values)]  # (d,)
    body[:] = values
    norm = _norm(body)
    if not norm < math.inf:
        return None
    if norm > clip_norm:
        _shorten(body, norm, clip_norm)
    if indicator > 0:
        vector[-1] = math.copysign(indicator * clip_norm, clip_norm - norm)
    return vector


def shard_updates(
    deltas: Iterable[ArrayLike | None],
    *,
    length: int,
    clip_norm: float,
    indicator: float,
    encode: Callable[[F64], I64] | None = None,
    sampled: Iterable[bool] | None = None,
) -> NDArray[Any]:
    """Sum over a node's users of their vectors (see `user_update`), PRIVATE.

    deltas: one at a time, so that no more than one user's is in memory; None counts nothing.
    encode: one user's vector -> its integers, such as (padded_length,) int64 of the dense
    encoding; each user is encoded alone and only then summed. Without it the sum is (length,)
    float64, with length = d, or d + 1 where indicator > 0. sampled: whether each user is summed,
    PRIVATE; None: everybody. Those who are not are clipped and encoded all the same. Raises
    ValueError on another shape.
    """
    empty = np.zeros(length)  # (length,)
    total: NDArray[Any] = empty if encode is None else np.zeros_like(encode(empty))
    summed: Iterable[bool] = itertools.repeat(True) if sampled is None else sampled
    for delta, counts in zip(deltas, summed, strict=sampled is not None):
        vector = user_update(delta, clip_norm=clip_norm, indicator=indicator)
        if vector is None:
            continue
        if vector.shape != (length,):
            raise ValueError(f"a user's vector has shape {vector.shape}, expected ({length},)")
        part: NDArray[Any] = vector if encode is None else encode(vector)  # as total
        part *= int(counts)  # a product, so that both cost the same
        total += part
    return total


def _norm(values: F64) -> float:
    """L2 norm; infinity where an entry is not finite. Squares of large entries do not overflow."""
    parts = (values[first : first + _PART] for first in range(0, len(values), _PART))
    with np.errstate(over="ignore", invalid="ignore"):
        square = sum(float(part @ part) for part in parts)
    if 1 / _SAFE < square < _SAFE:
        return math.sqrt(square)
    peak = float(np.abs(values).max(initial=0.0))  # NaN stays NaN
    if not peak < math.inf:
        return math.inf
    if peak == 0:
        return 0.0
    return float(np.linalg.norm(values / peak)) * peak


def _shorten(values: F64, norm: float, bound: float) -> None:
    """Scale to `bound`, in place; a 1e-12th less, so that rounding leaves it no longer."""
    if norm > _SAFE:
        values /= np.abs(values).max()
        norm = float(np.linalg.norm(values))
    values *= bound / norm * (1 - 1e-12)
