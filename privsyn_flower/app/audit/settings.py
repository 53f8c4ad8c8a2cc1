"""Who takes part in an audit, and who adds what noise, from a run's configuration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.audit.path import CANARY, Role, Seat
from privsyn_flower.app.audit.statistics import whitening
from privsyn_flower.app.audit.trials import RUN, Setting
from privsyn_flower.client_apps.node.schedule import places, public_ids
from privsyn_flower.common.arrays import F64
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.privacy.planning import evaluation_phases
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.privacy_plan import ledger_terms, privacy_plan
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


def aggregator_noise(phase: Phase) -> AggregatorNoise:
    """A phase's noise of a trusted aggregator, its keys nowhere yet."""
    return trusted_noise(phase, run="audit")


def aggregator_setting(config: RunConfig, noise: AggregatorNoise) -> Setting:
    """All rounds of a phase whose noise an aggregator adds; the canary has the worst turn there is.

    Everybody survives and nobody colludes, because nothing here depends on either: no node adds
    noise, and the adversary knows what they all send.
    """
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
