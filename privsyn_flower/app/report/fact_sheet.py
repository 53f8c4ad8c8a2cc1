"""`privsyn report --fact-sheet`: a run's guarantee by the points of NIST SP 800-226.

"Guidelines for Evaluating Differential Privacy Guarantees" (March 2025) goes through what a
guarantee rests on, in three parts: the guarantee itself (section 2), the algorithms (section 3),
the deployment (section 4). A fact sheet has one question for each point that a run can say
something about. It is an answer to them and no assessment by anyone: NIST has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privsyn_flower.app.report.forms import guarantee_of
from privsyn_flower.app.report.guarantee import Guarantee
from privsyn_flower.app.report.places import dataset_name
from privsyn_flower.app.report.summaries import Summary

GUARANTEE, ALGORITHMS, DEPLOYING = "section 2", "section 3", "section 4"


@dataclass(frozen=True)
class FactSheetItem:
    """One point: what is asked, what the run says to it, and where NIST SP 800-226 has it."""

    question: str
    answer: str
    source: str


def fact_sheet(summary: Summary) -> list[FactSheetItem]:
    """The points in their order. Raises ReportError for a summary that notes no claim."""
    return [
        FactSheetItem(question, " ".join(said), f"NIST SP 800-226, {part}: {point}")
        for part, point, question, said in _items(guarantee_of(summary))
        if said
    ]


def fact_sheets(summaries: Sequence[Summary]) -> str:
    """Markdown: one fact sheet for each run. Raises ReportError as `fact_sheet`."""
    return "\n\n".join(_markdown(summary) for summary in summaries)


def _markdown(summary: Summary) -> str:
    title = (
        f"**Fact sheet: method {summary['method']}, {dataset_name(summary.get('dataset', ''))}**"
    )
    lines = [f"- **{one.question}** ({one.source}) {one.answer}" for one in fact_sheet(summary)]
    return "\n".join([title, "", *lines])


def _items(said: Guarantee) -> Iterator[tuple[str, str, str, list[str]]]:
    """Part, point, question, sentences."""
    promise = [*said.warnings, *said.formal]
    yield GUARANTEE, "the promise", "What is promised?", promise
    yield GUARANTEE, "privacy parameters", "Is delta small?", said.delta_of_users
    yield GUARANTEE, "variants", "What do other measures say?", said.measures
    yield GUARANTEE, "the unit of privacy", "Who or what is protected?", said.unit
    yield GUARANTEE, "neighbouring data sets", "What is hidden of them?", said.adjacency
    yield GUARANTEE, "comparing guarantees", "What can it be compared with?", said.comparable
    yield GUARANTEE, "other data releases", "What does it not cover?", said.unprotected
    yield GUARANTEE, "auditing", "Can it be checked?", said.verifiable
    yield ALGORITHMS, "basic mechanisms", "Which mechanism, with how much noise?", said.mechanisms
    yield ALGORITHMS, "the privacy budget", "How do releases add up?", said.composition
    yield ALGORITHMS, "synthetic data and models", "What may be made of it?", said.post_processing
    yield ALGORITHMS, "utility and bias", "What does it cost in accuracy, and whom?", said.utility
    yield DEPLOYING, "query models", "Who may ask what?", said.queries
    yield DEPLOYING, "trust models", "Who is trusted with what?", [*said.setting, *said.actors]
    yield DEPLOYING, "floating-point arithmetic", "Are the numbers exact?", said.arithmetic
    yield DEPLOYING, "side channels", "What else could tell?", said.channels
    yield DEPLOYING, "tuning", "Was tuning on private data paid for?", said.tuning
    yield DEPLOYING, "security and access control", "Where is the private data?", said.security
    yield DEPLOYING, "data collection exposure", "What leaves a device?", said.collection
