"""What it cost and how it went: bytes, time, rounds, survivors, refusals by code, warnings."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import Any

from privsyn_flower.app.report.html.charts import bars, by_round, lines
from privsyn_flower.app.report.html.markup import Context, Figure, Table, few, spread
from privsyn_flower.app.report.html.overview import rounded_up, why_failed
from privsyn_flower.app.report.reading import RunFolder
from privsyn_flower.app.report.summaries import is_number, mapping, number, seconds
from privsyn_flower.common.terminal import without_places

MOST_LINES = 40  # of warnings
LONGEST = 500  # characters of one
# As `messaging.tally` writes it: "3 of 8 nodes refused: policy (min-noise)".
ABSENT = re.compile(r"(\d+) of \d+ nodes ((?:refused|failed|sent|were lost)[^;]*)")
AGAIN = "nothing was released"
COLUMNS = {  # of a round's row -> heading and how it is shown; those that no row has are left out
    "attempt": ("attempt", number),
    "nodes_asked": ("nodes asked", number),
    "nodes_answered": ("answered", number),
    "surviving_weight": ("weight", number),
    "candidates": ("candidates", number),
    "candidates_alive": ("alive", number),
    "survivors": ("survivors", number),
    "pairs": ("pairs", number),
    "noise_std": ("noise std", number),
    "clip_norm": ("clip norm", number),
    "update_norm": ("update norm", number),
    "epsilon_so_far": ("epsilon so far", rounded_up),
    "exchange_seconds": ("exchange", seconds),
    "seconds": ("all", seconds),
}


def cost(run: RunFolder) -> Context:
    """Measured figures alone: what nobody measured is left out."""
    summary = run.summary
    rows = run.metrics or [row for own in run.evaluations.values() for row in own]
    sent = {
        way: summary.get(f"bytes_{way}_per_user_round", _largest(rows, f"bytes_{way}_per_node"))
        for way in ("down", "up")
    }
    costs = mapping(run.benchmark.get("costs"))
    return {"summary": summary, "sent": sent, "costs": costs, "spent": _spent(run)}


def _largest(rows: list[dict[str, object]], key: str) -> object:
    return max((row[key] for row in rows if is_number(row.get(key))), default=None)  # type: ignore[type-var]


def _spent(run: RunFolder) -> Figure | None:
    stored = mapping(run.summary.get("stage_seconds")) or run.seconds
    spent = {str(name): value for name, value in stored.items() if is_number(value)}
    if not spent:
        return None
    data = [{"name": name.replace("_", " "), "value": value} for name, value in spent.items()]
    whole = sum(spent.values())
    rows = [
        [one["name"], seconds(one["value"]), f"{value / whole:.1%}" if whole else "-"]
        for one, value in zip(data, spent.values(), strict=True)
    ]
    title, remark = "Wall time by stage", f"{seconds(whole)} together."
    listing = Table(title, ["stage", "time", "share"], rows)
    return Figure(title, remark, listing, partial(bars, data, value="seconds"))


def went(run: RunFolder) -> Context:
    """The course of the run: also what went wrong, and what could not be read."""
    warnings = [_cut(without_places(line)) for line in run.warnings[-MOST_LINES:]]
    last = few(len(warnings), len(run.warnings)).replace("evenly spread", "the last")
    beside = [
        _listing(own, f"Questions beside the rounds: {name}")
        for name, own in run.evaluations.items()
        if own
    ]
    return {
        "counts": _counts(run),
        "rounds": [*([_survivors(run)] if run.metrics else []), *beside],
        "stages": _stages(run),
        "running": run.state == "running",
        "absent": _absent(run),
        "error": why_failed(run)[: 8 * LONGEST] if run.error else "",
        "warnings": warnings,
        "warned": f"Warnings{last}",
        "problems": [without_places(one) for one in run.problems],
        "foreign": not run.summary and run.config is None,
    }


def _counts(run: RunFolder) -> list[tuple[str, object]]:
    summary = run.summary
    charges = run.ledger.own if run.ledger else []
    states = Counter(charge.state for charge in charges)
    early = summary.get("ended_early")
    planned = summary.get("rounds_planned", run.invariants.get("rounds"))
    done = summary.get("rounds", len(run.metrics))
    return [
        ("state", run.state),
        ("rounds released", f"{number(done)} of {number(planned)}" if planned else None),
        ("ended early", without_places(str(early)) if early else None),
        ("attempts charged without a release", number(states["reserved"]) if charges else None),
        ("attempts that cost nothing", number(states["void"]) if charges else None),
        ("warnings", number(len(run.warnings))),
    ]


def _survivors(run: RunFolder) -> Figure:
    """A row for each round, and who answered."""
    data = by_round(run.metrics, "nodes_asked", "asked")
    data += by_round(run.metrics, "nodes_answered", "answered")
    listing = _listing(run.metrics, "Rounds")
    missing = any(row.get("nodes_asked") != row.get("nodes_answered") for row in run.metrics)
    draw = partial(lines, data, value="nodes") if missing and len(data) > 2 else None
    remark = "Some did not answer." if missing else "All nodes that were asked answered."
    return Figure("Nodes asked and nodes that answered, by round", remark, listing, draw)


def _listing(metrics: list[dict[str, Any]], title: str) -> Table:
    used = {key: own for key, own in COLUMNS.items() if any(key in row for row in metrics)}
    rows = [
        [number(row.get("round")), *(form(row.get(key)) for key, (_, form) in used.items())]
        for row in spread(metrics)
    ]
    caption = f"{title}{few(len(rows), len(metrics))}"
    return Table(caption, ["round", *(heading for heading, _ in used.values())], rows)


def _stages(run: RunFolder) -> Table | None:
    last = {event["stage"]: event for event in run.progress}
    rows = [
        [name, f"{number(one['done'])} of {number(one['total'])}", one["note"]]
        for name, one in last.items()
    ]
    return Table("How far each came", ["stage", "done", "note"], rows[-60:]) if rows else None


def _absent(run: RunFolder) -> Table | None:
    """Nodes whose answer did not count, by reason: refusals by code."""
    reasons: Counter[str] = Counter()
    for line in run.warnings:
        # Each stage of a round has warned already when a round that failed says it all again.
        if not line.startswith(("stage ", "round ", "greeting:")) or line.endswith(AGAIN):
            continue
        for count, reason in ABSENT.findall(line):
            reasons[without_places(reason.strip())] += int(count)
    if not reasons:
        return None
    rows = [[reason, number(count)] for reason, count in reasons.most_common(MOST_LINES)]
    title = "Nodes whose answer did not count, by reason, over all attempts that were warned of"
    return Table(title, ["reason", "times"], rows)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} \u2026"
