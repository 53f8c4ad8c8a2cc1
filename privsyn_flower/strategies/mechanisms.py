"""Who adds the noise of a round, how much of it, and what the ledger is charged for it.

`NodeNoise`: integer noise on the nodes, so that nobody ever has a sum without it.
"""

from __future__ import annotations

from typing import Any, Protocol

from privsyn_flower.privacy.dense import DensePlan, dense_numbers
from privsyn_flower.privacy.quantize import IntegerPlan, plan_histogram
from privsyn_flower.privacy.release import NoisySum
from privsyn_flower.question import Noise, Query, encoded_bound
from privsyn_flower.strategies.cohort import RoundPlan


class Mechanism(Protocol):
    """How the sum of a round gets its noise; the round engine calls these in this order."""

    name: str
    trusted: bool  # the aggregator has sums without noise, and is trusted to give none away

    def begin(self, rounds: int, released: int, *, fresh: bool) -> None:
        """Before anything is asked: `released` of `rounds` have a release; fresh: no charge yet."""

    def noise(self, plan: RoundPlan, query: Query) -> Noise:
        """Encoding and noise of a query. Raises WrapAround or ValueError before it is sent."""

    def charge(self, plan: RoundPlan, noise: Noise, rnd: int) -> dict[str, Any]:
        """What round `rnd` costs, in the words of `Ledger.reserve`."""

    def finish(self, rnd: int, summed: NoisySum, query: Query, noise: Noise) -> NoisySum:
        """The collected sum with its noise on. Raises TooFewSurvivors before any is drawn."""

    def released_std(
        self, rnd: int, plan: RoundPlan, query: Query, noise: Noise, weight: float
    ) -> float:
        """Standard deviation of the noise in a release over survivors of `weight`."""

    def bind(self, rnd: int) -> None:
        """The release of round `rnd` is on disk: its noise belongs to it alone."""

    def close(self, *, complete: bool) -> None:
        """No round follows now; complete: none ever will."""


class NodeNoise:
    """Integer (Skellam) noise, a share of it on every node."""

    name = "nodes"
    trusted = False

    def begin(self, rounds: int, released: int, *, fresh: bool) -> None:
        """Nothing to prepare: the nodes draw their noise when they answer."""

    def noise(self, plan: RoundPlan, query: Query) -> Noise:
        """The plan's noise multiplier over the guaranteed weight."""
        return integer_noise(plan, query)

    def charge(self, plan: RoundPlan, noise: Noise, rnd: int) -> dict[str, Any]:
        """One release of integer noise."""
        return {
            "noise_multiplier": plan.noise_multiplier,
            "mechanism": "skellam",
            "sensitivity": noise.sensitivity,
            "sampling_rate": noise.sampling_rate,
        }

    def finish(self, rnd: int, summed: NoisySum, query: Query, noise: Noise) -> NoisySum:
        """The sum as it is: the nodes have added the noise."""
        return summed

    def released_std(
        self, rnd: int, plan: RoundPlan, query: Query, noise: Noise, weight: float
    ) -> float:
        """At least the guaranteed one: it grows with the nodes that answered."""
        return plan.released_std(encoded_bound(query, noise), weight)

    def bind(self, rnd: int) -> None:
        """Every attempt has noise of its own."""

    def close(self, *, complete: bool) -> None:
        """Nothing is kept."""


def integer_noise(plan: RoundPlan, query: Query) -> Noise:
    """Integer encoding and noise of a query. Raises WrapAround when the modulus is too small."""
    encoding = _encoding(plan, query, plan.noise_multiplier)
    return Noise(
        multiplier=plan.noise_multiplier,
        sensitivity=encoding.sensitivity,
        bits=encoding.bits,
        min_weight=plan.min_weight,
        colluding=plan.colluding,
        sampling_rate=plan.sampling_rate,
        scale=encoding.scale if query.dense else 0.0,
    )


def _encoding(plan: RoundPlan, query: Query, multiplier: float) -> IntegerPlan | DensePlan:
    """multiplier: of the noise that the nodes add; 0 for none."""
    if query.dense:
        return dense_numbers(query.bound, query.length, multiplier, plan.users, plan.min_weight)
    return plan_histogram(
        query.bound,
        query.length,
        noise_multiplier=multiplier,
        weight=plan.users,
        min_weight=plan.min_weight,
    )
