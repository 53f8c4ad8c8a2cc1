"""k-means on the sphere: clusters of embeddings, the same in every process whatever its threads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from privsyn_flower.common.arrays import F32, F64, Ints
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.queries.votes import nearest_candidates, prepare
from privsyn_flower.text.encoders import unit

STARTING = 8  # rows for each centre that k-means++ chooses from; BLOCK rows at least
TRIALS = 4  # rows that it compares for each
ROUNDS = 50  # of k-means, at most
SETTLED = 1e-3  # share of texts that still move when it may end
BLOCK = 4096  # rows at once


def spherical_kmeans(
    rows: F32, count: int, seed: int, progress: Progress = silent
) -> tuple[Ints, F32]:
    """(n, d) unit rows -> labels (n,) and centres (count, d) of norm 1.

    Each round gives every row its centre of the greatest cosine, by products in blocks of 8 MB, and
    each centre the direction of its rows' sum; a centre without rows takes the row that is
    farthest from its own. It ends when less than a thousandth of the rows moves, or after ROUNDS
    rounds. Sums are in float64 and in order, so that threads change nothing. Where fewer than
    `count` rows differ, centres are left without a row. Raises ValueError for fewer rows.
    """
    if len(rows) < count:
        raise ValueError(
            f"ctcl.topic-count = {count} is above the number of public texts, {len(rows)}: lower "
            "it, or give more public text"
        )
    centres = _first_centres(rows, count, seed)
    labels = np.full(len(rows), -1, dtype=np.intp)
    for number in range(ROUNDS):
        progress("topics: clustering", number, ROUNDS)
        nearest = _nearest(rows, centres)
        moved = float(np.mean(nearest != labels))
        labels = nearest
        if moved <= SETTLED:
            break
        centres = directions(rows, _none_empty(rows, labels, centres), count)
    else:
        labels = _nearest(rows, centres)
    progress("topics: clustering", ROUNDS, ROUNDS)
    return labels, centres


def _first_centres(rows: F32, count: int, seed: int) -> F32:
    """k-means++ (Arthur and Vassilvitskii 2007) on a draw of the rows: (count, d).

    Each further centre is the best of TRIALS rows drawn in proportion to 1 - their cosine to the
    nearest centre, half the squared distance of unit rows: the one that leaves the least in all.
    """
    rng = seeded(seed, "topics", "centres")
    size = min(len(rows), max(STARTING * count, BLOCK))
    drawn = rows[np.sort(rng.choice(len(rows), size=size, replace=False))]  # (s, d)
    places = [int(rng.integers(size))]
    far = _distances(drawn, places[0])  # (s,) of each row to the nearest centre
    while len(places) < count:
        total = np.cumsum(far)
        tried = np.searchsorted(total, rng.random(TRIALS) * total[-1], side="right")
        # The last row stands for a product that was rounded up to the whole.
        left = {
            int(place): np.minimum(far, _distances(drawn, place))
            for place in np.minimum(tried, size - 1)
        }
        places.append(min(left, key=lambda place: float(left[place].sum())))
        far = left[places[-1]]
    return drawn[places]


def _distances(rows: F32, place: int) -> F64:
    """1 - the cosine of each unit row to the one at `place`, (n,); 0 at `place` itself.

    Not by BLAS, whose last bits depend on its threads. What rounds to 0 or less is tiny instead,
    so that draws are in proportion to something when all rows are centres or equal to one.
    """
    far: F64 = np.maximum(1.0 - np.einsum("ij,j->i", rows, rows[place]).astype(np.float64), 1e-12)
    far[place] = 0.0
    return far


def _nearest(rows: F32, centres: F32) -> Ints:
    """(n,): the centre of the greatest cosine, the lowest of several."""
    return nearest_candidates(rows, None, prepare(centres, 1, "cosine"))[0][:, 0]


def _none_empty(rows: F32, labels: Ints, centres: F32) -> Ints:
    """The labels, with a row for every centre that had none."""
    empty = np.flatnonzero(np.bincount(labels, minlength=len(centres)) == 0)
    if not len(empty):
        return labels
    likeness = np.concatenate(
        [
            np.einsum("ij,ij->i", rows[i : i + BLOCK], centres[labels[i : i + BLOCK]])
            for i in range(0, len(rows), BLOCK)
        ]
    )
    moved = labels.copy()
    moved[np.argsort(likeness, kind="stable")[: len(empty)]] = empty
    return moved


def directions(rows: F32, labels: Ints, count: int) -> F32:
    """(count, d): the direction of the sum of each label's rows; label -1 is nobody's."""
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(count + 1))
    sums = [
        rows[order[start:end]].sum(axis=0, dtype=np.float64)
        for start, end in pairwise(ends.tolist())
    ]
    return unit(np.stack(sums))
