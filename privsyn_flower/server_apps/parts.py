"""Configuration -> the parts of a run: public text, models, noise, ledger, statement."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

from privsyn_flower.config import ConfigError, RunConfig, cache_folder
from privsyn_flower.data import Federation, prepare
from privsyn_flower.data.sources import public_groups
from privsyn_flower.privacy import Ledger, PrivacyStatement, calibrate, epsilon
from privsyn_flower.privacy.ledger.filters import Plan, sampled_plan
from privsyn_flower.privacy.noise.integer_noise import distance_each, gaussian_delta
from privsyn_flower.progress import Progress
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.budget import aggregator_budget
from privsyn_flower.strategies.engine import run_ledger
from privsyn_flower.strategies.engine.aggregation import Aggregation, PlainSum, SecureAggregation


@dataclass(frozen=True)
class PublicText:
    """pool: candidates, examples and retrieval. validation: other public text, like the pool.
    federation: the simulated one, None in deployment."""

    pool: list[str]
    federation: Federation | None
    validation: list[str] = field(default_factory=list)


def is_deployment(config: RunConfig) -> bool:
    """No private file named: the users' text is on real nodes, only public text is here."""
    return config.data.source == "files" and not config.data.path


def check_deployment(config: RunConfig) -> None:
    """Raises ConfigError for keys that are not for real users."""
    if is_deployment(config) and (config.benchmark or config.simulation_seeded_noise):
        raise ConfigError(
            "benchmark and simulation-seeded-noise are for simulation only; with data.path "
            "empty the users are real: set both to false"
        )


def public_text(config: RunConfig, progress: Progress) -> PublicText:
    """The public side of the data. Raises ConfigError for keys that deployment forbids."""
    check_deployment(config)
    if is_deployment(config):
        if config.trains and not config.data.public_path:
            return PublicText([], None)  # nothing is made of it there
        groups = public_groups(config.data, lambda note: progress("data", 0, 1, note))
        pool = [sample.text for group in groups for sample in group.samples]
        texts = candidates(pool, config)
        size = config.data.public_pool
        return PublicText(texts[:size], None, texts[size : size + config.data.public_validation])
    progress("data", 0, 1, "preparing the simulated federation")
    folder = prepare(config.data, cache_folder(config), lambda note: progress("data", 0, 1, note))
    federation = Federation(folder)
    progress("data", 1, 1)
    validation = candidates(federation.public_validation(), config)
    return PublicText(candidates(federation.public(), config), federation, validation)


def candidates(pool: list[str], config: RunConfig) -> list[str]:
    """The pool's distinct texts, cut to `data.sample-words` words each.

    The first population, and so the first seeds, come from here: whole web pages would not be
    candidates of the length that the later rounds have.
    """
    words = config.data.sample_words
    return list(dict.fromkeys(" ".join(text.split()[:words]) for text in pool))


def paid_evaluations(config: RunConfig) -> int:
    """Releases beside the rounds that compare models on the nodes."""
    if config.trains:
        return int(config.training.evaluate)
    return int(config.method == "popri" and config.popri.select == "federated")


def paid_releases(config: RunConfig) -> int:
    """Releases that the nodes' noise is calibrated for: rounds, spare rounds, evaluations."""
    return config.rounds + config.spare_rounds + paid_evaluations(config)


def noise_multiplier(config: RunConfig) -> float:
    """Calibrated, or the configured one when it keeps epsilon; spare rounds are paid for.

    Of a trusted aggregator: z, the noise before it is correlated.
    """
    if config.trusts_aggregator:
        return aggregator_budget(config).z
    releases = paid_releases(config)
    delta, rate = gaussian_delta(config.delta), config.sampling_rate
    if config.noise_multiplier == 0:
        return _calibrated(config.epsilon, releases, delta, rate)
    spent = epsilon(config.noise_multiplier, releases, delta, sampling_rate=rate)
    if spent > config.epsilon:
        raise ConfigError(
            f"noise-multiplier = {config.noise_multiplier} costs epsilon {spent:.4f} for "
            f"{releases} releases (rounds, spare-rounds, evaluation), above epsilon = "
            f"{config.epsilon}: raise noise-multiplier, lower rounds, or set "
            "noise-multiplier = 0 to calibrate it"
        )
    return config.noise_multiplier


