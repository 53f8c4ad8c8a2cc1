"""One promise: from (epsilon, delta) and a run's phases, all that its privacy rests on.

A run is a list of phases: a kind of question, asked a number of times, of users whom a sampler
draws, with noise that somebody adds. The promise is made once, before anything is asked. It fixes
each phase's noise, and tells the ledger's terms, the numbers of every round, the sentence, and what
a resume must find again; nothing else turns an epsilon into noise.

Without sampling, everything together is one Gaussian release: a phase costs a user
mu^2 = participations / multiplier^2, where a correlated phase's multiplier is that of independent
noise which costs as much. With sampling, phases are composed by privacy loss distributions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from privsyn_flower.privacy.accounting.composition import (
    calibrate_beside,
    composed_epsilon,
    gaussian_mu,
    mu_squared,
)
from privsyn_flower.privacy.accounting.curve import Curve, privacy_curve
from privsyn_flower.privacy.accounting.sampling import EVERYBODY, Sampler
from privsyn_flower.privacy.ledger.filters import Kind, Plan, sampled_plan
from privsyn_flower.privacy.noise.integer_noise import distance_each, gaussian_delta
from privsyn_flower.privacy.sentence import PrivacyStatement
from privsyn_flower.privacy.wording import at_most, noise_at_least

if TYPE_CHECKING:
    from privsyn_flower.privacy.correlated import Factorization, Participation

# Names of phases: what a method is about, and models measured on the users' data beside it.
ROUNDS, EVALUATIONS = "rounds", "evaluation"


class PromiseError(ValueError):
    """The phases' noise or shares, as they are given, cost more than was promised."""


@dataclass(frozen=True)
class Phase:
    """One kind of question, asked a number of times. All of it is public and fixed beforehand.

    name: in messages and the sentence. rounds: sums that are wanted. spare: attempts that may fail
    after they were charged; an aggregator's failed ones cost nothing. sampler: draws who takes
    part, and so supplies the privacy event. source: who adds the noise. correlation, participation:
    of an aggregator's noise across rounds, and how often one user takes part (None: independent
    questions to all). cycle: rounds of a rota over nodes, 0 for none. evaluates: it measures
    models, and says nothing new.

    multiplier: noise std / bound of one user's vector, before it is correlated; 0: what `share` of
    the run's mu^2 buys; without a share, what is left after the others, as much for each
    participation in every phase of this sort.
    """

    name: str = ROUNDS
    rounds: int = 1
    spare: int = 0
    sampler: Sampler = EVERYBODY
    source: Literal["nodes", "aggregator"] = "nodes"
    correlation: Factorization | None = None
    participation: Participation | None = None
    cycle: int = 0
    evaluates: bool = False
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
        if self.source == "nodes" and (self.correlation or self.participation):
            raise ValueError(f"{self.name}: noise of the nodes is independent in every round")
        if (self.correlation is None) != (self.participation is None):
            raise ValueError(f"{self.name}: give correlation and participation, or neither")
        if self.correlation is not None and self.participation is not None:
            self.participation.check(self.rounds)
            self.participation.check(self.correlation.rounds)
        if self.source == "aggregator" and self.rate < 1:
            raise ValueError(
                f"{self.name}: sampling-rate = {self.rate}: secret coins amplify nothing where the "
                "aggregator adds the noise: set sampler = 'full', or noise = 'nodes'"
            )

    @property
    def rate(self) -> float:
        """Probability that a user is in a sum, as far as it may be claimed (`sampling`)."""
        return self.sampler.rate

    @property
    def most(self) -> int:
        """Sums that one user can be in and that are paid for."""
        if self.source == "nodes":
            return self.rounds + self.spare
        return self.participation.most if self.participation else self.rounds

    @property
    def sensitivity(self) -> float:
        """Of everything that the phase releases to one user's vectors of length 1; of independent
        noise sqrt(most)."""
        if self.correlation is None or self.participation is None:
            return math.sqrt(self.most)
        return float(self.correlation.sensitivity(self.participation))

    @property
    def equivalent(self) -> float:
        """Multiplier of independent noise that costs a user as much for each participation."""
        if self.correlation is None:
            return self.multiplier
        return self.multiplier * math.sqrt(self.most) / self.sensitivity

    def given(self, multiplier: float) -> Phase:
        """This phase with noise of that multiplier, before it is correlated."""
        return replace(self, multiplier=multiplier, share=0.0)

    def costing(self, equivalent: float) -> Phase:
        """This phase with the noise of that equivalent."""
        if self.correlation is None:
            return replace(self, multiplier=equivalent)
        return replace(self, multiplier=equivalent * self.sensitivity / math.sqrt(self.most))


