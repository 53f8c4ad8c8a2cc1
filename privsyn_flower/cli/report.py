"""`privsyn report`: finished runs side by side, from their summaries.

Runs are compared only with runs of the same kind of trust: one table for noise that the nodes add,
so that nobody has a sum without it, and one for noise of a trusted aggregator. All figures are the
runs' own (summary.json).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.cli.display import verdict_lines
from privsyn_flower.cli.evaluations import curve_table, measured_table
from privsyn_flower.cli.filtered import filter_table
from privsyn_flower.terminal import one_line

Summary = Mapping[str, Any]

SHOWN = 200  # characters of a text
RESULTS = ("synthetic", "trained")  # the run's own result among the benchmark's names
START = "random_public"
DISTRIBUTED = "Noise of the nodes under secure aggregation: nobody has a sum without noise"
TRUSTED = "A trusted aggregator: it has sums without the guaranteed noise, or single answers"
UNASKED = "Public text alone: nobody was asked"
LOCAL = "Local privacy: the texts that leave the devices are noisy themselves"
NONE = "No privacy is claimed"
# How a threat model begins -> its table, in the order of the tables.
TRUSTS = {
    "honest-but-curious": DISTRIBUTED,
    "trusted aggregator": TRUSTED,
    "local": LOCAL,
    "nobody was asked": UNASKED,
    "none": NONE,
}
# What has to agree for figures to be comparable.
ALIKE = ("dataset", "users")
ALIKE_BENCHMARK = ("held_out", "held_out_users", "held_out_tokens", "task")


class ReportError(ValueError):
    """A folder is no finished run; the text says which and why."""


def read_summary(folder: Path) -> Summary:
    """The summary of a finished run. Raises ReportError, which says what to do about a damaged
    one."""
    path = folder / "summary.json" if folder.is_dir() else folder
    again = ""
    if path.name == "summary.json":
        again = f"; delete it, and `privsyn run --resume {path.parent}` writes it again"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path} is not the summary of a finished run: {error}") from None
    except ValueError as error:
        raise ReportError(f"{path} is damaged ({error}){again}") from None
    if not isinstance(found, dict) or not {"method", "epsilon", "threat_model"} <= set(found):
        raise ReportError(
            f"{path} is not the summary of a run (method, epsilon, threat_model){again}"
        )
    return found


def trust_of(summary: Summary) -> str:
    """The table that a run belongs to, by the threat model that it states."""
    model = str(summary["threat_model"])
    return next((title for begin, title in TRUSTS.items() if model.startswith(begin)), NONE)


def differing(summaries: Sequence[Summary]) -> list[str]:
    """What differs between the runs although their figures are set side by side: one line each."""
    lines = []
    for place, keys in (("", ALIKE), ("benchmark", ALIKE_BENCHMARK)):
        for key in keys:
            found = {
                json.dumps((s.get(place, {}) if place else s).get(key), sort_keys=True)
                for s in summaries
            }
            if len(found) > 1:
                lines.append(f"{key} differs: {', '.join(sorted(found))}")
    due = sum("unfinished" in summary for summary in summaries)
    return [*lines, f"the benchmark of {due} is not finished"] if due else lines


def report(summaries: Sequence[Summary]) -> str:
    """Markdown: what differs between the runs, then a table for each kind of trust."""
    blocks = []
    if unequal := differing(summaries):
        blocks.append("These runs are not comparable: " + "; ".join(unequal) + ".")
    for title in TRUSTS.values():
        own = [summary for summary in summaries if trust_of(summary) == title]
        if own:
            rows = [list(COLUMNS), ["---"] + ["---:"] * (len(COLUMNS) - 1)]
            rows += [[cell(summary) for cell in COLUMNS.values()] for summary in own]
            lines = [f"| {' | '.join(row)} |" for row in rows]
            told = [line for summary in own for line in _told(summary)]
            blocks.append("\n".join([f"**{title}**", "", *lines, *([""] if told else []), *told]))
    blocks += [curve_table(s, _epsilon(s)) for s in summaries if "evaluation_curve" in s]
    blocks += [measured_table(s, _epsilon(s)) for s in summaries if "measured" in s]
    blocks += [filter_table(s, _epsilon(s)) for s in summaries if "proximity" in s]
    blocks += [_topics(summary) for summary in summaries if "topics" in summary]
    return "\n\n".join(blocks)


def _told(summary: Summary) -> list[str]:
    """The run's verdict as list items, the benchmark's part marked."""
    lines = verdict_lines(summary)
    return [f"- {summary['method']}, epsilon {_epsilon(summary)}: {line}" for line in lines]


def _topics(summary: Summary) -> str:
    """The largest topics of a run that writes by topic, with some of their texts; all public."""
    found = summary["topics"]
    lines = [
        f"**Text by topic: {summary['method']}, epsilon {_epsilon(summary)}**",
        "",
        f"The largest of {found['used']} topics with a noisy share, of {found['count']}:",
        "",
    ]
    for topic in found["largest"]:
        lines.append(f"- {topic['share']:.1%}: {', '.join(topic['keywords'])}")
        lines += [f"  - {one_line(text, SHOWN)}" for text in topic["texts"]]
    return "\n".join(lines)


def _epsilon(summary: Summary) -> str:
    """In words; JSON has no infinity, so null is that."""
    value = summary["epsilon"]
    return f"{math.inf if value is None else value:.4g}"


def _signal(summary: Summary) -> str:
    """Norm of the signal over that of the noise, from the mean excess of the rounds."""
    found = summary.get("verdict", {})
    if "excess" not in found:
        return "-"
    ratio = max(0.0, float(found["excess"])) ** 0.5
    return f"{ratio:.2g} ({found['signal']})"


def _result(summary: Summary, measure: str) -> tuple[str, float] | None:
    values = summary.get("benchmark", {}).get(measure, {})
    return next(((name, float(values[name])) for name in RESULTS if name in values), None)


def _accuracy(summary: Summary) -> str:
    found = _result(summary, "accuracy")
    return f"{found[1]:.4f}" if found else "-"


def _gain(summary: Summary) -> str:
    """Accuracy gained over training on random public text, with its interval over users."""
    found = _result(summary, "accuracy")
    differences = summary.get("benchmark", {}).get("accuracy_difference", {})
    if found is None or f"{found[0]}-{START}" not in differences:
        return "-"
    value, low, high = differences[f"{found[0]}-{START}"]
    return f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"


def _loss(summary: Summary) -> str:
    found = _result(summary, "loss")
    return f"{found[1]:.3f}" if found else "-"


def _cost(summary: Summary, key: str) -> float | None:
    value = summary.get("benchmark", {}).get("costs", {}).get(key)
    return None if value is None else float(value)


def _megabytes(summary: Summary, key: str) -> str:
    return f"{float(summary[key]) / 1e6:.3f} MB" if key in summary else "-"


def _seconds(summary: Summary, key: str, digits: int) -> str:
    value = _cost(summary, key)
    return "-" if value is None else f"{value:.{digits}f} s"


def _participations(summary: Summary) -> str:
    return f"{summary['rounds']} / {summary.get('participations_per_user', summary['rounds'])}"


COLUMNS: dict[str, Any] = {
    "method": lambda s: str(s["method"]),
    "accuracy": _accuracy,
    "gained over public text": _gain,
    "loss": _loss,
    "signal / noise": _signal,
    "epsilon": _epsilon,
    "delta": lambda s: f"{s['delta']:g}",
    "accountant": lambda s: str(s["accountant"]),
    "adjacency": lambda s: f"{s['unit']}, {s['adjacency']}",
    "trust": lambda s: str(s["threat_model"]).partition(":")[0],
    "rounds / of one user": _participations,
    "down, user and round": lambda s: _megabytes(s, "bytes_down_per_user_round"),
    "up, user and round": lambda s: _megabytes(s, "bytes_up_per_user_round"),
    "client CPU, user and round": lambda s: _seconds(s, "client_cpu_seconds_per_user_round", 3),
    "client CPU, user and run": lambda s: _seconds(s, "client_cpu_seconds_per_user", 3),
    "server, run": lambda s: _seconds(s, "server_wall_seconds", 0),
}
