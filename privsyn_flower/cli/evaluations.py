"""What models came to on the users' text, as Markdown: a training's curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privsyn_flower.cli.display import one_line

NOISE = "Intervals cover the noise of the releases, not the choice of users."


def curve_table(summary: Mapping[str, Any], epsilon: str) -> str:
    """The paid evaluations of a training, by rounds."""
    rows = [["round", "accuracy", "gained over the start", "loss"], ["---:"] * 4]
    rows += [[str(point["round"]), *_figures(point)] for point in summary["evaluation_curve"]]
    title = f"**Accuracy on users' text by rounds: {summary['method']}, epsilon {epsilon}**"
    told = [
        f"- round {point['round']}: {one_line(point['failed'], 200)}"
        for point in summary["evaluation_curve"]
        if "failed" in point
    ]
    return "\n".join([title, "", *table(rows), "", NOISE, *told])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in rows]


def interval(value: float, low: float, high: float, *, sign: bool = False) -> str:
    """A figure with the ends of its interval."""
    first, *ends = (f"{one:+.4f}" if sign else f"{one:.4f}" for one in (value, low, high))
    return f"{first} [{', '.join(ends)}]"


def measured(found: Mapping[str, Any], what: str) -> str:
    """Accuracy or loss of a model."""
    return interval(*(found[key] for key in (what, f"{what}_low", f"{what}_high")))


def _figures(point: Mapping[str, Any]) -> list[str]:
    if "failed" in point:
        return ["failed", "-", "-"]
    gained = point.get("accuracy_gained")
    return [
        measured(point, "accuracy"),
        interval(*gained, sign=True) if gained else "-",
        measured(point, "loss"),
    ]
