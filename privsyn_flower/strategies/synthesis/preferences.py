"""Scores of responses -> preference pairs (POPri, Algorithm 1, lines 21 to 26). All public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from privsyn_flower.common.arrays import F64, Ints


@dataclass(frozen=True)
class Ranking:
    """Pair i: response chosen[i] over rejected[i] of prompt prompts[i], arrays of one length.

    identical: prompts left out because the two texts are the same. unusable: prompts left out
    because fewer than two responses are usable. shortened: pairs whose rejected response is the
    last usable one, because there are fewer usable ones than the rank.
    """

    prompts: Ints
    chosen: Ints
    rejected: Ints
    identical: int
    unusable: int
    shortened: int


def preference_pairs(
    prompts: Sequence[str],
    responses: Sequence[Sequence[str]],
    scores: npt.ArrayLike,
    *,
    rejected_rank: int,
) -> list[dict[str, str]]:
    """Prompts (K,), responses (K, J) and scores (K, J) -> at most K pairs, in order.

    A pair has `prompt`, `chosen` (rank 1) and `rejected` (rank `rejected_rank`, which counts from
    1). `rank_responses` says which prompts have none, and how many. Raises ValueError as it does.
    """
    ranking = rank_responses(responses, scores, rejected_rank=rejected_rank)
    if len(prompts) != len(responses):
        raise ValueError(f"{len(prompts)} prompts, but responses to {len(responses)}")
    return pairs_of(ranking, prompts, responses)


def pairs_of(
    ranking: Ranking, prompts: Sequence[str], responses: Sequence[Sequence[str]]
) -> list[dict[str, str]]:
    """The texts of a ranking's pairs."""
    places = zip(
        ranking.prompts.tolist(), ranking.chosen.tolist(), ranking.rejected.tolist(), strict=True
    )
    return [
        {"prompt": prompts[k], "chosen": responses[k][best], "rejected": responses[k][worse]}
        for k, best, worse in places
    ]


def rank_responses(
    responses: Sequence[Sequence[str]], scores: npt.ArrayLike, *, rejected_rank: int
) -> Ranking:
    """Responses (K, J), "" where unusable, and their scores (K, J) -> who is preferred to whom.

    The ranking is stable: equal scores keep the order of the responses. Unusable responses rank
    last and are in no pair. Raises ValueError for shapes that do not fit, scores that are not
    finite, and a rank outside 2 to J.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or len(values) != len(responses):
        raise ValueError(
            f"scores of shape {values.shape} for responses to {len(responses)} prompts"
        )
    count, width = values.shape
    if not all(len(row) == width for row in responses):
        raise ValueError(f"every prompt needs {width} responses, as many as scores")
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite")
    if not 2 <= rejected_rank <= width:
        raise ValueError(
            f"popri.rejected-rank = {rejected_rank} must lie in [2, {width}] (popri.responses)"
        )
    flat = map(bool, chain.from_iterable(responses))
    usable = np.fromiter(flat, dtype=np.bool_, count=count * width).reshape(count, width)
    order = np.argsort(np.where(usable, -values, np.inf), axis=1, kind="stable")
    left = usable.sum(axis=1)
    rows = np.arange(count)
    chosen = order[:, 0]
    rejected = order[rows, np.clip(left, 1, rejected_rank) - 1]
    enough = left >= 2
    same = np.array(
        [row[i] == row[j] for row, i, j in zip(responses, chosen, rejected, strict=True)],
        dtype=np.bool_,
    )
    kept = enough & ~same
    return Ranking(
        prompts=rows[kept],
        chosen=chosen[kept],
        rejected=rejected[kept],
        identical=int((enough & same).sum()),
        unusable=int((~enough).sum()),
        shortened=int((kept & (left < rejected_rank)).sum()),
    )


def score_facts(released: F64, sizes: Sequence[int], noise_std: float) -> dict[str, float]:
    """Public figures about the released scores (m,), m = sum of sizes (responses by prompt).

    The signal-to-noise ratios compare variances: what the scores have beyond the noise, over the
    noise, at least 0; over all, and within the prompts, where the ranking happens.
    """
    noise = noise_std**2
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
    means = np.add.reduceat(released, starts) / np.asarray(sizes)
    inside = released - np.repeat(means, sizes)
    within = float((inside**2).sum() / max(len(released) - len(sizes), 1))
    return {
        "score_std": float(released.std()),
        "signal_to_noise": max(0.0, float(released.var()) / noise - 1.0),
        "signal_to_noise_within": max(0.0, within / noise - 1.0),
    }
