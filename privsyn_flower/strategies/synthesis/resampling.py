"""Texts of a generator without conditions, drawn anew to a noisy histogram's shares.

The baseline "+ Resample" of CTCL's tables (Tan et al. 2025, arXiv 2503.12347, section 4.1.2 and
Tables 3 and 8), which names Yu et al. 2024 for it and describes no more than that the synthetic
texts are resampled to what is known of the private ones. Here: clusters of the synthetic texts, a
noisy histogram of the users' texts over them, and texts of each cluster by its share. All of it but
the histogram is post-processing.
"""

from __future__ import annotations

import numpy as np

from privsyn_flower.arrays import F64, Ints
from privsyn_flower.strategies.synthesis.topic_counts import NoTopicLeft, largest_remainder


def resampled(clusters: Ints, shares: F64, samples: int, rng: np.random.Generator) -> Ints:
    """Places (samples,) of texts whose clusters (n,) have these shares (m,), in random order.

    Each cluster has its share by largest remainder. Of its texts all are drawn equally often, up to
    one: where it is to have more than there are, they repeat. The share of a cluster without a text
    goes to the others in proportion; a text of cluster -1 has none, and is not drawn. Raises
    NoTopicLeft when no text is in a cluster with a share.
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
