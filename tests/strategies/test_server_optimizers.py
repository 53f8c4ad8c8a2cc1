"""Server optimisers against the papers' formulas and hand-computed steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privsyn_flower.config import AveragingConfig
from privsyn_flower.strategies.averaging.server_optimizers import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    ServerOptimizer,
    server_optimizer,
)

GAINS = arrays(np.float64, (5, 3), elements=st.floats(-10, 10, width=32))


def walk(optimizer: ServerOptimizer, means: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Parameters after each round, from zero: (T, d)."""
    parameters, slots = np.zeros(means.shape[1]), optimizer.start(means.shape[1])
    path = []
    for mean in means:
        change, slots = optimizer.step(mean, slots)
        parameters = parameters + change
        path.append(parameters)
    return np.array(path)


@given(GAINS, st.floats(0.01, 3))
def test_fedavg_adds_up_the_means(means: np.ndarray[Any, Any], rate: float) -> None:
    assert walk(FedAvg(rate), means) == pytest.approx(rate * means.cumsum(axis=0), abs=1e-9)


@given(GAINS, st.floats(0.01, 3), st.floats(0, 0.99))
def test_momentum_is_the_papers(means: np.ndarray[Any, Any], rate: float, beta: float) -> None:
    """Pbar^t = beta Pbar^{t-1} + P^t and w^t = w^0 + eta Pbar^t, P the prefix sums."""
    smoothed, prefix, want = np.zeros(3), np.zeros(3), []
    for mean in means:
        prefix = prefix + mean
        smoothed = beta * smoothed + prefix
        want.append(rate * smoothed)
    assert walk(FedAvgM(rate, beta), means) == pytest.approx(np.array(want), abs=1e-7)


def test_fedadam_by_hand() -> None:
    # beta_1 = 0.5, beta_2 = 0.75, tau = 1, eta = 2; g = 4 then -2, from m = 0 and v = tau^2 = 1
    # m = 2, v = 0.75 + 4 = 4.75; m = 1 - 1 = 0, v = 3.5625 + 1 = 4.5625
    path = walk(FedAdam(2.0, 0.5, 0.75, 1.0), np.array([[4.0], [-2.0], [2.0]]))
    first = 2 * 2 / (math.sqrt(4.75) + 1)
    third = 2 * 1 / (math.sqrt(0.75 * 4.5625 + 0.25 * 4) + 1)
    assert path[:, 0] == pytest.approx([first, first, first + third], rel=1e-14)


def test_fedyogi_by_hand() -> None:
    # v: 1 < 16, so 1 + 0.25 * 16 = 5; then 5 > 4, so 5 - 0.25 * 4 = 4; then 4 = 4: no change
    path = walk(FedYogi(2.0, 0.5, 0.75, 1.0), np.array([[4.0], [-2.0], [2.0]]))
    first = 2 * 2 / (math.sqrt(5) + 1)
    third = 2 * 1 / (math.sqrt(4) + 1)
    assert path[:, 0] == pytest.approx([first, first, first + third], rel=1e-14)


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam", "fedyogi"])
def test_arguments_stay_as_they_are(name: Any) -> None:
    """A repeated step from the same slots gives the same bits, as a resumed round needs."""
    optimizer = server_optimizer(AveragingConfig(server_optimizer=name, server_learning_rate=0.3))
    mean = np.random.default_rng(0).normal(size=7)
    _, slots = optimizer.step(mean, optimizer.start(7))
    kept, again = {key: value.copy() for key, value in slots.items()}, mean.copy()
    first, after = optimizer.step(mean, slots)
    second, repeated = optimizer.step(again, kept)
    assert first.tobytes() == second.tobytes()
    assert {k: v.tobytes() for k, v in after.items()} == {
        k: v.tobytes() for k, v in repeated.items()
    }
    assert mean.tobytes() == again.tobytes()
    assert set(slots) == set(optimizer.start(7))


def test_an_optimiser_has_its_numbers_of_the_configuration() -> None:
    def made(name: Any) -> ServerOptimizer:
        config = AveragingConfig(
            server_optimizer=name,
            server_learning_rate=0.3,
            server_momentum=0.4,
            beta_2=0.5,
            tau=0.6,
        )
        return server_optimizer(config)

    assert made("fedavg") == FedAvg(0.3) and made("fedavgm") == FedAvgM(0.3, 0.4)
    assert made("fedadam") == FedAdam(0.3, 0.4, 0.5, 0.6)
    assert made("fedyogi") == FedYogi(0.3, 0.4, 0.5, 0.6)
