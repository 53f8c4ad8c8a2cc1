"""Several runs side by side, by the kind of trust that they ask for."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from privsyn_flower.app.report.html.charts import intervals
from privsyn_flower.app.report.html.good import OVER_USERS
from privsyn_flower.app.report.html.markup import Figure, Table, is_triple, mapping
from privsyn_flower.app.report.html.overview import method_of, notices
from privsyn_flower.app.report.html.parts import Context, Part, delta, epsilon, section
from privsyn_flower.app.report.html.private import short_claim
from privsyn_flower.app.report.html.settings import value_text
from privsyn_flower.app.report.reading import RunFolder
from privsyn_flower.app.report.summaries import RESULTS, TRUSTS, trust_of, verdict_lines
from privsyn_flower.app.report.tables import COLUMNS, differing
from privsyn_flower.config import ConfigError, Scalar, flat_defaults, flatten

CLAIMS, SETTINGS = "What each run claims, and came to", "Configuration: what differs"
ALIKE = "Whether their figures can be compared"
PLACES = {"run-folder", "cache", "assets", "ledger"}  # keys that differ for every run
PUBLIC = ("method", "epsilon", "delta", "accountant", "rounds / of one user",
          "down, user and round", "up, user and round", "signal / noise")  # fmt: skip
MEASURED = ("method", "epsilon", "accuracy", "gained over public text", "loss", "perplexity",
            "client CPU, user and round", "client CPU, user and run", "server, run")  # fmt: skip


def names_of(runs: Sequence[RunFolder]) -> list[str]:
    """A name for each run that no other has."""
    names = [run.name for run in runs]
    counts = {name: names.count(name) for name in names}
    several = [
        f"{run.folder.absolute().parent.name}/{name}" if counts[name] > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]
    return [
        f"{name} ({place})" if several.count(name) > 1 else name
        for place, name in enumerate(several, start=1)
    ]


def comparison(runs: Sequence[RunFolder]) -> list[Part]:
    """The page's sections."""
    named = list(zip(names_of(runs), runs, strict=True))
    finished = [run.summary for run in runs if run.summary is not None]
    parts = [section("differs", ALIKE, "alike", lambda: {"unequal": differing(finished)})]
    for place, title in enumerate([*TRUSTS.values(), None]):
        own = [(name, run) for name, run in named if _trust(run) == title]
        if own:
            heading, make = title or "No result yet", functools.partial(_trusted, own)
            parts.append(section(f"trust-{place}", heading, "trusted", make))
    return [
        *parts,
        section("claims", CLAIMS, "claims", lambda: {"runs": [_claim(*one) for one in named]}),
        section("settings", SETTINGS, "settings_compared", lambda: _configurations(named)),
    ]


def _trust(run: RunFolder) -> str | None:
    return None if run.summary is None else trust_of(run.summary)


def _trusted(own: Sequence[tuple[str, RunFolder]]) -> Context:
    """Runs of one kind of trust."""
    finished = [(name, run) for name, run in own if run.summary is not None]
    measured = [(name, run) for name, run in finished if mapping(run.summary).get("benchmark")]
    return {
        "waiting": [f"{name}: {method_of(run)}, {run.state}" for name, run in own],
        "runs": _columns("Runs", PUBLIC, finished) if finished else None,
        "gains": _gains(measured),
        "measured": _columns("Figures of each run", MEASURED, measured) if measured else None,
    }


def _columns(title: str, names: Sequence[str], own: Sequence[tuple[str, RunFolder]]) -> Table:
    rows = []
    for name, run in own:
        seed = "-" if run.seed is None else str(run.seed)
        rows.append([name, seed, *(_cell(column, run.summary or {}) for column in names)])
    return Table(title, ["run", "seed", *names], rows, stacked=True)


def _cell(column: str, summary: Mapping[str, Any]) -> str:
    """A column of `privsyn report`; a summary that lacks what it needs has a dash."""
    if column == "epsilon":
        return epsilon(summary)
    if column == "delta":
        return delta(summary) or "-"
    try:
        return str(COLUMNS[column](summary))
    except (KeyError, TypeError, ValueError):
        return "-"


def _gains(own: Sequence[tuple[str, RunFolder]]) -> Figure | None:
    """Paired differences of each run's result and every control."""
    rows, data = [], []
    for name, run in own:
        pairs = mapping(mapping(mapping(run.summary).get("benchmark")).get("accuracy_difference"))
        for pair, ends in pairs.items():
            one, _, other = str(pair).partition("-")
            if one not in RESULTS or not is_triple(ends):
                continue
            value, low, high = ends
            over = f"\u03b5\u00a0{epsilon(run.summary or {})}, over {other.replace('_', ' ')}"
            rows.append([name, epsilon(run.summary or {}), other.replace("_", " "),
                         f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"])  # fmt: skip
            data.append(
                {"name": f"{name}\n{over}", "value": value, "low": low, "high": high, "own": True}
            )
    if not rows:
        return None
    title = "Accuracy gained over each control"
    remark = f"Paired differences, each run with its epsilon. {OVER_USERS}."
    headings = ["run", "epsilon", "over", "difference [95 %]"]
    listing = Table("Accuracy gained", headings, rows, stacked=True)
    draw = lambda: intervals(data, value="accuracy gained", zero=True)  # noqa: E731
    return Figure(title, remark, listing, draw)


def _claim(name: str, run: RunFolder) -> Context:
    """What a run claims and came to."""
    return {
        "title": f"{name}: {method_of(run)}",
        "notices": notices(run),
        "claim": short_claim(run),
        "verdict": verdict_lines(run.summary or {}),
    }


def _configurations(named: Sequence[tuple[str, RunFolder]]) -> Context:
    """The keys in which the runs differ."""
    known = [(name, values) for name, run in named if (values := _flat(run))]
    keys = list(dict.fromkeys(key for _, values in known for key in values))
    different = [
        key
        for key in keys
        if key not in PLACES and len({json.dumps(values.get(key)) for _, values in known}) > 1
    ]
    rows = [
        [key, *(value_text(key, values[key]) if key in values else "-" for _, values in known)]
        for key in different
    ]
    headings = ["key", *(name for name, _ in known)]
    listing = Table("Values by run", headings, rows, words=len(headings), stacked=True, code=True)
    return {"known": len(known), "different": listing, "agree": len(keys) - len(different)}


def _flat(run: RunFolder) -> dict[str, Scalar]:
    """With the defaults of keys that are newer than the run; {} without a configuration."""
    try:
        return {**flat_defaults(), **flatten(run.stored)} if run.stored else {}
    except ConfigError:
        return {}
