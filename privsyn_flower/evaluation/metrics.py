"""How close texts come to other texts, by embeddings; cross-entropy and top-k accuracy of a causal
language model.

To held-out users' texts by four figures, each of which the others miss something of: Frechet
distance, MAUVE, and the share of synthetic texts like somebody's (precision) beside the share of
users' texts like a synthetic one (recall), with intervals over users. All depend on the number of
texts: compare sets of equal size only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.common.arrays import F32, F64, Ints
from privsyn_flower.evaluation.intervals import Interval

if TYPE_CHECKING:
    import torch


def frechet_distance(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Squared Frechet distance of the normal distributions fitted to x (n, d) and y (k, d).

    |m_x - m_y|^2 + tr(S_x + S_y - 2 (S_x S_y)^(1/2)), with the sample covariances (n - 1)
    (Dowson and Landau 1982; the FID of Heusel et al. 2017, arXiv 1706.08500). Singular covariances
    are fine. The estimate falls as n and k grow: compare sets of equal size only
    (`frechet_by_size`). Raises ValueError on shapes, fewer than two rows, or entries that are not
    finite.
    """
    first, second = _matrix("x", x), _matrix("y", y)
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"x has dimension {first.shape[1]}, y has {second.shape[1]}")
    return frechet_to(moments(first))(moments(second))


Moments = tuple[F64, F64]  # mean (d,) and covariance (d, d)


def moments(rows: npt.ArrayLike, counts: npt.ArrayLike | None = None) -> Moments:
    """Mean and sample covariance (n - 1) of rows (n, d), each counted so often (n,); None: once."""
    values = np.asarray(rows, dtype=np.float64)
    often = None if counts is None else np.asarray(counts)
    cov = np.atleast_2d(np.cov(values, rowvar=False, fweights=often))
    return np.average(values, axis=0, weights=often), cov


def frechet_to(first: Moments) -> Callable[[Moments], float]:
    """`frechet_distance` to the set of these moments, for those of others."""
    mean, cov = first
    # tr((S_x S_y)^(1/2)) = tr((R S_y R)^(1/2)) with R = S_x^(1/2): symmetric, so the roots are
    # real and a rounding error below zero is just cut.
    values, vectors = np.linalg.eigh(cov)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T

    def distance(second: Moments) -> float:
        gap, product = mean - second[0], root @ second[1] @ root
        cross = np.sqrt(np.maximum(np.linalg.eigvalsh((product + product.T) / 2), 0.0)).sum()
        return float(gap @ gap + np.trace(cov) + np.trace(second[1]) - 2 * cross)

    return distance


def frechet_by_size(
    sets: dict[str, npt.NDArray[np.floating]],
    reference: npt.NDArray[np.floating],
    rng: np.random.Generator,
    repeats: int = 3,
) -> dict[str, float]:
    """Frechet distance of each set (n_i, d) to `reference` (k, d) at the same number of rows.

    Every set is reduced to the size of the smallest, at random, `repeats` times; the mean is
    returned. Raises ValueError for a set of fewer than two rows.
    """
    size = min(len(rows) for rows in sets.values())
    return {
        name: float(
            np.mean(
                [
                    frechet_distance(rows[rng.choice(len(rows), size, replace=False)], reference)
                    for _ in range(repeats if len(rows) > size else 1)
                ]
            )
        )
        for name, rows in sets.items()
    }


def _matrix(name: str, values: npt.ArrayLike) -> F64:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2 or rows.shape[1] < 1:
        raise ValueError(f"{name} has shape {rows.shape}, expected (at least 2, at least 1)")
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} has entries that are not finite")
    return rows


IGNORED = -100

SUMS = 3  # columns of `row_sums`: cross-entropy in nats, correct predictions, predicted tokens


