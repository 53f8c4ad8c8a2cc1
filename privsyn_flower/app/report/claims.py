"""What may be said of a run's claim, by topic: sentences that all forms share.

A form (`checklist`, `fact_sheet`, `registry`) puts them in its own order; a sentence that is true
of one form is then true of all. claim: the run's own (`claim` in summary.json).
"""

from __future__ import annotations

from collections.abc import Iterator

from privsyn_flower.app.report.summaries import ReportError, Summary
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.wording import CHOSEN_TEXT, KEYS, at_least, at_most, percent

ADDS = {"nodes": "the nodes'", "aggregator": "the aggregator's"}


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


def setting(claim: PrivacyStatement) -> list[str]:
    """Who runs the mechanism, and against whom the claim holds."""
    if claim.aggregation == "plain" or "aggregator" in sources(claim):
        kind = "Central: the server is trusted to run the mechanism."
    else:
        kind = "Distributed: the nodes add the noise, and the server learns sums alone."
    said = [kind, f"{claim.threat_model[:1].upper()}{claim.threat_model[1:]}."]
    if claim.simulated:
        said.append(f"Simulated: {claim.simulators} played all parties and saw everything.")
    return said


def sources(claim: PrivacyStatement) -> set[str]:
    """Who adds noise to some question."""
    return {claim.noise_source, *(source for _, _, _, source, _ in claim.others)}


def releases(claim: PrivacyStatement, summary: Summary) -> str:
    """All that epsilon pays for, and how much of it there was."""
    asked = [f"{claim.rounds} rounds"] if claim.rounds else []
    if claim.evaluations:
        asked.append(f"{counted(claim.evaluations, 'evaluation')} of models on the nodes")
    if claim.spare_rounds:
        asked.insert(1, f"{claim.spare_rounds} spare")
    asked += [f"{number} of {name!r}" for name, number, *_ in claim.others]
    return (
        f"All answers of all users in this one run: {', '.join(asked)}{_released(claim, summary)}."
    )


def covered(claim: PrivacyStatement, summary: Summary) -> list[str]:
    """The data accesses that the claim is about, and what it leaves out."""
    limits = (
        "The nodes keep the limits of participation; one that does not weakens the claim for its "
        "own users alone."
    )
    before = (
        "Public text, and models made of it, were used beside the users' answers, without "
        "protection."
    )
    said = [
        releases(claim, summary), limits, claim.not_covered(),
        "Nor is a choice between runs covered.",
    ]  # fmt: skip
    if claim.aggregation == "secure":
        said.append(f"{KEYS[claim.keys]}.")
    return [*said, before]


