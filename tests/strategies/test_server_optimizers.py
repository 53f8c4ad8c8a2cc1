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
    AdamW,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Schedule,
    ServerOptimizer,
    server_optimizer,
    server_schedule,
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


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam", "fedyogi", "adamw"])
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

    assert made("adamw") == AdamW(0.3, 0.9, 0.999, 1e-8)
    assert made("fedavg") == FedAvg(0.3) and made("fedavgm") == FedAvgM(0.3, 0.4)
    assert made("fedadam") == FedAdam(0.3, 0.4, 0.5, 0.6)
    assert made("fedyogi") == FedYogi(0.3, 0.4, 0.5, 0.6)


@pytest.mark.parametrize(("linear", "warm_up", "decay"), [(False, 0, 0.0), (True, 3, 0.1)])
def test_adamw_is_torchs(linear: bool, warm_up: int, decay: float) -> None:
    """Parameters after each of ten steps equal torch.optim.AdamW's on the negative means."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    start, means = rng.normal(size=6), rng.normal(size=(10, 6)) * 10.0 ** rng.integers(-6, 2, 6)
    config = AveragingConfig(
        server_optimizer="adamw",
        server_learning_rate=0.05,
        server_schedule="linear" if linear else "constant",
        server_warm_up_rounds=warm_up,
        server_weight_decay=decay,
    )
    steps, ours = server_schedule(config, len(means)), server_optimizer(config)
    leaf = torch.tensor(start, requires_grad=True)
    theirs = torch.optim.AdamW([leaf], lr=0.05, weight_decay=decay)
    falls = [1 / 3, 2 / 3, 1.0, *(k / 7 for k in range(7, 0, -1))]
    parameters, slots = start, ours.start(6)
    for rnd, mean in enumerate(means, 1):
        theirs.param_groups[0]["lr"] = 0.05 * (falls[rnd - 1] if linear else 1.0)
        leaf.grad = torch.tensor(-mean)
        theirs.step()
        change, slots = ours.step(mean, slots)
        parameters = parameters + steps.scaled(rnd, change, parameters, 0.05)
        assert parameters == pytest.approx(leaf.detach().numpy(), rel=1e-13, abs=1e-15)


def test_a_schedule_by_hand() -> None:
    rising = Schedule(linear=True, warm_up=2, rounds=6)
    assert [rising.factor(rnd) for rnd in range(1, 7)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    falling = Schedule(linear=True, rounds=4)
    assert [falling.factor(rnd) for rnd in range(1, 5)] == [1.0, 0.75, 0.5, 0.25]
    assert [Schedule(warm_up=2, rounds=9).factor(rnd) for rnd in (1, 2, 3, 9)] == [0.5, 1, 1, 1]


def test_a_constant_rate_leaves_the_bits_of_a_change() -> None:
    change = np.random.default_rng(0).normal(size=5)
    assert Schedule(rounds=3).scaled(2, change, np.ones(5), 0.3).tobytes() == change.tobytes()


def test_bad_combinations_name_their_key() -> None:
    with pytest.raises(ValueError, match=r"server-weight-decay = 0.1 .*'adamw'.*'fedadam'"):
        AveragingConfig(server_optimizer="fedadam", server_weight_decay=0.1)
    config = AveragingConfig(server_optimizer="adamw", server_warm_up_rounds=4)
    with pytest.raises(ValueError, match=r"server-warm-up-rounds = 4 must be below rounds = 4"):
        server_schedule(config, 4)
