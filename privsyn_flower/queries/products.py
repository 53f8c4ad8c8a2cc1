"""Inner products, and their rounding, that are the same numbers whoever else is there.

A matrix product in floating point rounds a row's results in another way when it lies elsewhere
in the block, or beside fewer rows. Removing one user could then flip the last bit of another
user's entry, that entry's integer, and so change a sum by more than one user's bound.

Here both factors are whole numbers, in rows of norm at most 2^12. By Cauchy and Schwarz no partial
sum of a product exceeds 2^24, so float32 holds every one exactly: the result is the same in any
order and on any machine. The price is a relative error of about sqrt(d / 12) / 2^12 in each
factor, 0.14 % at d = 384; candidates of 8 bits have several times that already.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.common.arrays import F32, F64, Bools, Ints

LARGEST = 2.0**24  # of a product
_NORM = 2.0**12
_FEW = 16  # users whose rows are summed together: they stay in the processor's cache
_DUST = 1e-6  # a shorter row, where rows have norm about 1, is nothing but rounding


@dataclass(frozen=True)
class Candidates:
    """Public rows (m, d) as whole numbers / scale; scale 0: there is nothing in them."""

    rows: F32
    scale: float


def whole_candidates(units: F32) -> Candidates:
    """Finite rows (m, d) of norm about 1 -> whole numbers at one common scale. Overwrites them."""
    longest = float(norms(units).max(initial=0.0))
    scale = longest_norm(units.shape[1]) / longest if longest > _DUST else 0.0
    units *= np.float32(scale)
    return Candidates(np.rint(units, out=units), scale)


def whole_sums(sums: F64) -> tuple[F32, F64]:
    """Users' rows (..., d), PRIVATE -> whole numbers, each row at a scale of its own, and scales.

    sums * scale are about the whole numbers. A row of norm below 1e-6 becomes zeros, of scale 0.
    Overwrites sums.
    """
    lengths = np.sqrt((sums * sums).sum(axis=-1))  # (...,)
    scales = np.where(lengths > _DUST, longest_norm(sums.shape[-1]), 0.0)
    scales /= np.where(lengths > _DUST, lengths, 1.0)
    sums *= scales[..., None]
    return np.rint(sums, out=sums).astype(np.float32), scales


def longest_norm(dimension: int) -> float:
    """The norm before rounding that leaves 2^12 after it: rounding adds sqrt(d) / 2 at most."""
    return _NORM - math.sqrt(dimension) / 2 - 1


def norms(rows: F32) -> F64:
    """L2 norms (n,) of public rows (n, d), with sums in float64."""
    lengths: F64 = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return lengths


def units(rows: F32) -> tuple[F64, Ints]:
    """Rows (n, d), PRIVATE, at norm 1, and which they are; those without a direction are left out.

    Each row by itself. Left out: NaN, infinity, and zeros.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        exact = rows.astype(np.float64)  # (n, d)
        lengths = np.sqrt((exact * exact).sum(axis=1))  # (n,)
    directed = np.flatnonzero((lengths > 0) & (lengths < np.inf))  # (c,)
    if len(directed) < len(exact):
        exact, lengths = exact[directed], lengths[directed]
    exact /= lengths[:, None]
    return exact, directed


def user_sums(
    rows: F32, owners: Ints, labels: Ints, cap: int, step: int, classes: int
) -> Iterator[tuple[F64, F64]]:
    """For `step` users at a time: sums (u, B, d) of their unit rows by class, and counts (u, B).

    labels: (n,) the class of each row; those below 0 count nowhere. A user's sums are made of its
    own rows only, in their order.
    """
    _, user = np.unique(owners, return_inverse=True)  # (n,) counted from 0
    order = np.argsort(user, kind="stable")  # (n,)
    starts = np.concatenate([[0], np.cumsum(np.bincount(user))]).astype(np.intp)  # (users + 1,)
    total = len(starts) - 1
    for first in range(0, total, step):
        last = min(first + step, total)
        sums = np.zeros((last - first, classes, rows.shape[1]))  # (u, B, d)
        numbers = np.zeros((last - first, classes))  # (u, B)
        for begin in range(first, last, _FEW):
            end = min(begin + _FEW, last)
            chosen = order[starts[begin] : starts[end]]
            rank = np.arange(starts[begin], starts[end]) - starts[user[chosen]]
            chosen = chosen[(rank < cap) & (labels[chosen] >= 0)]
            cells = (user[chosen] - begin) * classes + labels[chosen]  # (c,)
            here = slice(begin - first, end - first)
            _add_units(rows[chosen], cells, sums[here], numbers[here])
        yield sums, numbers


def _add_units(rows: F32, cells: Ints, sums: F64, numbers: F64) -> None:
    """Put the sums of unit rows (c, d) of each cell, a user and a class, where they belong."""
    own, directed = units(rows)
    cells = cells[directed]
    by_cell = np.argsort(cells, kind="stable")  # (c,)
    found, begin, counts = np.unique(cells[by_cell], return_index=True, return_counts=True)
    if len(found):
        sums.reshape(-1, sums.shape[-1])[found] = np.add.reduceat(own[by_cell], begin, axis=0)
        numbers.reshape(-1)[found] = counts


# --- to the nearest integer, within an L2 norm that is counted exactly ---------------------------
#
# Truncation towards zero, as for votes, keeps every norm but shrinks dense vectors: at 18,000
# entries and a norm of 4096 an entry is about 30, and half an integer off each is 1.6 % off the
# vector, more off its small entries. The nearest integer has no such bias at that size, but may
# lengthen a vector; so there must be room for it, and the few that are too long are truncated.


_COUNTED = 4e-6  # relative error of a squared norm in float32, at most
EXACT = 2.0**12  # up to this sensitivity squares sum to 2^24 at most, exact in float32


def max_norm_before_rounding(sensitivity: float, size: int) -> float:
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
    """Rows (u, m), PRIVATE -> whole numbers of norm <= `sensitivity`.

    The rows have norm up to `max_norm_before_rounding`.

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
