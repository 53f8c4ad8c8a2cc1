"""A grid's tables: markdown for people, CSV for programs. Figures are the runs' own."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from privsyn_flower.app.cli.compare.cells import Outcome
from privsyn_flower.app.cli.compare.estimates import (
    MEASURES,
    Bounds,
    Difference,
    Estimate,
    Line,
    by_trust,
    crossings,
    estimate,
    perplexity,
)
from privsyn_flower.app.report.summaries import (
    DISTRIBUTED,
    LOCAL,
    NO_QUERIES,
    NONE,
    TRUSTED,
    unusable_lines,
)
from privsyn_flower.app.report.tables import COLUMNS
from privsyn_flower.config.grid import GridConfig, Point

DIGITS = {"accuracy": 4, "macro_f1": 4, "loss": 3, "perplexity": 1}
ORDER = (DISTRIBUTED, TRUSTED, LOCAL, NO_QUERIES, NONE)
COVERED = (
    "Accuracy and loss are measured with private and held-out text and not covered by epsilon. "
    "Each epsilon covers its one run: choosing among runs on the same users costs more, which no "
    "number here includes."
)
READING = (
    "Mean over seeds; `users`: 95 % interval over held-out users (bootstrap, the runs as they "
    "are); `seeds`: 95 % interval over seeds (Student's t; none for one seed)."
)
AVERAGED = (
    "`users~`: held-out users' own figures were not at hand; the bounds are means of the seeds' "
    "bounds, no narrower than the interval of the mean."
)
PAIRED = (
    "Paired: the same seed and the same held-out users. `users` is missing where their own figures "
    "were not at hand; then the interval over seeds decides alone, and says nothing about other "
    "users. Every interval is for its one difference: that one of many leaves out zero by chance "
    "is likelier."
)
CLOSENESS = ("frechet", "mauve", "precision", "recall")
CLOSE = (
    "By embeddings: a smaller distance is closer, the others are greater. Precision: texts like "
    "somebody's held-out one; recall: held-out texts like one of these. Means over seeds, with "
    "95 % intervals over held-out users (bootstrap), of the `texts` that the model learned from, "
    "or a sample of them. They depend on how many there are: the last column has the Frechet "
    "distance of as many private texts."
)
MEANING = (
    "delta", "accountant", "adjacency", "trust", "rounds / of one user",
    "down, user and round", "up, user and round", "client CPU, user and round",
    "client CPU, user and run", "server, run",
)  # fmt: skip
COSTS = {  # of a run, in runs.csv: column -> its place in the summary
    "bytes_down_per_user_round": ("bytes_down_per_user_round",),
    "bytes_up_per_user_round": ("bytes_up_per_user_round",),
    "participations_per_user": ("participations_per_user",),
    "client_cpu_seconds_per_user": ("benchmark", "costs", "client_cpu_seconds_per_user"),
    "client_cpu_seconds_per_user_round": (
        "benchmark", "costs", "client_cpu_seconds_per_user_round",
    ),
    "server_wall_seconds": ("benchmark", "costs", "server_wall_seconds"),
    "wall_seconds": ("wall_seconds",),
}  # fmt: skip
SUMMARY_KEYS = (
    "users", "rounds", "rounds_planned", "epsilon", "delta", "noise_multiplier", "accountant",
    "unit", "adjacency", "threat_model", "synthetic_samples",
)  # fmt: skip


def markdown(
    grid: GridConfig,
    lines: Sequence[Line],
    differences: Sequence[Difference],
    outcomes: Sequence[Outcome],
) -> str:
    """The whole page: figures by trust, differences, costs and the meaning of epsilon, gaps."""
    parts = [f"# {escaped(grid.title)}"] if grid.title else []
    parts += measured(grid, lines, differences)
    parts += ["## What epsilon means, and what it cost", *_costs(lines)]
    if len(grid.methods) == 1 and len(lines) > 1 and any(line.values("loss") for line in lines):
        parts.append(_lowest(lines))
    if unequal := _fine_tuning(lines):
        parts.append(unequal)
    early = [
        f"{run.cell.says} ended early: {run.summary['ended_early']}"
        for run in outcomes
        if run.summary and run.summary.get("ended_early")
    ]
    early += [
        f"{run.cell.says}: {line}" for run in outcomes for line in unusable_lines(run.summary or {})
    ]
    parts.append("\n".join(f"- {escaped(line)}" for line in early))
    if gaps := [run for run in outcomes if run.summary is None]:
        told = [f"{run.cell.says}: {run.reason or 'not run yet'}" for run in gaps]
        parts += ["## Not here", "\n".join(f"- {escaped(line)}" for line in told)]
    return "\n\n".join(part for part in parts if part) + "\n"


def measured(
    grid: GridConfig, lines: Sequence[Line], differences: Sequence[Difference]
) -> list[str]:
    """Its first part, in paragraphs: every measure by trust, the differences, the crossings."""
    measures = [m for m in MEASURES if any(line.values(m) for line in lines)]
    estimates = {(line, m): own for line in lines for m in measures if (own := estimate(line, m))}
    parts = [f"{READING} {COVERED}"]
    if any(not own.exact and own.users for own in estimates.values()):
        parts.append(AVERAGED)
    for measure in measures:
        parts.append(f"## {measure.replace('_', '-')}")
        groups = by_trust(lines)
        for trust in sorted(groups, key=_rank):
            parts += [f"**{trust}**", "\n".join(_figures(grid, groups[trust], measure, estimates))]
        if measure == measures[0]:
            parts += not_run(grid, lines)
    parts += _closeness(lines)
    if differences:
        against = escaped(differences[0].against.title)
        parts += [f"## minus {against}", PAIRED, "\n".join(_gains(differences))]
        parts += ["\n".join(f"- {escaped(line)}" for line in crossings(grid, differences))]
    return parts


def not_run(grid: GridConfig, lines: Sequence[Line]) -> list[str]:
    """The methods and points of a grid without a finished run, and what they need."""
    there = {(line.method.name, *line.point.items()) for line in lines if not line.reference}
    body = []
    for method in grid.methods:
        points = [p for p in grid.points(method) if (method.name, *p.items()) not in there]
        if points:
            where = "; ".join(filter(None, map(point_label, points)))
            needs = "needs a GPU" if method.needs == "gpu" else ""
            body.append([escaped(method.title), "not run", escaped(where), needs])
    return ["\n".join(_table(["**not run**", "", "at", ""], body))] if body else []


def _closeness(lines: Sequence[Line]) -> list[str]:
    """How close methods' texts come to held-out users' texts, by embeddings."""
    body = []
    for line in lines:
        own = [run.benchmark.get("closeness", {}).get(line.name(run), {}) for run in line.runs]
        if all(own):
            means = [[statistics.mean(v) for v in zip(*(o[f] for o in own), strict=True)]
                     for f in CLOSENESS]  # fmt: skip
            title = _place(line) + ("" if line.guaranteed else " (no guarantee)")
            cells = [
                f"{value:.3f}<br>users~ {_between((low, high), 3)}" for value, low, high in means
            ]
            texts = _mean_of(line, "training_texts", line.name(line.runs[0]))
            floor = _mean_of(line, "frechet", "synthetic", "private")
            body.append([title, f"{texts:,.0f}", *cells, f"{floor:.3f}"])
    if not body:
        return []
    head = ["", "texts", "Frechet distance", "MAUVE", "precision", "recall", "private text's"]
    return ["## closeness to held-out text", CLOSE, "\n".join(_table(head, body))]


def _mean_of(line: Line, *place: str) -> float:
    """The mean over a row's runs of a figure of their benchmarks; nan where one has none."""
    found = [_at(run.benchmark, place) for run in line.runs]
    return math.nan if "" in found else statistics.mean(found)


