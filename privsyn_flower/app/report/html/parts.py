"""What the parts of the page share: a part, and a run's claim in short words."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from markupsafe import Markup

from privsyn_flower.app.report.html.markup import is_number, number, render
from privsyn_flower.app.report.reading import RunFolder
from privsyn_flower.app.report.summaries import NONE, trust_of
from privsyn_flower.common.terminal import without_places
from privsyn_flower.privacy.wording import at_most, delta_at_most

# Before places are cut: what stands for a place depends on its spaces and commas.
_CAUSE = re.compile(r"(\d nodes failed): .*? \([^\n]*?/node\.log\)")
logger = logging.getLogger("privsyn_flower")

NOTHING = "no privacy claim"
UNCLAIMED_REASONS = {  # of a run without a result, by the key of its privacy plan
    "simulation_seeded": "the noise comes from the run's seed",
    "private_selection": "checkpoints are chosen by private text, which epsilon does not cover",
}
OUTSIDE = "Not covered by epsilon: measured on private or held-out text."
MOST_ROWS = 60  # of a table of releases or rounds

Context = Mapping[str, object]  # what a section's macro is called with


@dataclass(frozen=True)
class Part:
    """A section of the page. id: its address in the page."""

    id: str
    title: str
    body: Markup


def section(id_: str, title: str, macro: str, context: Callable[[], Context]) -> Part:
    """A part of the page; one that cannot be made of what a folder says is no reason to show
    nothing of the others."""
    try:
        return Part(id_, title, render(macro, **context()))
    except (
        KeyError, TypeError, ValueError, AttributeError, ArithmeticError, TemplateError,
    ) as error:  # fmt: skip
        logger.warning("report page, %r: %s: %s", title, type(error).__name__, error)
        why = without_places(f"This part cannot be shown: {type(error).__name__}: {error}")
        return Part(id_, title, render("failed", why=why))


def claim(run: RunFolder) -> Mapping[str, Any]:
    """What the run claims: of its summary, else of its privacy plan."""
    if run.summary is not None:
        return run.summary
    return run.invariants


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
    total, told = run.text_count(), (run.summary or {}).get("seeds_in_front")
    front = int(told) if is_number(told) and 0 < told < total else 0
    return front, total - front


def guarantee(run: RunFolder) -> str:
    """The few words that go with a figure."""
    statement = claim(run)
    if why_unclaimed(statement):
        return NOTHING
    at = delta(statement)
    beside = f", \u03b4\u00a0=\u00a0{at}" if at is not None else ""
    return f"\u03b5\u00a0=\u00a0{epsilon(statement)}{beside}"


def axis_name(text: str, most: int = 60) -> str:
    """A name for an axis: one line, not longer than it can be read."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}\u2026"


def spread(rows: Sequence[Any], most: int = MOST_ROWS) -> list[Any]:
    """At most so many rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[n * (len(rows) - 1) // (most - 1)] for n in range(most)]


def few(listed: int, of: int) -> str:
    """What to say beside a table that does not have all rows."""
    return f" ({number(listed)} of {number(of)}, evenly spread)" if listed < of else ""
