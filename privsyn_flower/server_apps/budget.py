"""How (epsilon, delta) is shared out when a trusted aggregator adds Gaussian noise.

All releases of a run together are one Gaussian: the rounds cost mu^2 = (sensitivity / z)^2, where
z is the noise before it is correlated, in bounds of one user's update, and a paid evaluation costs
as much as one participation of a user. An attempt that fails gives nothing away and costs nothing,
so there is nothing spare to pay for.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy import gaussian_epsilon
from privsyn_flower.privacy.correlated import Factorization, Participation, factorization
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.dp_fedavg import DPFedAvg
from privsyn_flower.strategies.dp_ftrl import DPFTRL
from privsyn_flower.strategies.engine.mechanisms import AggregatorNoise, aggregator_z


@dataclass(frozen=True)
class Budget:
    """correlation, participation: what the noise is made for. z: noise std / bound of one user's
    update, before it is correlated. evaluations: releases beside the rounds."""

    correlation: Factorization
    participation: Participation
    z: float
    evaluations: int
    delta: float

    @property
    def epsilon(self) -> float:
        """Of the rounds and the evaluations together; exact."""
        releases = self.participation.most + self.evaluations
        left = gaussian_delta(self.delta)
        return gaussian_epsilon(self.equivalent / math.sqrt(releases), left)

    @property
    def equivalent(self) -> float:
        """Multiplier of independent noise that costs a user as much for each participation."""
        most, sensitivity = self.participation.most, self.correlation.sensitivity
        return self.z * math.sqrt(most) / sensitivity(self.participation)

    def noise(self, folder: Path, run: str) -> AggregatorNoise:
        """The aggregator's noise for the run of this name, its key in `folder` (PRIVATE)."""
        return AggregatorNoise(self.correlation, self.participation, self.z, folder, run)


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


@functools.lru_cache(maxsize=4)  # coefficients may be optimised, which takes seconds
def correlation_of(config: RunConfig) -> tuple[Factorization, Participation]:
    """How the rounds' noise is correlated, and how often a user takes part.

    Raises ConfigError for numbers that make no such noise.
    """
    strategy = training_strategy(config)
    try:
        if isinstance(strategy, DPFTRL):
            return strategy.correlated(config.rounds)
        return factorization("independent", config.rounds), Participation(config.rounds)
    except ValueError as error:
        raise ConfigError(f"ftrl.mechanism = {config.ftrl.mechanism!r}: {error}") from None


def aggregator_budget(config: RunConfig, *, checked: bool = True) -> Budget:
    """The configured z, or the smallest that keeps epsilon.

    Raises ConfigError for a z that costs more than epsilon (when checked).
    """
    correlation, participation = correlation_of(config)
    evaluations = int(config.training.evaluate)
    least = aggregator_z(
        config.epsilon, config.delta, correlation, participation, evaluations=evaluations
    )
    z = config.noise_multiplier or least
    budget = Budget(correlation, participation, z, evaluations, config.delta)
    if checked and z != least and budget.epsilon > config.epsilon:
        beside = " and an evaluation" if evaluations else ""
        raise ConfigError(
            f"noise-multiplier = {z} costs epsilon {budget.epsilon:.4f} in {config.rounds} "
            f"rounds{beside}, above epsilon = {config.epsilon}: raise it to {least:.4f}, or set "
            "noise-multiplier = 0 to calibrate it"
        )
    return budget
