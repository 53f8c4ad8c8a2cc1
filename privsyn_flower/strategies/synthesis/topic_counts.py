"""The histogram of topics: its question, and what is made of its noisy answer. Pure functions.

Source: CTCL (Tan et al. 2025, arXiv 2503.12347), sections 3.3 and 3.4: each private document counts
for the topic closest to it, the counts are released with noise, and documents are generated in
those proportions.
"""

from __future__ import annotations

import math

import numpy as np

from privsyn_flower.common.arrays import F64, I64, Ints
from privsyn_flower.protocol.question import Query
from privsyn_flower.text.topics import TopicModel

_SUM = 1e-6  # how far proportions may be from a sum of 1


class NoTopicLeft(ValueError):
    """No topic has more than the threshold: the histogram is all noise."""


def topic_question(
    model: TopicModel, bound: float, clip: str = "normalised", *, samples_cap: int = 8
) -> Query:
    """Which topics are your texts of? Votes on the topics' rows: each text for its nearest.

    Answer: (m,), a user's counts clipped to L2 norm `bound` as `clip` says (`queries.votes`). With
    one document a user, clip "worst-case" and bound 1 are the paper's.
    """
    return Query.votes(
        model.rows,
        bound=bound,
        model=model.embedder,
        clip=clip,
        samples_cap=samples_cap,
        neighbors=1,
        metric="cosine",
    )


def proportions(released: F64, noise_std: float, threshold: float = 1.0) -> F64:
    """Noisy counts (m,) -> shares (m,), at least 0, of sum 1.

    threshold: standard deviations of the noise that are taken off every count before negative ones
    become 0. At 0, the paper's, an empty topic keeps 0.40 standard deviations on average, which is
    text that nobody has: 1,300 of them at noise 10 keep counts of about 5,190 documents; at 1 about
    1,080, at 2 about 110. Raises NoTopicLeft when nothing is left, because equal shares would pass
    for a result; ValueError on counts that are not finite or a bad threshold.
    """
    counts = np.asarray(released, dtype=np.float64)
    if counts.ndim != 1 or not len(counts) or not np.isfinite(counts).all():
        raise ValueError(f"counts of shape {counts.shape} must be finite, one for each topic")
    if not 0 <= threshold < math.inf or not 0 <= noise_std < math.inf:
        raise ValueError(
            f"ctcl.topic-threshold = {threshold} and noise of {noise_std} must be finite and at "
            "least 0"
        )
    left = np.maximum(counts - threshold * noise_std, 0.0)
    if not left.any():
        raise NoTopicLeft(
            f"none of {len(counts)} topics has more than {threshold:g} standard deviations of the "
            f"noise ({threshold * noise_std:g}); the largest has {counts.max():g}: lower "
            "ctcl.topic-threshold or ctcl.topic-count, or give the histogram more of the budget "
            "(ctcl.histogram-share)"
        )
    shares: F64 = left / left.max()  # so that no sum overflows
    shares /= shares.sum()
    return shares


def largest_remainder(shares: F64, total: int) -> I64:
    """Shares (m,) of sum 1 -> whole numbers (m,) of sum `total`, each less than 1 from its share.

    Hamilton's method: whole parts first, then one more for the largest remainders; ties go to the
    lowest index. The published code of CTCL cuts a list instead, which drops the last topics. A
    topic without a share gets nothing. Raises ValueError on shares below 0 or of another sum.
    """
    given = np.asarray(shares, dtype=np.float64)
    fine = given.ndim == 1 and bool((given >= 0).all()) and abs(given.sum() - 1) <= _SUM
    if not fine or total < 0:
        raise ValueError(
            f"shares of shape {given.shape} must be at least 0 and sum to 1, and total = {total} "
            "be at least 0 (expand.samples)"
        )
    wanted = given / given.sum() * total  # (m,)
    counts: I64 = np.floor(wanted).astype(np.int64)
    missing = total - int(counts.sum())
    remainders = np.where(given > 0, wanted - counts, -1.0)
    order = np.argsort(-remainders, kind="stable")
    counts[order[:missing]] += 1
    return counts


def resampled(clusters: Ints, shares: F64, samples: int, rng: np.random.Generator) -> Ints:
    """Texts of a generator without conditions, drawn anew to a noisy histogram's shares.

    Returns places (samples,) of texts whose clusters (n,) have these shares (m,), in random order.

    Each cluster has its share by largest remainder. Of its texts all are drawn equally often, up to
    one: where it is to have more than there are, they repeat. The share of a cluster without a text
    goes to the others in proportion; a text of cluster -1 has none, and is not drawn. Raises
    NoTopicLeft when no text is in a cluster with a share.

    Source: the baseline "+ Resample" of CTCL (section 4.1.2, Tables 3 and 8), which names Yu et al.
    2024 for it and describes no more than that the synthetic texts are resampled to what is known
    of the private ones. All of it but the histogram is post-processing.
    """
    own: Ints = np.asarray(clusters)
    there = np.bincount(own[own >= 0], minlength=len(shares)) > 0  # (m,)
    left = np.where(there, shares, 0.0)
    if not left.any():
        raise NoTopicLeft(
            f"none of {len(own)} texts is in a cluster that the users' texts are in, as far as the "
            "noise shows: raise ctcl.resample-pool, or lower ctcl.topic-count"
        )
    counts = largest_remainder(left / left.sum(), samples)
    drawn = [
        np.resize(rng.permutation(np.flatnonzero(own == cluster)), count)
        for cluster, count in enumerate(counts.tolist())
        if count
    ]
    places: Ints = rng.permutation(np.concatenate(drawn)) if drawn else np.zeros(0, dtype=np.intp)
    return places
