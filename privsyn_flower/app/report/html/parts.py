"""What the parts of the page share: a part, and a run's claim in short words."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from privsyn_flower.app.report.html.markup import Html, element, is_number, number, shown
from privsyn_flower.app.report.reading import RunFolder
from privsyn_flower.app.report.summaries import NONE, trust_of
from privsyn_flower.privacy.wording import at_most, delta_at_most
from privsyn_flower.terminal import without_places

# Before places are cut: what stands for a place depends on its spaces and commas.
_CAUSE = re.compile(r"(\d nodes failed): .*? \([^\n]*?/node\.log\)")
logger = logging.getLogger("privsyn_flower")

NOTHING = "no privacy claim"
PROMISED = {  # of a run without a result, by what it promised
    "simulation_seeded": "the noise comes from the run's seed",
    "private_selection": "checkpoints are chosen by private text, which epsilon does not cover",
}
OUTSIDE = "Not covered by epsilon: measured on private or held-out text."


@dataclass(frozen=True)
class Part:
    """A section of the page. id: its address in the page."""

    id: str
    title: str
    body: Html


def part(found: Part) -> Html:
    """A section with its heading."""
    heading = element("h2", found.title, id=f"{found.id}-title")
    return element("section", heading, found.body, id=found.id, aria_labelledby=f"{found.id}-title")


def guarded(id_: str, title: str, make: Callable[[], Part]) -> Part:
    """A part of the page; one that cannot be made of what a folder says is no reason to show
    nothing of the others."""
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        logger.warning("report page, %r: %s: %s", title, type(error).__name__, error)
        told = without_places(f"This part cannot be shown: {type(error).__name__}: {error}")
        return Part(id_, title, paragraph(told, "notice bad"))


def mapping(value: object) -> Mapping[str, Any]:
    """A JSON object, {} in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


def paragraph(text: object, class_: str | None = None) -> Html:
    """<p>."""
    return element("p", text, class_=class_)


def small(text: object) -> Html:
    """A remark on what stands above it."""
    return element("p", shown(text), class_="remark")


def claim(run: RunFolder) -> Mapping[str, Any]:
    """What the run claims: of its summary, else of what it promised before it asked anybody."""
    if run.summary is not None:
        return run.summary
    return run.promised


def why_failed(run: RunFolder) -> str:
    """What a run failed of, as far as it may be passed on: what nodes of a simulation failed of may
    come of a user's text."""
    return without_places(_CAUSE.sub(r"\1 (see node.log)", run.error))


def unclaimed(found: Mapping[str, Any]) -> str:
    """Why a run claims no privacy; "" of one that does. found: its `claim`."""
    if "threat_model" in found:
        return str(found["threat_model"]) if trust_of(found) == NONE else ""
    return next((why for key, why in PROMISED.items() if found.get(key) is True), "")


def epsilon(found: Mapping[str, Any]) -> str:
    """Rounded up, in words: null in JSON is no bound at all."""
    if unclaimed(found):
        return "not claimed"
    if "epsilon" not in found:
        return "not said"
    value = found["epsilon"]
    return "infinity" if value is None else rounded_up(value)


def rounded_up(value: object) -> str:
    """An epsilon, so that it never understates."""
    return at_most(float(value)) if is_number(value) else number(value)


def delta(found: Mapping[str, Any]) -> str | None:
    """Rounded up; None where there is none."""
    if unclaimed(found) or "delta" not in found:
        return None
    value = found["delta"]
    return delta_at_most(value) if is_number(value) else number(value)


def guarantee(run: RunFolder) -> str:
    """The few words that go with a figure."""
    found = claim(run)
    if unclaimed(found):
        return NOTHING
    told = delta(found)
    beside = f", \u03b4\u00a0=\u00a0{told}" if told is not None else ""
    return f"\u03b5\u00a0=\u00a0{epsilon(found)}{beside}"


def stripped(text: str, most: int = 60) -> str:
    """A name for an axis: one line, not longer than it can be read."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}\u2026"
