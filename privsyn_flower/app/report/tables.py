"""`privsyn report`: finished runs side by side, from their summaries.

Runs are compared only with runs of the same kind of trust: one table for noise that the nodes add,
so that nobody has a sum without it, and one for noise of a trusted aggregator. All figures are the
runs' own (summary.json).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from privsyn_flower.app.report.places import dataset_name
from privsyn_flower.app.report.summaries import (
    RESULTS,
    TRUSTS,
    Summary,
    epsilon_of,
    interval,
    measured_cells,
    text_lines,
    trust_of,
    unusable_lines,
    verdict_lines,
)
from privsyn_flower.common.terminal import one_line

SHOWN = 200  # characters of a text
START = "random_public"
# What has to agree for figures to be comparable.
ALIKE = ("dataset", "users")
ALIKE_BENCHMARK = ("held_out", "held_out_users", "held_out_tokens", "task")


def differing(summaries: Sequence[Summary]) -> list[str]:
    """What differs between the runs although their figures are set side by side: one line each."""
    lines = []
    for place, keys in (("", ALIKE), ("benchmark", ALIKE_BENCHMARK)):
        for key in keys:
            values = [(s.get(place, {}) if place else s).get(key) for s in summaries]
            found = {json.dumps(value, sort_keys=True) for value in values}
            if len(found) > 1:
                lines.append(f"{key} differs: {_distinct(key, found)}")
    due = sum("unfinished" in summary for summary in summaries)
    return [*lines, f"the benchmark of {due} is not finished"] if due else lines


def _distinct(key: str, values: set[str]) -> str:
    """Values (JSON) that differ; of a data set in files, their names."""
    if key != "dataset":
        return ", ".join(sorted(values))
    names = {json.dumps(dataset_name(json.loads(one)), ensure_ascii=False) for one in values}
    folders = "" if len(names) == len(values) else f" in {len(values)} places"
    return f"{', '.join(sorted(names))}{folders}"


def report(summaries: Sequence[Summary]) -> str:
    """Markdown: what differs between the runs, then a table for each kind of trust."""
    blocks = []
    if unequal := differing(summaries):
        blocks.append("These runs are not comparable: " + "; ".join(unequal) + ".")
    for title in TRUSTS.values():
        own = [summary for summary in summaries if trust_of(summary) == title]
        if own:
            shown = [name for name in COLUMNS if _known(name, own)]
            left = [":---" if name in ("run", "method") else "---:" for name in shown]
            rows = [[column(name, summary) for name in shown] for summary in own]
            lines = table([shown, left, *rows])
            items = [line for summary in own for line in _verdict_items(summary)]
            blocks.append("\n".join([f"**{title}**", "", *lines, *([""] if items else []), *items]))
    blocks += [curve_table(s, epsilon_of(s)) for s in summaries if "evaluation_curve" in s]
    blocks += [measured_table(s, epsilon_of(s)) for s in summaries if "measured" in s]
    blocks += [filter_table(s, epsilon_of(s)) for s in summaries if "proximity" in s]
    blocks += [_topics(summary) for summary in summaries if "topics" in summary]
    return "\n\n".join(blocks)


def column(name: str, summary: Summary) -> str:
    """What COLUMNS says of a summary; a dash for one that lacks what it needs."""
    try:
        return str(COLUMNS[name](summary))
    except (KeyError, TypeError, ValueError):
        return "-"


def _known(column: str, summaries: Sequence[Summary]) -> bool:
    """Whether a column has anything to say: only runs read from folders have a name and a seed."""
    return column not in ("run", "seed") or any("run" in summary for summary in summaries)


def _verdict_items(summary: Summary) -> list[str]:
    """The run's verdict as list items, the benchmark's part marked."""
    run = f"{plain(str(summary['run']))}, " if "run" in summary else ""
    who = f"{run}{summary['method']}, epsilon {epsilon_of(summary)}"
    lines = [*unusable_lines(summary), *verdict_lines(summary)]
    lines += [f"text: {one}" for one in text_lines(summary)]
    return [f"- {who}: {line}" for line in lines]


def plain(name: str) -> str:
    """A folder's name in a table of Markdown, on one line."""
    return one_line(name, SHOWN).replace("|", "\\|")


def _topics(summary: Summary) -> str:
    """The largest topics of a run that writes by topic, with some of their texts; all public."""
    found = summary["topics"]
    lines = [
        f"**Text by topic: {summary['method']}, epsilon {epsilon_of(summary)}**",
        "",
        f"The largest of {found['used']} topics with a noisy share, of {found['count']}:",
        "",
    ]
    for topic in found["largest"]:
        lines.append(f"- {topic['share']:.1%}: {', '.join(topic['keywords'])}")
        lines += [f"  - {one_line(text, SHOWN)}" for text in topic["texts"]]
    return "\n".join(lines)


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


def _figure(summary: Summary, measure: str, form: str) -> str:
    found = _result(summary, measure)
    return format(found[1], form) if found else "-"


def _gain(summary: Summary) -> str:
    """Accuracy gained over training on random public text, with its interval over users."""
    found = _result(summary, "accuracy")
    differences = summary.get("benchmark", {}).get("accuracy_difference", {})
    if found is None or f"{found[0]}-{START}" not in differences:
        return "-"
    return interval(differences[f"{found[0]}-{START}"], sign=True)


