"""How often one user may take part: what the sensitivity of correlated noise is computed for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Participation:
    """Rounds of one user: at least `min_separation` apart, at most `max_participations` of them.

    rounds: all rounds of the run. min_separation: difference of the numbers of two rounds of one
    user, so 1 lets a user take part in every round. max_participations: 0 for as many as fit,
    ceil(rounds / min_separation). Raises ValueError outside of these bounds.
    Source: Choquette-Choo et al. 2023 (arXiv 2306.08153), "b-min-sep" participation.
    """

    rounds: int
    min_separation: int = 1
    max_participations: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("rounds", self.rounds, 1),
            ("min-separation", self.min_separation, 1),
            ("max-participations", self.max_participations, 0),
        ):
            if value != int(value) or value < least:
                raise ValueError(f"{name} = {value} must be a whole number, at least {least}")

    @property
    def most(self) -> int:
        """The largest number of rounds that one user can take part in."""
        fit = -(-self.rounds // self.min_separation)
        return min(fit, self.max_participations or fit)

    def check(self, rounds: int) -> None:
        """Raise ValueError unless this describes a run of `rounds` rounds."""
        if self.rounds != rounds:
            raise ValueError(
                f"participation is for rounds = {self.rounds}, the mechanism for rounds = {rounds}"
            )
