"""A run's claim in short words, and the top of its page: which run, what must be known before
reading on, the key figures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from privsyn_flower.app.report.html.markup import Context
from privsyn_flower.app.report.places import dataset_name
from privsyn_flower.app.report.reading import RunFolder
from privsyn_flower.app.report.summaries import (
    NONE,
    RESULTS,
    interval,
    is_number,
    is_triple,
    mapping,
    number,
    quality_notes,
    size,
    trust_of,
    unusable_lines,
)
from privsyn_flower.common.terminal import without_places
from privsyn_flower.privacy.wording import at_most, delta_at_most

# Before places are cut: what stands for a place depends on its spaces and commas.
_CAUSE = re.compile(r"(\d nodes failed): .*? \([^\n]*?/node\.log\)")
NOTHING = "no privacy claim"
UNCLAIMED_REASONS = {  # of a run without a result, by the key of its privacy plan
    "simulation_seeded": "the noise comes from the run's seed",
    "private_selection": "checkpoints are chosen by private text, which epsilon does not cover",
}
NOBODY = (
    "No process works on this run: it is about to begin, or it stopped before its result, and "
    "privsyn run --resume goes on."
)
START = {"synthetic": "random_public", "trained": "pretrained"}  # what a result is compared with


def why_failed(run: RunFolder) -> str:
    """What a run failed of, as far as it may be passed on: what nodes of a simulation failed of may
    come of a user's text."""
    return without_places(_CAUSE.sub(r"\1 (see node.log)", run.error))


def why_unclaimed(statement: Mapping[str, Any]) -> str:
    """Why a run claims no privacy; "" of one that does. statement: its `claim`."""
    if "threat_model" in statement:
        return str(statement["threat_model"]) if trust_of(statement) == NONE else ""
    return next((why for key, why in UNCLAIMED_REASONS.items() if statement.get(key) is True), "")


def epsilon(statement: Mapping[str, Any]) -> str:
    """Rounded up, in words: null in JSON is no bound at all."""
    if why_unclaimed(statement):
        return "not claimed"
    if "epsilon" not in statement:
        return "not said"
    value = statement["epsilon"]
    return "infinity" if value is None else rounded_up(value)


def rounded_up(value: object) -> str:
    """An epsilon, so that it never understates."""
    return at_most(float(value)) if is_number(value) else number(value)


def delta(statement: Mapping[str, Any]) -> str | None:
    """Rounded up; None where there is none."""
    if why_unclaimed(statement) or "delta" not in statement:
        return None
    value = statement["delta"]
    return delta_at_most(value) if is_number(value) else number(value)


def seeds_and_texts(run: RunFolder) -> tuple[int, int]:
    """Seeds before the written texts of synthetic.jsonl, and how many were written; 0 and all texts
    where seeds are all there is."""
    total, told = run.text_count(), run.summary.get("seeds_in_front")
    front = int(told) if is_number(told) and 0 < told < total else 0
    return front, total - front


def guarantee(run: RunFolder) -> str:
    """The few words that go with a figure."""
    statement = run.claimed
    if why_unclaimed(statement):
        return NOTHING
    at = delta(statement)
    beside = f", \u03b4\u00a0=\u00a0{at}" if at is not None else ""
    return f"\u03b5\u00a0=\u00a0{epsilon(statement)}{beside}"


def short_claim(run: RunFolder) -> str:
    """What epsilon means, and against whom; of a run without a result, as planned."""
    if told := run.summary.get("privacy_short") or run.summary.get("privacy"):
        return str(told)
    paragraphs = [one for one in run.statement.split("\n\n") if not one.startswith("#")]
    return paragraphs[0].strip() if paragraphs else "No claim is written in this folder yet."


def overview(run: RunFolder) -> Context:
    """The name, warnings, the short claim and cards."""
    return {
        "name": run.name,
        "line": _line(run),
        "found": [*notices(run), *benchmark_notice([run])],
        "claim": short_claim(run),
        "cards": _cards(run),
    }


def method_of(run: RunFolder) -> str:
    """The method's name; of somebody's ServerApp nobody says it."""
    if run.summary:
        return str(run.summary["method"])
    return run.config.method if run.config is not None else "a strategy of another app"