def _place(line: Line) -> str:
    """A row's title and its point; without the epsilon of what has none."""
    point = {axis: value for axis, value in line.point.items() if line.has(axis)}
    return escaped(", ".join([line.title, *map(" ".join, point.items())]))


def _rank(trust: str) -> tuple[int, str]:
    """Where a table of one kind of trust stands; noise of the nodes first, no privacy last."""
    return (ORDER.index(trust) if trust in ORDER else 2, trust)


def _figures(
    grid: GridConfig,
    lines: Sequence[Line],
    measure: str,
    estimates: Mapping[tuple[Line, str], Estimate],
) -> list[str]:
    """One kind of trust: rows are methods (and the later axes), columns the first axis."""
    first = next(iter(grid.axes), "")
    names = [value.name for value in grid.axes.get(first, [])]
    shown = [name for name in names if any(line.point[first] == name for line in lines)] or [""]
    axis = first if any(line.has(first) for line in lines) else ""
    heads = [escaped(f"{axis} {name}".strip()) if axis else measure for name in shown]
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        own = estimates.get((line, measure))
        if own is not None:
            rest = [f"{axis} {value}" for axis, value in line.point.items() if axis != first]
            cell = _cell(own, measure) + ("" if line.guaranteed else "<br>no guarantee")
            title = escaped(", ".join([line.title, *rest]))
            rows.setdefault(title, {})[line.point.get(first, "")] = cell
    body = [[title, *(own.get(name, "-") for name in shown)] for title, own in rows.items()]
    return _table(["", *heads], body)


