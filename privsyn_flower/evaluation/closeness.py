"""How close texts come to held-out users' texts, by embeddings, with intervals over users.

Four figures, each of which the others miss something of: Frechet distance (`metrics`), MAUVE, and
the share of synthetic texts like somebody's (precision) beside the share of users' texts like a
synthetic one (recall). All depend on the number of texts: compare sets of equal size only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privsyn_flower.common.arrays import F32, F64, Ints
from privsyn_flower.evaluation.intervals import Interval
from privsyn_flower.evaluation.metrics import frechet_to, moments

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
    from privsyn_flower.text.topic_training import spherical_kmeans

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
