"""What may be said of a run that asked its users nothing: rows that the papers compare with.

Which of the three it is, its threat model says (`privacy.baseline`); the numbers of a local
mechanism are in the run's own statement, which goes along whole.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from privsyn_flower.app.report.claims import version
from privsyn_flower.app.report.guarantee import READERS, SPLIT, Guarantee, carried, simulated
from privsyn_flower.app.report.summaries import LOCAL, UNASKED, Summary, trust_of
from privsyn_flower.privacy.wording import at_most

_NONE = "None: no user was asked anything, and there is no noise."
_SEEDED = (
    "NO PRIVACY IS CLAIMED: the paraphrases were drawn from the run's seed. What follows is what "
    "real randomness would give."
)


def unasked(summary: Summary) -> Guarantee:
    """By the run's threat model. Unknown ones claim nothing."""
    trust, model = trust_of(summary), str(summary["threat_model"])
    if trust == UNASKED:
        made = _public(summary)
    elif trust == LOCAL or model.startswith("none: the paraphrases"):
        made = _local(summary, claimed=trust == LOCAL)
    else:
        made = _none(summary)
    beside = [SPLIT] if "chosen by private text" in model else []
    beside += carried(summary) if trust == UNASKED else []  # else what it claims is its own
    if not beside:
        return made
    warnings = [*made.warnings, *beside]
    return replace(made, warnings=warnings, variant="", epsilon=None)


def _public(summary: Summary) -> Guarantee:
    """Public text alone."""
    texts: dict[str, Any] = {
        "setting": ["Nobody is trusted, because no user was asked anything."],
        "actors": [READERS],
        "unit": ["No unit applies: no user was asked anything."],
        "adjacency": ["None applies: the result depends on public text and models alone."],
        "domain": ["No private data of this run's: public text and public models alone."],
        "tuning": [
            "How the settings were chosen the run does not know: tuning them by looking at private "
            "text, or at figures measured on it, is not covered."
        ],
        "security": ["The result is made of public text alone."],
        "collection": ["Nothing: no device was asked."],
        "comparable": ["With nothing that asks users: it is what public text alone gives."],
        "mechanisms": [_NONE],
    }
    return _rest(
        summary,
        texts,
        variant="Pure DP",
        epsilon=0.0,
        formal=[
            "Epsilon = 0 beside what the public text carries: no user was asked anything."
            if summary.get("public_text_carries")
            else "Epsilon = 0: the result is made of public text and public models alone, and says "
            "nothing about anyone's texts."
        ],
    )


def _none(summary: Summary) -> Guarantee:
    """The users' own texts."""
    texts: dict[str, Any] = {
        "setting": ["There is no guarantee against anybody."],
        "actors": [simulated()],
        "unit": ["No unit: nothing is protected."],
        "adjacency": ["None: nothing is hidden of any text."],
        "domain": ["The users' own texts."],
        "tuning": ["Nothing was paid for, because nothing is protected."],
        "security": [f"{simulated()} The result may repeat the users' texts word for word."],
        "collection": ["In this simulation, the texts themselves."],
        "comparable": ["With no guarantee: it is the papers' upper bound."],
        "mechanisms": ["None: no noise and no bound."],
    }
    return _rest(
        summary,
        texts,
        simulated=True,
        warnings=["NO PRIVACY: nothing of this run may be released."],
        formal=["There is NO guarantee: epsilon is infinite."],
    )


def _local(summary: Summary, *, claimed: bool) -> Guarantee:
    """Paraphrases that each device makes of its own texts."""
    epsilon = float(summary["epsilon"]) if summary["epsilon"] is not None else math.inf
    texts: dict[str, Any] = {
        "setting": [
            "Local: what leaves a device is noisy itself, so nobody else needs to be trusted."
        ],
        "actors": [
            "Users trust their own device, which would paraphrase their texts.",
            READERS,
            simulated(),
        ],
        "unit": ["The user with all its texts."],
        "adjacency": [
            "Replace-one: all texts of one user become as many other texts. How many a user has is "
            "not hidden. This is not the adjacency of methods with rounds."
        ],
        "domain": ["The texts of the users, up to a public number of each."],
        "tuning": [
            "How the settings were chosen the run does not know: tuning them by looking at these "
            "users' texts, or at figures measured on it, is not covered."
        ],
        "security": [f"{simulated()} The users' texts were on it."],
        "collection": ["The paraphrases, and how many there are."],
        "comparable": [
            "With guarantees of the same unit, adjacency (replace-one) and trust (local); equal "
            "epsilons of a zero-out guarantee do not mean the same."
        ],
        "mechanisms": [
            "Each token of a paraphrase is drawn with probability in proportion to exp(u / T), "
            "where the logits u are clipped to a public range."
        ],
        "composition": [
            "The costs of a paraphrase's tokens add up, and those of a user's texts; delta is 0.",
            *carried(summary),
        ],
        "arithmetic": [
            "How far a draw in floating-point arithmetic is from an exact one is not covered."
        ],
        "channels": ["Not covered: the time that drawing takes."],
    }  # fmt: skip
    return _rest(
        summary,
        texts,
        variant="Pure DP" if claimed else "",
        model="Local",
        simulated=True,
        epsilon=epsilon if claimed and math.isfinite(epsilon) else None,
        warnings=[] if claimed else [_SEEDED],
        formal=[f"epsilon = {at_most(epsilon)} (delta = 0) for each user, as local privacy."],
    )


def _rest(summary: Summary, texts: dict[str, Any], **claims: Any) -> Guarantee:
    """With what is the same for all of them."""
    same: dict[str, Any] = {
        "variant": "",
        "model": "",
        "simulated": False,
        "epsilon": None,
        "delta": None,
        "rho": None,
        "unprotected": [str(summary["privacy"])],
        "composition": ["There is one result, and no ledger."],
        "post_processing": ["Whatever is made of the result has what the result has, and no more."],
        "arithmetic": ["There is no noise that it could spoil."],
        "channels": ["No device answered anything."],
        "queries": ["Nobody: there are no questions."],
        "verifiable": [version(summary)],
    }
    return Guarantee(**{**same, **texts, **claims})
