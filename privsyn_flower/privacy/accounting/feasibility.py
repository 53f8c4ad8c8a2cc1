"""Whether a run's numbers can give anything: its noise against its users, delta against 1 / users.

Public numbers only. All lengths are in bounds of one user's answer, so that the bound itself
does not matter: `answers` users whose answers are equal and whole sum to `answers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from privsyn_flower.privacy.wording import at_most

# Share of the users who must say the same thing to stand out by one standard deviation; above it
# a run is doubtful. A choice of this project: the papers' settings stay far below it.
DOUBTFUL_SHARE = 0.1


@dataclass(frozen=True)
class Infeasibility:
    """hopeless: the numbers cannot give a use, or a privacy, worth the name; else doubtful."""

    text: str
    hopeless: bool


def infeasibilities(
    *,
    epsilon: float,
    delta: float,
    users: int,
    noise: float,
    answers: float,
    summed: str = "a released sum",
    key: str = "data.users",
) -> list[Infeasibility]:
    """What is wrong with the numbers; empty when nothing is.

    users: the declared population. noise: standard deviation of one coordinate of `summed`.
    answers: users in that sum, on average. key: what the caller calls users.
    """
    found = [
        _delta_infeasibility(delta, users, key),
        _noise_infeasibility(epsilon, noise, answers, summed, key),
    ]
    return [infeasibility for infeasibility in found if infeasibility is not None]


def _delta_infeasibility(delta: float, users: int, key: str) -> Infeasibility | None:
    """A delta of 1 / users allows to publish one user chosen at random, whole."""
    if delta * users < 1:
        return None
    return Infeasibility(
        f"delta = {delta:g} is not below 1 / {key} = {1 / users:g}: it would allow to publish the "
        "text of a user drawn at random; lower delta, best far below that",
        hopeless=True,
    )


def _noise_infeasibility(
    epsilon: float, noise: float, answers: float, summed: str, key: str
) -> Infeasibility | None:
    if noise < DOUBTFUL_SHARE * answers:
        return None
    facts = (
        f"epsilon = {at_most(epsilon)}: the noise of {summed} has a standard deviation of "
        f"{noise:,.4g} in bounds of one user's answer, and {answers:,.4g} is all that the "
        "users in it reach when they agree"
    )
    way = f"raise epsilon, or ask more users ({key})"
    if noise >= answers:
        return Infeasibility(f"{facts}, so nothing can be learnt: {way}", hopeless=True)
    share = noise / answers
    return Infeasibility(
        f"{facts}: what fewer than {share:.0%} of them share does not stand out; {way}",
        hopeless=False,
    )
