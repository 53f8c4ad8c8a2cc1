"""The sentence that goes with every epsilon: what it protects, against whom, and what not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Literal

_ACCOUNTANTS = {
    "pld": "the exact privacy curve of the composed Gaussian noise (PLD)",
    "rdp": "Renyi differential privacy (RDP), looser than the exact curve",
}


@dataclass(frozen=True)
class PrivacyStatement:
    """What a run claims. All fields are public.

    epsilon, delta: of the run, for the guaranteed noise, never for the actual survivors.
    noise_multiplier: guaranteed noise std / bound of one user's vector. rounds, spare_rounds:
    releases paid for. min_surviving_weight, colluding_weight: shares of the declared
    population's weight. ledger_scope: "run" for a ledger made for this run, "population" for
    one that spans runs. benchmark: held-out text was opened to measure the result.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    rounds: int
    spare_rounds: int
    min_surviving_weight: float
    colluding_weight: float = 0.0
    accountant: Literal["pld", "rdp"] = "pld"
    aggregation: Literal["plain"] = "plain"
    ledger_scope: Literal["run", "population"] = "run"
    simulation_seeded: bool = False
    benchmark: bool = False
    unit: Literal["user"] = "user"
    adjacency: Literal["zero-out"] = "zero-out"

    def __post_init__(self) -> None:
        """Raises ValueError on a value that the sentence has no words for."""
        allowed = {
            "accountant": tuple(_ACCOUNTANTS),
            "aggregation": ("plain",),
            "ledger_scope": ("run", "population"),
            "unit": ("user",),
            "adjacency": ("zero-out",),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be one of {values}")
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon = {self.epsilon} must be at least 0")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {self.delta} must be above 0 and below 1")

    @property
    def threat_model(self) -> str:
        """One line for summary.json and tables."""
        if self.simulation_seeded:
            return "none: the noise came from the run's seed"
        return "trusted aggregator: holds against readers of the released sums, not the server"

    def sentence(self) -> str:
        """The whole statement in plain words, one paragraph."""
        parts = [self._claim(), self._unit(), self._against(), self._not_covered()]
        if self.simulation_seeded:
            parts.insert(
                0,
                "NO PRIVACY IS CLAIMED: this simulation drew its noise from the run's seed, so "
                "anyone who knows the seed can take the noise off; the rest of this statement "
                "says what real noise of the same size would give.",
            )
        return " ".join(parts)

    def _claim(self) -> str:
        releases = f"{self.rounds} rounds"
        if self.spare_rounds:
            releases += f" and {self.spare_rounds} spare"
        return (
            f"Epsilon = {_at_most(self.epsilon)} at delta = {self.delta:g} for each user, by "
            f"{_ACCOUNTANTS[self.accountant]}, over {releases}, each with Gaussian noise of at "
            f"least {_at_least(self.noise_multiplier)} times the L2 bound of one user's answer; "
            "no amplification by sampling is claimed."
        )

    def _unit(self) -> str:
        return (
            "The unit is the user: the record of one node's user with all its texts, so a person "
            "with two devices counts twice. Adjacency is zero-out: everything one user "
            "contributes is replaced by zero, while who takes part, how many they are and the "
            "configuration are public."
        )

    def _against(self) -> str:
        return (
            "Aggregation is plain, so the aggregator is trusted: the claim holds against everyone "
            "who sees the released sums or anything made from them, and claims nothing against "
            "the server, which sees each node's own answer. The noise suffices as long as "
            f"{_percent(self.min_surviving_weight)} of the declared users' weight answers "
            "honestly, or the sum is not released; nodes assumed to collude (to know their own "
            f"noise and take it off): {_percent(self.colluding_weight)} of the weight, on top of "
            "that."
        )

    def _not_covered(self) -> str:
        if self.ledger_scope == "run":
            scope = (
                "The ledger is this run's own: any other run on the same users, on a fresh ledger "
                "too, adds its own epsilon."
            )
        else:
            scope = (
                "The ledger spans the runs that declared this population; together they "
                "never exceed the total it was created with, which is what holds for all of them, "
                "and runs on other ledgers add to it."
            )
        text = (
            f"{scope} Not covered: settings tuned by looking at these users' texts, the time nodes "
            "take to answer, the preparation of a simulated split, and what the last bits of "
            "floating-point noise may give away"
        )
        if self.benchmark:
            text += (
                ", and the figures under `benchmark`, which were measured on private or held-out "
                "text outside the nodes, without noise, for this evaluation only"
            )
        return text + "."


def _at_most(value: float) -> str:
    """Four decimals, rounded up: a printed epsilon never understates."""
    return _rounded(value, ROUND_CEILING)


def _at_least(value: float) -> str:
    """Four decimals, rounded down: printed noise never overstates."""
    return _rounded(value, ROUND_FLOOR)


def _rounded(value: float, rounding: str) -> str:
    if math.isinf(value):
        return "infinity"
    exact = Decimal(repr(float(value))).quantize(Decimal("0.0001"), rounding=rounding)
    return f"{exact.normalize():f}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
