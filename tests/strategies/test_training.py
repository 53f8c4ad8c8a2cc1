"""Rounds of training: the server's arithmetic, its files, and Flower's FedAvg beside it."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

from privsyn_flower.config import AveragingConfig
from privsyn_flower.queries.updates import shard_updates, update_bound
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.averaging.generalised_fedavg import (
    LARGEST_INDICATOR,
    AdaptiveClipping,
    Diverged,
    GeneralisedFedAvg,
    update_facts,
)
from privsyn_flower.training import Layout
from tests.conftest import loopback_message
from tests.strategies.training_rig import WEIGHTS

Arrays = dict[str, np.ndarray[Any, Any]]


def begun(
    arrays: Arrays | None = None,
    *,
    users: int = 4,
    options: dict[str, Any] | None = None,
    noise_multiplier: float = 1.0,
    folder: Path | None = None,
    strategy: GeneralisedFedAvg | None = None,
    seed: int = 0,
    **settings: Any,
) -> GeneralisedFedAvg:
    strategy = strategy or GeneralisedFedAvg(AveragingConfig(**settings), seed=seed)
    if folder is not None:
        strategy.attach(RunFolder(folder))
    strategy.begin(
        WEIGHTS if arrays is None else arrays,
        model="m",
        rounds=5,
        users=users,
        options=options or {},
        noise_multiplier=noise_multiplier,
    )
    return strategy


def asked_arrays(strategy: GeneralisedFedAvg, rnd: int = 1) -> Arrays:
    return dict(load(strategy.ask(rnd).extra["parameters"].tobytes()))


# The question -----------------------------------------------------------------------------


def test_the_question_is_the_model(tmp_path: Path) -> None:
    strategy = begun(options={"training.seed": 7}, folder=tmp_path, clip_norm=0.25)
    strategy.schedule = {"cycle": 3}
    query = strategy.ask(2)
    assert query.kind == "update" and query.model == "m"
    assert query.length == 8 and query.bound == 0.25
    assert {name: a.tolist() for name, a in asked_arrays(strategy).items()} == {
        name: a.tolist() for name, a in WEIGHTS.items()
    }
    assert query.options["clip-norm"] == 0.25 and query.options["indicator"] == 0.0
    assert query.options["training.seed"] == 7 and query.options["cycle"] == 3
    assert query.options["encoding"] == "dense"


def test_every_round_is_rotated_anew_and_a_repeated_question_is_the_same() -> None:
    strategy = begun(seed=3)
    assert strategy.ask(1).rotation == begun(seed=3).ask(1).rotation
    assert (
        len({strategy.ask(r).rotation for r in range(1, 6)} | {begun(seed=4).ask(1).rotation}) == 6
    )


def test_types_and_untrained_arrays_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays: Arrays = {
        "a.half": np.float16([1, 2]),
        "b.single": np.float32([[3.0]]),
        "c.double": np.array(0.1),
        "d.counter": np.array(41),
        "e.mask": np.array([True, False]),
    }
    with caplog.at_level(logging.INFO, logger="privsyn_flower"):
        strategy = begun(arrays, folder=tmp_path, users=1)
    assert [r.message for r in caplog.records] == [
        "2 arrays are not trained and stay as they are: ['d.counter', 'e.mask']"
    ]
    strategy.learn(1, np.array([1.0, -1.0, 0.5, 1e-9]), 1e-3)
    after = asked_arrays(strategy, 2)
    assert {n: (a.dtype, a.shape) for n, a in after.items()} == {
        n: (a.dtype, a.shape) for n, a in arrays.items()
    }
    assert after["a.half"].tolist() == [2, 1] and after["b.single"].tolist() == [[3.5]]
    assert float(after["c.double"]) == 0.1 + 1e-9  # a float32 would lose this step
    assert int(after["d.counter"]) == 41 and after["e.mask"].tolist() == [True, False]
    assert list(strategy.parameters()) == list(arrays)


def test_arrays_named_as_fixed_are_not_trained() -> None:
    strategy = begun(options={"training.trained": "w"})
    assert strategy.ask(1).length == 6
    strategy.master += 1.0
    assert asked_arrays(strategy)["b"].tolist() == WEIGHTS["b"].tolist()
    assert asked_arrays(strategy)["w"].tolist() == (WEIGHTS["w"] + 1).tolist()


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"good": np.ones(2), "layer.bad": np.float32([1, math.nan])}, "'layer.bad'.*NaN"),
        ({"layer.bad": np.float64([math.inf])}, "'layer.bad'"),
        ({"good": np.ones(1), "odd": np.array([1j])}, "'odd' has type complex128"),
        ({"good": np.ones(1), "odd": np.array(["text"])}, "'odd' has type"),
        ({"counter": np.array(3)}, "no array of floating-point"),
    ],
)
def test_arrays_that_cannot_be_trained_are_refused(arrays: Arrays, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        begun(arrays)


def test_what_the_caller_does_to_its_arrays_changes_nothing() -> None:
    arrays = {"w": np.ones(3, dtype=np.float32), "n": np.array([1])}
    strategy = begun(arrays)
    arrays["w"][:] = arrays["n"][:] = 9
    assert asked_arrays(strategy)["w"].tolist() == [1, 1, 1]
    assert asked_arrays(strategy)["n"].tolist() == [1]


# The step ---------------------------------------------------------------------------------


def flowers_fedavg(locals_: list[Arrays]) -> Arrays:
    """What Flower's FedAvg makes of clients that hold equally many examples."""
    replies = [
        loopback_message(
            RecordDict(
                {
                    "arrays": ArrayRecord({name: Array(a) for name, a in local.items()}),
                    "metrics": MetricRecord({"num-examples": 5}),
                }
            ),
            1,
            "train",
        )
        for local in locals_
    ]
    arrays, _ = FlowerFedAvg().aggregate_train(1, replies)
    assert arrays is not None
    return {name: array.numpy() for name, array in arrays.items()}


