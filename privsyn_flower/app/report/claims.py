"""A run's claim as a plain record in its summary, and read from there."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from privsyn_flower.app.report.summaries import ReportError, Summary
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.baseline import Baseline

ADDS = {"nodes": "the nodes'", "aggregator": "the aggregator's"}


def claimed(statement: PrivacyStatement | Baseline) -> dict[str, Any]:
    """The part of a summary that is the claim; known before anything is asked."""
    rho, asks = statement.rho_zcdp, isinstance(statement, PrivacyStatement)
    return {
        "unit": statement.unit,
        "adjacency": statement.adjacency,
        "threat_model": statement.threat_model,
        # JSON has no infinity: null is that.
        "epsilon": statement.epsilon if math.isfinite(statement.epsilon) else None,
        "delta": statement.delta,
        "accountant": statement.accountant,
        "rho_zcdp": rho,
        "mu_gdp": None if rho is None else math.sqrt(2 * rho),
        "noise_multiplier": statement.noise_multiplier,
        "claim": asdict(statement) if asks else None,
        "privacy": statement.sentence(),
        "privacy_short": statement.short(),
    }


def claim_of(summary: Summary) -> PrivacyStatement | None:
    """The statement that a summary holds; None of a run that asked nobody.

    Raises ReportError for one that is damaged, or of a version that noted none.
    """
    if "claim" not in summary:
        raise ReportError(
            f"the summary of method = {summary.get('method')!r} has no `claim`: an earlier version "
            "wrote it; its statement is in privacy.md of the run folder"
        )
    if summary["claim"] is None:
        return None
    fields = dict(summary["claim"])
    fields["changed"] = tuple(fields.get("changed", ()))
    fields["others"] = tuple(tuple(other) for other in fields.get("others", ()))
    try:
        return PrivacyStatement(**fields)
    except (TypeError, ValueError) as error:
        raise ReportError(f"`claim` of the summary is damaged: {error}") from None


def sources(claim: PrivacyStatement) -> set[str]:
    """Who adds noise to some question."""
    return {claim.noise_source, *(source for _, _, _, source, _ in claim.others)}
