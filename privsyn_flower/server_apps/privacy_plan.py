"""Configuration -> a run's privacy plan, and what its session is given."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.baseline import Baseline, PublicAlone
from privsyn_flower.privacy.plan import PrivacyPlan
from privsyn_flower.privacy.planning import PrivacyPlanError, plan_privacy, statement_of
from privsyn_flower.privacy.wording import SplitName
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.public_text import carried_by, is_deployment
from privsyn_flower.strategies.engine.run_ledger import ledger_scope
from privsyn_flower.strategies.engine.session import FederationSpec, in_cluster


@functools.lru_cache(maxsize=16)  # with sampling, or coefficients to optimise, it takes seconds
def privacy_plan(config: RunConfig, *, checked: bool = True) -> PrivacyPlan:
    """The run's privacy plan, made of its configuration and nothing else.

    checked: False to see what a noise-multiplier costs that is too small. Raises ConfigError for
    one that costs more than epsilon, and for a method that asks its users nothing.
    """
    phases = recipe_of(config).phases(config)
    if not phases:
        raise ConfigError(
            f"method = {config.method!r} asks no user anything: it has no rounds and no noise"
        )
    try:
        return plan_privacy(
            config.epsilon,
            config.delta,
            phases,
            ledger_epsilon=config.ledger_epsilon,
            checked=checked,
        )
    except PrivacyPlanError as error:
        raise ConfigError(str(error)) from None


def federation_spec(config: RunConfig) -> FederationSpec:
    """The federation's public numbers."""
    return FederationSpec(
        config.data.users,
        config.min_surviving_weight,
        config.colluding_weight,
        config.node_keys,
        nodes=config.nodes,
        round_timeout=config.round_timeout,
        stage_timeout=config.stage_timeout,
        node_timeout=config.node_timeout,
        ledger=config.ledger,
        population_name=config.population_name,
        seed=config.seed,
        kind="deployed" if is_deployment(config) else "simulated",
        seeded_noise=config.simulation_seeded_noise,
        groups=config.own.groups(config),
    )


def statement_fields(config: RunConfig) -> dict[str, Any]:
    """What the sentence says of the configuration beside the privacy plan."""
    simulated = not is_deployment(config)
    return {
        "simulated": simulated,
        "cluster": simulated and in_cluster(),
        "split": _split(config),
        "simulation_seeded": config.simulation_seeded_noise,
        "benchmark": config.benchmark,
        "rival": config.benchmark and bool(config.evaluation.rival),
        "carries": carried_by(config),
        **recipe_of(config).statement_fields(config),
    }


def invariants(config: RunConfig) -> dict[str, Any]:
    """What must not change while a run lasts, and its privacy plan does not say: which rounds are
    measured, where it says how many."""
    rounds = config.training.evaluated_rounds
    return {"training.evaluate-rounds": list(rounds)} if rounds else {}


def baseline(config: RunConfig, carries: str = "") -> Baseline | None:
    """The statement of a baseline without client queries; None for a run with a privacy plan.

    carries: what a run folder says that its public text carried, beside what lies there now.
    """
    found = recipe_of(config).baseline(
        config,
        simulated=not is_deployment(config),
        split=_split(config),
        benchmark=config.benchmark,
    )
    if isinstance(found, PublicAlone):
        return replace(found, carries=carries or carried_by(config))
    return found


def statement(config: RunConfig, *, checked: bool = True) -> PrivacyStatement:
    """What a run with rounds claims, for the guaranteed noise and all releases that are paid
    for. Raises ConfigError for one without (`baseline`)."""
    return statement_of(
        privacy_plan(config, checked=checked),
        min_surviving_weight=config.min_surviving_weight,
        colluding_weight=config.colluding_weight,
        aggregation=config.aggregation,
        keys=config.node_keys,
        ledger_scope=ledger_scope(config.population_name),
        **statement_fields(config),
    )


def ledger_terms(config: RunConfig) -> dict[str, Any]:
    """What the run's ledger is made with, or must have been made with (`Ledger.open`)."""
    return privacy_plan(config).ledger_terms(simulation=config.simulation_seeded_noise)


def _split(config: RunConfig) -> SplitName:
    """How a simulation's users came about. Modules are users by how many docstrings they have."""
    data = config.data
    if data.chosen_by_text:
        return "private"
    if data.source == "docstrings":
        return "unknown"
    # A deployed node has users of its own, whatever is said of the text that is here.
    no_ids = data.partition == "uniform" or not data.user_column
    return "rows" if no_ids and not is_deployment(config) else "own"
