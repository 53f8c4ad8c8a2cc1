"""One audit from a configuration: the question, who takes part and who adds what noise, its trials,
and what they say about the claim.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.audit.cases import (
    evaluation_case,
    scores_case,
    topics_case,
    update_case,
    votes_case,
)
from privsyn_flower.app.audit.path import CANARY, AuditError, Case, Role, Seat
from privsyn_flower.app.audit.statistics import (
    SamplingTest,
    correlation_test,
    epsilon_lower_bound,
    filtered,
    halves,
    sampling_test,
    variance_test,
    whitening,
)
from privsyn_flower.app.audit.trials import RUN, Setting, Trials, run_trials
from privsyn_flower.client_apps.node.schedule import places, public_ids
from privsyn_flower.common.arrays import F64
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.accounting import composition as accounting
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.privacy.planning import evaluation_phases
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.protocol.noise import encoded_bound, encoded_length
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.privacy_plan import ledger_terms, privacy_plan
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.ctcl.strategy import TOPICS
from privsyn_flower.strategies.engine.aggregation import AGGREGATIONS
from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.matrix_noise import MatrixNoise
from privsyn_flower.strategies.engine.mechanisms import Mechanism, NodeNoise
from privsyn_flower.strategies.engine.session import trusted_noise
from privsyn_flower.strategies.resource_adaptive.strategy import VOTES

EVALUATION = "evaluation"  # the kind of query that is about models, beside the rounds
HONEST_NODES = 6  # of two users each; every one of them survives
TURN_NODES = 3  # who answer in one round of an aggregator's noise: the fewest of a secure sum
# Claims are exact, not above the true value: at 95 % a false alarm could come once in 20 audits.
CONFIDENCE = 0.999
NOISE_LEVEL = 1e-3  # two-sided, so too little noise is a false alarm once in 2000 audits
FEWEST_TRIALS, DEFAULT_TRIALS, MOST_TRIALS = 200, 10_000, 1_000_000
MOST_NUMBERS = 1 << 24  # of all rounds and trials of one audit, so that it takes a minute at most


@dataclass(frozen=True)
class Audit:
    """What was found about one release, or about all rounds of a run.

    rounds: 1, or those of a run whose noise is correlated, or is an aggregator's. claimed_epsilon:
    of a user who takes part in a release with probability sampling_rate, or as often as the run
    allows, at `delta`. lower_bound: epsilon is at least this with probability `confidence`.
    noise_variance_ratio: measured / charged. variance_p_value: two-sided. correlation_p_value: of
    noise that is independent between rounds once it is whitened; None of one release. sampling:
    None where every user takes part. contradiction: lower_bound above claimed_epsilon, noise below
    what is charged, rounds that share noise, or sampling that is not that of the rate.
    noise_multiplier: of noise_source, the nodes or an aggregator, before it is correlated.
    """

    kind: str
    claimed_epsilon: float
    lower_bound: float
    confidence: float
    trials: int
    noise_variance_ratio: float
    variance_p_value: float
    contradiction: bool
    delta: float
    noise_multiplier: float
    noise_source: str = "nodes"
    rounds: int = 1
    correlation_p_value: float | None = None
    sampling_rate: float = 1.0
    sampling: SamplingTest | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that the command prints."""
        return asdict(self)


def audit(config: RunConfig, trials: int = DEFAULT_TRIALS, kind: str = "") -> Audit:
    """Audit one of this configuration's kinds of query, at its noise and weights.

    trials: releases, or runs where all rounds are measured, half of them with the canary;
    fewer where a run has many rounds. kind: of `kinds`, or "evaluation"; "": the first of `kinds`.
    Raises ConfigError or ValueError on numbers and another kind, AuditError when nothing could be
    measured.
    """
    if not FEWEST_TRIALS <= trials <= MOST_TRIALS:
        raise ValueError(f"trials = {trials} must be from {FEWEST_TRIALS} to {MOST_TRIALS}")
    asked = kinds(config)
    if kind not in ("", *asked, EVALUATION):
        names = " or ".join(map(repr, asked))
        raise ValueError(f"kind = {kind!r} must be {names}, which is asked, or 'evaluation'")
    kind = kind or asked[0]
    phase = audited_phase(config, kind)
    made = aggregator_setting if phase.source == "aggregator" else nodes_setting
    with tempfile.TemporaryDirectory(prefix="privsyn-audit-") as folder:
        case = KINDS[kind](config, Path(folder))
        return _measured(config, kind, case, made(config, phase), phase, trials)


