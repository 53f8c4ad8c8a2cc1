"""Standard forms of a run's guarantee: checklist and fact sheet.

`privsyn report --checklist`: the items of Ponomareva et al. 2023 ("How to DP-fy ML", arXiv
2303.00654, section 5.3), in the numbers of "Prompt public LLMs to synthesize data for private
on-device applications", appendix C.3.

`privsyn report --fact-sheet`: a question for each point of NIST SP 800-226 ("Guidelines for
Evaluating Differential Privacy Guarantees", March 2025) that a run can say something about: the
guarantee itself (section 2), the algorithms (section 3), the deployment (section 4). It is an
answer to them and no assessment by anyone: NIST has no part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from privsyn_flower.app.report.guarantee import claim_of, guarantee_of
from privsyn_flower.app.report.places import dataset_name
from privsyn_flower.app.report.summaries import NO_QUERIES, Summary, trust_of

# Item -> its topics where the users were asked, and of a run without rounds that opened private
# text.
CHECKLIST = {
    "1 DP setting.": ("setting", "setting actors"),
    "2a Data accesses covered.": ("releases covered", "domain unprotected"),
    "2b Final mechanism output.": ("post_processing", "post_processing"),
    "2c Unit of privacy.": ("unit", "unit"),
    "2d Adjacency.": ("adjacency", "adjacency"),
    "3a Type of accounting.": ("accounting", "composition"),
    "3b Accounting assumptions.": ("assumptions", "mechanisms arithmetic"),
    "3c Formal statement.": ("formal", "warnings formal"),
    "3d Transparency and verifiability.": ("verifiable", "verifiable"),
}
MECHANISMS = "bounded assumptions noise mechanisms"
COMPOSITION = "accounting releases composition"
# (section, point, question, topics)
FACT_SHEET = (
    ("2", "the promise", "What is promised?", "warnings formal"),
    ("2", "privacy parameters", "Is delta small?", "delta_of_users"),
    ("2", "variants", "What do other measures say?", "measures"),
    ("2", "the unit of privacy", "Who or what is protected?", "unit"),
    ("2", "neighbouring data sets", "What is hidden of them?", "adjacency"),
    ("2", "comparing guarantees", "What can it be compared with?", "comparable"),
    ("2", "other data releases", "What does it not cover?", "unprotected"),
    ("2", "auditing", "Can it be checked?", "verifiable audit"),
    ("3", "basic mechanisms", "Which mechanism, with how much noise?", MECHANISMS),
    ("3", "the privacy budget", "How do releases add up?", COMPOSITION),
    ("3", "synthetic data and models", "What may be made of it?", "post_processing"),
    ("3", "utility and bias", "What does it cost in accuracy, and whom?", "utility"),
    ("4", "query models", "Who may ask what?", "queries"),
    ("4", "trust models", "Who is trusted with what?", "setting actors"),
    ("4", "floating-point arithmetic", "Are the numbers exact?", "arithmetic"),
    ("4", "side channels", "What else could tell?", "channels"),
    ("4", "tuning", "Was tuning on private data paid for?", "tuning"),
    ("4", "security and access control", "Where is the private data?", "security"),
    ("4", "data collection exposure", "What leaves a device?", "collection"),
)


class FactSheetItem(NamedTuple):
    """One point: what is asked, what the run says to it, and where NIST SP 800-226 has it."""

    question: str
    answer: str
    source: str


def checklists(summaries: Sequence[Summary]) -> str:
    """Markdown: one checklist for each run. Raises ReportError for a summary without a claim."""
    return "\n\n".join(checklist(summary) for summary in summaries)


def checklist(summary: Summary) -> str:
    """One run's, as Markdown. Raises ReportError as `checklists`."""
    title = _title("Privacy checklist", summary)
    asked = claim_of(summary) is not None
    if not asked and trust_of(summary) == NO_QUERIES:
        return f"{title}\n\nNo item applies, because no user was asked. {summary['privacy']}"
    found = guarantee_of(summary)
    lines = [
        f"- **{item}** {' '.join(found.of(*(own if asked else other).split()))}"
        for item, (own, other) in CHECKLIST.items()
    ]
    return "\n".join([title, "", *lines])


def fact_sheet(summary: Summary) -> list[FactSheetItem]:
    """The points in their order. Raises ReportError for a summary that notes no claim."""
    found = guarantee_of(summary)
    return [
        FactSheetItem(question, " ".join(said), f"NIST SP 800-226, section {section}: {point}")
        for section, point, question, topics in FACT_SHEET
        if (said := found.of(*topics.split()))
    ]


def fact_sheets(summaries: Sequence[Summary]) -> str:
    """Markdown: one fact sheet for each run. Raises ReportError as `fact_sheet`."""
    sheets = []
    for summary in summaries:
        items = [f"- **{one.question}** ({one.source}) {one.answer}" for one in fact_sheet(summary)]
        sheets.append("\n".join([_title("Fact sheet", summary), "", *items]))
    return "\n\n".join(sheets)


def _title(form: str, summary: Summary) -> str:
    return f"**{form}: method {summary['method']}, {dataset_name(summary.get('dataset', ''))}**"
