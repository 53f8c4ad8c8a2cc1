"""What all pictures share: no display, two colours, and the same bytes for the same figures."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F32
from privsyn_flower.common.files import default_cache
from privsyn_flower.common.randomness import seeded
from privsyn_flower.text.protocols import Embedder

BLUE, GREY, DARK = "#1f5fa8", "#b8b8b8", "#6b6b6b"
LEAST_TEXTS = 8  # below which there is nothing to see
NEIGHBOURS = 30.0  # t-SNE's usual perplexity


def pyplot() -> Any:
    """matplotlib's pyplot, drawing into files; its own are kept among our caches."""
    os.environ.setdefault("MPLCONFIGDIR", str(default_cache() / "matplotlib"))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path, caption: str = "") -> Path:
    """Write a figure as a PNG, with its caption above it, and close it."""
    wide = int(15 * figure.get_figwidth())  # characters
    lines = [part for line in caption.splitlines() for part in textwrap.wrap(line, wide)]
    if lines:
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9, color=DARK)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date in the file: the same run gives the same bytes.
    figure.savefig(path, dpi=150, metadata={"Software": None})
    pyplot().close(figure)
    return path


def draw_curve(
    accuracy: Sequence[Sequence[float]],
    gained: Sequence[Sequence[float]],
    path: Path,
    *,
    caption: str,
) -> Path | None:
    """Accuracy against rounds, and what was gained over the start, with their intervals.

    accuracy, gained: rows of [round, value, low, high]. caption: above the panels. Writes a PNG
    to `path`; None without a row of accuracy.
    """
    if not accuracy:
        return None
    shown = [("accuracy on users' text", accuracy)]
    shown += [("accuracy gained over the start", gained)] if gained else []
    figure, panels = pyplot().subplots(
        1, len(shown), figsize=(4.8 * len(shown), 3.6), squeeze=False
    )
    for panel, (label, rows) in zip(panels[0], shown, strict=True):
        rounds, values, low, high = (list(column) for column in zip(*rows, strict=True))
        panel.plot(rounds, values, marker="o", markersize=4, color=BLUE)
        panel.fill_between(rounds, low, high, color=BLUE, alpha=0.2, linewidth=0)
        panel.vlines(rounds, low, high, color=BLUE, linewidth=1)
        panel.set_xlabel("round")
        panel.set_ylabel(label)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.spines[["top", "right"]].set_visible(False)
    if gained:
        panels[0][-1].axhline(0.0, color=GREY, linewidth=1)
    return save(figure, path, caption)


def draw_intervals(
    rows: Mapping[str, Sequence[float]], label: str, path: Path, *, caption: str
) -> Path:
    """Figures with their intervals, {name: [value, low, high]}, the first name on top.

    caption: above the panel. Writes a PNG to `path`. Raises ValueError without rows.
    """
    if not rows:
        raise ValueError("no figure to draw")
    names, places = list(rows), range(len(rows))
    figure, panel = pyplot().subplots(figsize=(6.0, 0.5 * len(rows) + 1.2))
    for place, (value, low, high) in zip(places, rows.values(), strict=True):
        panel.plot([low, high], [place, place], color=BLUE, linewidth=2)
        panel.plot([value], [place], marker="o", color=BLUE)
    panel.set_yticks(list(places), names)
    panel.invert_yaxis()
    panel.set_xlabel(label)
    panel.spines[["top", "right"]].set_visible(False)
    return save(figure, path, caption)


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
    """Where texts lie, as POPri's Figure 10 shows it: t-SNE of their embeddings, a colour a group.

    Writes a PNG to `path`, as public or PRIVATE as the texts are. Neighbours of a point are its
    text's; distances between clusters, and their sizes, mean nothing. Raises ValueError for fewer
    than LEAST_TEXTS texts.
    """
    from sklearn.manifold import TSNE

    texts = [text for own in groups.values() for text in own]
    if len(texts) < LEAST_TEXTS:
        raise ValueError(f"{len(texts)} texts: a picture needs at least {LEAST_TEXTS}")
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