def test_without_noise_and_clipping_it_is_flowers_fedavg(tmp_path: Path) -> None:
    """Bit for bit, where float32 adds up what the clients send without rounding."""
    rng = np.random.default_rng(0)
    strategy = begun(folder=tmp_path, clip_norm=1e6)
    for rnd in (1, 2, 3):
        before = strategy.parameters()
        layout = Layout.of(before)
        steps = [
            {
                name: (rng.integers(-64, 64, a.shape) / 64).astype(np.float32)
                for name, a in before.items()
            }
            for _ in range(4)
        ]
        locals_ = [{name: before[name] + step[name] for name in before} for step in steps]
        deltas = [layout.flatten(local) - layout.flatten(before) for local in locals_]
        total = shard_updates(deltas, length=8, clip_norm=1e6, indicator=0.0)
        strategy.learn(rnd, total, 1e-9)
        want = flowers_fedavg(locals_)
        assert {n: a.tobytes() for n, a in strategy.parameters().items()} == {
            n: a.tobytes() for n, a in want.items()
        }


def test_the_denominator_is_public_and_fixed(tmp_path: Path) -> None:
    """Half of the users dropped out: the mean is over all declared ones."""
    strategy = begun({"w": np.zeros(3)}, users=10, folder=tmp_path)
    strategy.learn(1, np.full(3, 5.0), 0.1)
    assert strategy.parameters()["w"] == pytest.approx(0.5)


def test_a_repeated_round_gives_the_same_bits(tmp_path: Path) -> None:
    released = np.random.default_rng(1).normal(size=8)
    results = []
    for _ in range(2):
        strategy = begun(folder=tmp_path, server_optimizer="fedadam")
        strategy.learn(1, released, 0.1)
        results.append((strategy.master.tobytes(), strategy.slots["second"].tobytes()))
    assert results[0] == results[1]


def test_a_step_out_of_the_numbers_leaves_the_model(tmp_path: Path) -> None:
    strategy = begun(folder=tmp_path, server_optimizer="fedavgm")
    strategy.learn(1, np.ones(8), 0.1)
    before, slots = strategy.master.copy(), strategy.slots["momentum"].copy()
    for size in (1e308, 1e39):  # infinite, and finite but too large for the float32 that travels
        with pytest.raises(Diverged, match="server-learning-rate"):
            strategy.learn(2, np.full(8, size * 4), 0.1)
        assert (strategy.master == before).all() and (strategy.slots["momentum"] == slots).all()


def test_facts_of_an_update() -> None:
    facts = update_facts(np.array([3.0, 4.0]), 0.5)
    noise = 0.5 * math.sqrt(2)
    assert facts["update_norm"] == 5 and facts["noise_norm_expected"] == pytest.approx(noise)


def test_metrics_are_public_numbers(tmp_path: Path) -> None:
    strategy = begun(users=4, folder=tmp_path, server_learning_rate=0.5)
    metrics = strategy.learn(1, np.full(8, 2.0), 0.4)
    assert metrics["update_norm"] == pytest.approx(0.5 * math.sqrt(8))
    assert metrics["noise_norm_expected"] == pytest.approx(0.1 * math.sqrt(8))
    assert metrics["step_norm"] == pytest.approx(0.25 * math.sqrt(8))
    assert metrics["clip_norm"] == 1.0 and "fraction_within" not in metrics


