"""`privsyn report --checklist`: a run's guarantee, item by item, from its summary.

The items are those of Ponomareva et al. 2023 ("How to DP-fy ML", arXiv 2303.00654, section 5.3), in
the numbers of "Prompt public LLMs to synthesize data for private on-device applications", appendix
C.3. What they say is of the run's own claim (`claim` in summary.json); its statement says more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.report import claims
from privsyn_flower.report.summaries import Summary


def checklists(summaries: Sequence[Summary]) -> str:
    """Markdown: one checklist for each run. Raises ReportError for a summary without a claim."""
    return "\n\n".join(checklist(summary) for summary in summaries)


def checklist(summary: Summary) -> str:
    """One run's, as Markdown. Raises ReportError as `checklists`."""
    title = f"**Privacy checklist: method {summary['method']}, {summary.get('dataset', '')}**"
    claim = claims.claim_of(summary)
    if claim is None:
        return f"{title}\n\nNo item applies, because no user was asked. {summary['privacy']}"
    lines = [f"- **{item}** {' '.join(told)}" for item, told in _items(claim, summary)]
    return "\n".join([title, "", *lines])


def _items(claim: PrivacyStatement, summary: Summary) -> Iterator[tuple[str, list[str]]]:
    """The items in their order, each with its sentences."""
    yield "1 DP setting.", claims.setting(claim)
    yield "2a Data accesses covered.", claims.covered(claim, summary)
    yield "2b Final mechanism output.", claims.output(claim)
    yield "2c Unit of privacy.", claims.unit(claim)
    yield "2d Adjacency.", claims.adjacency(claim)
    yield "3a Type of accounting.", claims.accounting(claim)
    yield "3b Accounting assumptions.", claims.assumptions(claim)
    yield "3c Formal statement.", claims.formal(claim)
    yield "3d Transparency and verifiability.", claims.verifiable(claim, summary)