def _cell(own: Estimate, measure: str) -> str:
    digits = DIGITS[measure]
    parts = [f"{own.value:.{digits}f}"]
    if own.users:
        parts.append(f"users{'' if own.exact else '~'} {_between(own.users, digits)}")
    parts.append(f"seeds {_between(own.seeds, digits)}" if own.seeds else "one seed")
    if measure == "loss":
        said = perplexity(own)
        users = f" {_between(said.users, DIGITS['perplexity'])}" if said.users else ""
        parts.append(f"perplexity {said.value:.{DIGITS['perplexity']}f}{users}")
    return "<br>".join(parts)


def _between(bounds: Bounds, digits: int, sign: str = "") -> str:
    return f"[{bounds[0]:{sign}.{digits}f}, {bounds[1]:{sign}.{digits}f}]"


def _gains(differences: Sequence[Difference]) -> list[str]:
    measures = [m for m in MEASURES if any(one.measure == m for one in differences)]
    rows: dict[str, dict[str, str]] = {}
    for one in differences:
        title = escaped(", ".join([one.method.title, *map(" ".join, one.point.items())]))
        title += "" if one.alike else " (another trust: no rival)"
        own = one.estimate
        parts = [f"{own.value:+.4f}"]
        parts += [f"users {_between(own.users, 4, '+')}"] if own.users else []
        parts += [f"seeds {_between(own.seeds, 4, '+')}"] if own.seeds else ["one seed"]
        rows.setdefault(title, {})[one.measure] = "<br>".join(parts)
    body = [[title, *(own.get(m, "-") for m in measures)] for title, own in rows.items()]
    return _table(["", *(m.replace("_", "-") for m in measures)], body)


def _costs(lines: Sequence[Line]) -> list[str]:
    """For each kind of trust, epsilon's terms and the costs; of the first seed's run."""
    parts = []
    for trust, own in by_trust([line for line in lines if not line.reference]).items():
        body = [
            [
                _place(line),
                line.stated_epsilon,
                *(COLUMNS[name](line.runs[0].summary) for name in MEANING),
            ]
            for line in own
        ]
        parts += [f"**{trust}**", "\n".join(_table(["first seed", "epsilon", *MEANING], body))]
    return parts


def _lowest(lines: Sequence[Line]) -> str:
    """The settings with the lowest loss, of one method's grid."""
    found = [line for line in lines if not line.reference and line.values("loss")]
    loss, best = min(
        ((statistics.mean(line.values("loss")), line) for line in found), key=itemgetter(0)
    )
    settings = escaped(", ".join(map(" ".join, best.point.items())))
    return f"Lowest loss: {settings} ({loss:.4f}). Choosing it is paid for by none of the runs."


def _fine_tuning(lines: Sequence[Line]) -> str:
    """What differs in how methods' results were fine-tuned on, where it differs at all."""
    parts = []
    for key in ("learning_rate", "tokens_per_fine_tuning", "texts_per_fine_tuning"):
        found: dict[str, set[str]] = {}
        for line in lines:
            for run in line.runs:
                found.setdefault(line.method.title, set()).add(str(run.benchmark.get(key, "-")))
        if len(set(map(frozenset, found.values()))) > 1:
            told = ", ".join(f"{name} {' and '.join(sorted(own))}" for name, own in found.items())
            parts.append(f"{key.replace('_', ' ')} ({escaped(told)})")
    if not parts:
        return ""
    return f"The downstream model was not fine-tuned in the same way: {'; '.join(parts)}."


