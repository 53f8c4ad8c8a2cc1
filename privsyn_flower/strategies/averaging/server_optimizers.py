"""Server optimisers: the mean of the users' updates, noisy and public, moves the model.

Each is a small class of public numbers over one flat vector: `step` takes the mean and what the
optimiser remembers, and returns the change of the parameters and what it remembers next. Neither
touches its arguments, and the same arguments give the same bits. Every change is a multiple of the
learning rate, and so is the decay; a schedule multiplies both by a factor of the round's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privsyn_flower.common.arrays import F64
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


@dataclass(frozen=True)
class AdamW:
    """Adam with bias correction (Kingma and Ba 2015, arXiv 1412.6980, Algorithm 1).

    After t steps w^t = w^{t-1} + eta (m^t / (1 - beta_1^t)) / (sqrt(v^t / (1 - beta_2^t)) + 1e-8),
    m and v as in FedAdam from m = v = 0, with its usual beta_1 = 0.9 and beta_2 = 0.999. On means
    of one user's negative gradients, clipped and with noise, it is DP-Adam. The decay of the
    weights is apart from it (Loshchilov and Hutter 2019, arXiv 1711.05101): see `Schedule`.
    """

    learning_rate: float
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8

    def start(self, length: int) -> dict[str, F64]:
        return {"first": np.zeros(length), "second": np.zeros(length), "steps": np.zeros(1)}

    def step(self, mean: F64, slots: Slots) -> tuple[F64, dict[str, F64]]:
        first = self.beta_1 * slots["first"] + (1 - self.beta_1) * mean
        second = self.beta_2 * slots["second"] + (1 - self.beta_2) * np.square(mean)
        steps = slots["steps"] + 1
        taken = float(steps[0])
        root = np.sqrt(second / (1 - self.beta_2**taken)) + self.epsilon
        change = self.learning_rate / (1 - self.beta_1**taken) * first / root
        return change, {"first": first, "second": second, "steps": steps}


@dataclass(frozen=True)
class Schedule:
    """What the server's step of a round is multiplied by, and the decay that goes with it.

    warm_up: rounds in which the factor rises evenly, to 1 in the last of them; the first is no
    zero, because its answers have been paid for. linear: from there it falls evenly, by as much in
    each round, and would be 0 after the last. decay: of the weights, apart from the gradients.
    """

    linear: bool = False
    warm_up: int = 0
    decay: float = 0.0
    rounds: int = 0

    def factor(self, rnd: int) -> float:
        """Of round rnd, from 1; above 0 in all rounds of the run."""
        if rnd <= self.warm_up:
            return rnd / self.warm_up
        left = max(0, self.rounds + 1 - rnd)
        return left / (self.rounds - self.warm_up) if self.linear else 1.0

    def scaled(self, rnd: int, change: F64, parameters: F64, rate: float) -> F64:
        """The round's change of the parameters: the optimiser's, and the decay at its rate."""
        factor = self.factor(rnd)
        if not self.decay:
            return change if factor == 1.0 else factor * change
        return factor * (change - rate * self.decay * parameters)


def server_schedule(config: AveragingConfig, rounds: int) -> Schedule:
    """The schedule of a configuration over so many rounds. Raises ValueError on too few."""
    config.check_rounds(rounds)
    linear = config.server_schedule == "linear"
    return Schedule(linear, config.server_warm_up_rounds, config.server_weight_decay, rounds)


def server_optimizer(config: AveragingConfig) -> ServerOptimizer:
    """The optimiser of a configuration; numbers that it does not have are not looked at."""
    rate, momentum = config.server_learning_rate, config.server_momentum
    if config.server_optimizer == "fedavg":
        return FedAvg(rate)
    if config.server_optimizer == "fedavgm":
        return FedAvgM(rate, momentum)
    if config.server_optimizer == "adamw":
        return AdamW(rate)
    adaptive = FedAdam if config.server_optimizer == "fedadam" else FedYogi
    return adaptive(rate, momentum, config.beta_2, config.tau)