def counted(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _released(claim: PrivacyStatement, summary: Summary) -> str:
    """What of it there was; a run that asks one thing alone has no summary without its release."""
    if "rounds" not in summary:  # it has only begun
        return ""
    if not claim.rounds:
        was = "was" if claim.evaluations == 1 else "were"
        return f" ({counted(claim.evaluations, 'evaluation')} {was} released)"
    if not summary.get("rounds_planned", claim.rounds):
        return ""
    return f" ({summary['rounds']} rounds were released)"


def unit(claim: PrivacyStatement) -> list[str]:
    """What one user is."""
    return [
        f"The user: all {claim.data} of one user of one node, whatever they are and how many. A "
        "person with two devices counts twice; people who are one user to their device's node are "
        "protected together."
    ]


def adjacency(claim: PrivacyStatement) -> list[str]:
    """What is replaced by what, and what stays public."""
    who = "is enrolled" if claim.samples else "takes part"
    return [
        "Zero-out: whatever one user contributes, in all rounds, is replaced by zeros. Who "
        f"{who}, how many they are and the configuration are public."
    ]


def output(claim: PrivacyStatement) -> list[str]:
    """What of the result is protected."""
    said = [
        "All released sums, and so everything made of them: every intermediate model or text that "
        "nodes or readers get, not only the last."
    ]
    return [*said, CHOSEN_TEXT] if claim.chooses_text else said


def accounting(claim: PrivacyStatement) -> list[str]:
    """How epsilon was computed."""
    kind = {
        "exact": "The exact privacy curve of the composed Gaussians (Balle and Wang 2018).",
        "pld": "Privacy loss distributions (PLD) of the composed, sampled Gaussians.",
        "renyi": "Renyi bounds of the composed, sampled Gaussians (Mironov, Talwar, Zhang 2019).",
    }[claim.accountant]
    if claim.rho_zcdp is None:
        return [kind, "No rho-zCDP is claimed: mu^2 / 2 is of Gaussian noise without sampling."]
    return [kind, "And rho-zCDP, rho = mu^2 / 2."]


def assumptions(claim: PrivacyStatement) -> list[str]:
    """What epsilon rests on: bounds, noise, participation, coins, honest weight."""
    said = ["A user's answer has at most the L2 bound of its question.", *noise(claim)]
    if claim.most_participations < claim.rounds:
        also = ", and in every evaluation" if claim.evaluations else ""
        said.append(
            f"A user takes part in at most {claim.most_participations} rounds, "
            f"{claim.min_separation} or more apart{also}, by the records that each node keeps."
        )
    else:
        said.append("A user may take part in every release.")
    if coins := [(name, rate) for name, rate in _rates(claim) if rate < 1]:
        told = ", ".join(f"{rate:g} ({name})" for name, rate in coins)
        said.append(
            f"A secret coin of each user, of probability {told}, decides whether a release has the "
            "user's answer; nothing holds against the user's own node."
        )
    if "nodes" in sources(claim):
        said.append(
            f"At least {percent(claim.min_surviving_weight)} of the weight answers honestly, or "
            f"the sum is not released; at most {percent(claim.colluding_weight)} colludes. The "
            "nodes' noise is integers, which a part of delta pays for."
        )
    if "aggregator" in sources(claim):
        said.append("The server adds noise in floating-point arithmetic; no node can check it.")
    return said


def noise(claim: PrivacyStatement) -> Iterator[str]:
    """Of each kind of question: who adds it, and how much."""
    way, source = ", independent in each release", ADDS[claim.noise_source]
    if claim.correlated:
        way = f" or what costs as much, correlated over the rounds ({claim.correlated})"
        if claim.evaluations and claim.rounds:
            way += ", and in each evaluation"
    main = at_least(claim.noise_multiplier)
    yield f"In {_main(claim)}, {source} noise is at least {main} times that bound{way}."
    for name, count, multiplier, whose, _ in claim.others:
        yield (
            f"In {counted(count, 'release')} of {name!r}, {ADDS[whose]} noise is at least "
            f"{at_least(multiplier)} times the bound."
        )


def _main(claim: PrivacyStatement) -> str:
    """What the claim's own noise is of."""
    if not claim.rounds:
        return "the evaluations"
    both = claim.evaluations and not claim.correlated
    return "the rounds and evaluations" if both else "the rounds"


def _rates(claim: PrivacyStatement) -> list[tuple[str, float]]:
    """The kinds of questions, and how probable it is that a user is in a sum."""
    own = (_main(claim), claim.sampling_rate)
    return [own, *((repr(name), rate) for name, *_, rate in claim.others)]


def formal(claim: PrivacyStatement) -> list[str]:
    """The guarantee in numbers."""
    said = []
    if claim.simulation_seeded or claim.private_selection:
        why = "the noise came from a seed" if claim.simulation_seeded else "see 2a"
        said.append(f"NO PRIVACY IS CLAIMED ({why}); real noise without that would give:")
    said.append(f"(epsilon = {at_most(claim.epsilon)}, delta = {claim.delta:g})-DP for each user.")
    if claim.rho_zcdp is not None:
        but = ", but for the part of delta that pays for integers"
        integers = "nodes" in sources(claim)
        said.append(f"{at_most(claim.rho_zcdp)}-zCDP{but if integers else ''}.")
    return said


def verifiable(claim: PrivacyStatement, summary: Summary) -> list[str]:
    """What can be checked, and what has to be trusted."""
    said = [
        f"{version(summary)} `privsyn audit` measures the releases of a configuration, and nodes "
        "refuse questions that their own policy does not allow."
    ]
    if "aggregator" in sources(claim):
        said.append("That the aggregator runs this code has to be trusted.")
    return said


def version(summary: Summary) -> str:
    """Which code it was, as far as the run noted it."""
    number = summary.get("version", "of a version that noted no number")
    noted = [f"commit {summary['commit']}"] if summary.get("commit") else []
    if summary.get("code_sha256"):
        noted.append(f"SHA-256 of its files {summary['code_sha256']}")
    more = f" ({'; '.join(noted)})" if noted else ""
    return f"Open source: privsyn-flower {number}{more}."