def kinds(config: RunConfig) -> list[str]:
    """The kinds of query that a run asks: the rounds', CTCL's histogram, "topics", and the votes of
    weak nodes."""
    if not config.uses("ctcl"):
        return [recipe_of(config).question(config)[0]]
    own = {"update": config.updates, TOPICS: config[CtclConfig].histogram}
    own["votes"] = bool(config.own.groups(config))
    return [kind for kind, is_asked in own.items() if is_asked]


def _measured(
    config: RunConfig,
    kind: str,
    case: Case,
    setting: Setting,
    phase: Phase,
    trials: int,
) -> Audit:
    trials = min(trials, MOST_NUMBERS // (setting.rounds * encoded_length(case.query)))
    if trials < FEWEST_TRIALS:
        raise AuditError(
            f"{setting.rounds} rounds leave room for {trials} trials, fewer than {FEWEST_TRIALS} "
            "say nothing: lower rounds"
        )
    seen = run_trials(case, setting, trials)
    rounds, rate = slice(setting.rounds), seen.numbers.sampling_rate
    matrix = phase.factorization
    white = np.eye(1) if matrix is None else whitening(matrix)[rounds, rounds]
    left = seen.noise if len(white) == 1 else np.tensordot(white, seen.noise, 1)
    shifts = np.einsum("rs,ksl->krl", white, seen.shifts)
    ratio, p_value = variance_test(left, phase.multiplier * encoded_bound(case.query, seen.numbers))
    correlation = correlation_test(left.reshape(len(left), -1)) if len(left) > 1 else None
    statistic, taken = filtered(left, shifts, seen.which, seen.put), seen.put > 0.5
    sampled = rate < 1
    sampling = sampling_test(seen.draws, taken[seen.present], rate) if sampled else None
    sides = halves(statistic, taken), halves(statistic, ~seen.present)
    drawn = taken[seen.present] if sampled else None
    found = Audit(
        kind=kind,
        claimed_epsilon=_claimed(config, seen, phase),
        lower_bound=epsilon_lower_bound(*sides, config.delta, CONFIDENCE, drawn),
        confidence=CONFIDENCE,
        trials=trials,
        noise_variance_ratio=ratio,
        variance_p_value=p_value,
        contradiction=False,
        delta=config.delta,
        noise_multiplier=phase.multiplier,
        noise_source=seen.numbers.source,
        rounds=setting.rounds,
        correlation_p_value=correlation,
        sampling_rate=rate,
        sampling=sampling,
    )
    return replace(found, contradiction=bool(_faults(found)))


def _faults(result: Audit) -> list[str]:
    """What contradicts the claim, in words."""
    why = []
    if result.lower_bound > result.claimed_epsilon:
        why.append("the canary is told apart more often than the claimed epsilon allows")
    if result.noise_variance_ratio < 1 and result.variance_p_value < NOISE_LEVEL:
        why.append("the sums carry less noise than is charged")
    if result.correlation_p_value is not None and result.correlation_p_value < NOISE_LEVEL:
        why.append("rounds share noise")
    own = result.sampling
    return why + (own.faults(result.sampling_rate, NOISE_LEVEL) if own else [])


def _claimed(config: RunConfig, seen: Trials, phase: Phase) -> float:
    """Epsilon of one release of independent noise, or of all rounds: as computed, and as charged.
    No row is asked once more here."""
    delta, matrix, users = gaussian_delta(config.delta), phase.factorization, phase.participation
    if matrix is None or users is None:
        claimed = accounting.epsilon(phase.multiplier, 1, delta, sampling_rate=phase.rate)
    else:
        whole = phase.multiplier / matrix.sensitivity(users)
        claimed = accounting.gaussian_epsilon(whole, delta)
    return min(claimed, seen.spent)


def described(result: Audit) -> str:
    """The result as a table of plain lines, and what it says."""
    whole = result.rounds > 1
    releases = f"all {result.rounds} rounds" if whole else "one release"
    takes_part = "takes part as often as the noise is made for" if whole else "takes part"
    if result.sampling:
        takes_part += f" with probability {result.sampling_rate:g}"
    where = "at survivors of weight W_min" if result.noise_source == "nodes" else "of an aggregator"
    rows = {
        "query": f"{result.kind}, {releases}, of a user who {takes_part}",
        "noise multiplier": f"{result.noise_multiplier:.4f}, {where}",
        "trials": f"{result.trials}, the canary in half of them",
        "claimed epsilon": f"{at_most(result.claimed_epsilon)} at delta = {result.delta:g}",
        "lower bound": f"{result.lower_bound:.4f} with confidence {result.confidence:g}",
        "noise variance": f"{result.noise_variance_ratio:.4f} of what is charged",
        "its p-value": f"{result.variance_p_value:.3g} (two-sided)",
    }
    if result.correlation_p_value is not None:
        rows["rounds' p-value"] = f"{result.correlation_p_value:.3g} (of independent noise)"
    if result.sampling:
        rows |= _sampling_rows(result.sampling, result.sampling_rate)
    why = _faults(result)
    if result.noise_variance_ratio > 1 and result.variance_p_value < NOISE_LEVEL:
        why.append("the sums carry more noise than is charged")
    verdict = "CONTRADICTION" if result.contradiction else "no contradiction found"
    lines = [f"{name:<17} {text}" for name, text in rows.items()]
    return "\n".join([*lines, ": ".join([verdict, "; ".join(why)] if why else [verdict])])


def _sampling_rows(own: SamplingTest, rate: float) -> dict[str, str]:
    users = f"{own.sampled:.4f} of {own.draws} draws, {rate:g} is claimed"
    return {
        "sampled": f"{users}; p-value {own.sampled_p_value:.3g} (two-sided)",
        "canary sampled": f"in {own.canary:.4f} of its sums; p-value {own.canary_p_value:.3g}",
        "independence": f"p-value {own.independence_p_value:.3g} (of independent sampling)",
    }


KINDS: dict[str, Callable[[RunConfig, Path], Case]] = {
    "votes": lambda config, _: votes_case(config),
    "scores": lambda config, _: scores_case(config),
    "update": lambda config, folder: update_case(config, audited_users(config), folder),
    TOPICS: lambda config, _: topics_case(config),
    EVALUATION: evaluation_case,
}


def audited_phase(config: RunConfig, kind: str) -> Phase:
    """What a kind of query is paid by: the rounds, an evaluation beside them, or CTCL's histogram.

    Raises ConfigError on numbers from which no privacy plan can be computed.
    """
    made = privacy_plan(config)
    if kind in (TOPICS, VOTES) and kind in {phase.name for phase in made.phases}:
        return made[kind]
    return evaluation_phases(made.main, 1)[0] if kind == EVALUATION else made.main


def nodes_setting(config: RunConfig, phase: Phase) -> Setting:
    """One release with the nodes' noise and, where the phase samples, its users' sampling; where
    nodes answer rows, all rounds, and the canary has the first turn, which is the worst.

    The honest survivors weigh exactly W_min, so the noise is what is charged and no more: the
    plan's spare weight is lost after masking, and the colluders' noise is known to them.
    """
    plan = RoundPlan(
        run="audit",
        users=audited_users(config),
        noise_multiplier=phase.multiplier,
        spare_rounds=0,
        min_surviving_weight=config.min_surviving_weight,
        colluding_weight=config.colluding_weight,
        sampling_rate=phase.rate,
        distance=privacy_plan(config).distance,
    )
    seats, matrix = node_seats(plan), phase.matrix
    if matrix is None:
        one, rounds = NodeNoise(), 1
        mechanism: Callable[[Path], Mechanism] = lambda _: one  # noqa: E731
    else:
        first, rounds = _first_place(config.ftrl.min_separation), matrix.rounds
        seats = [replace(seat, partition=seat.partition + first) for seat in seats]
        mechanism = lambda folder: MatrixNoise(  # noqa: E731
            matrix, phase.multiplier, RunFolder(folder / RUN)
        )
    how = AGGREGATIONS[config.aggregation]()
    return Setting(plan, seats, how, mechanism, _ledger(config), rounds)


def _first_place(turns: int, turn: int = 0) -> int:
    """The place of the canary's node at which the canary, whose own place shifts it, has a turn."""
    return (turn - int(places(public_ids([CANARY]))[0])) % turns


def _ledger(config: RunConfig) -> dict[str, Any]:
    """The run's own terms: a charge that its ledger would refuse is refused here, too."""
    return {**ledger_terms(config), "simulation": False}


def audited_users(config: RunConfig) -> int:
    """The declared population, or one that is large enough for the audit's nodes."""
    return max(config.data.users, smallest_population(config.min_surviving_weight))


def smallest_population(min_surviving_weight: float) -> int:
    """Users that the audit's nodes need to host two each within W_min."""
    return math.ceil(2 * HONEST_NODES / min_surviving_weight)


def node_seats(plan: RoundPlan) -> list[Seat]:
    """Nodes by what they do, and their weights; the honest ones weigh W_min together."""
    honest = _split(plan.min_weight, HONEST_NODES)
    # No heavier than an honest node: the threshold assumes as many colluders as could fit.
    colluding = _split(plan.colluding, math.ceil(plan.colluding / honest[-1]))
    lost = plan.users - plan.min_weight - plan.colluding
    roles: list[tuple[Role, int]] = [("canary", honest[0])]
    roles += [("honest", weight) for weight in honest[1:]]
    roles += [("colluding", weight) for weight in colluding]
    roles += [("lost", lost)] if lost else []
    return [Seat(role, weight, at) for at, (role, weight) in enumerate(roles)]


def _split(total: int, parts: int) -> list[int]:
    """Whole numbers that differ by 1 at most, the largest first."""
    return [total // parts + (at < total % parts) for at in range(parts)]


def aggregator_setting(config: RunConfig, phase: Phase) -> Setting:
    """All rounds of a phase whose noise an aggregator adds; the canary has the worst turn there is.

    Everybody survives and nobody colludes, because nothing here depends on either: no node adds
    noise, and the adversary knows what they all send.
    """
    noise = trusted_noise(phase, run="audit")
    rounds, ftrl = noise.factorization.rounds, config.ftrl
    turns = ftrl.min_separation if rounds > 1 else 1
    by_node = turns > 1 and ftrl.schedule == "nodes"
    turn = worst_turn(noise, turns)
    if by_node:
        seats = [
            Seat("canary" if at == turn else "honest", 2, at) for at in range(TURN_NODES * turns)
        ]
    else:  # the canary's place is its own, shifted by its node's
        first = _first_place(turns, turn)
        seats = [Seat("honest" if at else "canary", 2, first + at) for at in range(TURN_NODES)]
    plan = RoundPlan(
        run="audit",
        users=sum(seat.weight for seat in seats),
        noise_multiplier=noise.multiplier,
        spare_rounds=0,
        min_surviving_weight=config.min_surviving_weight,
        cycle=turns if by_node else 0,
    )
    return Setting(
        plan,
        seats,
        AGGREGATIONS[config.aggregation](),
        lambda folder: replace(noise, folder=folder / "keys"),
        _ledger(config),
        min(rounds, turns * noise.participations),  # then nobody is left who may take part
    )


def worst_turn(noise: AggregatorNoise, turns: int) -> int:
    """The turn of a rota, from 0, whose user changes the whitened releases most."""
    white = whitening(noise.factorization)
    most = noise.participations

    def changed(turn: int) -> F64:
        rounds = np.zeros(len(white))
        rounds[turn::turns][:most] = 1.0
        return white @ rounds

    return max(range(turns), key=lambda turn: float(np.linalg.norm(changed(turn))))
