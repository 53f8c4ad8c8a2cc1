"""Nearest-neighbour votes: each private sample votes for the candidates closest to it.

Source: PrE-Text (Hou et al. 2024, arXiv 2406.02958), Algorithm 2, and private evolution (Lin et al.
2024, arXiv 2305.15560), Algorithm 2. The papers bound a user by its number of samples; here each
user's whole vote vector is clipped.

Which candidates are nearest is decided for each row on its own. The rounding of a matrix product in
float32 depends on where a row lies in the block, so removing one user could flip a near-tie of
another, and one user would change the sum by more than the bound. Rows whose choice is within the
product's error, about one in a hundred, are therefore decided again in float64, each as a function
of that row and the public candidates alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.common.arrays import F32, F64, I64, Bools, Ints

Clip = Literal["normalised", "worst-case", "sqrt-count"]  # strings off the wire are checked
Metric = Literal["l2", "cosine", "ip"]

BLOCK_BYTES = 1 << 23  # one block of scores; larger ones fall out of the processor's cache
_SAFE = 1e15  # norms above it are decided in float64 altogether: float32 products overflow
_PAIRS = 1 << 13  # (row, candidate) pairs decided together


class UserEncoder(Protocol):
    """What votes need of an integer plan (`IntegerPlan`): each user encoded by itself."""

    def encode_users(self, values: F64, users: Ints) -> I64:
        """Integers of the entries of many users' clipped vectors: (n,), (n,) -> (n,)."""


def vote_histogram(
    private: ArrayLike, candidates: ArrayLike, *, neighbors: int = 1, metric: str = "l2"
) -> F64:
    """Unclipped votes of private samples: (n, d), (m, d) -> (m,) counts. PRIVATE, no bound.

    Every sample gives one vote to each of its `neighbors` nearest candidates under `metric` (l2:
    least distance; cosine, ip: greatest similarity); ties go to the lowest index, NaN and infinity
    do not vote. Raises ValueError on shapes, on `neighbors` outside 1..m, and on such candidates.
    """
    rows = _rows("private", private)  # (n, d)
    question = prepare(_rows("candidates", candidates), neighbors, metric)
    chosen, _ = nearest_candidates(rows, None, question)  # (v, k)
    return np.bincount(chosen.ravel(), minlength=question.size).astype(np.float64)


def shard_votes(
    embeddings: ArrayLike,
    users: ArrayLike,
    candidates: ArrayLike,
    *,
    clip: str = "normalised",
    bound: float,
    samples_cap: int,
    neighbors: int = 1,
    metric: str = "l2",
    plan: UserEncoder | None = None,
    sampled: ArrayLike | None = None,
    classes: int = 1,
    sample_classes: ArrayLike | None = None,
    candidate_classes: ArrayLike | None = None,
) -> NDArray[Any]:
    """Sum over a node's users of each user's clipped vote vector: (m,) float64, PRIVATE.

    embeddings: (n, d) float32, PRIVATE. users: (n,) integers, the user of each row, in any
    order. candidates: (m, d), public. Only a user's first `samples_cap` rows count; rows with
    NaN or infinity do not vote. Per user, the counts over candidates are
      normalised   scaled to L2 norm exactly `bound`;
      worst-case   clipped to `bound` (the papers: bound = samples_cap);
      sqrt-count   replaced by their square roots, then clipped to `bound`.
    One user changes the sum by at most `vote_sensitivity(clip, bound)`, rounding included to one
    part in 1e15: which candidate a row votes for depends on that row alone, not on the rows
    computed beside it. Memory beyond the arguments: about 64 MB, never (users, m). plan: each
    user's clipped vector is encoded as integers by itself, of L2 norm at most `plan.sensitivity`,
    and only then summed: (m,) int64. sampled: (u,) booleans, PRIVATE: whether user number i is
    summed; None: everybody. The work is the same for those who are not.
    sample_classes: (n,) the class of each row, PRIVATE, of so many `classes`; -1: none, and no
    vote. The vector is then (classes m,): candidate j of class c has place c m + j. With
    candidate_classes, (m,) public, it is (m,): a row votes for the nearest of its own class, and
    not at all where the class has no candidate. Rows that do not vote take the same comparisons.
    Raises ValueError on shapes and parameters, which are all public.
    """
    vote_sensitivity(clip, bound)
    if samples_cap < 1:
        raise ValueError(f"samples_cap = {samples_cap} must be at least 1")
    rows = _rows("embeddings", embeddings)  # (n, d)
    owners = np.asarray(users)  # (n,)
    if owners.shape != (len(rows),) or not (owners.size == 0 or owners.dtype.kind in "iu"):
        raise ValueError(
            f"users has shape {owners.shape} and type {owners.dtype}, expected one integer for "
            f"each of the {len(rows)} embeddings"
        )
    named = None if candidate_classes is None else np.asarray(candidate_classes, np.intp)  # (m,)
    question = prepare(_rows("candidates", candidates), neighbors, metric, named)
    kept, user_of_row = _first_rows(owners, samples_cap)  # (v,), (v,)
    own, among = _classes(sample_classes, len(rows), named)  # (n,), (n,)
    # (w, k), (w,): of rows that are finite
    chosen, voted = nearest_candidates(rows, kept, question, among)
    if own is not None:
        own = (own if kept is None else own[kept])[voted]  # (w,)
        if among is None:
            chosen += question.size * own[:, None]
        chosen, voted = chosen[own >= 0], voted[own >= 0]
    voters = np.repeat(user_of_row[voted], neighbors)  # (w k,)
    names = np.unique(owners)  # (u,)
    summed = np.ones(len(names), bool) if sampled is None else np.asarray(sampled)[names]
    size = question.size if among is not None else classes * question.size
    return _clipped_sum(voters, chosen.ravel(), size, clip, bound, plan, summed)