@dataclass(frozen=True)
class Promise:
    """(epsilon, delta) over all phases, each with its noise; made by `promise`.

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
    def epsilon(self) -> float:
        """What all phases cost together: at most the target."""
        return composed_epsilon(_events(self.phases), gaussian_delta(self.delta))

    @property
    def rho(self) -> float | None:
        """What all phases cost together as zero-concentrated DP: mu^2 / 2 (Bun and Steinke 2016,
        Proposition 1.6, and Lemma 1.7 for their sum). None where users toss coins: nothing here
        computes the rho of a sampled Gaussian."""
        if any(phase.rate < 1.0 for phase in self.phases):
            return None
        events = _events(self.phases)
        return math.fsum(count * mu_squared(z) for (z, _), count in events.items()) / 2

    @property
    def curve(self) -> Curve:
        """Every pair of epsilon and delta that all phases' noise gives together."""
        return privacy_curve(_events(self.phases), self.delta)

    @property
    def releases(self) -> int:
        """Sums with the nodes' noise, spare ones included."""
        return sum(phase.most for phase in self.phases if phase.source == "nodes")

    @property
    def plan(self) -> Plan | None:
        """What the ledger is made for where users toss coins; None: its filter is mu^2."""
        if all(phase.rate == 1.0 for phase in self.phases):
            return None
        main = self.main
        events = _events([main, *(phase for phase in self.phases if phase is not main)])
        kinds = tuple(Kind(z, rate, count) for (z, rate), count in events.items())
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

    def round_numbers(self, phase: Phase) -> dict[str, Any]:
        """What a phase puts into `RoundPlan`."""
        return {
            "noise_multiplier": phase.equivalent,
            "spare_rounds": phase.spare,
            "sampling_rate": phase.rate,
            "cohort_nodes": phase.sampler.nodes,
            "cycle": phase.cycle,
            "distance": self.distance,
        }

    def statement(self, **facts: Any) -> PrivacyStatement:
        """What may be said of the run. facts: of the federation and its data, as
        `PrivacyStatement` has them."""
        main = self.main
        beside = [p for p in self.phases if p is not main]
        same = [p for p in beside if p.evaluates and _alike(p, main)]
        others = [p for p in beside if p not in same]
        # Of a run that only measures, nothing is a round.
        own = ("evaluations", "rounds") if main.evaluates else ("rounds", "evaluations")
        claims: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "rho_zcdp": self.rho,
            "noise_multiplier": main.equivalent,
            **dict(zip(own, (main.rounds, sum(p.rounds for p in same)), strict=True)),
            "spare_rounds": main.spare if main.source == "nodes" else 0,
            "sampler": main.sampler.name,
            "sampling_rate": main.rate,
            "noise_source": main.source,
            "others": tuple(
                (p.name, p.rounds + _spare(p), p.equivalent, p.source, p.rate) for p in others
            ),
        }
        if main.correlation is not None and main.correlation.name != "independent":
            claims["correlated"] = main.correlation.name
        if main.participation is not None:
            claims["min_separation"] = main.participation.min_separation
            claims["max_participations"] = main.participation.max_participations
        return PrivacyStatement(**claims | facts)


def evaluation_phases(rounds: Phase, count: int) -> list[Phase]:
    """So many evaluations beside these rounds, of all who could be asked; each costs a user as much
    as one round."""
    if not count:
        return []
    beside = Phase(EVALUATIONS, count, 0, rounds.sampler, rounds.source, evaluates=True)
    return [beside.given(rounds.equivalent)]