def _line(run: RunFolder) -> str:
    summary = run.summary
    parts = [method_of(run)]
    if dataset := summary.get("dataset"):
        parts.append(dataset_name(dataset))
    elif run.config is not None:
        parts.append(run.config.data.source)
    users = summary.get("users", run.invariants.get("users"))
    parts += [f"{number(users)} users"] if users is not None else []
    parts += [f"seed {run.seed}"] if run.seed is not None else []
    parts += [f"version {summary['version']}"] if "version" in summary else []
    return ", ".join(parts)


def notices(run: RunFolder) -> list[tuple[str, str]]:
    """(class, text) of what changes how everything below is to be read."""
    summary, found = run.summary, run.claimed
    lines: list[tuple[str, str]] = []
    if run.state == "running":
        lines.append(("state", "This run is going on: what follows is what is there so far."))
    elif run.error:
        lines.append(("bad", f"This run failed: {why_failed(run).splitlines()[0][:300]}"))
    elif not run.summary and run.config is not None:
        lines.append(("state", NOBODY))
    lines += [("bad", line) for line in unusable_lines(summary)]
    lines += [("warn", f"The text: {line}") for line in quality_notes(summary)]
    if early := summary.get("ended_early"):
        of = f"{number(summary.get('rounds'))} of {number(summary.get('rounds_planned'))} rounds"
        lines.append(("warn", f"Ended early, after {of}: {without_places(str(early))}"))
    if why := why_unclaimed(found):
        lines.append(("bad", f"No privacy is claimed: {why}"))
    threat = str(found.get("threat_model", ""))
    if found.get("split") == "private" or "split was chosen by private text" in threat:
        why = (
            "Not for release: which users and texts there are was chosen by reading private text, "
            "which epsilon does not cover. This run is for comparison."
        )
        lines.append(("warn", why))
    return lines


def benchmark_notice(runs: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """Said once on a page that shows what no page of a deployed run has."""
    text = (
        "This page has figures measured on private or held-out text. They are marked; epsilon "
        "does not cover them."
    )
    return [("warn", text)] if any(run.benchmark for run in runs) else []


def _cards(run: RunFolder) -> list[tuple[str, str, str]]:
    """(name, figure, what it is)."""
    summary, found = run.summary, run.claimed
    beside = (
        "no privacy is claimed"
        if why_unclaimed(found)
        else f"at delta {delta(found) or '-'}, for each user"
    )
    cards = [("epsilon", epsilon(found), beside)]
    measured = mapping(mapping(summary.get("measured")).get("models"))
    if measured:
        cards.append(("models", number(len(measured)), "measured on users' text"))
    elif run.text_count() or "parameters" not in summary:
        front, texts = seeds_and_texts(run)
        where = f"after {number(front)} seeds" if front else "in synthetic.jsonl"
        cards.append(("synthetic texts", number(texts), where))
    else:
        cards.append(("parameters", number(summary["parameters"]), "trained privately"))
    done, planned = summary.get("rounds", len(run.metrics)), summary.get("rounds_planned")
    if done or planned:
        cards.append(("rounds", number(done), f"of {number(planned)}" if planned else "released"))
    if (up := summary.get("bytes_up_per_user_round")) is not None:
        cards.append(("sent by a user", size(up), "in a round"))
    signal = mapping(summary.get("verdict"))
    if is_number(signal.get("excess")):
        ratio = math.sqrt(max(0.0, float(signal["excess"])))
        cards.append(("signal / noise", number(ratio, ".2g"), str(signal.get("signal", ""))))
    return cards + _accuracy(run)


def _accuracy(run: RunFolder) -> list[tuple[str, str, str]]:
    """The benchmark's figure with the paired difference to its control, not covered."""
    found = run.benchmark
    values = mapping(found.get("accuracy"))
    own = next((name for name in RESULTS if is_number(values.get(name))), None)
    if own is None:
        return []
    differences = mapping(found.get("accuracy_difference"))
    names = [START[own], *(str(pair).partition("-")[2] for pair in differences)]
    other = next((n for n in names if is_triple(differences.get(f"{own}-{n}"))), None)
    beside = "no control"
    if other is not None:
        gained = interval(differences[f"{own}-{other}"], sign=True)
        beside = f"{gained} against {other.replace('_', ' ')}; {guarantee(run)}"
        beside += "" if why_unclaimed(run.claimed) else ", not covered by it"
    return [("accuracy, benchmark", number(values[own], ".4f"), beside)]
