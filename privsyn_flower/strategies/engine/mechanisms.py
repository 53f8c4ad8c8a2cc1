"""Who adds the noise of a round, how much of it, and what the ledger is charged for it.

`NodeNoise`: integer noise on the nodes, so that nobody ever has a sum without it.
`matrix_noise.MatrixNoise`: the same on rows of a matrix, so that noise is correlated across rounds.
`aggregator_noise.AggregatorNoise`: Gaussian noise of a TRUSTED aggregator, independent or
correlated across rounds.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from privsyn_flower.common.arrays import F64
from privsyn_flower.privacy.encoding.dense import ONE_ROUND, DensePlan, dense_numbers
from privsyn_flower.privacy.encoding.quantize import MAX_SENSITIVITY, SENSITIVITY, IntegerPlan
from privsyn_flower.privacy.encoding.sizing import WrapAround, least_sensitivity, plan_histogram
from privsyn_flower.privacy.release import NoisySum
from privsyn_flower.protocol.noise import (
    Noise,
    charge_of,
    encoded_bound,
    encoded_length,
    matrix_of,
)
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import ModularSum
from privsyn_flower.strategies.engine.cohort import RoundPlan


class Mechanism(Protocol):
    """How the sum of a round gets its noise; the round engine calls these in this order."""

    @property
    def name(self) -> str:
        """What the metrics call it."""

    @property
    def trusted(self) -> bool:
        """The aggregator has sums without noise, and is trusted to give none away."""

    @property
    def last_once(self) -> bool:
        """The nodes erase what an answer in the last round is made of once it may be unmasked."""

    @property
    def binding(self) -> str:
        """What its size and use are; a run keeps to the first one. Public."""

    def begin(self, rounds: int, released: int, *, fresh: bool) -> None:
        """Before anything is asked. released: rounds with a release; fresh: nothing was charged."""

    def noise(self, plan: RoundPlan, query: Query) -> Noise:
        """Encoding and noise of a query. Raises WrapAround or ValueError before it is sent."""

    def encoding(self, plan: RoundPlan, query: Query) -> IntegerPlan | DensePlan:
        """The integers of the answers, whose sum fits the modulus with its noise."""

    def charge(
        self, query: Query, noise: Noise, rnd: int, *, repeated: bool = False
    ) -> dict[str, Any]:
        """What an attempt of round `rnd` costs, in the words of `Ledger.reserve`. repeated: an
        earlier one is charged."""

    def finish(self, rnd: int, summed: ModularSum, *, repeated: bool = False) -> NoisySum:
        """The collected sum with its noise on. Raises TooFewSurvivors before any is drawn."""

    def released_std(
        self, rnd: int, plan: RoundPlan, query: Query, noise: Noise, weight: float
    ) -> float:
        """Standard deviation of the noise in what is learned from, over survivors of `weight`."""

    def guaranteed_std(self, rnd: int, query: Query, noise: Noise) -> float:
        """The part of it that the guarantee rests on."""

    def learned(self, rnd: int, folder: RunFolder) -> F64 | None:
        """What round `rnd` is learned from: its stored release, or what is made of it and of
        earlier ones (post-processing). None: there is no release."""

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


class NodeNoise:
    """Discrete Gaussian noise, a share of it on every node."""

    name = "nodes"
    trusted = False
    last_once = False
    binding = "of the nodes"

    def begin(self, rounds: int, released: int, *, fresh: bool) -> None:
        """Nothing to prepare: the nodes draw their noise when they answer."""

    def noise(self, plan: RoundPlan, query: Query) -> Noise:
        """The plan's noise multiplier over the guaranteed weight."""
        return integer_noise(plan, query)

    def encoding(self, plan: RoundPlan, query: Query) -> IntegerPlan | DensePlan:
        """The finest integers whose sum fits with the noise of all nodes."""
        return encoding_of(plan, query, plan.noise_multiplier)

    def charge(
        self, query: Query, noise: Noise, rnd: int, *, repeated: bool = False
    ) -> dict[str, Any]:
        """One release of the Gaussian that the noise is a rounding of, and how closely."""
        return charge_of(query, noise)

    def finish(self, rnd: int, summed: ModularSum, *, repeated: bool = False) -> NoisySum:
        """The sum as it is: the nodes have added the noise."""
        return summed.decoded(summed.noise.multiplier)

    def released_std(
        self, rnd: int, plan: RoundPlan, query: Query, noise: Noise, weight: float
    ) -> float:
        """At least the guaranteed one: it grows with the nodes that answered."""
        return plan.released_std(encoded_bound(query, noise), weight)

    def guaranteed_std(self, rnd: int, query: Query, noise: Noise) -> float:
        """That of survivors who weigh W_min."""
        return noise.multiplier * encoded_bound(query, noise)

    def learned(self, rnd: int, folder: RunFolder) -> F64 | None:
        """The release as it is."""
        return folder.load_release(rnd)

    def bind(self, rnd: int) -> None:
        """Every attempt has noise of its own."""

    def close(self, *, complete: bool) -> None:
        """Nothing is kept."""


def integer_noise(plan: RoundPlan, query: Query) -> Noise:
    """Integer encoding and noise of a query. Raises WrapAround when the modulus is too small."""
    encoding = encoding_of(plan, query, plan.noise_multiplier)
    return Noise(
        multiplier=plan.noise_multiplier,
        sensitivity=encoding.sensitivity,
        bits=encoding.bits,
        min_weight=plan.min_weight,
        colluding=plan.colluding,
        sampling_rate=plan.sampling_rate,
        scale=encoding.scale if query.dense else 0.0,
    )


def encoding_of(
    plan: RoundPlan, query: Query, multiplier: float, *, shared: bool = True
) -> IntegerPlan | DensePlan:
    """The finest integers whose sum fits with noise of this multiplier.

    shared: the nodes add it, each a share, so that it grows with those who answer, and in integers
    so small that a release is within `plan.distance` of Gaussian noise; else one party adds all of
    it, whoever answers. Of a question whose answers are rows, one round's integers, which noise of
    a_0 times their size is on. Raises WrapAround when no integers are that small, or hold the sum.
    """
    matrix = matrix_of(query)
    rows = (matrix.unit, matrix.row_norm) if matrix else ONE_ROUND
    # Shared noise guarantees its variance at W_min; noise of one party has it at any weight.
    least, sensitivity = plan.min_weight if shared else plan.users, SENSITIVITY
    if shared:
        needed = least_sensitivity(encoded_length(query), multiplier, least, plan.distance)
        sensitivity = max(sensitivity, needed) / rows[0]
        _check_fine(plan, multiplier, sensitivity)
    if query.dense:
        return dense_numbers(
            query.bound,
            query.length,
            multiplier,
            plan.users,
            least,
            sensitivity,
            plan.sampling_rate,
            rows,
        )
    return plan_histogram(
        query.bound,
        query.length,
        noise_multiplier=multiplier,
        weight=plan.users,
        min_weight=least,
        sensitivity=sensitivity,
    )


def _check_fine(plan: RoundPlan, multiplier: float, sensitivity: float) -> None:
    """Raise WrapAround when integers are not made that fine."""
    if sensitivity > MAX_SENSITIVITY:
        raise WrapAround(
            f"noise of multiplier {multiplier:g} over W_min = {plan.min_weight} users needs "
            f"integers of sensitivity = {sensitivity:.4g} to be within {plan.distance:.3g} of "
            f"Gaussian noise, and {MAX_SENSITIVITY:.4g} is the most: raise noise-multiplier or "
            "delta, or ask fewer users in a sum (data.users, cohort-nodes)"
        )
