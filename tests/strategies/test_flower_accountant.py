"""Flower's DP strategies with our accountant: the protocol, the numbers, the real wrapper."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

from privsyn_flower.privacy import calibrate, epsilon
from privsyn_flower.strategies.flower_accountant import PldAccountant

DELTA = 3e-6
USERS = 1250


def config(
    sampling: SamplingMethod = SamplingMethod.NO_AMPLIFICATION,
    max_epsilon: float | None = None,
    users: int = USERS,
) -> PrivacyConfig:
    replaced = sampling is SamplingMethod.WITHOUT_REPLACEMENT
    relation = (
        NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    return PrivacyConfig(DELTA, users, relation, sampling, max_epsilon)


def event(z: float, sample: int = USERS, users: int = USERS) -> GaussianPrivacyEvent:
    return GaussianPrivacyEvent(z, sample, users)


def test_rounds_compose_exactly_and_below_flowers_own() -> None:
    ours: PrivacyAccountant = PldAccountant(config())
    theirs = RdpAccountant(config())
    for accountant in (ours, theirs):
        accountant.compose(event(19.3), 19)
        accountant.compose(event(19.3))
    spent = ours.get_privacy_spent()
    assert spent.epsilon == pytest.approx(epsilon(19.3, 20, DELTA)) == pytest.approx(0.9195, 1e-4)
    assert (spent.delta, spent.num_releases, ours.num_releases) == (DELTA, 20, 20)
    assert spent.epsilon < theirs.get_epsilon(DELTA) < 1.1 * spent.epsilon
    ours.compose(event(5.0))
    assert ours.get_epsilon(1e-5) > epsilon(5.0, 1, 1e-5)


def test_poisson_sampling_is_amplified() -> None:
    accountant = PldAccountant(config(SamplingMethod.POISSON))
    accountant.compose(event(3.4, 125), 50)
    assert accountant.get_epsilon(DELTA) == pytest.approx(0.9034, abs=5e-4)
    delta = accountant.get_delta(0.9034)
    assert delta == pytest.approx(DELTA, rel=0.01)


def test_replace_one_doubles_the_sensitivity_and_amplifies_nothing() -> None:
    accountant = PldAccountant(config(SamplingMethod.WITHOUT_REPLACEMENT))
    accountant.compose(event(8.0, 125), 10)
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon(4.0, 10, DELTA))


@pytest.mark.parametrize("target", [0.1, 0.9195, 5.0])
def test_delta_is_the_inverse_from_the_safe_side(target: float) -> None:
    accountant = PldAccountant(config())
    assert accountant.get_delta(target) == 0.0 and accountant.get_epsilon(DELTA) == 0.0
    accountant.compose(event(19.3), 20)
    delta = accountant.get_delta(target)
    assert accountant.get_epsilon(delta) <= target < accountant.get_epsilon(delta * 0.999)


def test_a_calibrated_plan_never_exceeds_its_limit() -> None:
    accountant = PldAccountant(config(max_epsilon=1.29))
    z = calibrate(1.29, 11, DELTA)
    for _ in range(11):
        assert not accountant.would_exceed(event(z))
        accountant.compose(event(z))
    assert accountant.would_exceed(event(z)) and accountant.num_releases == 11
    assert not accountant.would_exceed(event(z), max_epsilon=2.0)


def test_state_survives_json_and_only_its_own() -> None:
    accountant = PldAccountant(config(max_epsilon=5.0))
    accountant.compose(event(19.3), 3)
    accountant.compose(event(7.0), 2)
    state = json.loads(json.dumps(accountant.state_dict()))
    again = PldAccountant(config(max_epsilon=5.0))
    again.load_state_dict(state)
    assert again.num_releases == 5
    assert again.get_epsilon(DELTA) == accountant.get_epsilon(DELTA)
    wrong: list[tuple[dict[str, Any], str]] = [
        (RdpAccountant(config(max_epsilon=5.0)).state_dict(), "backend = 'rdp'"),
        (PldAccountant(config()).state_dict(), "config = "),
        (state | {"schema_version": 2}, "schema_version = 2"),
        (state | {"compositions": None}, "unreadable"),
        (state | {"compositions": [{"event": {"noise_multiplier": 3.0}, "count": 1}]}, "unreadab"),
        (state | {"compositions": [{**state["compositions"][0], "count": 0}]}, "count = 0"),
    ]
    for bad, words in wrong:
        with pytest.raises(ValueError, match=words):
            again.load_state_dict(bad)
    assert again.num_releases == 5


def test_bad_values() -> None:
    accountant = PldAccountant(config())
    for call, words in (
        (lambda: accountant.compose(event(3.0, 10, 20)), "population_size = 20"),
        (lambda: accountant.compose(event(3.0), 0), "count = 0"),
        (lambda: accountant.compose(event(3.0), True), "count = True"),
        (lambda: accountant.get_epsilon(0.0), "delta = 0.0"),
        (lambda: accountant.get_delta(math.inf), "epsilon = inf"),
        (lambda: accountant.would_exceed(event(3.0)), "max_epsilon = None"),
        (lambda: accountant.would_exceed(event(3.0), -1.0), "max_epsilon = -1.0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert accountant.num_releases == 0


class FourNodes:
    """What FedAvg asks of a grid before it sends."""

    def get_node_ids(self) -> list[int]:
        return [1, 2, 3, 4]


def answer(message: Message) -> Message:
    arrays = ArrayRecord({"w": Array(np.ones(5, dtype=np.float32))})
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def test_flowers_strategy_counts_its_rounds_and_stops_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_run_id", "_task_id", "_node_id"):  # what a Flower process knows of itself
        monkeypatch.setattr(TaskIdentity, name, 1)
    z = calibrate(2.0, 3, DELTA)
    accountant = PldAccountant(config(max_epsilon=2.0, users=4))
    inner = FedAvg(fraction_train=1.0, min_train_nodes=4, min_available_nodes=4)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        inner, z, clipping_norm=1.0, num_sampled_clients=4, accountant=accountant
    )
    arrays: ArrayRecord | None = ArrayRecord({"w": Array(np.zeros(5, dtype=np.float32))})
    for rnd in (1, 2, 3):
        assert arrays is not None
        messages = strategy.configure_train(rnd, arrays, ConfigRecord(), FourNodes())
        arrays, _ = strategy.aggregate_train(rnd, [answer(m) for m in messages])
        spent = strategy.privacy_spent()
        assert spent is not None and spent.num_releases == rnd
        assert spent.epsilon == pytest.approx(epsilon(z, rnd, DELTA))
    assert arrays is not None
    with pytest.raises(PrivacyBudgetExhausted, match="max_epsilon"):
        strategy.configure_train(4, arrays, ConfigRecord(), FourNodes())
    strategy.summary()
