"""Similarity scores: how close each candidate is to all of a user's texts, as one vector.

Source: POPri (Hou et al. 2025, arXiv 2504.16438), Algorithm 4 (SIMILARITY), Algorithm 3 for
classes, and the standardising of the paper's code. Every score is linear in the sum of a user's
unit rows, up to a factor of that user: one product per user, however many samples it has, in
arithmetic and to integers that do not depend on the other users (`products.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.common.arrays import F32, F64, I64, Bools, Ints
from privsyn_flower.queries.products import (
    EXACT,
    LARGEST,
    Candidates,
    max_norm_before_rounding,
    norms,
    round_within,
    units,
    user_sums,
    whole_candidates,
    whole_sums,
)

Score = Literal["standardised", "centred", "mean-cosine"]  # strings off the wire are checked

LARGEST_ENTRY = 1e15  # of a candidate; beyond, float32 has no room for the arithmetic
BLOCK_BYTES = 1 << 26  # of a block of users: one product; smaller ones make it slower
PART_BYTES = 1 << 20  # of the part of a block that goes through all further steps in the cache
_CONSTANT = 2.0**-11 * LARGEST  # products that differ by less are the rounding of their factors


class ScoreEncoding(Protocol):
    """What scores need of an integer plan (`IntegerPlan`).

    scale: integers per unit of a user's vector. sensitivity: L2 norm that no user's integers
    may exceed.
    """

    @property
    def scale(self) -> float: ...

    @property
    def sensitivity(self) -> float: ...


def similarity_scores(
    private: ArrayLike, candidates: ArrayLike, *, standardize: bool = True
) -> F64:
    """One user's scores, not clipped: (n, d), (m, d) -> (m,) sums of cosines. PRIVATE, no bound.

    standardize: less their mean, over their standard deviation; scores that are all the same
    become zeros. Private rows with NaN or infinity, or without a direction, do not count.
    Raises ValueError on shapes and on candidates that are not finite.
    """
    rows, question = _matrices(private, candidates)
    own, _ = units(rows)  # (n, d)
    scores: F64 = _directions(question).astype(np.float64) @ own.sum(axis=0)
    if not standardize:
        return scores
    spread = scores.std()
    if not spread > 1e-7 * len(own):  # what float32 candidates leave of equal ones
        return np.zeros(len(scores))
    standardised: F64 = (scores - scores.mean()) / spread
    return standardised


def shard_scores(
    embeddings: ArrayLike,
    users: ArrayLike,
    candidates: ArrayLike,
    *,
    score: str = "standardised",
    bound: float,
    samples_cap: int,
    groups: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    sample_classes: ArrayLike | None = None,
    cosines: bool = True,
    plan: ScoreEncoding | None = None,
    sampled: ArrayLike | None = None,
) -> NDArray[Any]:
    """Sum over a node's users of each user's clipped scores: (m,) float64, PRIVATE.

    embeddings: (n, d) float32, PRIVATE. users: (n,) integers, the user of each row, in any
    order. candidates: (m, d), public. Only a user's first `samples_cap` rows count; rows with
    NaN or infinity, or without a direction, do not. Per user
      standardised   sums of cosines, z-scored over all candidates, then clipped to `bound`;
      centred        mean cosines less their mean over the candidates of the same prompt, scaled
                     to L2 norm `bound`: nothing is spent on what no ranking looks at;
      mean-cosine    mean cosines, then clipped to `bound` (Algorithm 4).
    groups: (K,) number of candidates of each prompt, in order; `centred` needs it.
    classes: (m,) the class of each candidate, 0 or more. sample_classes: (n,) the class of each
    row, PRIVATE; one that no candidate has counts nowhere. A candidate is scored by the user's
    rows of its class (Algorithm 3), each class is standardised by itself, and ONE clip holds the
    whole vector. A user without rows, without rows of a class, or with constant scores has zeros
    there.
    cosines: False takes candidates at the lengths they have, which a projection of unit
    candidates needs: inner products in place of cosines.
    plan: each user's vector becomes integers of L2 norm at most `plan.sensitivity` by itself,
    and only then they are summed: (m,) int64. One user changes that sum by at most
    `plan.sensitivity`, exactly, and the sum of floats by `bound`, but for rounding.
    sampled: (u,) booleans, PRIVATE: whether user number i is summed; None: everybody. The work
    is the same for those who are not.
    Memory beyond the arguments: the candidates once more, about 80 MB, and 64 bytes a row; never
    (users, m).
    Raises ValueError on shapes and parameters, which are all public.
    """
    if score not in get_args(Score):
        raise ValueError(f"score = {score!r} must be one of {get_args(Score)}")
    if not 0 < bound < math.inf:
        raise ValueError(f"bound = {bound} must be finite and above 0")
    if samples_cap < 1:
        raise ValueError(f"samples_cap = {samples_cap} must be at least 1")
    rows, question = _matrices(embeddings, candidates)  # (n, d), (m, d)
    owners = _whole("users", users, len(rows))  # (n,)
    if (classes is None) != (sample_classes is None):
        raise ValueError("classes and sample_classes belong together: give both or none")
    names = None if classes is None else _whole("classes", classes, len(question))
    counts = None if groups is None else np.asarray(groups)
    blocks = _blocks(_directions(question) if cosines else question, score, counts, names)
    labels = np.zeros(len(rows), dtype=np.intp)  # (n,)
    if sample_classes is not None:
        labels = _labels(_whole("sample_classes", sample_classes, len(rows)), blocks)
    scoring = _Scoring(blocks, score, bound, plan)
    total = np.zeros(len(question), dtype=np.float64 if plan is None else np.int64)
    columns = np.concatenate([block.columns for block in blocks])  # (m,)
    who = np.unique(owners)  # (u,)
    summed = np.ones(len(who), bool) if sampled is None else np.asarray(sampled)[who]
    done = 0
    for sums, numbers in user_sums(rows, owners, labels, samples_cap, scoring.step, len(blocks)):
        total[columns] += scoring.sum(sums, numbers, summed[done : done + len(sums)])
        done += len(sums)
    return total


@dataclass(frozen=True)
class _Block:
    """The candidates of one class: their indices, and their rows, centred as the score asks."""

    name: int
    columns: Ints
    question: Candidates


class _Scoring:
    """Scores of one block of users after the other, in arrays that are made once."""

    def __init__(
        self, blocks: list[_Block], score: str, bound: float, plan: ScoreEncoding | None
    ) -> None:
        self.blocks, self.score, self.bound, self.plan = blocks, score, bound, plan
        self.sizes = np.array([len(block.columns) for block in blocks])  # (B,)
        self.ends = np.cumsum(self.sizes)
        size, dimension = int(self.ends[-1]), blocks[0].question.rows.shape[1]
        # A user's scores in float32, and by class in float64: its sums, and at the same time their
        # squares or a user's of the next block; and a few numbers.
        user = 4 * size + (2 * 8 * dimension + 64) * len(blocks)
        self.step = max(1, BLOCK_BYTES // user)
        # Whole numbers up to EXACT sum exactly in float32 over so many users.
        self.part = max(1, min(PART_BYTES // (4 * size), int(LARGEST / EXACT)))
        self._scores = np.empty((self.step, size), dtype=np.float32)
        self._scratch = np.empty((self.part, size), dtype=np.float32)

    def sum(self, sums: F64, counts: F64, summed: Bools) -> NDArray[Any]:
        """Sum of the vectors of u users: their sums (u, B, d) of unit rows by class, and the
        numbers of rows (u, B) -> (m,), candidates in the order of the blocks.

        summed: (u,) whether each user is; a product at the end, so that both cost the same.
        """
        scores = self._scores[: len(sums)]  # (u, m)
        whole, scales = whole_sums(sums)  # (u, B, d), (u, B)
        for b, columns in self._columns():
            question = self.blocks[b].question
            np.matmul(whole[:, b], question.rows.T, out=scores[:, columns])  # (u, m_b)
        total = np.zeros(scores.shape[1], dtype=np.float64 if self.plan is None else np.int64)
        for start in range(0, len(sums), self.part):
            own = slice(start, start + self.part)
            total += self._part(scores[own], scales[own], counts[own], summed[own])
        return total

    def _part(self, scores: F32, scales: F64, counts: F64, summed: Bools) -> NDArray[Any]:
        """The vectors of a few users, of their products (u, m), which it overwrites, summed."""
        scratch = self._scratch[: len(scores)]  # (u, m)
        np.square(scores, out=scratch)
        parts = [scratch[:, columns].sum(axis=1) for _, columns in self._columns()]
        lengths = np.sqrt(np.stack(parts, axis=1).astype(np.float64))  # (u, B)
        factors = self._factors(lengths, scales, counts)  # (u, B)
        if self.plan is None:
            return self._floats(scores, factors * summed[:, None])
        integers = self._integers(scores, scratch, factors, lengths, self.plan)  # (u, m)
        integers *= summed[:, None]
        total: I64 = integers.sum(axis=0).astype(np.int64)  # (m,)
        return total

    def _columns(self) -> Iterator[tuple[int, slice]]:
        for b, (end, size) in enumerate(zip(self.ends, self.sizes, strict=True)):
            yield b, slice(end - size, end)

    def _factors(self, lengths: F64, scales: F64, counts: F64) -> F64:
        """What makes clipped scores of products, for each user and class: (u, B).

        lengths: norms of the products (u, B). scales: of the whole sums (u, B).
        """
        known = lengths > 0  # (u, B)
        if self.score != "mean-cosine":  # which alone has no mean taken off
            known = lengths > _CONSTANT * np.sqrt(self.sizes)
        if self.score == "standardised":
            factors = np.sqrt(self.sizes) / np.where(known, lengths, 1.0)
        else:
            fine = np.array([block.question.scale for block in self.blocks])  # (B,)
            factors = 1.0 / np.where(known, fine * scales * counts, 1.0)
        factors = np.where(known, factors, 0.0)  # (u, B)
        found = np.sqrt(np.square(factors * lengths).sum(axis=1))  # (u,)
        limit = np.minimum(found, self.bound) if self.score != "centred" else self.bound
        clipped: F64 = factors * (limit / np.where(found > 0, found, 1.0))[:, None]
        return clipped

    def _floats(self, scores: F32, factors: F64) -> F64:
        parts = [
            factors[:, b] @ scores[:, columns].astype(np.float64) for b, columns in self._columns()
        ]
        return np.concatenate(parts)  # (m,)

    def _integers(
        self, scores: F32, scratch: F32, factors: F64, lengths: F64, plan: ScoreEncoding
    ) -> NDArray[Any]:
        """Each user's vector as whole numbers (u, m)."""
        factors = factors * plan.scale
        found = np.sqrt(np.square(factors * lengths).sum(axis=1))  # (u,)
        longest = max_norm_before_rounding(plan.sensitivity, int(self.ends[-1]))
        factors *= np.minimum(1.0, longest / np.where(found > 0, found, 1.0))[:, None]
        scaled: NDArray[Any] = scores
        integers: NDArray[Any] = scratch  # (u, m), as scaled
        if plan.sensitivity > EXACT:
            scaled, integers = scores.astype(np.float64), scratch.astype(np.float64)
        for b, columns in self._columns():
            scaled[:, columns] *= factors[:, b, None].astype(scaled.dtype)
        round_within(scaled, plan.sensitivity, integers)
        return integers


