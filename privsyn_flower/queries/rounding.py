"""Dense vectors as integers: to the nearest, within an L2 norm that is counted exactly.

Truncation towards zero, as for votes, keeps every norm but shrinks dense vectors: at 18,000
entries and a norm of 4096 an entry is about 30, and half an integer off each is 1.6 % off the
vector, more off its small entries. The nearest integer has no such bias at that size, but may
lengthen a vector; so there must be room for it, and the few that are too long are truncated.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.arrays import Bools

_COUNTED = 4e-6  # relative error of a squared norm in float32, at most
EXACT = 2.0**12  # up to this sensitivity squares sum to 2^24 at most, exact in float32


def rounding_room(sensitivity: float, size: int) -> float:
    """The L2 norm from which rounding `size` entries to the nearest rarely passes `sensitivity`.

    Rounding adds size / 12 to the squared norm in the mean, with a standard deviation of about
    sensitivity / sqrt(3); there is room for seven of those, and for a norm that float32 counted.
    At 4096 and 18,000 that costs 0.05 %.
    Where it would cost more than a sixteenth, the norm stays, and most vectors are truncated.
    """
    square = sensitivity * sensitivity
    slack = size / 12 + 4 * sensitivity + _COUNTED * square
    return math.sqrt(square - (slack if slack <= square / 8 else square * 1e-5))


def round_within(scaled: NDArray[Any], sensitivity: float, out: NDArray[Any]) -> None:
    """Rows (u, m) of norm up to `rounding_room`, PRIVATE -> whole numbers of norm <= sensitivity.

    float32 up to a sensitivity of 4096, float64 beyond. Each row by itself.
    """
    np.rint(scaled, out=out)
    for shorter in (np.trunc, np.zeros_like):
        long = ~_short(out, sensitivity)
        if not long.any():
            return
        out[long] = shorter(scaled[long])


def _short(integers: NDArray[Any], sensitivity: float) -> Bools:
    """Whether whole numbers (u, m) have L2 norm at most `sensitivity`, for each row. Exact.

    In float32 a sum of squares below 2^24 was never rounded; one that was is 2^24 or more, and
    counts as too long. Beyond 4096 the sum is int64's.
    """
    limit = math.floor(Fraction(sensitivity) ** 2)
    if integers.dtype == np.float32:
        limit = min(limit, 2**24 - 1)
    else:
        integers = integers.astype(np.int64)
    short: Bools = np.einsum("ij,ij->i", integers, integers) <= limit
    return short