def promise(
    epsilon: float,
    delta: float,
    phases: Sequence[Phase],
    *,
    ledger_epsilon: float = 0.0,
    checked: bool = True,
) -> Promise:
    """The promise of these phases, in their order, each with its noise.

    Noise that is not given is the smallest that keeps epsilon. ledger_epsilon: total of the ledger,
    where it is larger than epsilon. checked: False to see what noise costs that is too small.
    Raises PromiseError when the given noise or shares cost more than epsilon, ValueError on names
    that are not distinct and as `calibrate` does.
    """
    names = [phase.name for phase in phases]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"phases = {names} must have distinct names, and there must be one")
    if 0 < ledger_epsilon < epsilon:
        raise PromiseError(
            f"ledger-epsilon = {ledger_epsilon:g} is the total of all runs and below epsilon = "
            f"{epsilon:g} of this one: lower epsilon, or raise ledger-epsilon"
        )
    _check_mixture(phases)
    left = gaussian_delta(delta)
    mu = gaussian_mu(epsilon, left)
    settled = [_shared(phase, mu) for phase in phases]
    known = [phase for phase in settled if phase.multiplier]
    rest = [phase for phase in settled if not phase.multiplier]
    if rest:
        wanted = Counter[float]()
        for phase in rest:
            wanted[phase.rate] += phase.most
        equal = calibrate_beside(epsilon, wanted, left, _events(known))
        settled = [phase if phase.multiplier else phase.costing(equal) for phase in settled]
    made = Promise(epsilon, delta, tuple(settled), max(epsilon, ledger_epsilon))
    if checked and known and made.epsilon > epsilon:
        raise PromiseError(_too_much(made, rest))
    return made


def _check_mixture(phases: Sequence[Phase]) -> None:
    """Raises ValueError where rounds are correlated beside users who toss coins: the plan of their
    ledger counts releases one by one, and a correlated one alone may cost more than its share."""
    if any(phase.rate < 1 for phase in phases):
        for phase in phases:
            if phase.correlation is not None and phase.correlation.name != "independent":
                raise ValueError(
                    f"{phase.name}: noise that is correlated across rounds is not accounted beside "
                    "a phase with a sampling-rate below 1"
                )


def _too_much(made: Promise, rest: Sequence[Phase]) -> str:
    """What given noise costs, and how much of it would do where one number says that."""
    asked = " and ".join(
        f"{phase.rounds} {phase.name}" + (f" and {_spare(phase)} spare" if _spare(phase) else "")
        for phase in made.phases
    )
    noise = (
        f"noise-multiplier = {made.main.multiplier} costs epsilon {at_most(made.epsilon)} for "
        f"{asked}, above epsilon = {made.target}: raise it"
    )
    if rest or not all(_equal(p.equivalent, made.main.equivalent) for p in made.phases):
        return f"{noise}, or the others' (their share), or lower rounds"
    own = [replace(phase, multiplier=0.0, share=0.0) for phase in made.phases]
    least = promise(made.target, made.delta, own).main.multiplier
    return f"{noise} to {noise_at_least(least)}, lower rounds, or set it to 0 to calibrate it"


def _shared(phase: Phase, mu: float) -> Phase:
    """A phase whose share of mu^2 is given, with the noise that the share buys."""
    if phase.multiplier or not phase.share:
        return phase
    return phase.costing(math.sqrt(phase.most / phase.share) / mu)


def _alike(evaluation: Phase, main: Phase) -> bool:
    """Whether what is said of the main phase's releases holds for this one's."""
    if evaluation.spare or (evaluation.source, evaluation.sampler) != (main.source, main.sampler):
        return False
    return _equal(evaluation.equivalent, main.equivalent)


def _equal(one: float, other: float) -> bool:
    """But for rounding: noise before it is correlated, told as independent noise, and back."""
    return math.isclose(one, other, rel_tol=1e-9)


def _spare(phase: Phase) -> int:
    return phase.spare if phase.source == "nodes" else 0


def _events(phases: Sequence[Phase]) -> Counter[tuple[float, float]]:
    """(multiplier, rate) -> sums that one user can be in."""
    events = Counter[tuple[float, float]]()
    for phase in phases:
        events[(phase.equivalent, phase.rate)] += phase.most
    return events