def _blocks(
    question: F32, score: str, groups: NDArray[Any] | None, names: Ints | None
) -> list[_Block]:
    """Candidates (m, d) by class, one block without classes; centred as the score asks."""
    if score == "centred" and groups is None:
        raise ValueError("score = 'centred' needs groups, the number of candidates of each prompt")
    starts = _starts(groups, len(question))  # (K,)
    sizes = np.diff(np.append(starts, len(question)))  # (K,)
    prompts = np.repeat(np.arange(len(starts)), sizes)  # (m,)
    names = np.zeros(len(question), dtype=np.intp) if names is None else names
    if names.min() < 0 or (groups is not None and (names != names[starts][prompts]).any()):
        raise ValueError("classes must be 0 or more, and the same for all candidates of a prompt")
    blocks = []
    for name in np.unique(names):
        columns = np.flatnonzero(names == name)  # (m_b,)
        rows: Any = question[columns]  # (m_b, d)
        if score == "standardised":
            rows -= rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        elif score == "centred":
            for part in np.split(rows, np.flatnonzero(np.diff(prompts[columns])) + 1):
                part -= part.mean(axis=0)
        blocks.append(_Block(int(name), columns, whole_candidates(rows)))
    return blocks


def _labels(labels: Ints, blocks: list[_Block]) -> Ints:
    """Classes of samples (n,) -> positions of their blocks, -1 where there is none."""
    names = np.array([block.name for block in blocks])  # (B,)
    place = np.minimum(np.searchsorted(names, labels), len(names) - 1)  # (n,)
    return np.where(names[place] == labels, place, -1)


