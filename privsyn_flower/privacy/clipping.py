"""Bounding one user's vector. PRIVATE in, PRIVATE out; the bound is public."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.common.arrays import F64

_FSUM_UP_TO = 1 << 16  # above it a correctly rounded sum is too slow for model updates


def clip_l2(vector: ArrayLike, bound: float) -> F64:
    """Scale a vector down to L2 norm `bound`; a shorter one is returned as it is.

    vector: (d,), real, d >= 0; returns (d,) float64, always a copy. A vector with NaN or
    infinity becomes zero: it carries no usable answer, and dropping the user's contribution
    never raises the sensitivity. The norm stays at most `bound` after rounding, for entries
    whose squares overflow or underflow too. Raises ValueError on another shape or a bound
    that is not finite and positive.
    """
    if not 0 < bound < math.inf:
        raise ValueError(f"bound = {bound} must be finite and above 0")
    values = np.array(vector, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"vector has shape {values.shape}, expected one dimension")
    if not np.isfinite(values).all():
        return np.zeros_like(values)
    if values.size == 0 or _norm_at_most(values, bound):
        return values
    # Powers of two scale without rounding, so neither the square nor the ratio overflows.
    exponent = int(np.frexp(np.abs(values).max())[1])
    direction = np.ldexp(values, -exponent)
    direction /= _norm(direction)
    clipped = direction * bound
    for step in range(-52, 0):  # rounding may leave it an ulp too long: shrink, never exceed
        if _norm_at_most(clipped, bound):
            return clipped
        clipped = direction * (bound * (1 - math.ldexp(1.0, step)))
    return np.zeros_like(values)  # only for bounds among the denormal numbers


def _norm_at_most(values: F64, bound: float) -> bool:
    peak = float(np.abs(values).max())
    if peak == 0 or peak > bound:
        return peak == 0
    exponent = math.frexp(peak)[1]
    # bound / peak can overflow: then the vector is shorter by 300 orders of magnitude.
    limit = _ldexp_or_inf(bound, -exponent)
    return _norm(np.ldexp(values, -exponent)) <= limit


def _norm(values: F64) -> float:
    """An L2 norm not below what numpy's dot product would say; entries are at most 1."""
    squares: NDArray[Any] = values * values
    if squares.size <= _FSUM_UP_TO:
        total = math.fsum(squares.tolist())
    else:
        total = float(squares.sum()) * (1 + 1e-14)
    return math.sqrt(max(total, float(values @ values)))


def _ldexp_or_inf(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf
