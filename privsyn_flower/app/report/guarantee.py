"""A run's guarantee by topic: whole sentences, true of the run, which standard forms put in order.

`privsyn report --checklist`: the items of Ponomareva et al. 2023 ("How to DP-fy ML", arXiv
2303.00654, section 5.3), in the numbers of "Prompt public LLMs to synthesize data for private
on-device applications", appendix C.3.

`privsyn report --fact-sheet`: a question for each point of NIST SP 800-226 ("Guidelines for
Evaluating Differential Privacy Guarantees", March 2025) that a run can say something about: the
guarantee itself (section 2), the algorithms (section 3), the deployment (section 4). It is an
answer to them and no assessment by anyone: NIST has no part in it.

The sentences are made of the run's summary alone, by the template queries.md where the run queried
its users, by baseline.md for the baselines without client queries. What a run cannot know (how its
settings were chosen, how links and disks were secured) is said to be unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from privsyn_flower.app.report.places import dataset_name
from privsyn_flower.app.report.summaries import LOCAL, NO_QUERIES, ReportError, Summary, trust_of
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.wording import (
    CARRIES,
    CHOSEN_TEXT,
    KEYS,
    at_least,
    at_most,
    delta_at_most,
    percent,
)

if TYPE_CHECKING:
    from jinja2 import Environment

# They end in .md because Flower packs no other kind of text file into an app.
TEMPLATES = Path(__file__).resolve().parent / "templates"
Model = Literal["Central", "Federated", "Local", ""]
Variant = Literal["Approximate DP", "Pure DP", ""]

SPLIT = (
    "Epsilon does not cover the split: which users, samples and public texts there are was chosen "
    "by reading private text, so what this run made is for comparison and must not be released as "
    "private."
)
SEEDED = (
    "NO PRIVACY IS CLAIMED: the noise came from the run's seed. What follows is what real noise of "
    "the same size would give."
)
WORDS = {
    "SPLIT": SPLIT,
    "CARRIES": CARRIES,
    "SEEDED": SEEDED,
    "CHOSEN_TEXT": CHOSEN_TEXT,
    "KEYS": KEYS,
    "READERS": "Readers, that is, everyone who sees the result, are not trusted with anything, "
    "whatever else they know.",
    "UTILITY": "Accuracy is no part of the guarantee; what the run measured or can say of it is in "
    "its summary.json.",
    "SIMULATED": "This was a simulation: one machine played all parties and saw everything.",
}
_BREAK = "\x1f"  # an end of a line within a value, while its template is read


@dataclass(frozen=True)
class Guarantee:
    """What may be said, topic by topic; nothing where there is nothing to say.

    simulated: known to be. variant, model: names of the OpenDP registry, "" where none applies.
    epsilon, delta, rho: what is claimed, for programs to read; None for what is not, so nothing
    where epsilon does not cover the split, whose result must not be released. rho only where it
    holds without a part of delta.
    """

    topics: Mapping[str, list[str]]
    simulated: bool = False
    variant: Variant = ""
    model: Model = ""
    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None

    def of(self, *topics: str) -> list[str]:
        """The sentences of these topics, one after the other."""
        return [sentence for topic in topics for sentence in self.topics.get(topic, [])]


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
    for name in ("others", "groups"):
        fields[name] = tuple(tuple(one) for one in fields.get(name, ()))
    try:
        return PrivacyStatement(**fields)
    except (TypeError, ValueError) as error:
        raise ReportError(f"`claim` of the summary is damaged: {error}") from None


def sources(claim: PrivacyStatement) -> set[str]:
    """Who adds noise to some question."""
    return {claim.noise_source, *(source for _, _, _, source, _ in claim.others)}


def guarantee_of(summary: Summary) -> Guarantee:
    """Of a finished run, or one that has begun. Raises ReportError for a summary that notes no
    claim."""
    claim = claim_of(summary)
    return _of_baseline(summary) if claim is None else _of_queries(claim, summary)


def curve(summary: Summary) -> list[tuple[float, float]]:
    """(epsilon, delta) that hold together, epsilon growing and delta falling; [] where the run
    noted none."""
    return [(float(one), float(other)) for one, other in summary.get("privacy_curve") or ()]


def _of_queries(claim: PrivacyStatement, summary: Summary) -> Guarantee:
    """Of a run with client queries."""
    adding, users, points = sources(claim), summary.get("users"), curve(summary)
    trusted = claim.aggregation == "plain" or "aggregator" in adding
    main = ("", claim.sampling_rate)
    rates = [main, *((repr(name), rate) for name, *_, rate in claim.others)]
    topics = _sentences(
        "queries.md",
        claim=claim,
        summary=summary,
        nodes="nodes" in adding,
        aggregator="aggregator" in adding,
        trusted=trusted,
        infinite=not math.isfinite(claim.epsilon),
        users=users,
        # without the last digits of floating point
        delta_of_all=float(f"{claim.delta * users:.12g}") if users else None,
        mu=None if claim.rho_zcdp is None else math.sqrt(2 * claim.rho_zcdp),
        points=points[:: max(1, len(points) // 5)],
        releases=_releases(claim, summary),
        sampled=[(name, rate) for name, rate in rates if rate < 1],
        version=_version(summary),
    )
    claimed = "warnings" not in topics
    return Guarantee(
        topics,
        simulated=claim.simulated,
        variant="Approximate DP" if claimed else "",
        model="Central" if trusted else "Federated",
        epsilon=claim.epsilon if claimed else None,
        delta=claim.delta if claimed else None,
        rho=claim.rho_zcdp if claimed and "nodes" not in adding else None,
    )


def _of_baseline(summary: Summary) -> Guarantee:
    """By the run's threat model. Unknown ones claim nothing."""
    trust = trust_of(summary)
    kind = "public" if trust == NO_QUERIES else "none"
    if trust == LOCAL or str(summary["threat_model"]).startswith("none: the paraphrases"):
        kind = "local"
    epsilon = float(summary["epsilon"]) if summary["epsilon"] is not None else math.inf
    claimed = trust in (LOCAL, NO_QUERIES)
    topics = _sentences(
        "baseline.md",
        summary=summary,
        privacy=summary["privacy"],
        kind=kind,
        claimed=claimed,
        epsilon=epsilon,
        version=_version(summary),
    )
    claimed = claimed and "warnings" not in topics
    epsilon = 0.0 if kind == "public" else epsilon
    return Guarantee(
        topics,
        simulated=kind != "public",
        variant="Pure DP" if claimed else "",
        model="Local" if kind == "local" else "",
        epsilon=epsilon if claimed and math.isfinite(epsilon) else None,
    )


def _releases(claim: PrivacyStatement, summary: Summary) -> str:
    """All that epsilon pays for, and how much of it there was."""
    kinds = [f"{claim.rounds} rounds"] if claim.rounds else []
    if claim.evaluations:
        kinds.append(f"{_quantity(claim.evaluations, 'evaluation')} of models on the nodes")
    if claim.spare_rounds:
        kinds.insert(1, f"{claim.spare_rounds} spare")
    kinds += [f"{number} of {name!r}" for name, number, *_ in claim.others]
    done = ""
    # A run that has only begun has no "rounds"; one that asks one thing alone has no summary
    # without its release.
    if "rounds" in summary and not claim.rounds:
        was = "was" if claim.evaluations == 1 else "were"
        done = f" ({_quantity(claim.evaluations, 'evaluation')} {was} released)"
    elif "rounds" in summary and summary.get("rounds_planned", claim.rounds):
        done = f" ({summary['rounds']} rounds were released)"
    return f"All answers of all users in this one run: {', '.join(kinds)}{done}."


def _quantity(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _version(summary: Summary) -> str:
    """Which code it was, as far as the run noted it."""
    number = summary.get("version", "of a version that noted no number")
    noted = [f"commit {summary['commit']}"] if summary.get("commit") else []
    if summary.get("code_sha256"):
        noted.append(f"SHA-256 of its files {summary['code_sha256']}")
    more = f" ({'; '.join(noted)})" if noted else ""
    return f"Open source: privsyn-flower {number}{more}."


@cache
def text_environment(*, lines: bool = True) -> Environment:
    """Templates of text, for YAML, Markdown and the page, each of which escapes what it has to.

    lines: values may have several lines; else an end of a line is _BREAK.
    """
    from jinja2 import ChainableUndefined, Environment, FileSystemLoader

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,
        undefined=ChainableUndefined,
        finalize=None if lines else lambda value: str(value).replace("\n", _BREAK),
        trim_blocks=lines,
        lstrip_blocks=lines,
        keep_trailing_newline=True,
    )
    made.globals |= WORDS
    made.filters |= {
        "at_least": at_least,
        "at_most": at_most,
        "cell": lambda text: " ".join(text.split()).replace("|", "\\|"),
        "counted": _quantity,
        "delta_at_most": delta_at_most,
        "first_upper": lambda text: f"{text[:1].upper()}{text[1:]}",
        "g": lambda value: f"{value:g}",
        "percent": percent,
        "repr": repr,
        "thousands": lambda value: f"{value:,}",
    }
    return made


def _sentences(template: str, **context: Any) -> dict[str, list[str]]:
    """Topic -> its sentences, of a template in which "# " begins a topic and "- " a sentence.
    Topics without sentences are left out."""
    topics: dict[str, list[str]] = {}
    text = text_environment(lines=False).get_template(template).render(context)
    for topic, sentence in _read(text):
        topics.setdefault(topic, []).append(sentence.replace(_BREAK, "\n"))
    return topics


def _read(text: str) -> Iterator[tuple[str, str]]:
    """(topic, sentence), each on one line."""
    topic, lines = "", list[str]()
    for line in [*(one.strip(" ") for one in text.split("\n")), "# "]:
        begins = line.startswith(("# ", "- "))
        if begins and lines:
            yield topic, " ".join(lines)
            lines = []
        if line.startswith("# "):
            topic = line[2:]
        elif line:
            lines.append(line[2:] if begins else line)


# The forms -------------------------------------------------------------------------------------

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
