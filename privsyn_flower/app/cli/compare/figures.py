"""A grid's pictures in the papers' layout: accuracy along each axis with bars, and what it costs.

The papers draw accuracy against the number of samples (PrE-Text, Figure 2) or clients of a round
(POPri, Figure 3), with a line for each method; here against any axis. Bars are the 95 % intervals
over held-out users. Below them are the paired differences, each user against himself, which may be
told from zero where the bars above seem to overlap. A method that trusts an aggregator is dashed,
as it is no rival of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.app.cli.compare.estimates import (
    NO_GUARANTEE,
    Difference,
    Estimate,
    Line,
    estimate,
    numeric,
)
from privsyn_flower.app.cli.compare.tables import mean_cost
from privsyn_flower.app.report.summaries import TRUSTED
from privsyn_flower.config.grid import GridConfig, Point
from privsyn_flower.evaluation.drawing import pyplot, save

COLOURS = ("#1f5fa8", "#c2571a", "#3f8f5f", "#8155a5", "#b08a1e", "#4aa3b5", "#a33a55", "#5c5c5c")
MARKERS = "os^Dv<>P"
DARK = "#8a8a8a"
REFERENCES = {
    "pretrained": (":", "1"),
    "majority": (":", "_"),
    "start": (":", "4"),
    "random_public": ("--", "2"),
    "minority_public": ("--", "+"),
    "private": ("-.", "3"),
}
PANELS = 6  # of one picture; grids with more axes have tables
COSTS = (
    ("MB down and up, one user, whole run", "megabytes"),
    ("CPU seconds of a device, one user, whole run", "client_cpu_seconds_per_user"),
    ("seconds of the server, whole run", "server_wall_seconds"),
)


def draw(
    grid: GridConfig, lines: Sequence[Line], differences: Sequence[Difference], folder: Path
) -> list[Path]:
    """accuracy-AXIS.png for every axis (accuracy.png for none) and cost.png; the files written.

    differences: those between the lines' methods.
    """
    figures = {line: own for line in lines if (own := estimate(line, "accuracy")) is not None}
    if not figures:
        return []
    axes = [axis for axis, values in grid.axes.items() if len(values) > 1]
    pairs = [one for one in differences if one.measure == "accuracy"]
    written = [
        path
        for axis in axes or [""]
        if (path := _draw_axis(grid, figures, pairs, axis, folder)) is not None
    ]
    return [*written, *_draw_costs(grid, figures, folder)]


def _draw_axis(
    grid: GridConfig,
    figures: dict[Line, Estimate],
    pairs: Sequence[Difference],
    axis: str,
    folder: Path,
) -> Path | None:
    """Accuracy along one axis, a panel for every point of the others, and the differences below.
    None: too many panels."""
    panels = list(dict.fromkeys(_rest(line.point, axis) for line in figures))
    if len(panels) > PANELS:
        return None
    scale = numeric(grid, axis) if axis else None
    there = {line.point.get(axis, "") for line in figures}
    names = [value.name for value in grid.axes[axis] if value.name in there] if axis else [""]
    place = {name: scale[name] if scale else float(i) for i, name in enumerate(names)}
    figure, table = _panels(len(panels), list(figures), rows=2 if pairs else 1)
    for column, rest in enumerate(panels):
        rows: dict[tuple[str, str], list[Line]] = {}
        for line in figures:
            if _rest(line.point, axis) == rest:
                rows.setdefault((line.method.name, line.reference), []).append(line)
        for rank, own in enumerate(rows.values()):
            xs = _aside(own, axis, place, rank - (len(rows) - 1) / 2, logarithmic=bool(scale))
            _curve(table[0][column], grid, own, xs, [figures[line] for line in own])
            if pairs:
                _differences(table[1][column], grid, own, xs, pairs)
        for panel in table[:, column]:
            if scale:
                panel.set_xscale("log")
                panel.minorticks_off()
            panel.set_xticks(list(place.values()), [_tick(axis, name) for name in place])
            panel.tick_params(axis="x", labelsize=9)
            panel.spines[["top", "right"]].set_visible(False)
        table[-1][column].set_xlabel(plain(axis))
        table[0][column].set_title(plain(", ".join(" ".join(pair) for pair in rest)), fontsize=10)
    table[0][0].set_ylabel("accuracy, held-out users")
    if pairs:
        base = plain(pairs[0].against.title)
        table[1][0].set_ylabel(f"paired difference,\nminus {base}", fontsize=9)
    _legend(figure, table[0])
    suffix = axis.rpartition(".")[2]
    path = folder / (f"accuracy-{suffix}.png" if suffix else "accuracy.png")
    return save(figure, path, _claimed(list(figures), pairs=bool(pairs)))


def _aside(
    own: Sequence[Line], axis: str, place: dict[str, float], by: float, *, logarithmic: bool
) -> list[float]:
    """Where a method's points stand along the axis, its bars beside those of the others."""
    xs = [place[line.point.get(axis, "")] for line in own]
    return [x * 1.04**by if logarithmic else x + 0.06 * by for x in xs]


def _differences(
    panel: Any,
    grid: GridConfig,
    own: Sequence[Line],
    xs: Sequence[float],
    pairs: Sequence[Difference],
) -> None:
    """A method minus the one that all are compared with, with the wider reach of its intervals."""
    panel.axhline(0.0, color=DARK, linewidth=0.8, zorder=0)
    if own[0].reference:
        return
    by_point = {
        tuple(one.point.items()): one for one in pairs if one.method.name == own[0].method.name
    }
    style = {**_style(grid, own[0]), "linestyle": "none"}
    for x, line in zip(xs, own, strict=True):
        found = by_point.get(tuple(line.point.items()))
        if found is None:
            continue
        value = found.estimate.value
        low, high = found.reach or (value, value)
        filled = {"markerfacecolor": style["color"] if found.sign else "white"}
        bars = [[value - low], [high - value]]
        panel.errorbar(x, value, yerr=bars, capsize=3, markersize=5, **{**style, **filled})


