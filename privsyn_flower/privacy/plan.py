"""The privacy plan: from (epsilon, delta) and a run's phases, all that its privacy rests on.

A run is a list of phases: a kind of question, asked a number of times, of users whom a sampler
draws, with noise that somebody adds. The plan is made once, before anything is asked
(`planning`), and fixes each phase's noise, the ledger's terms and the numbers of every round.

Without sampling, everything together is one Gaussian release (Dong, Roth and Su 2022): a phase
costs a user mu^2 = participations / multiplier^2, where a correlated phase's multiplier is that of
independent noise which costs as much. With sampling, phases are composed by privacy loss
distributions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from privsyn_flower.privacy.accounting.calibration import sampled_plan
from privsyn_flower.privacy.accounting.composition import composed_epsilon, mu_squared
from privsyn_flower.privacy.accounting.curve import Curve, privacy_curve
from privsyn_flower.privacy.accounting.sampling import EVERYBODY, Sampler
from privsyn_flower.privacy.encoding.sizing import distance_each
from privsyn_flower.privacy.ledger.filters import Kind, Plan
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta

if TYPE_CHECKING:  # independent noise needs none of it
    from privsyn_flower.privacy.correlated import Factorization, Participation
    from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix

# Names of phases: what a method is about, and models measured on the users' data beside it.
ROUNDS, EVALUATIONS = "rounds", "evaluation"


@dataclass(frozen=True)
class Phase:
    """One kind of question, asked a number of times. All of it is public and fixed beforehand.

    rounds: sums that are wanted. spare: attempts that may fail after they were charged; an
    aggregator's failed ones cost nothing. sampler: draws who takes part, and so supplies the
    privacy event. source: who adds the noise. correlation, participation: of noise across rounds,
    and how often a user takes part (None: independent questions to all); an aggregator's
    factorization, or the matrix whose rows nodes answer. cycle: rounds of a rota over nodes, 0 for
    none. evaluates: it measures models, and says nothing new. group: of users whom alone it asks,
    each in one group of the run; "" for all.

    multiplier: noise std / bound of one user's vector, before it is correlated; 0: what `share` of
    the run's mu^2 buys, or without one an equal part of what is left for each participation.
    """

    name: str = ROUNDS
    rounds: int = 1
    spare: int = 0
    sampler: Sampler = EVERYBODY
    source: Literal["nodes", "aggregator"] = "nodes"
    correlation: Factorization | IntegerMatrix | None = None
    participation: Participation | None = None
    cycle: int = 0
    evaluates: bool = False
    group: str = ""
    multiplier: float = 0.0
    share: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError, naming the value, on a phase that cannot be accounted."""
        if self.rounds < 1 or self.spare < 0:
            raise ValueError(
                f"{self.name}: rounds = {self.rounds} must be at least 1, spare-rounds = "
                f"{self.spare} at least 0"
            )
        if not 0 <= self.share < 1 or not 0 <= self.multiplier < math.inf:
            raise ValueError(
                f"{self.name}: share = {self.share} must be from 0 to below 1, noise-multiplier = "
                f"{self.multiplier} finite and at least 0"
            )
        if (self.correlation is None) != (self.participation is None):
            raise ValueError(f"{self.name}: give correlation and participation, or neither")
        if self.correlation is not None and self.participation is not None:
            self.participation.check(self.rounds)
            self.participation.check(self.correlation.rounds)
            self._check_correlation()
        if self.source == "aggregator" and self.rate < 1:
            raise ValueError(
                f"{self.name}: sampling-rate = {self.rate}: sampling amplifies nothing where the "
                "aggregator adds the noise: set sampler = 'full', or noise = 'nodes'"
            )

    def _check_correlation(self) -> None:
        """Raises ValueError on a correlation that is not the source's, and beside sampling."""
        matrix, own = self.matrix, getattr(self.correlation, "participation", None)
        if (own is None) != (matrix is None) or (matrix and own != self.participation):
            raise ValueError(
                f"{self.name}: noise of the {self.source} cannot be correlated by "
                f"{type(self.correlation).__name__} for this participation"
            )
        if matrix and (self.rate < 1 or self.sampler.nodes or self.cycle):
            raise ValueError(
                f"{self.name}: sampler = {self.sampler.name!r}, cycle = {self.cycle}: all nodes "
                "answer rows in every round: set sampler = 'full' and ftrl.schedule = 'users'"
            )

    @property
    def matrix(self) -> IntegerMatrix | None:
        """The matrix whose rows the nodes answer; None: their answers are of one round each."""
        return cast("IntegerMatrix | None", self.correlation) if self.source == "nodes" else None

    @property
    def factorization(self) -> Factorization | None:
        """Whose noise the releases have, whoever adds it, once nodes' rows are made into them."""
        return self.matrix.toeplitz if self.matrix else cast("Any", self.correlation)

    @property
    def rate(self) -> float:
        """Probability that a user is in a sum, as far as it may be claimed (`sampling`)."""
        return self.sampler.rate

    @property
    def most(self) -> int:
        """Rounds that one user can take part in, with the spare ones of independent noise."""
        return self.participation.most if self.participation else self.releases

    @property
    def releases(self) -> int:
        """Sums that leave the nodes with noise and are paid for, spare ones included."""
        return self.rounds + (self.spare if self.source == "nodes" else 0)

    @property
    def sensitivity(self) -> float:
        """Of everything that the phase releases to one user's vectors of length 1, spare rows
        included; of independent noise sqrt(most)."""
        if self.matrix:
            return self.matrix.sensitivity(self.spare)
        if self.factorization is None or self.participation is None:
            return math.sqrt(self.most)
        return float(self.factorization.sensitivity(self.participation))

    @property
    def equivalent(self) -> float:
        """Multiplier of independent noise that costs a user as much for each participation."""
        if self.correlation is None:
            return self.multiplier
        return self.multiplier * math.sqrt(self.most) / self.sensitivity

    def with_multiplier(self, multiplier: float) -> Phase:
        """This phase with noise of that multiplier, before it is correlated."""
        return replace(self, multiplier=multiplier, share=0.0)

    def costing(self, equivalent: float) -> Phase:
        """This phase with the noise of that equivalent."""
        if self.correlation is None:
            return replace(self, multiplier=equivalent)
        return replace(self, multiplier=equivalent * self.sensitivity / math.sqrt(self.most))