def _perplexity(summary: Summary) -> str:
    """e to the loss: what the papers have in its place (CTCL, Table 5)."""
    found = _result(summary, "loss")
    return f"{math.exp(min(found[1], 700.0)):.1f}" if found else "-"


def _megabytes(summary: Summary, key: str) -> str:
    return f"{float(summary[key]) / 1e6:.3f} MB" if key in summary else "-"


def _seconds(summary: Summary, key: str, digits: int) -> str:
    value = summary.get("benchmark", {}).get("costs", {}).get(key)
    return "-" if value is None else f"{float(value):.{digits}f} s"


def _participations(summary: Summary) -> str:
    return f"{summary['rounds']} / {summary.get('participations_per_user', summary['rounds'])}"


COLUMNS: dict[str, Any] = {
    "run": lambda s: plain(str(s.get("run", "-"))),
    "seed": lambda s: "-" if s.get("seed") is None else str(s["seed"]),
    "method": lambda s: str(s["method"]),
    "accuracy": lambda s: _figure(s, "accuracy", ".4f"),
    "gained over public text": _gain,
    "loss": lambda s: _figure(s, "loss", ".3f"),
    "perplexity": _perplexity,
    "signal / noise": _signal,
    "epsilon": epsilon_of,
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


NOISE = "Intervals cover the noise of the releases, not the choice of users."
TOGETHER = "Those of all {} models hold together, at 95 % (Bonferroni)."


def interval_note(estimates: Mapping[str, Any]) -> str:
    """What the intervals of models of one release are about."""
    models = estimates.get("together", 0)  # a run of an earlier version has each at 95 %
    return f"{NOISE} {TOGETHER.format(models)}" if models > 1 else NOISE


def curve_table(summary: Mapping[str, Any], epsilon: str) -> str:
    """The paid evaluations of a training, by rounds."""
    rows = [["round", "accuracy", "gained over the start", "loss"], ["---:"] * 4]
    told = []
    for point in summary["evaluation_curve"]:
        cells = ["failed", "-", "-"]
        if "failed" in point:
            told.append(f"- round {point['round']}: {_line(point['failed'])}")
        else:
            cells = measured_cells(point, point.get("accuracy_gained"))
        rows.append([str(point["round"]), *cells])
    title = f"**Accuracy on users' text by rounds: {summary['method']}, epsilon {epsilon}**"
    return "\n".join([title, "", *table(rows), "", NOISE, *told])


def measured_table(summary: Mapping[str, Any], epsilon: str) -> str:
    """Given models in one release, each beside the first."""
    estimates = summary["measured"]
    title = f"**Models on users' text: {summary['method']}, epsilon {epsilon}**"
    if "failed" in estimates:
        return "\n".join([title, "", _line(estimates["failed"])])
    return "\n".join([title, "", *table(measured_rows(estimates)), "", interval_note(estimates)])


def measured_rows(estimates: Mapping[str, Any]) -> list[list[str]]:
    """Heading, rule, and a row for each model."""
    rows = [["model", "accuracy", f"gained over {estimates['against']}", "loss"]]
    rows.append(["---", *["---:"] * 3])
    for name, own in estimates["models"].items():
        gained = estimates["gained"].get(name, {}).get("accuracy_gained")
        rows.append([name, *measured_cells(own, gained)])
    return rows


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in rows]


def _line(text: str) -> str:
    return " ".join(text.split())


ALL, FILTERED = "pretrained", "scratch_filtered"  # of METHODS


def filter_table(summary: Mapping[str, Any], epsilon: str) -> str:
    """The texts that are left, and the benchmark's new LSTMs of them where there are any."""
    found = summary["proximity"]
    told = f"{found['kept']:,} of {found['of']:,} texts are kept"
    if share := found.get("minority_share"):
        told += f"; the minority's share was {share['before']:.1%} and is {share['after']:.1%}"
    blocks = [
        f"**Public text that the trained model keeps: {summary['method']}, epsilon {epsilon}**",
        f"{told}. It carries the epsilon of the training.",
    ]
    benchmark = summary.get("benchmark", {})
    if "proximity" in benchmark:
        blocks += [_models(benchmark), _differences(benchmark)]
    return "\n\n".join(blocks)


def _models(benchmark: Mapping[str, Any]) -> str:
    own = benchmark["proximity"]
    shares = own.get("minority_share", {})
    rows = [["LSTM; not covered by epsilon", "texts", "minority", "accuracy", "loss"]]
    rows += [["---", *["---:"] * 4]]
    rows += [
        [
            "of all public text" if name == ALL else str(benchmark["methods"][name]),
            f"{own['texts'][name]:,}",
            f"{shares[name]:.1%}" if name in shares else "-",
            f"{benchmark['accuracy'][name]:.4f}",
            f"{benchmark['loss'][name]:.3f}",
        ]
        for name in benchmark["accuracy"]
        if name in own["texts"]
    ]
    return "\n".join(table(rows))


def _differences(benchmark: Mapping[str, Any]) -> str:
    """How much better the LSTM of the kept text is than each of the others."""
    rows = [["(s) minus", "accuracy", "loss"], ["---", "---:", "---:"]]
    for pair, gained in benchmark["accuracy_difference"].items():
        one, _, other = pair.partition("-")
        if one == FILTERED:
            name = "all public text" if other == ALL else str(benchmark["methods"][other])
            saved = benchmark["loss_difference"][pair]
            rows.append([name, *(interval(found, sign=True) for found in (gained, saved))])
    return "\n".join(table(rows))
