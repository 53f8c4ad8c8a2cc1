"""Nearness: are private users nearer to the synthetic text than users whom the run never asked?

Of each user the mean over texts of the cosine distance to the nearest synthetic text, which does
not depend on how many texts a user has. The AUC of telling private from held-out users by it is
0.5 where the synthetic text says nothing of who took part.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from privsyn_flower.app.inspect.texts import NO_HELD_OUT, Texts, Users, shared_texts
from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.common.randomness import seeded
from privsyn_flower.evaluation.intervals import Interval
from privsyn_flower.text.protocols import Embedder

LEVEL, POWER = 1.6449, 0.8416  # normal quantiles: a one-sided test at 5 %, and 80 % power
RESAMPLES = 2000
CONFIDENCE = 0.95
BLOCK = 512  # texts compared at once


def measure(texts: Texts) -> dict[str, Any]:
    """The AUC over users, its interval (bootstrap over the users of both sides), and the one-sided
    p-value of Mann and Whitney (1947) that private users are nearer. PRIVATE.

    "smallest_auc": what a test at 5 % would find in 80 of 100 cases with so many users. Texts that
    both sides have are left out of both. Without held-out users, or with too few on a side for any
    AUC to be found, "missing" says so instead.
    """
    if not texts.held_out:
        return {"missing": NO_HELD_OUT}
    shared = shared_texts(texts.private, texts.held_out)
    private, others = (_without(shared, users) for users in (texts.private, texts.held_out))
    figures: dict[str, Any] = {
        "users": {"private": len(private), "held_out": len(others)},
        "texts_of_both_left_out": len(shared),
    }
    least = smallest_auc(len(private), len(others))
    if least >= 1:
        return figures | {
            "missing": f"{len(private):,} private and {len(others):,} held-out users are too few "
            "for a test: even an AUC of 1 would be missed in more than 20 of 100 cases"
        }
    embedder = texts.load_embedder()
    rows = embedder.embed(list(dict.fromkeys(texts.synthetic)))
    near, far = (_distances(users, rows, embedder) for users in (private, others))
    interval = auc_interval(near, far, seeded(0, "inspect nearness"))
    return figures | {
        "mean_distance": {
            "private": round(float(near.mean()), 6), "held_out": round(float(far.mean()), 6)
        },
        "auc": interval.as_list(),
        "p_value": p_value(near, far),
        "smallest_auc": round(least, 4),
    }  # fmt: skip


def _without(texts: set[str], users: Users) -> Users:
    kept = {user: [text for text in own if text not in texts] for user, own in users.items()}
    return {user: own for user, own in kept.items() if own}


def smallest_auc(first: int, second: int) -> float:
    """The AUC that a one-sided test at 5 % finds with 80 % power, by the normal approximation with
    the variance of no difference; infinite without users."""
    if not first or not second:
        return math.inf
    return 0.5 + (LEVEL + POWER) * math.sqrt((first + second + 1) / (12 * first * second))


def _distances(users: Users, synthetic: F32, embedder: Embedder) -> F64:
    """Of each user the mean cosine distance of a text to its nearest synthetic one: (u,)."""
    texts = [text for own in users.values() for text in own]
    owners = np.repeat(np.arange(len(users)), [len(own) for own in users.values()])
    rows = embedder.embed(texts)
    nearest = np.concatenate(
        [(rows[i : i + BLOCK] @ synthetic.T).max(axis=1) for i in range(0, len(rows), BLOCK)]
    )
    totals = np.bincount(owners, weights=1.0 - nearest.astype(np.float64))
    means: F64 = totals / np.bincount(owners)
    return means


def auc(near: F64, far: F64) -> float:
    """The share of pairs in which the first is smaller; a tie is half a pair."""
    ordered = np.sort(far)
    below = np.searchsorted(ordered, near, side="left")
    within = np.searchsorted(ordered, near, side="right") - below
    return float(1 - (below + within / 2).mean() / len(far))


def auc_interval(
    near: F64, far: F64, rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> Interval:
    """The AUC with its percentile interval: users of both sides are drawn anew, side by side."""
    draws = [auc(rng.choice(near, len(near)), rng.choice(far, len(far))) for _ in range(resamples)]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(draws, [tail, 100 - tail])
    return Interval(auc(near, far), float(low), float(high))


def p_value(near: F64, far: F64) -> float:
    """One-sided: that the first are smaller, if both are drawn alike."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(near, far, alternative="less").pvalue)


def described(figures: dict[str, Any]) -> list[str]:
    """Lines for the terminal; PRIVATE."""
    if "missing" in figures:
        return [f"nearness: not measured: {figures['missing']}"]
    value, low, high = figures["auc"]
    users, means = figures["users"], figures["mean_distance"]
    lines = [
        f"nearness: AUC of telling {users['private']:,} private from {users['held_out']:,} held-out"
        f" users: {value:.3f} [{low:.3f}, {high:.3f}], p = {figures['p_value']:.2g}",
        f"  mean distance to the nearest synthetic text: {means['private']:.4f} of private, "
        f"{means['held_out']:.4f} of held-out users",
        f"  so many users show an AUC of {figures['smallest_auc']:.3f} or more (80 % power, test "
        "at 5 %)",
    ]
    if figures["texts_of_both_left_out"]:
        lines.append(
            f"  {figures['texts_of_both_left_out']:,} texts that both sides have are left out"
        )
    if high < 0.5:
        lines.append("  held-out users are nearer: are both sides of the same population?")
    return lines
