"""What models came to on the users' text, as Markdown: a training's curve, given models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NOISE = "Intervals cover the noise of the releases, not the choice of users."
TOGETHER = "Those of all {} models hold together, at 95 % (Bonferroni)."


def covered(found: Mapping[str, Any]) -> str:
    """What the intervals of models of one release are about."""
    models = found.get("together", 0)  # a run of an earlier version has each at 95 %
    return f"{NOISE} {TOGETHER.format(models)}" if models > 1 else NOISE


def curve_table(summary: Mapping[str, Any], epsilon: str) -> str:
    """The paid evaluations of a training, by rounds."""
    rows = [["round", "accuracy", "gained over the start", "loss"], ["---:"] * 4]
    rows += [[str(point["round"]), *_figures(point)] for point in summary["evaluation_curve"]]
    title = f"**Accuracy on users' text by rounds: {summary['method']}, epsilon {epsilon}**"
    told = [
        f"- round {point['round']}: {_line(point['failed'])}"
        for point in summary["evaluation_curve"]
        if "failed" in point
    ]
    return "\n".join([title, "", *table(rows), "", NOISE, *told])


def measured_table(summary: Mapping[str, Any], epsilon: str) -> str:
    """Given models in one release, each beside the first."""
    found = summary["measured"]
    title = f"**Models on users' text: {summary['method']}, epsilon {epsilon}**"
    if "failed" in found:
        return "\n".join([title, "", _line(found["failed"])])
    return "\n".join([title, "", *table(measured_rows(found)), "", covered(found)])


def measured_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Heading, rule, and a row for each model."""
    rows = [["model", "accuracy", f"gained over {found['against']}", "loss"]]
    rows.append(["---", *["---:"] * 3])
    for name, own in found["models"].items():
        gained = found["gained"].get(name, {}).get("accuracy_gained")
        over = interval(*gained, sign=True) if gained else "-"
        rows.append([name, measured(own, "accuracy"), over, measured(own, "loss")])
    return rows


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


def _line(text: str) -> str:
    return " ".join(text.split())
