"""How it went: rounds, survivors, attempts that failed, refusals by code, warnings."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from privsyn_flower.app.report.html.charts import figure, lines
from privsyn_flower.app.report.html.markup import (
    Html,
    bullets,
    element,
    facts,
    folded,
    is_number,
    joined,
    number,
    seconds,
    table,
)
from privsyn_flower.app.report.html.parts import Part, paragraph, rounded_up, small, why_failed
from privsyn_flower.app.report.html.private import few, spread
from privsyn_flower.app.report.reading import RunFolder
from privsyn_flower.terminal import without_places

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


def went(run: RunFolder) -> Part:
    """The course of the run."""
    body = [_counts(run), *_rounds(run), *_stages(run), *_absent(run), *_said(run)]
    return Part("went", "How it went", joined(body))


def _counts(run: RunFolder) -> Html:
    summary = run.summary or {}
    charges = run.ledger.own if run.ledger else []
    states = Counter(charge.state for charge in charges)
    early = summary.get("ended_early")
    planned = summary.get("rounds_planned", run.promised.get("rounds"))
    done = summary.get("rounds", len(run.metrics))
    return facts(
        [
            ("state", run.state),
            ("rounds released", f"{number(done)} of {number(planned)}" if planned else None),
            ("ended early", without_places(str(early)) if early else None),
            ("attempts charged without a release", number(states["reserved"]) if charges else None),
            ("attempts that cost nothing", number(states["void"]) if charges else None),
            ("warnings", number(len(run.warnings))),
        ]
    )


def _rounds(run: RunFolder) -> list[Html]:
    """A row for each round, and who answered."""
    parts = []
    if run.metrics:
        parts.append(_survivors(run))
    for name, own in run.evaluations.items():
        if own:
            parts.append(_listing(own, f"Questions beside the rounds: {name}"))
    return parts


def _survivors(run: RunFolder) -> Html:
    data = [
        {"x": row["round"], "value": row[key], "series": label}
        for key, label in (("nodes_asked", "asked"), ("nodes_answered", "answered"))
        for row in run.metrics
        if is_number(row.get("round")) and is_number(row.get(key))
    ]
    listing = _listing(run.metrics, "Rounds")
    missing = any(row.get("nodes_asked") != row.get("nodes_answered") for row in run.metrics)
    draw = (lambda: lines(data, value="nodes")) if missing and len(data) > 2 else None
    remark = "Some did not answer." if missing else "All nodes that were asked answered."
    return figure("Nodes asked and nodes that answered, by round", remark, listing, draw)


def _listing(metrics: list[dict[str, Any]], title: str) -> Html:
    used = {key: own for key, own in COLUMNS.items() if any(key in row for row in metrics)}
    rows = [
        [number(row.get("round")), *(form(row.get(key)) for key, (_, form) in used.items())]
        for row in spread(metrics)
    ]
    caption = f"{title}{few(len(rows), len(metrics))}"
    return table(caption, ["round", *(heading for heading, _ in used.values())], rows)


def _stages(run: RunFolder) -> list[Html]:
    """Where each stage is, from the run's own events."""
    last = {event["stage"]: event for event in run.progress}
    rows = [
        [name, f"{number(one['done'])} of {number(one['total'])}", one["note"]]
        for name, one in last.items()
    ]
    if not rows:
        return []
    rows = rows[-60:]
    listing = table("How far each came", ["stage", "done", "note"], rows)
    if run.state == "running":
        return [element("h3", "Stages"), listing]
    return [folded("Stages and steps", listing)]


def _absent(run: RunFolder) -> list[Html]:
    """Nodes whose answer did not count, by reason: refusals by code."""
    reasons: Counter[str] = Counter()
    for line in run.warnings:
        # Each stage of a round has warned already when a round that failed says it all again.
        if not line.startswith(("stage ", "round ", "greeting:")) or line.endswith(AGAIN):
            continue
        for count, reason in ABSENT.findall(line):
            reasons[without_places(reason.strip())] += int(count)
    if not reasons:
        return []
    rows = [[reason, number(count)] for reason, count in reasons.most_common(MOST_LINES)]
    title = "Nodes whose answer did not count, by reason, over all attempts that were warned of"
    return [table(title, ["reason", "times"], rows)]


def _said(run: RunFolder) -> list[Html]:
    """Warnings, what went wrong, and what could not be read."""
    parts = []
    if run.error:
        parts += [
            element("h3", "Why it failed"),
            element("pre", why_failed(run)[: 8 * LONGEST]),
        ]
    if run.warnings:
        lines_ = [_cut(without_places(line)) for line in run.warnings[-MOST_LINES:]]
        title = (
            f"Warnings{few(len(lines_), len(run.warnings)).replace('evenly spread', 'the last')}"
        )
        parts.append(folded(title, bullets(lines_, "log"), open_=True))
    if run.problems:
        parts += [
            paragraph("Not everything in the folder could be read:"),
            bullets(map(without_places, run.problems)),
        ]
    if run.summary is None and run.config is None:
        parts.append(
            small("A strategy in somebody's ServerApp writes no summary: this is what it wrote.")
        )
    return parts


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} \u2026"
