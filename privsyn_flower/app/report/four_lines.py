"""A run's claim in four lines: what, against whom, assuming what, and which ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from privsyn_flower.app.report.claims import claim_of, sources
from privsyn_flower.app.report.summaries import Summary
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.sentence import FILE
from privsyn_flower.privacy.wording import at_most, percent

NODE_KEYS = {"first-use": "keys trusted on first use", "roster": "keys checked against a roster"}


class ClaimLine(NamedTuple):
    """One of them: what it is about, and what is said."""

    about: str
    said: str


def claim_lines(summary: Summary) -> Sequence[ClaimLine]:
    """The four lines of a run that asked its users; of one that asked nobody, and of those of
    earlier versions, the one sentence that they have. Raises ReportError for a damaged claim."""
    claim = claim_of(summary) if "claim" in summary else None
    if claim is None:
        return [ClaimLine("privacy", str(summary.get("privacy_short", summary["privacy"])))]
    return [
        ClaimLine("what", _what(claim)),
        ClaimLine("against", _against(claim)),
        ClaimLine("assuming", _assuming(claim)),
        ClaimLine("ledger", _ledger(claim, summary)),
    ]


def _what(claim: PrivacyStatement) -> str:
    chosen = claim.chosen_by_private_text()
    return f"{claim.what()} NOT {chosen}, chosen by private text." if chosen else claim.what()


def _against(claim: PrivacyStatement) -> str:
    said = claim.against().removeprefix("Holds against ")
    return f"{said[:1].upper()}{said[1:]}"


def _assuming(claim: PrivacyStatement) -> str:
    adding = sources(claim)
    parts = []
    if "nodes" in adding:
        parts.append(f"{percent(claim.min_surviving_weight)} of the weight answers honestly")
    if claim.aggregation == "secure":
        parts += ["the server follows the protocol", NODE_KEYS[claim.keys]]
    if "aggregator" in adding:
        parts.append("the aggregator adds its noise first and keeps the noise's key to itself")
    if min([claim.sampling_rate, *(rate for *_, rate in claim.others)]) < 1.0:
        parts.append("users' coins stay on their nodes")
    said = "; ".join(parts)
    simulated = f" Simulated: {claim.simulators} saw everything." if claim.simulated else ""
    return f"{said[:1].upper()}{said[1:]}.{simulated}"


def _ledger(claim: PrivacyStatement, summary: Summary) -> str:
    spent, total = summary.get("epsilon_ledger"), summary.get("epsilon_ledger_total")
    charged = ""
    if spent is not None:
        charged = f", {at_most(spent)}{'' if total is None else f' of {at_most(total)}'} charged"
    if claim.ledger_scope == "run":
        return f"This run's own{charged}; other runs on these users add theirs. More: {FILE}."
    return f"Of all runs that declare this population{charged}; other ledgers add. More: {FILE}."