def _claimed(lines: Sequence[Line], *, pairs: bool = False) -> str:
    """What stands above a picture: the epsilon of each method, and what the figures rest on."""
    stated: dict[str, dict[str, None]] = {}
    for line in lines:
        if not line.reference:
            stated.setdefault(plain(line.title), {})[line.stated_epsilon] = None
    said = "; ".join(f"{name}: {', '.join(values)}" for name, values in stated.items())
    below = "; below, filled: zero is outside of both intervals" if pairs else ""
    return f"epsilon of {said}\nfigures of a benchmark, which epsilon does not cover{below}"


def _curve(
    panel: Any,
    grid: GridConfig,
    own: Sequence[Line],
    xs: Sequence[float],
    estimates: Sequence[Estimate],
) -> None:
    """One method's points with bars, or a reference of public or private text in grey."""
    style = _style(grid, own[0])
    ys = [estimate_.value for estimate_ in estimates]
    if own[0].reference:
        panel.plot(xs, ys, markersize=4, linewidth=1.2, **style)
        return
    bars = [[y - low, high - y] for y, (low, high) in zip(ys, map(_bars, estimates), strict=True)]
    panel.errorbar(
        xs, ys, yerr=list(zip(*bars, strict=True)), capsize=3, markersize=5, linewidth=1.4, **style
    )


def _draw_costs(grid: GridConfig, figures: dict[Line, Estimate], folder: Path) -> list[Path]:
    """Accuracy against what it costs a device in bytes and computing, and the server."""
    results = {line: own for line, own in figures.items() if not line.reference}
    known = [(title, name) for title, name in COSTS if any(_cost(x, name) for x in results)]
    if not known:
        return []
    figure, table = _panels(len(known), list(results))
    first = next((axis for axis, values in grid.axes.items() if len(values) > 1), "")
    for panel, (title, name) in zip(table[0], known, strict=True):
        for line, own in results.items():
            if cost := _cost(line, name):
                low, high = _bars(own)
                bars = [[own.value - low], [high - own.value]]
                style = {**_style(grid, line), "linestyle": "none"}
                panel.errorbar(cost, own.value, yerr=bars, capsize=3, markersize=6, **style)
                label = {"xytext": (6, 2), "textcoords": "offset points", "fontsize": 7}
                name_here = plain(line.point.get(first, ""))
                panel.annotate(name_here, (cost, own.value), **label)
        _log_ticks(panel)
        panel.set_xlabel(title, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    table[0][0].set_ylabel("accuracy, held-out users")
    _legend(figure, table[0])
    return [save(figure, folder / "cost.png", _claimed(list(results)))]


def _cost(line: Line, name: str) -> float:
    """One cost of a whole run; 0 where it is not known."""
    if name != "megabytes":
        return float(mean_cost(line, name) or 0)
    each = [mean_cost(line, f"bytes_{way}_per_user_round") or 0 for way in ("down", "up")]
    return sum(map(float, each)) * float(mean_cost(line, "participations_per_user") or 0) / 1e6


def _style(grid: GridConfig, line: Line) -> dict[str, Any]:
    rank = [method.name for method in grid.methods].index(line.method.name)
    if line.reference:
        style, marker = REFERENCES[line.reference]
        return {"color": DARK, "linestyle": style, "marker": marker, "label": plain(line.title)}
    trusted = line.trust == TRUSTED
    return {
        "color": COLOURS[rank % len(COLOURS)],
        "marker": MARKERS[rank % len(MARKERS)],
        "linestyle": "--" if trusted else "-",
        "markerfacecolor": "white" if trusted else None,
        "label": _legend_name(line),
    }


def _bars(own: Estimate) -> tuple[float, float]:
    return own.users or own.seeds or (own.value, own.value)


def _rest(point: Point, axis: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in point.items() if key != axis)


def _tick(axis: str, name: str) -> str:
    """A value's name; an epsilon that promises nothing says so."""
    promises = axis != "epsilon" or float(name) < NO_GUARANTEE
    return plain(name) if promises else f"{plain(name)}\n(no guarantee)"


def _panels(count: int, lines: Sequence[Line], rows: int = 1) -> tuple[Any, Any]:
    """A figure with panels beside each other, and room for the legend to their right."""
    legend = 0.9 + 0.065 * max(len(str(_legend_name(line))) for line in lines)
    size = (4.3 * count + legend, 4.2 + 2.0 * (rows - 1))
    heights = [2.0, 1.0][:rows]
    found: tuple[Any, Any] = pyplot().subplots(
        rows, count, figsize=size, sharex="col", sharey="row", squeeze=False, height_ratios=heights
    )
    return found


def _legend_name(line: Line) -> str:
    """A line's name in the legend."""
    title = plain(line.title)
    return f"{title} (trusted aggregator)" if line.trust == TRUSTED else title


def plain(text: str) -> str:
    """A name from a grid file as it is, on one line of a picture: matplotlib reads mathematics
    between dollars, and leaves a name that begins with _ out of a legend."""
    line = " ".join(text.split()).replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line


def _log_ticks(panel: Any) -> None:
    """A logarithmic axis whose numbers can be read, also within one power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_xscale("log")
    low, high = panel.get_xlim()
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend(figure: Any, panels: Sequence[Any]) -> None:
    """One legend to the right of all panels, each name once."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    panels[-1].legend(
        found.values(), found.keys(), fontsize=8, frameon=False, loc="center left",
        bbox_to_anchor=(1.02, 0.5),
    )  # fmt: skip