def _directions(question: F32) -> F32:
    """Candidates at norm 1; a zero one stays zero, of similarity 0 to everything."""
    lengths = norms(question)  # (m,)
    divisors: F32 = np.where(lengths > 0, lengths, 1.0).astype(np.float32)
    return np.divide(question, divisors[:, None], dtype=np.float32)


def _starts(groups: NDArray[Any] | None, size: int) -> Ints:
    """Where each prompt's candidates begin; all are one prompt's when there are no groups."""
    if groups is None:
        return np.zeros(1, dtype=np.intp)
    whole = groups.ndim == 1 and groups.dtype.kind in "iu" and len(groups)
    if not whole or int(groups.min()) < 1 or int(groups.sum(dtype=np.int64)) != size:
        raise ValueError(f"groups must be whole numbers above 0 that sum to the {size} candidates")
    counts = groups.astype(np.intp)
    starts: Ints = np.cumsum(counts) - counts
    return starts


def _matrices(private: ArrayLike, candidates: ArrayLike) -> tuple[F32, F32]:
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and infinite rows do not count
        rows = np.asarray(private, dtype=np.float32)  # (n, d)
        question = np.asarray(candidates, dtype=np.float32)  # (m, d)
    for name, values in (("embeddings", rows), ("candidates", question)):
        if values.ndim != 2:
            raise ValueError(f"{name} have shape {values.shape}, expected (rows, dimension)")
    if not len(question) or not np.abs(question).max(initial=0.0) <= LARGEST_ENTRY:
        raise ValueError(
            f"candidates of shape {question.shape} must be at least one, finite and within "
            f"{LARGEST_ENTRY:g}: they are public"
        )
    if rows.shape[1] != question.shape[1]:
        raise ValueError(
            f"embeddings have dimension {rows.shape[1]}, candidates {question.shape[1]}: both must "
            "come from the same embedder"
        )
    return rows, question


def _whole(name: str, values: ArrayLike, length: int) -> Ints:
    """One integer for each row, or ValueError. They name things: any order, any size."""
    array = np.asarray(values)
    if array.shape != (length,) or not (array.size == 0 or array.dtype.kind in "iu"):
        raise ValueError(
            f"{name} has shape {array.shape} and type {array.dtype}, expected {length} integers"
        )
    return array.astype(np.intp)
