"""What may be said of a run that asked its users: from its claim, topic by topic.

Most sentences are those of the statement (`privacy.sentence`) and of `claims`.
"""

from __future__ import annotations

import math

from privsyn_flower.app.report import claims
from privsyn_flower.app.report.guarantee import (
    READERS,
    SPLIT,
    UTILITY,
    Guarantee,
    Said,
    carried,
    curve,
    simulated,
)
from privsyn_flower.app.report.summaries import Summary
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.wording import at_most, delta_at_most

SEEDED = (
    "NO PRIVACY IS CLAIMED: the noise came from the run's seed. What follows is what real noise of "
    "the same size would give."
)
CHOSEN = (
    "NO PRIVACY IS CLAIMED: checkpoints were chosen by private text, without noise. What follows "
    "is of the releases alone."
)
INFINITE = "NO PRIVACY: epsilon is infinite."
COMPARABLE = (
    "With guarantees of the same unit (user), adjacency (zero-out), delta and trust; not by "
    "epsilon alone."
)
QUERIES = (
    "The server asks questions of kinds, number and noise that were fixed before the first one; "
    "what they ask about may follow from what was released. Readers ask nothing."
)
AUDIT = "An audit can find that a guarantee is broken, and cannot prove that it holds."
BIAS = (
    "Bounds and noise weigh most on what few users have, such as rare topics or languages; the run "
    "does not measure that by groups of users."
)


def asked(claim: PrivacyStatement, summary: Summary) -> Guarantee:
    """Of a run that asked its users."""
    claimed = not _warnings(claim)
    trusted = claim.aggregation == "plain" or "aggregator" in claims.sources(claim)
    exact = "nodes" not in claims.sources(claim)
    return Guarantee(
        simulated=claim.simulated,
        variant="Approximate DP" if claimed else "",
        model="Central" if trusted else "Federated",
        epsilon=claim.epsilon if claimed else None,
        delta=claim.delta if claimed else None,
        rho=claim.rho_zcdp if claimed and exact else None,
        warnings=_warnings(claim),
        formal=claims.formal(claim),
        delta_of_users=_delta_of_users(claim, summary),
        measures=_measures(claim, summary),
        unit=claims.unit(claim),
        adjacency=claims.adjacency(claim),
        domain=_domain(claim, summary),
        utility=[UTILITY, BIAS],
        unprotected=[*_public(claim), *carried(summary), claim.not_covered()],
        setting=claims.setting(claim),
        actors=_actors(claim),
        mechanisms=_mechanisms(claim),
        composition=_composition(claim, summary),
        tuning=_tuning(claim),
        post_processing=claims.output(claim),
        arithmetic=_arithmetic(claim),
        channels=_channels(claim),
        security=_security(claim),
        collection=_collection(claim),
        comparable=[COMPARABLE],
        queries=[QUERIES],
        verifiable=[*claims.verifiable(claim, summary), AUDIT],
    )


def _none(claim: PrivacyStatement) -> Said:
    """Why no privacy is claimed; nothing where it is."""
    told = [SEEDED] if claim.simulation_seeded else []
    told += [CHOSEN] if claim.private_selection else []
    return told + ([] if math.isfinite(claim.epsilon) else [INFINITE])


def _warnings(claim: PrivacyStatement) -> Said:
    """What must be read before any number."""
    return _none(claim) + ([SPLIT] if claim.split == "private" else [])


def _delta_of_users(claim: PrivacyStatement, summary: Summary) -> Said:
    if not (users := summary.get("users")):
        return []
    product = float(f"{claim.delta * users:.12g}")  # without the last digits of floating point
    return [
        f"Delta is {claim.delta:g}; times the {users:,} declared users that is "
        f"{delta_at_most(product)}."
    ]