def vote_sensitivity(clip: str, bound: float) -> float:
    """L2 norm of the most that one user adds to `shard_votes`: `bound`, for every clip.

    Raises ValueError on an unknown clip or a bound that is not finite and positive.
    """
    if clip not in get_args(Clip):
        raise ValueError(f"clip = {clip!r} must be one of {get_args(Clip)}")
    if not 0 < bound < math.inf:
        raise ValueError(f"bound = {bound} must be finite and above 0")
    return float(bound)


def _classes(
    sample_classes: ArrayLike | None, size: int, named: Ints | None
) -> tuple[Ints | None, Ints | None]:
    """The class of each row, -1 for none and for one without candidates; and, where candidates
    have classes, the class among whose candidates each row looks, whether it votes or not."""
    if sample_classes is None and named is None:
        return None, None
    own = np.asarray(sample_classes)  # (n,)
    if own.shape != (size,):
        raise ValueError(f"sample_classes has shape {own.shape}, expected one for each of {size}")
    own = own.astype(np.intp)  # -1 has no place among unsigned numbers
    if named is None:
        return own, None
    own = np.where(np.isin(own, named), own, -1)
    return own, np.where(own < 0, named[0], own)


def _rows(name: str, values: ArrayLike) -> F32:
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and infinite rows are dropped
        rows = np.asarray(values, dtype=np.float32)
    if rows.ndim != 2:
        raise ValueError(f"{name} has shape {rows.shape}, expected (rows, dimension)")
    return rows


def _first_rows(owners: NDArray[np.integer], cap: int) -> tuple[Ints | None, Ints]:
    """Rows within the cap (None: all) and the user of each kept row, counted from 0."""
    _, user_of_row = np.unique(owners, return_inverse=True)
    order = np.argsort(user_of_row, kind="stable")  # (n,)
    starts = np.concatenate([[0], np.cumsum(np.bincount(user_of_row))]).astype(np.intp)  # (u + 1,)
    rank = np.empty(len(owners), dtype=np.intp)  # (n,) of each row among its user's
    rank[order] = np.arange(len(owners)) - starts[user_of_row[order]]
    if not len(rank) or rank.max() < cap:
        return None, user_of_row
    kept = np.flatnonzero(rank < cap)  # (v,)
    return kept, user_of_row[kept]


def _clipped_sum(
    voters: Ints,
    chosen: Ints,
    size: int,
    clip: str,
    bound: float,
    plan: UserEncoder | None,
    summed: Bools,
) -> NDArray[Any]:
    """Sparse counts per (user, candidate), each user scaled by its own norm, then summed.

    summed: whether each user is; a product, so that both cost the same.
    """
    if not len(voters):
        return np.zeros(size, dtype=np.float64 if plan is None else np.int64)
    cells, counts = np.unique(voters * size + chosen, return_counts=True)  # (c,), (c,)
    users, columns = cells // size, cells % size  # (c,), (c,)
    values = np.sqrt(counts) if clip == "sqrt-count" else counts.astype(np.float64)  # (c,)
    # Counts are integers below 2^53, so their squares sum exactly.
    squares = counts if clip == "sqrt-count" else counts**2
    norms = np.sqrt(np.bincount(users, weights=squares))  # (u,)
    limit = np.full_like(norms, bound) if clip == "normalised" else np.minimum(norms, bound)
    scaled = values * limit[users] / norms[users]  # (c,)
    if plan is None:
        weights = scaled * summed[users]
        return np.bincount(columns, weights=weights, minlength=size).astype(np.float64)
    total = np.zeros(size, dtype=np.int64)  # (m,)
    np.add.at(total, columns, plan.encode_users(scaled, users) * summed[users])
    return total


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
    rows: F32, selection: Ints | None, question: Question, own: Ints | None = None
) -> tuple[Ints, Ints]:
    """The `neighbors` least scores of each row: indices (v, k), and which rows they are (v,).

    rows: (n, d); selection: indices of the rows asked for, None for all. Positions in the second
    result count selected rows; rows that are not finite are left out. Ties go to the lowest index.
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
    total = len(rows) if selection is None else len(selection)
    step = max(1, BLOCK_BYTES // (4 * question.size))
    chosen = [np.empty((0, question.neighbors), dtype=np.intp)]
    voted = [np.empty(0, dtype=np.intp)]
    for start in range(0, total, step):
        here = slice(start, start + step) if selection is None else selection[start : start + step]
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