# Adaptive clipping ------------------------------------------------------------------------


@given(st.floats(0.3, 30), st.integers(30, 10**6))
def test_the_indicator_gives_the_papers_noise_and_joint_cost(z: float, users: int) -> None:
    s = AdaptiveClipping(0.5, 0.2).indicator_for(z, users)
    z_updates, sigma_b = z * math.sqrt(1 + s * s), z * math.sqrt(1 + s * s) / (2 * s)
    # Andrew et al. 2021, Theorem 1: one vector of norm z^-1 together
    assert z_updates**-2 + (2 * sigma_b) ** -2 == pytest.approx(z**-2)
    if s < LARGEST_INDICATOR:
        assert sigma_b == pytest.approx(users / 20)
    else:
        assert sigma_b >= users / 20 * (1 - 1e-9) and z_updates < 1.12 * z


def norms_within(strategy: GeneralisedFedAvg, norms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The sum of users' bounded vectors; each delta has one of these norms."""
    directions = np.random.default_rng(0).normal(size=(len(norms), 8))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    query = strategy.ask(1)
    total: np.ndarray[Any, Any] = shard_updates(
        norms[:, None] * directions,
        length=query.length,
        clip_norm=float(query.options["clip-norm"]),
        indicator=float(query.options["indicator"]),
    )
    return total


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_the_clip_norm_finds_the_quantile(tmp_path: Path, quantile: float) -> None:
    rng = np.random.default_rng(int(10 * quantile))
    norms, z = np.exp(rng.normal(0.5, 0.7, 400)), 2.0
    adaptive = {"adaptive_clipping": True, "target_quantile": quantile, "clip_learning_rate": 0.5}
    strategy = begun(folder=tmp_path, users=400, clip_norm=0.3, noise_multiplier=z, **adaptive)
    seen = []
    for rnd in range(1, 41):
        std = z * strategy.ask(rnd).bound
        assert strategy.ask(rnd).bound == update_bound(strategy.clip_norm, strategy.indicator)
        released = norms_within(strategy, norms) + rng.normal(0, std, 9)
        metrics = strategy.learn(rnd, released, std)
        seen.append(float((norms <= strategy.clip_norm).mean()))
        assert metrics["fraction_within"] == pytest.approx(
            float((norms <= metrics["clip_norm"]).mean()), abs=6 / 20
        )
    assert np.mean(seen[20:]) == pytest.approx(quantile, abs=0.05)


def test_the_step_of_the_clip_norm_is_geometric(tmp_path: Path) -> None:
    adaptive = {"adaptive_clipping": True, "target_quantile": 0.25, "clip_learning_rate": 0.2}
    strategy = begun(folder=tmp_path, users=4, clip_norm=2.0, **adaptive)
    query = strategy.ask(1)
    assert query.length == 9 and query.options["indicator"] == LARGEST_INDICATOR == 0.5
    # three users within (+1), one above (-1), times indicator x clip norm
    metrics = strategy.learn(1, np.array([0.0] * 8 + [2 * 0.5 * 2.0]), 0.1)
    assert metrics["fraction_within"] == 0.75 and metrics["clip_norm"] == 2.0
    assert strategy.clip_norm == pytest.approx(2.0 * math.exp(-0.2 * (0.75 - 0.25)))
    assert strategy.ask(2).options["clip-norm"] == strategy.clip_norm


def test_adaptive_clipping_checks_its_numbers() -> None:
    with pytest.raises(ValueError, match="noise_multiplier = 0"):
        begun(adaptive_clipping=True, noise_multiplier=0.0)


# Resume -----------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["fedavg", "fedavgm", "fedadam", "fedyogi"]), st.integers(1, 4))
def test_restored_is_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, name: str, until: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(5)
    released = rng.normal(size=(5, 9))

    def fresh() -> GeneralisedFedAvg:
        return begun(
            folder=folder,
            users=3,
            server_optimizer=name,
            server_learning_rate=0.1,
            adaptive_clipping=True,
        )

    first = fresh()
    for rnd in range(1, until + 1):
        first.learn(rnd, released[rnd - 1], 0.1)
    again = fresh()
    again.restore(first.state())
    for rnd in range(until + 1, 6):
        metrics = [s.learn(rnd, released[rnd - 1], 0.1) for s in (first, again)]
        assert metrics[0] == metrics[1]
    assert first.master.tobytes() == again.master.tobytes()
    assert first.clip_norm == again.clip_norm
    assert {k: v.tobytes() for k, v in first.slots.items()} == {
        k: v.tobytes() for k, v in again.slots.items()
    }
    assert first.ask(6).extra["parameters"].tobytes() == again.ask(6).extra["parameters"].tobytes()


def test_only_the_start_and_the_two_newest_rounds_are_kept(tmp_path: Path) -> None:
    strategy = begun(folder=tmp_path)
    for rnd in range(1, 5):
        strategy.learn(rnd, np.ones(8), 0.1)
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "training-0003.safetensors",
        "training-0004.safetensors",
        "training-start.safetensors",
    ]


