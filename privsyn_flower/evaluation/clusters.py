"""Where the texts of a data set lie, as POPri's Figure 10 shows it: t-SNE of their embeddings.

Points are texts: as public or PRIVATE as these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from privsyn_flower.common.arrays import F32
from privsyn_flower.common.randomness import seeded
from privsyn_flower.evaluation.drawing import pyplot, save
from privsyn_flower.text.protocols import Embedder

LEAST = 8  # texts, below which there is nothing to see
NEIGHBOURS = 30.0  # t-SNE's usual perplexity


def chosen(groups: Mapping[str, Sequence[str]], most: int, seed: int) -> dict[str, list[str]]:
    """At most so many texts of all groups together, drawn at random, under their groups' names."""
    named = [(name, text) for name, own in groups.items() for text in own if text.strip()]
    order = seeded(seed, "clusters").permutation(len(named))[:most]
    kept: dict[str, list[str]] = {name: [] for name in groups}
    for place in sorted(order.tolist()):
        kept[named[place][0]].append(named[place][1])
    return {name: own for name, own in kept.items() if own}


def draw_clusters(
    groups: Mapping[str, Sequence[str]], embedder: Embedder, path: Path, *, caption: str
) -> Path:
    """The texts as points in a plane, a colour for each group. Writes a PNG to `path`.

    Neighbours of a point are its text's; distances between clusters, and their sizes, mean nothing.
    Raises ValueError for fewer than LEAST texts.
    """
    from sklearn.manifold import TSNE

    texts = [text for own in groups.values() for text in own]
    if len(texts) < LEAST:
        raise ValueError(f"{len(texts)} texts: a picture needs at least {LEAST}")
    rows: F32 = embedder.embed(texts)  # (n, d)
    near = min(NEIGHBOURS, (len(texts) - 1) / 3)
    points = TSNE(perplexity=near, init="pca", random_state=0).fit_transform(rows)  # (n, 2)
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(6.4, 5.2))
    ends = np.cumsum([0, *(len(own) for own in groups.values())])
    for number, (name, own) in enumerate(groups.items()):
        part = points[ends[number] : ends[number + 1]]
        colour = plt.get_cmap("tab20")(number % 20)
        panel.scatter(*part.T, s=6, color=colour, linewidths=0, label=f"{name} ({len(own)})")
    panel.set_xticks([])
    panel.set_yticks([])
    panel.legend(fontsize=8, frameon=False, markerscale=2)
    return save(figure, path, caption)
