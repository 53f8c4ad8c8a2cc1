"""What the users' answers were worth, round by round: benchmark figures, not covered by epsilon.

PrE-Text: which share of the true votes the survivors hold. POPri: how often noise turned a
preference round (the paper's recovery rate, Appendix E.1), and how the responses move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.app.benchmark.pictures import principal_plane
from privsyn_flower.app.benchmark.private import Private
from privsyn_flower.common.arrays import F32, F64, Ints
from privsyn_flower.common.randomness import seeded
from privsyn_flower.evaluation.metrics import frechet_distance
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder

Feedback = tuple[dict[str, Any], list[F32]]  # figures, and what was asked about: (m, d) each

MOST_TEXTS = 500  # seeds embedded again, and rows compared, per set


def vote_feedback(record: RunFolder, private: Private, seeds: Sequence[str]) -> Feedback:
    """What PrE-Text's users voted for: round by round, and, where there is public text to compare
    them with, among its seeds. Not among them with classes: users' texts do not vote across
    classes, and the seeds' classes are not in the public text's proportions."""
    shares, candidates = vote_shares(record, private)
    pool = private.federation.public()
    across = pool and not private.config.classes
    seen = seed_votes(seeds, pool, private) if across else {}
    return {"true_votes": shares | seen}, candidates


def topic_feedback(query: Query, shares: F64, private: Private) -> tuple[dict[str, Any], F64]:
    """The noisy shares (m,) of topics against the users' true ones: figures, and the true (m,).

    distance: total variation between the two, which is 0 for equal ones and 1 for shares of other
    topics; uniform: that of equal shares, what is known without asking. kept: the part of the true
    shares that is on topics with a noisy one.
    """
    counts = private.answers(query)
    true = counts / max(float(counts.sum()), 1e-12)
    even = np.full(len(true), 1 / len(true))
    figures = {
        "distance": round(float(np.abs(shares - true).sum() / 2), 4),
        "uniform": round(float(np.abs(even - true).sum() / 2), 4),
        "kept": round(float(true[shares > 0].sum()), 4),
    }
    return {"true_topics": figures}, true


def vote_shares(record: RunFolder, private: Private) -> tuple[dict[str, Any], list[F32]]:
    """Per round: which share of the true votes the candidates above the threshold hold, and
    which share of the candidates they are (what random ones would hold)."""
    survivors, expected, candidates = [], [], []
    for row in record.metrics():
        query, released = record.load_query(row["round"]), record.load_release(row["round"])
        if query is None or released is None:
            continue
        true = private.answers(query)
        alive = released > row["threshold_votes"]
        survivors.append(float(true[alive].sum() / max(true.sum(), 1e-12)))
        expected.append(float(alive.mean()))
        candidates.append(query.question())
    ratios = [share / even for share, even in zip(survivors, expected, strict=True) if even]
    figures = {
        "survivors": [round(share, 4) for share in survivors],
        "random": [round(share, 4) for share in expected],
        "mean_ratio": round(float(np.mean(ratios)), 3) if ratios else None,
    }
    return figures, candidates


def seed_votes(seeds: Sequence[str], pool: Sequence[str], private: Private) -> dict[str, Any]:
    """Seeds against as many random public texts, as candidates of one question: the seeds'
    share of the true votes (0.5 if they were no better)."""
    rng = seeded(private.config.seed, "seed votes")
    count = min(len(seeds), len(pool), MOST_TEXTS)
    chosen = [seeds[i] for i in rng.choice(len(seeds), count, replace=False)]
    other = [pool[i] for i in rng.choice(len(pool), count, replace=False)]
    rows = private.embedder.embed([*chosen, *other])
    true = private.votes(rows)
    return {"seeds_against_random": round(float(true[:count].sum() / max(true.sum(), 1e-12)), 4)}


def response_rounds(
    record: RunFolder, private: Private, held_out: F32, rejected_rank: int
) -> tuple[dict[str, Any], list[F32]]:
    """Per round of POPri: the recovery rate, and the responses' Frechet distances to held-out
    and to private text at equal numbers; also the responses (m, d) themselves, for pictures.

    The recovery rate is the share of prompts whose chosen response has a higher score than the
    rejected one before clipping and noise (Appendix E.1, Figure 6). The chosen and the rejected
    are measured apart as well (Figure 8), and how the responses cluster (Figure 4).
    """
    recovery, to_held_out, to_private, responses = [], [], [], []
    apart: dict[str, list[float | None]] = {"frechet_chosen": [], "frechet_rejected": []}
    medoid: list[float] = []
    for row in record.metrics():
        query, released = record.load_query(row["round"]), record.load_release(row["round"])
        if query is None or released is None:
            continue
        question, projection = query.question(), query.extra.get("projection")
        true = private.mean_cosines(question)
        groups = query_groups(query, row)
        recovery.append(recovery_rate(true, released, groups, rejected_rank))
        rng = seeded(private.config.seed, row["round"], "response distances")
        sets = [private.rows, held_out]
        if projection is not None:  # what is lost to the question is lost to both sides
            kept = _span(projection)
            sets = [np.asarray(rows @ kept @ kept.T, dtype=np.float32) for rows in sets]
        size = min(MOST_TEXTS, len(question), *map(len, sets))
        drawn = [rows[rng.choice(len(rows), size, replace=False)] for rows in (question, *sets)]
        to_private.append(round(frechet_distance(drawn[0], drawn[1]), 5))
        to_held_out.append(round(frechet_distance(drawn[0], drawn[2]), 5))
        for name, places in zip(apart, paired(released, groups, rejected_rank), strict=True):
            apart[name].append(_at_equal_numbers(question[places], sets[1], rng))
        medoid.append(medoid_distance(drawn[0], drawn[2]))
        responses.append(question)
    figures: dict[str, Any] = {
        "recovery_rate": recovery,
        "frechet_held_out": to_held_out,
        "frechet_private": to_private,
        **apart,
        "medoid_distance": medoid,
    }
    return figures, responses


def _span(projection: np.ndarray[Any, Any]) -> F32:
    """An orthonormal basis (d, r) of what a projection (d, c) keeps; columns may be repeated."""
    columns: F32 = projection.astype(np.float32)
    columns /= np.maximum(np.linalg.norm(columns, axis=0), 1e-30)
    basis, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    found: F32 = basis[:, sizes > 0.1]  # directions are orthogonal, or the same
    return found


def query_groups(query: Any, row: dict[str, Any]) -> list[int]:
    """Responses asked about per prompt, in order; a votes query (the ablation) has them evenly."""
    if "groups" in query.extra:
        return [int(count) for count in query.extra["groups"]]
    count = row["prompts_asked"]
    return [len(part) for part in np.array_split(np.arange(query.length), count)]


def recovery_rate(
    true: npt.NDArray[np.floating[Any]],
    released: F64,
    groups: Sequence[int],
    rejected_rank: int,
) -> float | None:
    """Share of groups in which `true` prefers what `released` chose; None without a pair."""
    chosen, rejected = paired(released, groups, rejected_rank)
    return round(float(np.mean(true[chosen] > true[rejected])), 4) if len(chosen) else None


def paired(released: F64, groups: Sequence[int], rejected_rank: int) -> tuple[Ints, Ints]:
    """Scores (m,) and the sizes of the groups -> places of the chosen and of the rejected, one
    of each for every group of two or more (Algorithm 1, lines 21 to 25)."""
    chosen, rejected, start = [], [], 0
    for size in groups:
        order = start + np.argsort(-released[start : start + size], kind="stable")
        start += size
        if size > 1:
            chosen.append(int(order[0]))
            rejected.append(int(order[min(rejected_rank, size) - 1]))
    return np.array(chosen, dtype=np.intp), np.array(rejected, dtype=np.intp)


def _at_equal_numbers(rows: F32, others: F32, rng: np.random.Generator) -> float | None:
    """Frechet distance of (n, d) to (k, d), as many of each; None with fewer than two."""
    size = min(MOST_TEXTS, len(rows), len(others))
    if size < 2:
        return None
    one, two = (each[rng.choice(len(each), size, replace=False)] for each in (rows, others))
    return round(frechet_distance(one, two), 5)


def medoid_distance(rows: F32, held_out: F32) -> float:
    """Median distance of (n, d) to their medoid, in held-out text's two principal directions.

    Small where the responses cluster (POPri, Figure 4, which does not say whose directions).
    """
    _, axes = principal_plane(held_out)
    points = rows @ axes.T
    between = np.linalg.norm(points[:, None] - points[None], axis=2)
    return round(float(np.median(between[between.sum(axis=1).argmin()])), 5)