@dataclass(frozen=True)
class PrivacyPlan:
    """(epsilon, delta) over all phases, each with its noise; made by `planning.plan_privacy`.

    target: epsilon that was asked for. total: of the ledger, where it has more to give.
    """

    target: float
    delta: float
    phases: tuple[Phase, ...]
    total: float

    def __getitem__(self, name: str) -> Phase:
        """The phase of a name. Raises KeyError when nothing was paid for that."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise KeyError(f"{name}: the run has paid for {[phase.name for phase in self.phases]}")

    @property
    def main(self) -> Phase:
        """The phase that a method is about: its rounds, or what is asked most often."""
        named = [phase for phase in self.phases if phase.name == ROUNDS]
        return named[0] if named else max(self.phases, key=lambda phase: phase.most)

    @property
    def groups(self) -> dict[str, list[Phase]]:
        """What one user can be asked: the phases of each group, or of "" all there are."""
        names = dict.fromkeys(phase.group for phase in self.phases)
        return {name: [p for p in self.phases if p.group == name] for name in names}

    @property
    def costliest(self) -> list[Phase]:
        """Of the group that pays most. Groups share no user, so the run costs what that one does;
        they sample nobody (`planning`), so mu^2 tells which at every delta."""
        return max(self.groups.values(), key=lambda own: total_mu_squared(events(own)))

    @property
    def epsilon(self) -> float:
        """What all phases cost a user together: at most the target."""
        return composed_epsilon(events(self.costliest), gaussian_delta(self.delta))

    @property
    def rho(self) -> float | None:
        """What all phases cost together as zero-concentrated DP: mu^2 / 2 (Bun and Steinke 2016,
        Proposition 1.6, and Lemma 1.7 for their sum). None with Poisson sampling: nothing here
        computes the rho of a sampled Gaussian."""
        if any(phase.rate < 1.0 for phase in self.phases):
            return None
        return total_mu_squared(events(self.costliest)) / 2

    @property
    def curve(self) -> Curve:
        """Every pair of epsilon and delta that all phases' noise gives together."""
        return privacy_curve(events(self.costliest), self.delta)

    @property
    def releases(self) -> int:
        """Sums with the nodes' noise, spare ones included."""
        return sum(phase.releases for phase in self.phases if phase.source == "nodes")

    @property
    def plan(self) -> Plan | None:
        """What the ledger is made for with Poisson sampling; None: its filter is mu^2."""
        if all(phase.rate == 1.0 for phase in self.phases):
            return None
        main = self.main
        ordered = [main, *(phase for phase in self.phases if phase is not main)]
        kinds = tuple(Kind(z, rate, count) for (z, rate), count in events(ordered).items())
        return sampled_plan(kinds, self.target, self.delta, self.total)

    @property
    def distance(self) -> float:
        """Total variation that the integer noise of one release may be from Gaussian noise."""
        plan = self.plan
        if plan is not None:
            releases = sum(kind.releases for kind in plan)
            return distance_each(self.total, self.delta, releases)
        return distance_each(self.target, self.delta, self.releases, self.total)

    def ledger_terms(self, *, simulation: bool = False) -> dict[str, Any]:
        """What the run's ledger is made with, or must have been made with (`Ledger.open`)."""
        return {
            "total_epsilon": self.total,
            "total_delta": self.delta,
            "simulation": simulation,
            "plan": self.plan,
        }


def events(phases: Sequence[Phase]) -> Counter[tuple[float, float]]:
    """(multiplier, rate) -> sums that one user can be in, as independent noise costs them."""
    found = Counter[tuple[float, float]]()
    for phase in phases:
        found[(phase.equivalent, phase.rate)] += phase.most
    return found


def total_mu_squared(releases: Counter[tuple[float, float]]) -> float:
    """Of all these events, sampling left aside."""
    return math.fsum(count * mu_squared(z) for (z, _), count in releases.items())