def _measures(claim: PrivacyStatement, summary: Summary) -> Said:
    """The same noise as zCDP and Gaussian DP, and the whole curve."""
    said = []
    if claim.rho_zcdp is None:
        said.append("No rho and no mu are claimed, because users toss coins.")
    else:
        integers = "nodes" in claims.sources(claim)
        but = ", but for the part of delta that pays for integers" if integers else ""
        mu = at_most(math.sqrt(2 * claim.rho_zcdp))
        said.append(f"rho = {at_most(claim.rho_zcdp)} (zCDP) and mu = {mu} (Gaussian DP){but}.")
    if points := curve(summary):
        spread = points[:: max(1, len(points) // 5)]
        told = "; ".join(f"({at_most(one)}, {delta_at_most(other)})" for one, other in spread)
        said.append(f"Pairs of epsilon and delta that hold as well: {told}.")
    return said


def _domain(claim: PrivacyStatement, summary: Summary) -> Said:
    said = [f"The {claim.data} of users, each the record of one node."]
    if users := summary.get("users"):
        said.append(f"{users:,} users are declared; how many {claim.data} one has is private.")
    return said


def _public(claim: PrivacyStatement) -> Said:
    who = "Who is enrolled" if claim.samples else "Who takes part"
    return [
        f"{who}, how many users are declared, the nodes' weights, the configuration and all "
        "questions with their lists of classes, topics or candidates are public, and so are the "
        "text and the models that the server began with."
    ]


def _actors(claim: PrivacyStatement) -> Said:
    does = [f"reads their {claim.data}", "bounds their answers"]
    does += ["adds its share of the noise"] if "nodes" in claims.sources(claim) else []
    does += ["tosses their coins in secret"] if claim.samples else []
    return [
        f"Users trust the code of their own node, which {', '.join(does[:-1])} and {does[-1]}.",
        claim.trust(),
        READERS,
    ]


def _mechanisms(claim: PrivacyStatement) -> Said:
    if claim.simulation_seeded:
        drawn = "the run's seed"
    else:
        drawn = "the operating system's randomness, or a key drawn from there"
    return [
        "The Gaussian mechanism on sums of vectors of bounded length, one of each user.",
        *claims.assumptions(claim),
        f"Noise is made by this project's own code from {drawn}; sampled releases are accounted by "
        "the library dp-accounting."
        if claim.samples
        else f"Noise is made by this project's own code from {drawn}; epsilon is computed by the "
        "library dp-accounting.",
    ]


def _composition(claim: PrivacyStatement, summary: Summary) -> Said:
    filtered = "a plan of releases" if claim.samples else "the sum of mu^2"
    said = [
        *claims.accounting(claim),
        claims.releases(claim, summary),
        f"Each is charged on a ledger before it is asked, whose filter is {filtered}, so later "
        "questions may follow from earlier releases.",
        claim.scope(),
        *carried(summary),
    ]
    early = summary.get("ended_early")
    if early:
        said.append("The run ended early; epsilon is that of the whole plan.")
    spent, total = summary.get("epsilon_ledger"), summary.get("epsilon_ledger_total")
    if spent is not None and total is not None:
        said.append(
            f"When the run ended, the ledger stood at epsilon {at_most(spent)} of {at_most(total)}."
        )
    return said


def _tuning(claim: PrivacyStatement) -> Said:
    """What the run knows of choices that look at private text; most were made before it."""
    said = [
        "How the settings were chosen the run does not know: tuning them by looking at these "
        f"users' {claim.data}, or at figures measured on it, is not covered, nor is a choice "
        "between runs that are not charged on one ledger."
    ]
    if claim.evaluations and claim.rounds:
        said.append(
            f"{claims.counted(claim.evaluations, 'evaluation')} of models on the nodes beside the "
            "rounds: paid for, and free to choose by."
        )
    if claim.adaptive_clipping:
        said.append("The bound of updates follows noisy sums that are paid for.")
    if claim.private_selection:
        said.append("Checkpoints were chosen by private text: not paid for.")
    if claim.split == "private":
        said.append("Users, samples and public texts were chosen by private text: not paid for.")
    if claim.simulated and claim.split == "unknown":
        said.append("How a simulation's users and texts were prepared is not covered.")
    if claim.benchmark:
        said.append("A choice by figures under `benchmark` would not be covered.")
    return said


def _arithmetic(claim: PrivacyStatement) -> Said:
    said = [
        "Each user's vector becomes integers by itself, and their length is checked in integers."
    ]
    if "nodes" in claims.sources(claim) and not claim.simulation_seeded:
        said.append("The nodes' noise is drawn as integers, exactly.")
    if "nodes" in claims.sources(claim):
        said.append(
            "That integer noise is not quite Gaussian noise is paid for by a part of delta."
        )
    if "aggregator" in claims.sources(claim):
        said.append(
            "The aggregator's Gaussian noise is made in floating-point arithmetic and rounded to "
            "integers before it is added to integers; how far it is from an exact one is not "
            "covered."
        )
    return said


def _channels(claim: PrivacyStatement) -> Said:
    said = [
        "Not covered: the time that nodes take to answer, and whether they answer in time.",
        "A node says nothing of errors that a user's data causes: that user's answer is zeros.",
    ]
    if claim.samples:
        said.append(
            "A node does the same work however its users' coins fall; the only node of a plain "
            "simulation does not."
        )
    return said


def _security(claim: PrivacyStatement) -> Said:
    if claim.simulated:
        seen = f"The users' {claim.data} were there."
        return [f"{simulated(claim.simulators)} {seen}"]
    said = [
        f"Users' {claim.data} stay on their nodes. Who may read a node's or the server's disk, and "
        "how links between them are secured, the run does not know."
    ]
    if "aggregator" in claims.sources(claim):
        said.append(
            "Whoever reads the key of the aggregator's noise while the run lasts can take it off."
        )
    return said


def _collection(claim: PrivacyStatement) -> Said:
    sources = claims.sources(claim)
    noise = ", with its noise on it" if sources == {"nodes"} else ""
    noise = ", with its noise on it where the nodes add it" if len(sources) > 1 else noise
    mask = " and under masks" if claim.aggregation == "secure" else ""
    return [
        "No text leaves a node. For each question a node sends one vector, the sum of its users' "
        f"vectors of bounded length{noise}{mask}. That it took part and its weight are not hidden."
    ]
