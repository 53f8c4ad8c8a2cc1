"""One method of a grid against the controls of its own benchmark: tables by training text.

Figures of controls exist within a run alone: the same users, seed and noise. Values over seeds are
a mean and [smallest, largest]; each seed's difference has its own interval over held-out users.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from privsyn_flower.app.cli.compare.estimates import Line
from privsyn_flower.app.cli.compare.tables import in_cell, point_label
from privsyn_flower.app.report.summaries import Summary, interval
from privsyn_flower.config.grid import GridMethod

CLOSE = {
    "mauve": "MAUVE against held-out text",
    "precision": "share of texts like somebody's held-out one (precision)",
    "recall": "share of held-out texts like one of them (recall)",
}
NONE = "–"  # in the cell of a control that a point's runs did not have
Runs = Mapping[str, Sequence[Summary]]  # point -> the runs of all seeds


def details(method: GridMethod, lines: Sequence[Line], made_by: str) -> str:
    """Markdown of one method's runs; "" without any. made_by: the command that measured them."""
    own = [line for line in lines if line.method is method and not line.reference]
    by_point = {point_label(line.point): [run.summary or {} for run in line.runs] for line in own}
    if not by_point:
        return ""
    parts = [[introduction(by_point, made_by)], training_texts(method, by_point)]
    result = own[0].runs[0].result
    parts += [difference_table(method, by_point, result, m) for m in ("accuracy", "loss")]
    parts.append(text_table(method, by_point))
    return "\n\n".join("\n".join(part) for part in parts if part)


def introduction(by_point: Runs, made_by: str) -> str:
    """What was measured, how often, on whom."""
    first = next(iter(by_point.values()))[0]
    benchmark = first["benchmark"]
    seeds = ", ".join(
        f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
        + (f" at {point.replace('eps ', 'epsilon ')}" if point else "")
        for point, runs in by_point.items()
    )
    counted = "held_out_tokens" if "held_out_tokens" in benchmark else "held_out_texts"
    return (
        f"Measured by `{made_by}` ({seeds}; delta = {first['delta']:g}; "
        f"mean and [smallest, largest] over seeds): {first['users']:,} users, "
        f"{first['rounds']} rounds, {benchmark['held_out_users']} held-out "
        f"{benchmark['held_out']} users with {benchmark[counted]:,} {counted.rpartition('_')[2]}. "
        "These figures are measured with private and held-out text and are not covered by epsilon."
    )


def training_texts(method: GridMethod, by_point: Runs) -> list[str]:
    """Accuracy and cross-entropy by what the model was fine-tuned on."""
    first = next(iter(by_point.values()))[0]["benchmark"]
    measures = [m for m in ("accuracy", "loss") if m in first]
    names = method.rows or {
        key: one["methods"][key]
        for runs in by_point.values()
        for one in _each(runs)
        for key in one["accuracy"]
    }
    heads = [f"{m}{f', {in_cell(point)}' if point else ''}" for point in by_point for m in measures]
    lines = [_row("fine-tuned on", heads), "|---|" + "---:|" * len(heads)]
    for key, name in names.items():
        cells = [
            spread(_each(runs, m, key), 4 if m == "accuracy" else 3)
            for runs in by_point.values()
            for m in measures
        ]
        lines.append(_row(name, cells))
    return lines


def difference_table(method: GridMethod, by_point: Runs, result: str, measure: str) -> list[str]:
    """The result minus the others, with the 95 % interval of every seed (bootstrap over users)."""
    found = f"{measure}_difference"
    keys = [key for runs in by_point.values() for one in _each(runs, found) for key in one]
    given = method.differences or {
        key.removeprefix(f"{result}-"): key for key in keys if key.startswith(f"{result}-")
    }
    if not keys or not given:
        return []
    head = f"{measure} difference, each seed with its 95 % interval over held-out users"
    lines = [_row(head, map(in_cell, by_point)), "|---|" + "---|" * len(by_point)]
    for other, name in given.items():
        seeds = [
            [interval(one, sign=True) for one in _each(runs, found, f"{result}-{other}")]
            for runs in by_point.values()
        ]
        lines.append(_row(name, ["<br>".join(cells) or NONE for cells in seeds]))
    return lines


def text_table(method: GridMethod, by_point: Runs) -> list[str]:
    """What the answers found, and Frechet distances to held-out text at equal numbers of texts."""
    heads = "".join(f" {in_cell(point)} |" for point in by_point)
    lines = [f"| |{heads}", "|---|" + "---:|" * len(by_point)]

    def row(name: str, digits: int, *keys: str, of: Callable[[Any], float] = _mean) -> None:
        """A figure, if any run has it. of: what is told of the value under these keys."""
        found = [[of(value) for value in _each(runs, *keys)] for runs in by_point.values()]
        if any(found):
            lines.append(_row(name, [spread(values, digits) for values in found]))

    row("true votes of the survivors / of as many random candidates (mean over rounds)",
        2, "true_votes", "mean_ratio")  # fmt: skip
    row("share of the true votes: seeds against as many random public texts",
        3, "true_votes", "seeds_against_random")  # fmt: skip
    row("recovery rate of the preferences (mean over rounds)",
        3, "responses", "recovery_rate")  # fmt: skip
    if any(_each(runs, "responses") for runs in by_point.values()):
        for other in ("private", "held_out", "public"):
            row(f"synthetic texts with 8 words in a row from {other.replace('_', '-')} text",
                4, "near_duplicates", other, "share")  # fmt: skip
    distances = dict.fromkeys(
        (group, key)
        for runs in by_point.values()
        for found in _each(runs, "frechet")
        for group, methods in found.items()
        for key in methods
    )
    for group, key in distances:
        name = method.rows.get(key, key).replace("**", "")
        row(f"Frechet distance to held-out text ({group}): {name}", 4, "frechet", group, key)
    close = dict.fromkeys(
        (name, figure)
        for runs in by_point.values()
        for found in _each(runs, "closeness")
        for name, figures in found.items()
        for figure in figures
        if figure != "frechet"  # told already, of the controls as well
    )
    for name, figure in close:
        title = f"{CLOSE[figure]}: {name.replace('_', ' ')}"
        row(title, 4, "closeness", name, figure, of=itemgetter(0))
    return lines if len(lines) > 2 else []


def _each(runs: Iterable[Mapping[str, Any]], *keys: str) -> list[Any]:
    """What the runs' benchmarks have under these keys; not every point has every control."""
    found: list[Any] = [run["benchmark"] for run in runs]
    for key in keys:
        found = [one[key] for one in found if key in one]
    return found


def _mean(value: Any) -> float:
    """The mean of a value for each round."""
    return float(statistics.mean(value) if isinstance(value, list) else value)


def _row(name: str, cells: Iterable[str]) -> str:
    return f"| {in_cell(name)} |" + "".join(f" {cell} |" for cell in cells)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean, and the range over seeds; a dash for no value."""
    if not values:
        return NONE
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} [{min(values):.{digits}f}, {max(values):.{digits}f}]"
