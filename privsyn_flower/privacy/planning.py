"""The privacy plan of a run: from (epsilon, delta) and its phases to their noise, and the sentence.

The smallest noise that keeps epsilon is searched for here (`accounting.calibration`). What it costs
is computed by `PrivacyPlan.epsilon`, whoever chose it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from privsyn_flower.privacy.accounting.calibration import calibrate_beside
from privsyn_flower.privacy.accounting.composition import gaussian_mu
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.plan import EVALUATIONS, Phase, PrivacyPlan, events
from privsyn_flower.privacy.sentence import PrivacyStatement
from privsyn_flower.privacy.wording import at_most, noise_at_least


class PrivacyPlanError(ValueError):
    """The phases' noise or shares, as they are given, cost more than the budget."""


def evaluation_phases(rounds: Phase, count: int) -> list[Phase]:
    """So many evaluations beside these rounds, of all who could be asked; each costs a user as much
    as one round."""
    if not count:
        return []
    beside = Phase(EVALUATIONS, count, 0, rounds.sampler, rounds.source, evaluates=True)
    return [beside.with_multiplier(rounds.equivalent)]


def summed_std(phase: Phase) -> float:
    """Standard deviation of the noise in the sum of all rounds, in units of one bound."""
    found = phase.factorization
    return phase.multiplier * float(found.prefix_std()[-1] if found else math.sqrt(phase.rounds))


def plan_privacy(
    epsilon: float,
    delta: float,
    phases: Sequence[Phase],
    *,
    ledger_epsilon: float = 0.0,
    checked: bool = True,
) -> PrivacyPlan:
    """The privacy plan of these phases, in their order, each with its noise.

    Noise that is not given is the smallest that keeps epsilon. ledger_epsilon: total of the ledger,
    where it is larger than epsilon. checked: False to see what noise costs that is too small.
    Raises PrivacyPlanError when the given noise or shares cost more than epsilon, ValueError on
    names that are not distinct, on groups beside sampling or a question to all, and as `calibrate`
    does. Each group of users has the whole budget: a user is in one.
    """
    names = [phase.name for phase in phases]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"phases = {names} must have distinct names, and there must be one")
    if 0 < ledger_epsilon < epsilon:
        raise PrivacyPlanError(
            f"ledger-epsilon = {ledger_epsilon:g} is the total of all runs and below epsilon = "
            f"{epsilon:g} of this one: lower epsilon, or raise ledger-epsilon"
        )
    _check_mixture(phases)
    if len(groups := {phase.group for phase in phases}) > 1:
        apart = [
            plan_privacy(epsilon, delta, own, ledger_epsilon=ledger_epsilon, checked=checked).phases
            for own in ([p for p in phases if p.group == group] for group in groups)
        ]
        by_name = {phase.name: phase for own in apart for phase in own}
        ordered = tuple(by_name[name] for name in names)
        return PrivacyPlan(epsilon, delta, ordered, max(epsilon, ledger_epsilon))
    left = gaussian_delta(delta)
    mu = gaussian_mu(epsilon, left)
    settled = [_shared(phase, mu) for phase in phases]
    known = [phase for phase in settled if phase.multiplier]
    rest = [phase for phase in settled if not phase.multiplier]
    if rest:
        wanted = Counter[float]()
        for phase in rest:
            wanted[phase.rate] += phase.most
        equal = calibrate_beside(epsilon, wanted, left, events(known))
        settled = [phase if phase.multiplier else phase.costing(equal) for phase in settled]
    made = PrivacyPlan(epsilon, delta, tuple(settled), max(epsilon, ledger_epsilon))
    if checked and known and made.epsilon > epsilon:
        raise PrivacyPlanError(_too_much(made, rest))
    return made


def _check_mixture(phases: Sequence[Phase]) -> None:
    """Raises ValueError where rounds are correlated beside Poisson sampling: the plan of its
    ledger counts releases one by one, and a correlated one alone may cost more than its share. And
    for groups of users beside what mu^2 does not account, or a question to all of them."""
    for phase in phases:
        mixed = "" in {other.group for other in phases} or phase.rate < 1
        if phase.group and (mixed or phase.source == "aggregator"):
            raise ValueError(
                f"{phase.name}: users in groups ({phase.group!r}) are accounted without a "
                "sampling-rate below 1, with noise of the nodes, and with every question to one "
                "group"
            )
    if any(phase.rate < 1 for phase in phases):
        for phase in phases:
            if phase.correlation is not None and phase.correlation.name != "independent":
                raise ValueError(
                    f"{phase.name}: noise that is correlated across rounds is not accounted beside "
                    "a phase with a sampling-rate below 1"
                )


def _too_much(made: PrivacyPlan, rest: Sequence[Phase]) -> str:
    """What given noise costs, and how much of it would do where one number says that."""
    asked = " and ".join(
        f"{phase.rounds} {phase.name}"
        + (f" and {phase.spare} spare" if phase.releases > phase.rounds else "")
        for phase in made.phases
    )
    noise = (
        f"noise-multiplier = {made.main.multiplier} costs epsilon {at_most(made.epsilon)} for "
        f"{asked}, above epsilon = {made.target}: raise it"
    )
    if rest or not all(_equal(p.equivalent, made.main.equivalent) for p in made.phases):
        return f"{noise}, or the others' (their share), or lower rounds"
    own = [replace(phase, multiplier=0.0, share=0.0) for phase in made.phases]
    least = plan_privacy(made.target, made.delta, own).main.multiplier
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


def statement_of(plan: PrivacyPlan, **facts: Any) -> PrivacyStatement:
    """What may be said of the run. facts: of the federation and its data, as
    `PrivacyStatement` has them."""
    main = plan.main
    beside = [p for p in plan.phases if p is not main]
    same = [p for p in beside if p.evaluates and _alike(p, main)]
    others = [p for p in beside if p not in same]
    # Of a run that only measures, nothing is a round.
    own = ("evaluations", "rounds") if main.evaluates else ("rounds", "evaluations")
    claims: dict[str, Any] = {
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "rho_zcdp": plan.rho,
        "noise_multiplier": main.equivalent,
        **dict(zip(own, (main.rounds, sum(p.rounds for p in same)), strict=True)),
        "spare_rounds": main.releases - main.rounds,
        "sampler": main.sampler.name,
        "sampling_rate": main.rate,
        "noise_source": main.source,
        "others": tuple((p.name, p.releases, p.equivalent, p.source, p.rate) for p in others),
        "groups": tuple(
            (name, replace(plan, phases=tuple(own)).epsilon, tuple(p.name for p in own))
            for name, own in plan.groups.items()
            if name
        ),
    }
    if main.correlation is not None and main.correlation.name != "independent":
        claims["correlated"] = main.correlation.name
    if main.participation is not None:
        claims["min_separation"] = main.participation.min_separation
        claims["max_participations"] = main.participation.max_participations
    return PrivacyStatement(**claims | facts)