def escaped(text: str) -> str:
    """A name from a grid file or a summary as it is, on one line of markdown."""
    return re.sub(r"([\\`*_\[\]<>#~])", r"\\\1", " ".join(text.split()))


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    rows = [list(head), ["---", *["---:"] * (len(head) - 1)], *body]
    return [f"| {' | '.join(map(in_cell, row))} |" for row in rows]


def in_cell(cell: str) -> str:
    """Markdown as a table's cell: on one line, its bars no borders."""
    return " ".join(cell.split()).replace("|", "\\|")


def table_csv(lines: Sequence[Line]) -> str:
    """One row for each line and measure: mean, both intervals, epsilon and whom it trusts."""
    return _csv(
        {
            "method": line.method.name, "row": line.reference or "result", **line.point,
            "measure": measure, **_columns(own), "users_exact": own.exact,
            "epsilon": "" if line.reference else line.epsilon,
            "guarantee": line.guaranteed, "trust": line.trust, **_mean_costs(line),
        }
        for line in lines
        for measure, own in _estimates(line)
    )  # fmt: skip


def _estimates(line: Line) -> Iterator[tuple[str, Estimate]]:
    """Every measure that a row has, the perplexity behind the loss."""
    for measure in MEASURES:
        if (own := estimate(line, measure)) is not None:
            yield measure, own
            if measure == "loss":
                yield "perplexity", perplexity(own)


def differences_csv(differences: Sequence[Difference]) -> str:
    """One row for each paired difference."""
    return _csv(
        {
            "method": one.method.name, "minus": one.against.name, **one.point,
            "measure": one.measure, **_columns(one.estimate),
        }
        for one in differences
    )  # fmt: skip


def runs_csv(outcomes: Sequence[Outcome]) -> str:
    """One row for each cell: what it came to, what it cost, or why it is not there."""
    rows = []
    for run in outcomes:
        summary = run.summary or {}
        row: dict[str, Any] = {
            "method": run.cell.method.name, **run.cell.point, "seed": run.cell.seed,
            "state": "done" if run.summary else "missing", "reason": run.reason,
        }  # fmt: skip
        for measure in MEASURES:
            row[measure] = run.benchmark.get(measure, {}).get(run.result, "")
            bounds = run.benchmark.get(f"{measure}_interval", {}).get(run.result, ("", ""))
            row[f"{measure}_low"], row[f"{measure}_high"] = bounds
        row |= {key: summary.get(key, "") for key in SUMMARY_KEYS}
        if run.summary and row["epsilon"] is None:  # JSON has no infinity
            row["epsilon"] = math.inf
        row |= {name: _at(summary, place) for name, place in COSTS.items()}
        rows.append(row)
    return _csv(rows)


def _columns(own: Estimate) -> dict[str, Any]:
    users, seeds = own.users or ("", ""), own.seeds or ("", "")
    return {
        "mean": own.value, "users_low": users[0], "users_high": users[1],
        "seeds_low": seeds[0], "seeds_high": seeds[1], "seeds": own.count,
    }  # fmt: skip


def _mean_costs(line: Line) -> dict[str, Any]:
    """Means over seeds of what the runs cost; empty for a reference, which has none of its own."""
    return {name: mean_cost(line, name) if not line.reference else "" for name in COSTS}


def mean_cost(line: Line, name: str) -> float | str:
    """One of `COSTS`, its mean over the runs; "" where one does not tell."""
    found = [_at(run.summary or {}, COSTS[name]) for run in line.runs]
    return "" if "" in found else statistics.mean(float(value) for value in found)


def _at(summary: Mapping[str, Any], place: Sequence[str]) -> Any:
    value: Any = summary
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return "" if value is None else value


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Comma-separated, with a head; nothing for no rows."""
    listed = list(rows)
    names = list(dict.fromkeys(name for row in listed for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="")
    if listed:
        writer.writeheader()
        writer.writerows(listed)
    return text.getvalue()


def point_label(point: Point) -> str:
    """In a table's head: eps 7.58."""
    return ", ".join(
        f"{'eps' if axis == 'epsilon' else axis} {value}" for axis, value in point.items()
    )