def next_token_metrics(
    logits: Any, labels: Any, top_k: Sequence[int] = (1, 3, 5)
) -> dict[str, float]:
    """Logits (b, l, v) and labels (b, l) -> {"loss", "accuracy", "accuracy@3", ...}.

    Position t predicts label t + 1; labels of -100 do not count. All means are micro: over the
    counted tokens of all rows together. The loss is in nats; "accuracy" is top-1. Arrays or
    tensors. Raises ValueError on shapes, when no token counts, and for a k outside 1..v.
    """
    import torch

    scores, targets = torch.as_tensor(logits), torch.as_tensor(labels)
    if scores.ndim != 3 or targets.shape != scores.shape[:2]:
        raise ValueError(
            f"logits {tuple(scores.shape)} and labels {tuple(targets.shape)} must have shapes "
            "(b, l, v) and (b, l)"
        )
    if any(not 1 <= k <= scores.shape[2] for k in top_k):
        raise ValueError(f"top_k = {tuple(top_k)}: every k must be in 1..{scores.shape[2]}")
    scores, targets = scores[:, :-1].float(), targets[:, 1:]
    counted = targets != IGNORED
    if not counted.any():
        raise ValueError("no label counts: all are -100 or in the first column")
    scores, targets = scores[counted], targets[counted]
    result = {"loss": float(torch.nn.functional.cross_entropy(scores, targets).item())}
    ranked = scores.topk(max(top_k, default=1), dim=-1).indices
    for k in top_k:
        hit = (ranked[:, :k] == targets[:, None]).any(dim=-1)
        result["accuracy" if k == 1 else f"accuracy@{k}"] = float(hit.double().mean().item())
    return result


def row_sums(
    logits: torch.Tensor, targets: torch.Tensor, wanted: torch.Tensor, unknown: int | None = None
) -> F64:
    """Logits (p, v) and targets (p,) of the positions that are true in `wanted` (b, l) -> (b, 3)
    sums per row: loss in nats, correct, tokens.

    Sums, not means, so that users can be pooled and resampled. unknown: the id of words outside of
    the vocabulary, as which no prediction is right: nobody has named the word.
    """
    import torch

    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    correct = logits.argmax(dim=-1) == targets
    if unknown is not None:
        correct &= targets != unknown
    columns = torch.zeros((SUMS, *wanted.shape), dtype=torch.float64, device=wanted.device)
    for column, values in zip(columns, (losses, correct, torch.ones_like(losses)), strict=True):
        column[wanted] = values.double()
    table: F64 = columns.sum(2).T.cpu().numpy()
    return table


NEIGHBOURS = 3  # Kynkaanniemi et al. 2019, section 3.1
PER_CLUSTER = 10  # Pillutla et al. 2021, section 3: a tenth as many clusters as texts
SCALE, STEPS = 5.0, 25  # there: of the divergences, and mixtures on the frontier
RESAMPLES = 50  # enough for a standard error (Efron and Tibshirani 1993, section 6.4)
REACH = 1.96  # standard errors to each side, for 95 %


@dataclass(frozen=True)
class HeldOut:
    """Held-out texts: rows (n, d) of length 1, and the user of each (n,), from 0 on. PRIVATE."""

    rows: F32
    owners: Ints

    @property
    def users(self) -> int:
        """How many have a text."""
        return int(self.owners.max()) + 1 if len(self.owners) else 0


