"""Server optimisers: the mean of the users' updates, noisy and public, moves the model.

Each is a small class of public numbers over one flat vector: `step` takes the mean and what the
optimiser remembers, and returns the change of the parameters and what it remembers next. Neither
touches its arguments, and the same arguments give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privsyn_flower.arrays import F64
from privsyn_flower.config import AveragingConfig

Slots = Mapping[str, F64]


class ServerOptimizer(Protocol):
    """mean (d,) -> change (d,); slots: what is remembered between rounds, arrays (d,) by name."""

    def start(self, length: int) -> dict[str, F64]:
        """The slots before round 1."""

    def step(self, mean: F64, slots: Slots) -> tuple[F64, dict[str, F64]]:
        """What is added to the parameters, and the slots after it."""


@dataclass(frozen=True)
class FedAvg:
    """w^t = w^{t-1} + eta g^t, g^t the mean update (McMahan et al. 2017, arXiv 1602.05629)."""

    learning_rate: float

    def start(self, length: int) -> dict[str, F64]:
        return {}

    def step(self, mean: F64, slots: Slots) -> tuple[F64, dict[str, F64]]:
        return self.learning_rate * mean, {}


@dataclass(frozen=True)
class FedAvgM:
    """w^t = w^{t-1} + eta v^t with v^t = beta v^{t-1} + g^t and v^0 = 0.

    The momentum of DP-FTRL's algorithms is the same thing. They keep the noisy prefix sum P^t =
    g^1 + ... + g^t and set (Wu et al. 2024, arXiv 2404.04360, "Prompt public large language models
    to synthesize data for private on-device applications", Algorithm 1; Kairouz et al. 2021)

        Pbar^t = beta Pbar^{t-1} + P^t,    w^t = w^0 + eta Pbar^t,    Pbar^0 = P^0 = 0.

    With v^t = Pbar^t - Pbar^{t-1}, the difference of two such lines is v^t = beta v^{t-1} + g^t,
    and w^t - w^{t-1} = eta v^t: FedAvgM on the noisy increments g^t of P.
    """

    learning_rate: float
    momentum: float

    def start(self, length: int) -> dict[str, F64]:
        return {"momentum": np.zeros(length)}

    def step(self, mean: F64, slots: Slots) -> tuple[F64, dict[str, F64]]:
        velocity = self.momentum * slots["momentum"] + mean
        return self.learning_rate * velocity, {"momentum": velocity}


@dataclass(frozen=True)
class FedAdam:
    """Adam on the mean update (Reddi et al. 2021, arXiv 2003.00295, Algorithm 2).

    m^t = beta_1 m^{t-1} + (1 - beta_1) g^t, v^t = beta_2 v^{t-1} + (1 - beta_2) (g^t)^2 and
    w^t = w^{t-1} + eta m^t / (sqrt(v^t) + tau), without bias correction. It starts from m = 0
    and v = tau^2, the smallest that the algorithm allows.
    """

    learning_rate: float
    momentum: float
    beta_2: float
    tau: float

    def start(self, length: int) -> dict[str, F64]:
        return {"first": np.zeros(length), "second": np.full(length, self.tau**2)}

    def step(self, mean: F64, slots: Slots) -> tuple[F64, dict[str, F64]]:
        first = self.momentum * slots["first"] + (1 - self.momentum) * mean
        second = self.second(slots["second"], np.square(mean))
        change = self.learning_rate * first / (np.sqrt(second) + self.tau)
        return change, {"first": first, "second": second}

    def second(self, before: F64, squares: F64) -> F64:
        """v^t from v^{t-1} and (g^t)^2."""
        return self.beta_2 * before + (1 - self.beta_2) * squares


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """As FedAdam, with v^t = v^{t-1} - (1 - beta_2) (g^t)^2 sign(v^{t-1} - (g^t)^2)."""

    def second(self, before: F64, squares: F64) -> F64:
        return before - (1 - self.beta_2) * squares * np.sign(before - squares)


def server_optimizer(config: AveragingConfig) -> ServerOptimizer:
    """The optimiser of a configuration; numbers that it does not have are not looked at."""
    rate, momentum = config.server_learning_rate, config.server_momentum
    if config.server_optimizer == "fedavg":
        return FedAvg(rate)
    if config.server_optimizer == "fedavgm":
        return FedAvgM(rate, momentum)
    adaptive = FedAdam if config.server_optimizer == "fedadam" else FedYogi
    return adaptive(rate, momentum, config.beta_2, config.tau)
