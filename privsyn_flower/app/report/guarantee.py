"""A run's guarantee by topic, as the standard forms ask for it: whole sentences, true of the run.

`forms.guarantee_of` makes it of the run's summary alone: `asked` where the users were asked
something, `unasked` for the rows that ask nobody. What a run cannot know (how its settings were
chosen, how links and disks were secured) is said to be unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from privsyn_flower.app.report.summaries import Summary
from privsyn_flower.privacy.wording import CARRIED

Said = list[str]
Model = Literal["Central", "Federated", "Local", ""]
Variant = Literal["Approximate DP", "Pure DP", ""]

SPLIT = (
    "Epsilon does not cover the split: which users, samples and public texts there are was chosen "
    "by reading private text, so what this run made is for comparison and must not be released as "
    "private."
)
READERS = (
    "Readers, that is, everyone who sees the result, are not trusted with anything, whatever else "
    "they know."
)
CARRIES = f"{CARRIED[0].upper()}{CARRIED[1:]}"
UTILITY = (
    "Accuracy is no part of the guarantee; what the run measured or can say of it is in its "
    "summary.json."
)


@dataclass(frozen=True)
class Guarantee:
    """What may be said, topic by topic; an empty list where there is nothing to say.

    simulated: known to be. variant, model: names of the OpenDP registry, "" where none applies.
    epsilon, delta, rho: what is claimed, for programs to read; None for what is not, so nothing
    where epsilon does not cover the split, whose result must not be released. rho only where it
    holds without a part of delta.
    """

    simulated: bool
    variant: Variant
    model: Model
    epsilon: float | None
    delta: float | None
    rho: float | None
    formal: Said
    unit: Said
    adjacency: Said
    unprotected: Said
    setting: Said
    actors: Said
    mechanisms: Said
    composition: Said
    tuning: Said
    post_processing: Said
    arithmetic: Said
    channels: Said
    security: Said
    collection: Said
    comparable: Said
    queries: Said
    verifiable: Said
    domain: Said
    warnings: Said = field(default_factory=list)
    measures: Said = field(default_factory=list)
    delta_of_users: Said = field(default_factory=list)
    utility: Said = field(default_factory=lambda: [UTILITY])


def carried(summary: Summary) -> Said:
    """What the run's public text carries already, which no number of the run has."""
    return [CARRIES] if summary.get("public_text_carries") else []


def simulated(by: str = "one machine") -> str:
    """What a simulation saw. by: `PrivacyStatement.simulators`."""
    return f"This was a simulation: {by} played all parties and saw everything."


def curve(summary: Summary) -> list[tuple[float, float]]:
    """(epsilon, delta) that hold together, epsilon growing and delta falling; [] where the run
    noted none."""
    return [(float(one), float(other)) for one, other in summary.get("privacy_curve") or ()]
