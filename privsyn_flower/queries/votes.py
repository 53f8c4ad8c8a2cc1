"""Nearest-neighbour votes: each private sample votes for the candidates closest to it.

Source: PrE-Text (Hou et al. 2024, arXiv 2406.02958), Algorithm 2, and private evolution (Lin et al.
2024, arXiv 2305.15560, "Differentially private synthetic data via foundation model APIs",
Algorithm 2). The papers bound a user by its number of samples; here each user's whole vote vector
is clipped.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.arrays import F32, F64, I64, Bools, Ints
from privsyn_flower.queries.nearest import nearest_candidates, prepare

Clip = Literal["normalised", "worst-case", "sqrt-count"]  # strings off the wire are checked


class UserEncoder(Protocol):
    """What votes need of an integer plan (`IntegerPlan`): each user encoded by itself."""

    def encode_users(self, values: F64, users: Ints) -> I64:
        """Integers of the entries of many users' clipped vectors: (n,), (n,) -> (n,)."""


def vote_histogram(
    private: ArrayLike, candidates: ArrayLike, *, neighbors: int = 1, metric: str = "l2"
) -> F64:
    """Unclipped votes of private samples: (n, d), (m, d) -> (m,) counts. PRIVATE, no bound.

    Every sample gives one vote to each of its `neighbors` nearest candidates under `metric`
    (l2: least Euclidean distance; cosine, ip: greatest similarity); ties go to the lowest
    index. Embeddings are compared as float32. A sample with NaN or infinity does not vote.
    Raises ValueError on shapes, on `neighbors` outside 1..m, and on candidates not finite.
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
    counted: ArrayLike | None = None,
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
    One user changes the sum by at most `vote_sensitivity(clip, bound)`, rounding included to
    one part in 1e15: which candidate a row votes for depends on that row alone, not on the
    rows computed beside it. Memory beyond the arguments: about 64 MB, never (users, m).
    plan: each user's clipped vector is encoded as integers by itself, of L2 norm at most
    `plan.sensitivity`, and only then summed: (m,) int64.
    counted: (u,) booleans, PRIVATE: whether user number i is summed; None: everybody. The work
    is the same for those who are not.
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
    summed = np.ones(len(names), bool) if counted is None else np.asarray(counted)[names]
    size = question.size if among is not None else classes * question.size
    return _clipped_sum(voters, chosen.ravel(), size, clip, bound, plan, summed)


def vote_sensitivity(clip: str, bound: float) -> float:
    """L2 norm of the most that one user adds to `shard_votes`: `bound`, for every clip.

    normalised: the norm is exactly `bound` for each user with a vote. worst-case: all of a
    user's samples on one candidate give the norm samples_cap, so bound = samples_cap never
    clips at one neighbour. sqrt-count: the norm before clipping is the root of the number of
    votes. Raises ValueError on an unknown clip or a bound that is not finite and positive.
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
