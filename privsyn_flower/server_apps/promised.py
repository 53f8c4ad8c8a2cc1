"""Configuration -> the promise of a run, and the session that keeps it."""

from __future__ import annotations

import functools
from typing import Any, Literal

from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy import Ledger, PrivacyStatement
from privsyn_flower.privacy.accounting.sampling import Sampler
from privsyn_flower.privacy.promise import ROUNDS, Phase, Promise, PromiseError, promise
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.parts import is_deployment
from privsyn_flower.strategies.averaging.start import TrainingStrategy, evaluation_phases
from privsyn_flower.strategies.dp_fedavg import DPFedAvg
from privsyn_flower.strategies.dp_ftrl import DPFTRL
from privsyn_flower.strategies.engine.run_ledger import ledger_scope, open_ledger
from privsyn_flower.strategies.engine.session import Terms


def training_strategy(config: RunConfig) -> TrainingStrategy:
    """DPFedAvg or DPFTRL as the configuration has it; nothing is trained yet."""
    training, ftrl = config.training, config.ftrl
    if config.method == "dp-ftrl":
        return DPFTRL(
            training.clip_norm,
            mechanism=ftrl.mechanism,
            min_separation=ftrl.min_separation,
            max_participations=ftrl.max_participations,
            schedule=ftrl.schedule,
            buffers=ftrl.buffers,
            bands=ftrl.bands,
            restart_every=ftrl.restart_every,
            completion=ftrl.completion,
            server_optimizer=training.server_optimizer,
            server_learning_rate=training.server_learning_rate,
            server_momentum=training.server_momentum,
            beta_2=training.beta_2,
            tau=training.tau,
            seed=config.seed,
        )
    strategy = DPFedAvg(
        training.clip_norm,
        server_optimizer=training.server_optimizer,
        server_learning_rate=training.server_learning_rate,
        server_momentum=training.server_momentum,
        beta_2=training.beta_2,
        tau=training.tau,
        noise=training.noise,
        adaptive_clipping=training.adaptive_clipping,
        target_quantile=training.target_quantile,
        clip_learning_rate=training.clip_learning_rate,
        sampling_rate=config.sampling_rate,
        cohort_nodes=config.cohort_nodes,
        seed=config.seed,
    )
    strategy.nodes = config.nodes
    return strategy


def phases(config: RunConfig) -> list[Phase]:
    """What a run asks of its users: rounds, and evaluations that are paid for.

    noise-multiplier, when it is not 0, is that of the rounds; an evaluation costs a user as much
    as one of them. Raises ConfigError for numbers that make no such noise.
    """
    if config.trains:
        try:
            main = training_strategy(config).phase(
                config.rounds, config.spare_rounds, nodes=config.nodes
            )
        except ValueError as error:
            raise ConfigError(f"ftrl.mechanism = {config.ftrl.mechanism!r}: {error}") from None
    else:
        sampler = Sampler(config.sampler, config.sampling_rate, config.cohort_nodes)
        main = Phase(ROUNDS, config.rounds, config.spare_rounds, sampler)
    if config.noise_multiplier:
        main = main.given(config.noise_multiplier)
    return [main, *evaluation_phases(main, _evaluations(config))]


def _evaluations(config: RunConfig) -> int:
    """Releases beside the rounds that compare models on the nodes."""
    if config.trains:
        return int(config.training.evaluate)
    return int(config.method == "popri" and config.popri.select == "federated")


@functools.lru_cache(maxsize=16)  # with sampling, or coefficients to optimise, it takes seconds
def promised(config: RunConfig, *, checked: bool = True) -> Promise:
    """What the run promises, made of its configuration and nothing else.

    checked: False to see what a noise-multiplier costs that is too small. Raises ConfigError for
    one that costs more than epsilon.
    """
    try:
        return promise(
            config.epsilon,
            config.delta,
            phases(config),
            ledger_epsilon=config.ledger_epsilon,
            checked=checked,
        )
    except PromiseError as error:
        raise ConfigError(str(error)) from None


def terms(config: RunConfig) -> Terms:
    """The federation's public numbers."""
    return Terms(
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
    )


def said(config: RunConfig) -> dict[str, Any]:
    """What the sentence says of the configuration beside the promise."""
    return {
        "simulated": not is_deployment(config),
        "split": _split(config),
        "simulation_seeded": config.simulation_seeded_noise,
        "benchmark": config.benchmark,
        "rival": config.benchmark and bool(config.evaluation.rival),
        "private_selection": config.method == "popri" and config.popri.checkpoint == "private",
        "adaptive_clipping": config.trains and config.training.adaptive_clipping,
    }


def statement(config: RunConfig, *, checked: bool = True) -> PrivacyStatement:
    """What the run claims, for the guaranteed noise and all releases that are paid for."""
    return promised(config, checked=checked).statement(
        min_surviving_weight=config.min_surviving_weight,
        colluding_weight=config.colluding_weight,
        aggregation=config.aggregation,
        keys=config.node_keys,
        ledger_scope=ledger_scope(config.population_name),
        **said(config),
    )


def ledger_terms(config: RunConfig) -> dict[str, Any]:
    """What the run's ledger is made with, or must have been made with (`Ledger.open`)."""
    return promised(config).ledger_terms(simulation=config.simulation_seeded_noise)


def config_ledger(config: RunConfig, folder: RunFolder) -> Ledger:
    """The declared population's ledger, or one of the run's own (its scope is in the sentence)."""
    return open_ledger(
        folder,
        ledger=config.ledger,
        population_name=config.population_name,
        **ledger_terms(config),
    )


def _split(config: RunConfig) -> Literal["own", "private", "unknown"]:
    """How a simulation's users came about. Modules are users by how many docstrings they have."""
    if config.data.chosen_by_text:
        return "private"
    return "unknown" if config.data.source == "docstrings" else "own"
