"""Server optimisers: the mean of the users' updates, noisy and public, moves the model.

Each is a small class of public numbers over one flat vector: `step` takes the mean and what the
optimiser remembers, and returns the change of the parameters and what it remembers next. Neither
touches its arguments, and the same arguments give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from privsyn_flower.arrays import F64

Slots = Mapping[str, F64]
ServerOptimizerName = Literal["fedavg", "fedavgm", "fedadam", "fedyogi"]


class ServerOptimizer(Protocol):
    """mean (d,) -> change (d,); slots: what is remembered between rounds, arrays (d,) by name."""

    def start(self, length: int) -> dict[str, F64]:
        """The slots before round 1."""

    def step(self, mean: F64, slots: Slots) -> tuple[F64, dict[str, F64]]:
        """What is added to the parameters, and the slots after it."""


@dataclass(frozen=True)
class FedAvg:
    """w^t = w^{t-1} + eta g^t, where g^t is the mean update (McMahan et al. 2017)."""

    learning_rate: float = 1.0

    def start(self, length: int) -> dict[str, F64]:
        return {}

    def step(self, mean: F64, slots: Slots) -> tuple[F64, dict[str, F64]]:
        return self.learning_rate * mean, {}


@dataclass(frozen=True)
class FedAvgM:
    """w^t = w^{t-1} + eta v^t with v^t = beta v^{t-1} + g^t and v^0 = 0.

    The momentum of DP-FTRL's algorithms is the same thing. They keep the noisy prefix sum P^t =
    g^1 + ... + g^t and set (Wu et al. 2024, "Prompt public large language models to synthesize
    data for private on-device applications", Algorithm 1; Kairouz et al. 2021)

        Pbar^t = beta Pbar^{t-1} + P^t,    w^t = w^0 + eta Pbar^t,    Pbar^0 = P^0 = 0.

    With v^t = Pbar^t - Pbar^{t-1}, the difference of two such lines is v^t = beta v^{t-1} + g^t,
    and w^t - w^{t-1} = eta v^t: FedAvgM on the noisy increments g^t of P.
    """

    learning_rate: float = 1.0
    momentum: float = 0.9

    def start(self, length: int) -> dict[str, F64]:
        return {"momentum": np.zeros(length)}

    def step(self, mean: F64, slots: Slots) -> tuple[F64, dict[str, F64]]:
        velocity = self.momentum * slots["momentum"] + mean
        return self.learning_rate * velocity, {"momentum": velocity}


@dataclass(frozen=True)
class FedAdam:
    """Adam on the mean update (Reddi et al. 2021, "Adaptive federated optimization", Algorithm 2).

    m^t = beta_1 m^{t-1} + (1 - beta_1) g^t, v^t = beta_2 v^{t-1} + (1 - beta_2) (g^t)^2 and
    w^t = w^{t-1} + eta m^t / (sqrt(v^t) + tau), without bias correction. It starts from m = 0
    and v = tau^2, the smallest that the algorithm allows.
    """

    learning_rate: float = 0.1
    momentum: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

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


def server_optimizer(
    name: str,
    *,
    learning_rate: float = 1.0,
    momentum: float = 0.9,
    beta_2: float = 0.99,
    tau: float = 1e-3,
) -> ServerOptimizer:
    """The optimiser of a configuration; numbers that it does not have are not looked at.

    momentum: beta of fedavgm, beta_1 of fedadam and fedyogi. Raises ValueError naming the key.
    """
    if name not in get_args(ServerOptimizerName):
        raise ValueError(
            f"server-optimizer = {name!r} must be one of {get_args(ServerOptimizerName)}"
        )
    _check("server-learning-rate", learning_rate, 0 < learning_rate < math.inf, "above 0")
    if name == "fedavg":
        return FedAvg(learning_rate)
    _check("server-momentum", momentum, 0 <= momentum < 1, "in [0, 1)")
    if name == "fedavgm":
        return FedAvgM(learning_rate, momentum)
    _check("beta-2", beta_2, 0 <= beta_2 < 1, "in [0, 1)")
    _check("tau", tau, 0 < tau < math.inf, "above 0")
    adaptive = FedAdam if name == "fedadam" else FedYogi
    return adaptive(learning_rate, momentum, beta_2, tau)


def _check(key: str, value: float, good: bool, want: str) -> None:
    if not good:
        raise ValueError(f"{key} = {value} must be finite and {want}")