def test_a_run_goes_on_from_the_arrays_it_began_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An app that starts from a fresh random model each time resumes all the same."""
    first = begun({**WEIGHTS, "n": np.array(1)}, folder=tmp_path)
    again = begun(
        {name: a + 1 for name, a in WEIGHTS.items()} | {"n": np.array(2)}, folder=tmp_path
    )
    assert "goes on from the arrays it began with" in caplog.text
    assert again.master.tobytes() == first.master.tobytes()
    assert int(again.parameters()["n"]) == 1
    with pytest.raises(ValueError, match="began with other arrays"):
        begun({"w": WEIGHTS["w"]}, folder=tmp_path)
    with pytest.raises(ValueError, match="began with other arrays"):
        begun({"b": np.zeros(2), "w": WEIGHTS["w"], "n": np.array(1)}, folder=tmp_path)


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    first = begun(folder=tmp_path, server_optimizer="fedavgm")
    first.learn(1, np.ones(8), 0.1)
    with pytest.raises(ValueError, match="another server-optimizer"):
        begun(folder=tmp_path).restore(first.state())
    other = {**first.state(), "model": "of a cache that is gone"}
    with pytest.raises(ValueError, match="another model than the one at hand"):
        begun(folder=tmp_path, server_optimizer="fedavgm").restore(other)
    (tmp_path / "models" / "training-0001.safetensors").unlink()
    with pytest.raises(ValueError, match="lacks the arrays 'training-0001'"):
        begun(folder=tmp_path, server_optimizer="fedavgm").restore(first.state())


def test_a_resumed_adamw_goes_on_at_its_round(tmp_path: Path) -> None:
    """Its bias correction counts steps and its rate falls with the rounds: both survive."""
    keys: dict[str, Any] = {"server_optimizer": "adamw", "server_schedule": "linear"}
    keys |= {"server_warm_up_rounds": 2, "server_weight_decay": 0.1}
    sums = np.random.default_rng(3).normal(size=(5, 8))
    straight = begun(folder=tmp_path / "a", **keys)
    for rnd, released in enumerate(sums, 1):
        straight.learn(rnd, released, 0.1)
    broken = begun(folder=tmp_path / "b", **keys)
    for rnd in (1, 2, 3):
        broken.learn(rnd, sums[rnd - 1], 0.1)
    resumed = begun(folder=tmp_path / "b", **keys)
    resumed.restore(broken.state())
    for rnd in (4, 5):
        resumed.learn(rnd, sums[rnd - 1], 0.1)
    assert resumed.master.tobytes() == straight.master.tobytes()
    assert resumed.slots["steps"] == 5


def test_begin_and_attach_come_in_any_order(tmp_path: Path) -> None:
    one, other = begun(folder=tmp_path / "a"), begun()
    with pytest.raises(RuntimeError, match="attach"):
        other.learn(1, np.ones(8), 0.1)
    other = begun()
    other.attach(RunFolder(tmp_path / "b"))
    for strategy in (one, other):
        strategy.learn(1, np.ones(8), 0.1)
    assert one.state() == other.state()


def test_an_evaluation_on_the_server_becomes_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    def evaluate(rnd: int, arrays: Arrays) -> MetricRecord | None:
        seen.append((rnd, float(arrays["b"][0])))
        return MetricRecord({"loss": math.nan, "hits": [1, 2]}) if rnd == 1 else None

    strategy = begun(folder=tmp_path, users=1)
    strategy.evaluate = evaluate
    metrics = strategy.learn(1, np.ones(8), 0.1)
    assert metrics["evaluate.loss"] is None and metrics["evaluate.hits"] == [1, 2]
    assert "the evaluation's loss is not finite" in caplog.text
    assert not [k for k in strategy.learn(2, np.ones(8), 0.1) if k.startswith("evaluate")]
    assert seen == [(1, 1.5), (2, 2.5)]
