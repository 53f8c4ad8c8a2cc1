"""`privsyn report --checklist`: a run's guarantee, item by item, from its summary.

The items are those of Ponomareva et al. 2023 ("How to DP-fy ML", arXiv 2303.00654, section 5.3), in
the numbers of "Prompt public LLMs to synthesize data for private on-device applications", appendix
C.3. What they say is of the run's own claim (`claim` in summary.json); its statement says more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privsyn_flower.app.report import claims
from privsyn_flower.app.report.guarantee import Guarantee
from privsyn_flower.app.report.places import dataset_name
from privsyn_flower.app.report.summaries import UNASKED, Summary, trust_of
from privsyn_flower.app.report.unasked import unasked
from privsyn_flower.privacy import PrivacyStatement


def checklists(summaries: Sequence[Summary]) -> str:
    """Markdown: one checklist for each run. Raises ReportError for a summary without a claim."""
    return "\n\n".join(checklist(summary) for summary in summaries)


def checklist(summary: Summary) -> str:
    """One run's, as Markdown. Raises ReportError as `checklists`."""
    dataset = dataset_name(summary.get("dataset", ""))
    title = f"**Privacy checklist: method {summary['method']}, {dataset}**"
    claim = claims.claim_of(summary)
    if claim is None and trust_of(summary) == UNASKED:
        return f"{title}\n\nNo item applies, because no user was asked. {summary['privacy']}"
    items = _items(claim, summary) if claim else _unasked(unasked(summary))
    lines = [f"- **{item}** {' '.join(told)}" for item, told in items]
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


def _unasked(said: Guarantee) -> Iterator[tuple[str, list[str]]]:
    """The same items of a run without rounds that opened private text."""
    yield "1 DP setting.", [*said.setting, *said.actors]
    yield "2a Data accesses covered.", [*said.domain, *said.unprotected]
    yield "2b Final mechanism output.", said.post_processing
    yield "2c Unit of privacy.", said.unit
    yield "2d Adjacency.", said.adjacency
    yield "3a Type of accounting.", said.composition
    yield "3b Accounting assumptions.", [*said.mechanisms, *said.arithmetic]
    yield "3c Formal statement.", [*said.warnings, *said.formal]
    yield "3d Transparency and verifiability.", said.verifiable
