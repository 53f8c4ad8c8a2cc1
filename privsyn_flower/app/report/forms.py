"""A summary -> its guarantee by topic, for every standard form."""

from __future__ import annotations

from privsyn_flower.app.report.asked import asked
from privsyn_flower.app.report.claims import claim_of
from privsyn_flower.app.report.guarantee import Guarantee
from privsyn_flower.app.report.summaries import Summary
from privsyn_flower.app.report.unasked import unasked


def guarantee_of(summary: Summary) -> Guarantee:
    """Of a finished run, or one that has begun. Raises ReportError for a summary that notes no
    claim."""
    claim = claim_of(summary)
    return unasked(summary) if claim is None else asked(claim, summary)
