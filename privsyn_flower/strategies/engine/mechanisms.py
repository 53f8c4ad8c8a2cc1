"""Who adds the noise of a round, how much of it, and what the ledger is charged for it.

`NodeNoise`: integer noise on the nodes, so that nobody ever has a sum without it.
`AggregatorNoise`: Gaussian noise of a TRUSTED aggregator, independent or correlated across rounds.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from privsyn_flower.privacy.encoding.dense import DensePlan
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.privacy.release import NoisySum
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query
from privsyn_flower.strategies.engine.aggregation import ModularSum
from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.node_noise import NodeNoise, integer_noise

__all__ = [
    "AggregatorNoise",
    "Mechanism",
    "NodeNoise",
    "TrustedMechanism",
    "integer_noise",
    "is_trusted",
]


class Mechanism(Protocol):
    """How the sum of a round gets its noise; the round engine calls these in this order."""

    @property
    def name(self) -> str:
        """What the metrics call it."""

    @property
    def trusted(self) -> bool:
        """The aggregator has sums without noise, and is trusted to give none away."""

    @property
    def promise(self) -> str:
        """What its size and use are; a run keeps to the first one. Public."""

    def begin(self, rounds: int, released: int, *, fresh: bool) -> None:
        """Before anything is asked. released: rounds with a release; fresh: nothing was charged."""

    def noise(self, plan: RoundPlan, query: Query) -> Noise:
        """Encoding and noise of a query. Raises WrapAround or ValueError before it is sent."""

    def encoding(self, plan: RoundPlan, query: Query) -> IntegerPlan | DensePlan:
        """The integers of the answers, whose sum fits the modulus with its noise."""

    def charge(self, query: Query, noise: Noise, rnd: int) -> dict[str, Any]:
        """What round `rnd` costs, in the words of `Ledger.reserve`."""

    def finish(self, rnd: int, summed: ModularSum) -> NoisySum:
        """The collected sum with its noise on. Raises TooFewSurvivors before any is drawn."""

    def released_std(
        self, rnd: int, plan: RoundPlan, query: Query, noise: Noise, weight: float
    ) -> float:
        """Standard deviation of the noise in a release over survivors of `weight`."""

    def bind(self, rnd: int) -> None:
        """The release of round `rnd` is on disk: its noise belongs to it alone."""

    def close(self, *, complete: bool) -> None:
        """No round follows now; complete: none ever will."""


class TrustedMechanism(Mechanism, Protocol):
    """One that draws the same noise for a round again, which may be on one released sum only."""

    def check_claim(self, released: int, charge: str, attempt: int) -> None:
        """After `begin`. charge, attempt: what the run folder's facts of the round after
        `released` name. Raises LedgerError where another folder may have released that round."""

    def claim(self, rnd: int, charge: str, attempt: int) -> None:
        """The facts of round `rnd` name this charge on disk, and its release is written next."""


def is_trusted(mechanism: Mechanism) -> TypeGuard[TrustedMechanism]:
    """Whether a trusted aggregator adds the noise."""
    return mechanism.trusted
