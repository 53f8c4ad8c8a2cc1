"""What the report (scripts/report.py) reads of kept results, and its figures."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from privsyn_flower.config.grid import load_grid

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RESULTS, GRID = DOCS / "results", ROOT / "configs" / "compare-chats.toml"
EPSILONS = ("7.58", "1.29")
DARK, LIGHT, GREY = "#1f4e79", "#e08a3c", "#8a8a8a"
COLORS = {"7.58": (DARK, -0.14), "1.29": (LIGHT, 0.14)}  # and where in a row
STYLE = {
    "font.family": "STIXGeneral",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "report",  # the same figures, the same bytes
}
Json = dict[str, Any]


def summary(name: str) -> Json:
    """A kept summary, by its place in docs/results."""
    found: Json = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def page_table(page: str, heading: str, columns: Sequence[str]) -> list[list[str]]:
    """These columns of the first table with them below a heading of a page, its head first. Raises
    ValueError where there is none."""
    below = (DOCS / page).read_text(encoding="utf-8").partition(f"# {heading}\n")[2]
    for table in re.findall(r"(?:^\|.*\|\n)+", below, re.MULTILINE):
        lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
        if set(columns) <= set(lines[0]):
            at = [lines[0].index(name) for name in columns]
            return [[line[number] for number in at] for line in [lines[0], *lines[2:]]]
    raise ValueError(f"{page} has no table with {columns} below {heading!r}")


def chats() -> Iterator[tuple[str, dict[str, list[Json]]]]:
    """(short label, epsilon -> summaries by seed) of each method of the grid on chats that has kept
    ones."""
    grid = load_grid(GRID)
    for method in grid.methods:
        names = {
            e: [f"chats/{method.name}-epsilon{e}-seed{seed}.json" for seed in grid.seeds]
            for e in EPSILONS
        }
        kept = {e: [summary(n) for n in own if (RESULTS / n).exists()] for e, own in names.items()}
        if kept := {e: own for e, own in kept.items() if own}:
            yield re.split(r" \((?!tuned\))|:", method.label)[0], kept


def measured(runs: Sequence[Json], name: str = "") -> tuple[float, float, float]:
    """Accuracy and the bounds of its interval over held-out users, means over the runs; without a
    name of what the method gives: a model, or text."""
    found = []
    for figures in (one["benchmark"] for one in runs):
        own = name or ("trained" if "trained" in figures["accuracy"] else "synthetic")
        found.append((figures["accuracy"][own], *figures["accuracy_interval"][own]))
    middle, low, high = map(statistics.mean, zip(*found, strict=True))
    return middle, low, high


def accuracy_figure(axes: Axes) -> None:
    """Each method's accuracy at both epsilons, between what public and private text give."""
    rows, left = list(chats()), 0.15
    for number, (_, kept) in enumerate(rows):
        for epsilon, runs in kept.items():
            (middle, low, high), (color, shift) = measured(runs), COLORS[epsilon]
            if middle < left:  # off the scale: its value
                axes.text(
                    left,
                    number + shift,
                    f" \N{LEFTWARDS ARROW} {middle:.3f}",
                    va="center",
                    color=color,
                )
            else:
                axes.plot([low, high], [number + shift] * 2, color=color, lw=1.2)
                axes.plot(middle, number + shift, "o", color=color, ms=4)
    for name, label in {"start": "start", "private": "private text"}.items():
        middle, low, high = measured(rows[0][1][EPSILONS[0]], name)
        axes.axvspan(low, high, color=GREY, alpha=0.18, lw=0)
        axes.text(middle, -0.75, label, ha="center", color=GREY)
    for epsilon, (color, _) in COLORS.items():
        axes.plot([], [], "o-", color=color, ms=4, lw=1.2, label=f"epsilon {epsilon}")
    axes.legend(loc="lower right", bbox_to_anchor=(0.86, 0.0))
    axes.set(xlim=(left, 0.285), ylim=(len(rows) - 0.5, -0.6), xlabel="next-token accuracy")
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])


def mechanisms_figure(axes: Axes) -> None:
    """Root mean square error of each mechanism, of an aggregator and of the nodes."""
    _, *body = page_table("correlated-noise.md", "Mechanisms", ["name", "RMSE", "by nodes"])
    sides = {"a trusted aggregator's": (GREY, -0.2), "of the devices": (DARK, 0.2)}
    for column, (label, (color, shift)) in enumerate(sides.items(), start=1):
        found = [re.match(r"\d+\.\d+", row[column]) for row in body]
        values = [float(cell[0]) if cell else np.nan for cell in found]
        bars = axes.bar(np.arange(len(body)) + shift, values, 0.38, color=color, label=label)
        axes.bar_label(bars, ["" if np.isnan(v) else f"{v:.1f}" for v in values], fontsize=7)
    axes.set(yscale="log", ylim=(10, 250), ylabel="RMSE of a prefix sum")
    axes.set_yticks([10, 20, 50, 100, 200], ["10", "20", "50", "100", "200"])
    axes.minorticks_off()
    axes.set_xticks(range(len(body)), [row[0].strip("`").replace("-", "-\n", 1) for row in body])
    axes.legend()


def secure_sum_figure(axes: Axes) -> None:
    """Seconds of each stage of the secure sum, all nodes in one process."""
    page = (RESULTS / "performance.md").read_text(encoding="utf-8")
    lines = [line.split() for line in re.findall(r"^ +\d+ +\d+ +\d+(?: +[\d.]+){12}$", page, re.M)]
    stages = ("advertise", "share", "mask", "confirm", "unmask", "server")  # after four columns
    bottom, shades = np.zeros(len(lines)), matplotlib.colormaps["YlGnBu"](np.linspace(0.25, 1, 6))
    for column, (stage, color) in enumerate(zip(stages, shades, strict=True), start=4):
        seconds = np.array([float(line[column]) for line in lines])
        axes.bar(range(len(lines)), seconds, 0.6, bottom=bottom, color=color, label=stage)
        bottom += seconds
    axes.set_xticks(range(len(lines)), [f"{line[0]} nodes,\n{line[1]} lost" for line in lines])
    axes.set(ylabel="seconds")
    axes.legend()


FIGURES: dict[str, tuple[Callable[[Axes], None], float]] = {  # name -> what draws it, inches high
    "accuracy": (accuracy_figure, 3.1),
    "mechanisms": (mechanisms_figure, 2.1),
    "secure-sum": (secure_sum_figure, 2.0),
}


def draw(folder: Path) -> None:
    """All figures as NAME.svg in the folder."""
    for name, (figure_of, height) in FIGURES.items():
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(6.4, height), layout="constrained")
            figure_of(figure.subplots())
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