def closeness(
    rows: F32, held_out: HeldOut, rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> dict[str, Interval]:
    """Texts (m, d) against held-out ones -> "frechet", "mauve", "precision", "recall".

    The interval is the value and 1.96 standard errors to each side, from resampled users (a text
    that is drawn twice moves all four towards far, so percentiles would leave the value out);
    shares and MAUVE are cut to [0, 1]. Clusters and the radius of each text are those of all users.
    Raises ValueError for fewer than `NEIGHBOURS` + 1 texts on a side.
    """
    for name, count in (("texts", len(rows)), ("held-out texts", len(held_out.rows))):
        if count <= NEIGHBOURS:
            raise ValueError(f"{count} {name}: precision and recall need {NEIGHBOURS + 1}")
    draws = rng.multinomial(
        held_out.users, np.full(held_out.users, 1 / held_out.users), size=resamples
    )
    weights = np.concatenate([np.ones((1, held_out.users), dtype=np.int64), draws])
    figures = {
        "frechet": _frechet(rows, held_out, weights),
        "mauve": _mauve(rows, held_out, weights, int(rng.integers(2**31))),
        **_precision_recall(rows, held_out, weights),
    }
    return {name: _interval(values, name != "frechet") for name, values in figures.items()}


def _interval(values: F64, share: bool) -> Interval:
    """values: of all users first, then of the draws."""
    half = REACH * float(np.std(values[1:], ddof=1))
    low, high = float(values[0]) - half, float(values[0]) + half
    if share:
        low, high = max(0.0, low), min(1.0, high)
    return Interval(float(values[0]), max(0.0, low), high)


def _frechet(rows: F32, held_out: HeldOut, weights: npt.NDArray[np.int64]) -> F64:
    """One value for each row of weights (r, u)."""
    distance = frechet_to(moments(rows))
    return np.array([distance(moments(held_out.rows, one[held_out.owners])) for one in weights])


def _mauve(rows: F32, held_out: HeldOut, weights: npt.NDArray[np.int64], seed: int) -> F64:
    """The area under the frontier of both kinds of error (Pillutla et al. 2021, equation 2)."""
    from privsyn_flower.text.kmeans import spherical_kmeans

    both = np.concatenate([rows, held_out.rows])
    count = max(2, min(len(rows), len(held_out.rows)) // PER_CLUSTER)
    labels, _ = spherical_kmeans(both, count, seed)
    own = np.bincount(labels[: len(rows)], minlength=count) / len(rows)
    places = np.zeros((held_out.users, count))
    np.add.at(places, (held_out.owners, labels[len(rows) :]), 1)
    return np.array([frontier_area(own, one @ places / (one @ places).sum()) for one in weights])


def frontier_area(first: F64, second: F64) -> float:
    """MAUVE of two histograms (k,): 1 for equal ones, near 0 for those without a cluster in common.

    Points (exp(-c KL(Q|R)), exp(-c KL(P|R))) of mixtures R = s P + (1 - s) Q, with (0, 1) and
    (1, 0) at the ends; the area by trapezoids.
    """
    points = [(1.0, 0.0), (0.0, 1.0)]
    for share in np.linspace(0, 1, STEPS + 2)[1:-1]:
        mixture = share * first + (1 - share) * second
        points.append(
            (np.exp(-SCALE * _divergence(second, mixture)),
             np.exp(-SCALE * _divergence(first, mixture)))
        )  # fmt: skip
    points.sort(key=lambda point: (point[0], -point[1]))
    across, up = np.array(points).T
    return float((np.diff(across) * (up[1:] + up[:-1]) / 2).sum())


def _divergence(own: F64, mixture: F64) -> float:
    """Kullback and Leibler's, in nats; the mixture is above 0 wherever `own` is."""
    seen = own > 0
    return float((own[seen] * np.log(own[seen] / mixture[seen])).sum())


def _precision_recall(
    rows: F32, held_out: HeldOut, weights: npt.NDArray[np.int64]
) -> dict[str, F64]:
    """Shares of texts within the distance of another set's text to its own third neighbour."""
    across = _squared(rows, held_out.rows)  # (m, n)
    near = across <= _radii(held_out.rows)[None, :]
    liked = np.zeros((len(rows), held_out.users), dtype=np.int64)
    np.add.at(liked.T, held_out.owners, near.T)
    precision = (weights @ liked.T > 0).mean(axis=1)
    reached = (across <= _radii(rows)[:, None]).any(axis=0)
    hits = np.bincount(held_out.owners, weights=reached, minlength=held_out.users)
    texts = np.bincount(held_out.owners, minlength=held_out.users)
    return {"precision": precision, "recall": (weights @ hits) / (weights @ texts)}


def _radii(rows: F32) -> F64:
    """Of each text (n,) the squared distance to its `NEIGHBOURS`-th other one."""
    own = _squared(rows, rows)
    np.fill_diagonal(own, np.inf)
    radii: F64 = np.partition(own, NEIGHBOURS - 1, axis=1)[:, NEIGHBOURS - 1]
    return radii


def _squared(first: F32, second: F32) -> F64:
    """Squared distances (m, n); cut at 0, below which rounding may go."""
    one, two = first.astype(np.float64), second.astype(np.float64)
    found: F64 = (one**2).sum(axis=1)[:, None] + (two**2).sum(axis=1) - 2 * one @ two.T
    return np.maximum(found, 0.0)
