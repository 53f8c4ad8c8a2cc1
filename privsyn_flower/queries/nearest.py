"""Which candidates are nearest to each private row: fast, and for each row on its own.

A matrix product in float32 finds the nearest candidates. Its rounding depends on where a row
lies in the block, so removing one user could flip a near-tie of another user, and one user
would change the sum by more than the bound. Rows whose choice is within the product's error
are therefore decided again in float64, each as a function of that row and the public
candidates alone; with unit rows of 384 dimensions that is about one row in a hundred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from privsyn_flower.arrays import F32, F64, Bools, Ints

Metric = Literal["l2", "cosine", "ip"]

BLOCK_BYTES = 1 << 23  # one block of scores; larger ones fall out of the processor's cache
_SAFE = 1e15  # norms above it are decided in float64 altogether: float32 products overflow
_PAIRS = 1 << 13  # (row, candidate) pairs decided together


@dataclass(frozen=True)
class Question:
    """Candidates as linear scores: score(x, j) = offset[j] - slope[j] . x; the least wins.

    slope: (m, d) float64, offset: (m,) float64; slope32 and offset32 are their roundings.
    classes: (m,) of each candidate; None: none, and every row may choose any.
    """

    slope: F64
    offset: F64
    slope32: F32
    offset32: F32
    neighbors: int
    classes: Ints | None = None

    @property
    def size(self) -> int:
        """m, the number of candidates."""
        return len(self.offset)


def prepare(candidates: F32, neighbors: int, metric: str, classes: Ints | None = None) -> Question:
    """Candidates (m, d) -> their scores as linear functions of a private row.

    l2: |c|^2 - 2 c.x orders as the distance does. ip: -c.x. cosine: -(c / |c|).x, since the
    row's own norm does not change the order; a zero candidate has similarity 0.
    Raises ValueError on no candidates, non-finite ones, and `neighbors` outside 1..m, or above the
    number of a class' candidates.
    """
    if metric not in get_args(Metric):
        raise ValueError(f"metric = {metric!r} must be one of {get_args(Metric)}")
    if not 1 <= neighbors <= len(candidates):
        raise ValueError(
            f"neighbors = {neighbors} must be at least 1 and at most the number of candidates, "
            f"{len(candidates)}"
        )
    if classes is not None:
        _, counts = np.unique(classes, return_counts=True)
        if classes.shape != (len(candidates),) or counts.min() < neighbors:
            raise ValueError(
                f"classes of shape {classes.shape} must be one for each of the {len(candidates)} "
                f"candidates, and each class have at least neighbors = {neighbors} of them"
            )
    if not np.isfinite(candidates).all():
        raise ValueError("candidates has entries that are not finite: they are public, fix them")
    exact = candidates.astype(np.float64)  # (m, d)
    offset = np.zeros(len(exact))  # (m,)
    if metric == "l2":
        offset = (exact * exact).sum(axis=1)
        exact = 2 * exact
    elif metric == "cosine":
        norms = np.sqrt((exact * exact).sum(axis=1))  # (m,)
        exact /= np.where(norms > 0, norms, 1)[:, None]
    with np.errstate(over="ignore"):
        return Question(
            exact, offset, exact.astype(np.float32), offset.astype(np.float32), neighbors, classes
        )


def nearest_candidates(
    rows: F32, kept: Ints | None, question: Question, own: Ints | None = None
) -> tuple[Ints, Ints]:
    """The `neighbors` least scores of each row: indices (v, k), and which rows they are (v,).

    rows: (n, d); kept: indices of the rows asked for, None for all. Positions in the second
    result count kept rows; rows that are not finite are left out. Ties go to the lowest index.
    own: the class (n,) of each row, one of the question's; only candidates of it can be chosen. All
    are compared with, whatever the class, so the product takes as long for each; near ties are
    decided again within the class, which takes longer where it has more of them.
    Raises ValueError when the dimensions differ.
    """
    if rows.shape[1] != question.slope.shape[1]:
        raise ValueError(
            f"embeddings have dimension {rows.shape[1]}, candidates {question.slope.shape[1]}: "
            "both must come from the same embedder"
        )
    total = len(rows) if kept is None else len(kept)
    step = max(1, BLOCK_BYTES // (4 * question.size))
    chosen = [np.empty((0, question.neighbors), dtype=np.intp)]
    voted = [np.empty(0, dtype=np.intp)]
    for start in range(0, total, step):
        here = slice(start, start + step) if kept is None else kept[start : start + step]
        block, barred = rows[here], None
        if own is not None and question.classes is not None:
            barred = own[here][:, None] != question.classes  # (b, m): of another class than the row
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", block, block))  # (b,)
        finite = np.isfinite(norms)  # (b,)
        if not finite.all():  # an overflowing norm may still belong to a finite row
            finite = np.isfinite(block).all(axis=1)
            block, norms = block[finite], norms[finite]
            barred = None if barred is None else barred[finite]
        chosen.append(_nearest_in_block(block, norms, question, barred))
        voted.append(np.flatnonzero(finite) + start)
    return np.concatenate(chosen), np.concatenate(voted)


def _nearest_in_block(block: F32, norms: F32, question: Question, barred: Bools | None) -> Ints:
    if question.neighbors == question.size:  # every candidate wins
        return np.tile(np.arange(question.size), (len(block), 1))
    with np.errstate(over="ignore", invalid="ignore"):
        scores = block @ question.slope32.T  # (b, m)
        np.subtract(question.offset32, scores, out=scores)
        if barred is not None:
            np.copyto(scores, np.inf, where=barred)
        error = _rounding_error(norms, question)
        chosen, unsure, ceiling = _least(scores, error, question.neighbors)
    if len(unsure):
        near = ~(scores[unsure] > ceiling[unsure, None])  # (s, m); NaN counts as near
        if barred is not None:
            near &= ~barred[unsure]
        chosen[unsure] = _decide(block[unsure], near, question)
    return chosen


def _rounding_error(norms: F32, question: Question) -> F64:
    """Bound on |float32 score - exact score| for each row; inf where float32 may overflow.

    Higham 2002, section 3.1: |fl(x.y) - x.y| <= n u / (1 - n u) |x||y|, plus the roundings of
    slope, offset and difference, plus what underflows.
    """
    dimension = question.slope.shape[1]
    steepest = math.sqrt(float((question.slope**2).sum(axis=1).max(initial=0.0)))
    largest = float(question.offset.max(initial=0.0))
    unit = 2.0**-24 * (dimension + 8) * 1.01
    # Squares of entries below 2^-63 vanish from the float32 norm.
    sizes = norms.astype(np.float64) + math.sqrt(dimension) * 2.0**-62  # (b,)
    underflow = dimension * 2.0**-120 * (1 + sizes) * (1 + steepest)
    error: F64 = unit * (steepest * sizes + largest) + underflow
    error[~(sizes <= _SAFE) | (max(steepest, math.sqrt(largest)) > _SAFE)] = math.inf
    return error


def _least(scores: F32, error: F64, neighbors: int) -> tuple[Ints, Ints, F32]:
    """k least columns of each row (b, k); rows not sure of them; the score that surely loses.

    Overwrites the winners' scores while it looks for the next, and puts them back.
    """
    line = np.arange(len(scores))  # (b,)
    chosen = np.empty((len(scores), neighbors), dtype=np.intp)
    values = np.empty((len(scores), neighbors), dtype=np.float32)
    for k in range(neighbors):
        chosen[:, k] = scores.argmin(axis=1)
        values[:, k] = scores[line, chosen[:, k]]
        scores[line, chosen[:, k]] = np.inf
    last = values[:, -1].astype(np.float64)  # (b,)
    # Beyond twice the error no other candidate can win. Rounded up on the way to float32.
    ceiling = np.nextafter((last + 2 * error).astype(np.float32), np.float32(np.inf))
    unsure = np.flatnonzero(~(scores.min(axis=1) > ceiling))  # (s,) of b
    scores[line[:, None], chosen] = values
    return chosen, unsure, ceiling


def _decide(rows: F32, near: Bools, question: Question) -> Ints:
    """The k least exact scores among the near candidates of each row; lowest index on ties."""
    chosen = np.empty((len(rows), question.neighbors), dtype=np.intp)  # (s, k)
    counts = near.sum(axis=1)  # (s,)
    groups = (np.cumsum(counts) - counts) // _PAIRS
    for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(groups)) + 1):
        line, column = np.nonzero(near[part])  # (p,), (p,): pairs
        # Row by row products: the same numbers wherever the row lies.
        products = question.slope[column] * rows[part[line]].astype(np.float64)  # (p, d)
        exact = question.offset[column] - products.sum(axis=1)  # (p,)
        order = np.lexsort((column, exact, line))
        first = np.searchsorted(line, np.arange(len(part)))
        chosen[part] = column[order][first[:, None] + np.arange(question.neighbors)]
    return chosen
