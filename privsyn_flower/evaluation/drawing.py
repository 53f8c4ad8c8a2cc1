"""What all pictures share: no display, two colours, and the same bytes for the same figures."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import cache_home

BLUE, GREY, DARK = "#1f5fa8", "#b8b8b8", "#6b6b6b"


def pyplot() -> Any:
    """matplotlib's pyplot, drawing into files; its own are kept among our caches."""
    os.environ.setdefault("MPLCONFIGDIR", str(cache_home() / "privsyn-flower" / "matplotlib"))
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