@functools.lru_cache(maxsize=16)  # with sampling it takes seconds, and several parts ask
def _calibrated(target: float, releases: int, delta: float, rate: float) -> float:
    return calibrate(target, releases, delta, sampling_rate=rate)


def release_distance(config: RunConfig) -> float:
    """Total variation that one release's integer noise may be from Gaussian noise."""
    total, plan = config.ledger_epsilon or config.epsilon, _sampled(config)
    if plan is not None:
        return distance_each(total, config.delta, plan.releases)
    return distance_each(config.epsilon, config.delta, paid_releases(config), total)


def open_ledger(config: RunConfig, folder: RunFolder) -> Ledger:
    """The declared population's ledger, or one of the run's own (its scope is in the sentence)."""
    return run_ledger.open_ledger(
        folder,
        ledger=config.ledger,
        population_name=config.population_name,
        **ledger_terms(config),
    )


def ledger_terms(config: RunConfig) -> dict[str, Any]:
    """What the run's ledger is made with, or must have been made with (`Ledger.open`)."""
    return {
        "total_epsilon": config.ledger_epsilon or config.epsilon,
        "total_delta": config.delta,
        "simulation": config.simulation_seeded_noise,
        "plan": _sampled(config),
    }


def _sampled(config: RunConfig) -> Plan | None:
    """What the ledger of a run with sampling is made for."""
    if config.sampling_rate == 1.0:
        return None
    return sampled_plan(
        noise_multiplier(config),
        config.sampling_rate,
        paid_releases(config),
        config.epsilon,
        config.delta,
        config.ledger_epsilon,
    )


AGGREGATIONS: dict[str, type[Aggregation]] = {
    "secure": SecureAggregation,
    "plain": PlainSum,
}


def statement(config: RunConfig, multiplier: float) -> PrivacyStatement:
    """What the run claims, for the guaranteed noise and all releases that are paid for."""
    noise: dict[str, Any]
    if config.trusts_aggregator:
        noise = _aggregator_claims(config, multiplier)
    else:
        delta, rate = gaussian_delta(config.delta), config.sampling_rate
        spent = epsilon(multiplier, paid_releases(config), delta, sampling_rate=rate)
        noise = {"epsilon": spent, "noise_multiplier": multiplier}
        noise["spare_rounds"] = config.spare_rounds
    return PrivacyStatement(
        **noise,
        delta=config.delta,
        rounds=config.rounds,
        min_surviving_weight=config.min_surviving_weight,
        colluding_weight=config.colluding_weight,
        aggregation=config.aggregation,
        sampler=config.sampler,
        sampling_rate=config.sampling_rate,
        keys=config.node_keys,
        simulated=not is_deployment(config),
        split=_split(config),
        ledger_scope=run_ledger.ledger_scope(config.population_name),
        simulation_seeded=config.simulation_seeded_noise,
        benchmark=config.benchmark,
        evaluations=paid_evaluations(config),
        rival=config.benchmark and bool(config.evaluation.rival),
        private_selection=config.method == "popri" and config.popri.checkpoint == "private",
        adaptive_clipping=config.trains and config.training.adaptive_clipping,
    )


def _split(config: RunConfig) -> Literal["own", "private", "unknown"]:
    """How a simulation's users came about. Modules are users by how many docstrings they have."""
    if config.data.chosen_by_text:
        return "private"
    return "unknown" if config.data.source == "docstrings" else "own"


def _aggregator_claims(config: RunConfig, z: float) -> dict[str, Any]:
    """What a trusted aggregator's noise of this z makes the statement say."""
    budget = aggregator_budget(config.model_copy(update={"noise_multiplier": z}), checked=False)
    claims: dict[str, Any] = {
        "epsilon": budget.epsilon,
        "noise_multiplier": budget.equivalent,
        "spare_rounds": 0,  # an attempt that fails gives nothing away
        "noise_source": "aggregator",
    }
    if config.method == "dp-ftrl":
        claims |= {
            "correlated": budget.correlation.name,
            "min_separation": config.ftrl.min_separation,
            "max_participations": config.ftrl.max_participations,
        }
    return claims
