"""DP-FedAvg: `start` over a grid, what it promises, and resume after a kill at every write."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from privsyn_flower.config import AveragingConfig, TrainingConfig
from privsyn_flower.privacy import Sampler
from privsyn_flower.privacy.accounting import calibrate, epsilon, most_releases
from privsyn_flower.privacy.ledger import LedgerError
from privsyn_flower.privacy.ledger.journal import Charge, replay
from privsyn_flower.privacy.noise.integer_noise import allowed_distance, gaussian_delta
from privsyn_flower.runs import read_jsonl
from privsyn_flower.strategies import DPFTRL, DPFedAvg, TrainingResult
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.strategies.engine.cohort import TooFewNodes
from privsyn_flower.strategies.engine.rounds import NoRelease
from tests.rigs.dp_fedavg import DELTA, WIDE, Writes, bits, killed_everywhere, numbers, train
from tests.rigs.registry import deployment_of
from tests.strategies.training_rig import WEIGHTS, Arrays, Trainer, record, trainers

POISSON = Sampler("poisson", 0.25)


def by_hand(nodes: dict[int, Trainer], rounds: int, users: int, rate: float = 1.0) -> Arrays:
    """Federated averaging without clipping or noise."""
    arrays = {name: a.astype(np.float64) for name, a in WEIGHTS.items()}
    for _ in range(rounds):
        means = {}
        for name, a in arrays.items():
            pulls = [n.rate * (t - a) for n in nodes.values() if not n.silent for t in n.targets]
            means[name] = np.sum(pulls, axis=0) / users
        arrays = {name: arrays[name] + rate * means[name] for name in arrays}
    return arrays


def test_it_trains_as_federated_averaging_does(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(4, users=3)
    result = train(loopback(nodes), tmp_path, users=12, num_rounds=4)
    want = by_hand(nodes, 4, 12)
    # A coordinate's error: half a unit of the grid for each user, turned by the rotation.
    noise = nodes[100].asked[0][2]
    error = 4 * 0.5 * math.sqrt(8) / noise.scale
    assert error < 1e-3
    for name, array in numbers(result.arrays).items():
        assert array.dtype == np.float32
        assert array == pytest.approx(want[name], abs=error + 1e-6)
    assert result.rounds == 4 and [row["round"] for row in result.metrics] == [1, 2, 3, 4]
    assert all(node.greeted == ["train"] for node in nodes.values())


@pytest.mark.parametrize("noise", ["nodes", "aggregator"])
def test_numbers_that_give_nothing_are_warnings(
    tmp_path: Path,
    loopback: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    noise: str,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    def warned(folder: str, **options: Any) -> list[str]:
        caplog.clear()
        strategy = DPFedAvg(AveragingConfig(clip_norm=10.0, noise=noise))
        keys = {"noise_keys": tmp_path / f"{folder}-keys"}
        train(loopback(trainers(4, users=25)), tmp_path / folder, strategy, **options, **keys)
        return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]

    assert warned("useful", users=100) == []
    [said] = warned("drowned", users=100, epsilon=0.01)
    assert "the noise of the sum of all 3 rounds" in said and "(users)" in said
    [said] = warned("published", users=100, delta=0.02)
    assert "delta = 0.02 is not below 1 / users = 0.01" in said


def test_what_is_promised(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers()
    result = train(loopback(nodes), tmp_path)
    noise = nodes[100].asked[0][2]
    assert result.noise_multiplier == calibrate(8.0, 4, gaussian_delta(DELTA))
    assert (noise.multiplier, noise.source) == (result.noise_multiplier, "nodes")
    assert result.epsilon == 8.0 and result.delta == DELTA
    assert 0 < result.spent < 8.0
    said = result.statement
    assert (said.rounds, said.spare_rounds, said.simulated) == (3, 1, True)
    assert "integer (discrete Gaussian) noise" in said.sentence()
    assert not said.adaptive_clipping


def test_metrics_say_what_noise_does_to_the_mean(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers()
    result = train(loopback(nodes), tmp_path, DPFedAvg(AveragingConfig(clip_norm=0.5)))
    row, (_, query, noise) = result.metrics[0], nodes[100].asked[0]
    # 4 users carry the noise that 4 * 0.85, rounded up, guarantee
    std = noise.multiplier * noise.sensitivity / noise.scale
    assert row["noise_norm_expected"] == pytest.approx(std * math.sqrt(8) / 4)
    assert row["clip_norm"] == 0.5 and query.bound == 0.5
    assert row["update_norm"] <= 0.5 * 1.01
    beyond = (row["update_norm"] / row["noise_norm_expected"]) ** 2 - 1
    assert row["excess"] == pytest.approx(beyond) and row["excess_degrees"] == 8


def test_the_statement_is_in_the_run_folder(tmp_path: Path, loopback: Any) -> None:
    for _ in range(2):  # a finished run greets nobody, and says the same
        result = train(loopback(trainers()), tmp_path, num_rounds=1)
        page = (tmp_path / "privacy.md").read_text(encoding="utf-8")
        assert result.statement.simulated and page == result.statement.page()
        form = deployment_of(tmp_path)
        assert form["basic"]["data_product_type"] == "Machine learning model"
        assert form["privacy_loss"]["number_of_privacy_units"] == 4
    with pytest.raises(ValueError, match="was begun with other values"):
        train(loopback(trainers()), tmp_path, num_rounds=1, users=5, nodes=4)
    assert (tmp_path / "privacy.md").read_text(encoding="utf-8") == page


def test_the_denominator_stays_when_a_node_drops_out(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(8)
    nodes[103].silent = True
    result = train(loopback(nodes), tmp_path, users=8, num_rounds=1)
    want = by_hand(nodes, 1, 8)
    assert result.metrics[0]["surviving_weight"] == 7
    for name, array in numbers(result.arrays).items():
        assert array == pytest.approx(want[name], abs=1e-3)


def test_long_updates_are_clipped_over_all_arrays_together(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(rate=1e6)
    result = train(
        loopback(nodes), tmp_path, DPFedAvg(AveragingConfig(clip_norm=0.25)), num_rounds=1
    )
    moved = [a - WEIGHTS[name] for name, a in numbers(result.arrays).items()]
    assert 0 < np.linalg.norm(np.concatenate([m.ravel() for m in moved])) <= 0.25 * 1.01


def test_counters_stay_the_servers(tmp_path: Path, loopback: Any) -> None:
    arrays = {**WEIGHTS, "norm.num_batches_tracked": np.array(7)}
    strategy = DPFedAvg(WIDE)
    result = strategy.start(
        loopback(trainers()),
        record(arrays),
        num_rounds=1,
        epsilon=8.0,
        delta=DELTA,
        users=4,
        folder=tmp_path,
        aggregation=PlainSum(),
    )
    assert numbers(result.arrays)["norm.num_batches_tracked"].tolist() == 7
    assert list(result.arrays) == list(arrays)
    torch = pytest.importorskip("torch")
    states = result.arrays.to_torch_state_dict()
    assert states["norm.num_batches_tracked"].dtype == torch.int64


def test_nan_is_refused_by_name_before_anybody_is_asked(tmp_path: Path, loopback: Any) -> None:
    grid = loopback(trainers())
    bad = {**WEIGHTS, "w": np.float32([math.nan])}
    with pytest.raises(ValueError, match="'w' has entries that are NaN"):
        DPFedAvg().start(
            grid, record(bad), epsilon=1.0, delta=DELTA, users=4, folder=tmp_path / "run"
        )
    assert grid.sent == []


def test_train_config_travels(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers()
    config = ConfigRecord({"lr": 0.1, "epochs": 2, "fast": True, "name": "sgd"})
    train(loopback(nodes), tmp_path, num_rounds=1, train_config=config)
    options = nodes[100].asked[0][1].options
    assert {key: options[f"config.{key}"] for key in config} == dict(config)
    assert options["arrays"] == '["b", "w"]'


@pytest.mark.parametrize("value", ["", [1, 2], b"x"])
def test_a_train_config_that_cannot_travel_is_refused(
    tmp_path: Path, loopback: Any, value: Any
) -> None:
    with pytest.raises(ValueError, match="'odd'"):
        train(loopback(trainers()), tmp_path, train_config=ConfigRecord({"odd": value}))


def test_keys_may_stand_in_the_place_of_a_config() -> None:
    keys = {"clip_norm": 0.5, "server_optimizer": "fedavgm", "noise": "aggregator"}
    for strategy in (DPFedAvg(**keys, seed=3), DPFTRL(**keys, seed=3)):
        assert strategy.config == AveragingConfig(**keys) and strategy.seed == 3
    assert DPFedAvg().config == AveragingConfig()
    for wrong, words in (
        (lambda: DPFedAvg(clipnorm=0.5), r"DPFedAvg\(clipnorm=...\).* clip_norm, "),
        (lambda: DPFedAvg(WIDE, clip_norm=0.5), "a config and clip_norm beside it"),
        (lambda: DPFedAvg(0.5), r"DPFedAvg\(AveragingConfig\(clip_norm=0.5\)\)"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=words):
            wrong()
    with pytest.raises(ValueError, match="clip"):
        DPFedAvg(clip_norm=-1.0)


def test_an_evaluation_on_the_nodes_is_refused(tmp_path: Path, loopback: Any) -> None:
    with pytest.raises(ValueError, match="evaluation="):
        train(loopback(trainers()), tmp_path, evaluate_config=ConfigRecord())


def test_evaluation_on_the_server_is_flowers(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    seen = []

    def evaluate(rnd: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(rnd)
        return MetricRecord({"first": float(arrays["b"].numpy()[0])})

    grid = loopback(trainers())
    for _ in range(2):  # the second call finds a finished run, and measures nothing again
        result = train(grid, tmp_path, evaluate_fn=evaluate)
        assert seen == [0, 1, 2, 3]
        figures = result.evaluate_metrics_serverapp
        assert list(figures) == [0, 1, 2, 3] and figures[0]["first"] == 0.5
        assert figures[3]["first"] == pytest.approx(float(result.arrays["b"].numpy()[0]))
    said = caplog.text
    assert "evaluation on the server after round 0" in said and "[ROUND 3/3]" in said
    assert "Epsilon = 8 at delta" in said
    assert result.train_metrics_clientapp == {} == result.evaluate_metrics_clientapp


def test_adaptive_clipping_moves_the_norm(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(4, users=100)
    strategy = DPFedAvg(
        AveragingConfig(clip_norm=0.01, adaptive_clipping=True, clip_learning_rate=0.5)
    )
    result = train(loopback(nodes), tmp_path, strategy, users=400, num_rounds=4)
    rows = result.metrics
    assert rows[0]["fraction_within"] == pytest.approx(0.0, abs=0.02)
    assert [row["clip_norm"] for row in rows] == sorted(row["clip_norm"] for row in rows)
    assert rows[3]["clip_norm"] > 1.8 * rows[0]["clip_norm"]
    bounds = [query.bound for _, query, _ in nodes[100].asked]
    assert bounds[3] > 1.8 * bounds[0]
    assert result.statement.adaptive_clipping
    # The joint bound, not the clip norm, is what a user may move the sum by.
    _, query, _ = nodes[100].asked[0]
    indicator = float(query.options["indicator"])
    assert query.length == 9 and indicator > 0
    assert query.bound == pytest.approx(0.01 * math.sqrt(1 + indicator**2))


@pytest.mark.slow
def test_sampled_users_are_counted_by_the_rate(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers()
    result = train(loopback(nodes), tmp_path, DPFedAvg(WIDE, sampler=POISSON), num_rounds=1)
    noise = nodes[100].asked[0][2]
    assert noise.sampling_rate == 0.25
    spent = epsilon(result.noise_multiplier, 2, gaussian_delta(DELTA), sampling_rate=0.25)
    assert spent <= 8.0 and result.noise_multiplier < calibrate(8.0, 2, DELTA)
    # These nodes sample nobody out: all answered, and the mean is over a quarter of them.
    want = by_hand(nodes, 1, 4, rate=4.0)
    for name, array in numbers(result.arrays).items():
        assert array == pytest.approx(want[name], abs=5e-3)
    assert result.statement.sampler == "poisson" and result.statement.sampling_rate == 0.25


def charges_of(folder: Path) -> list[Charge]:
    """Of the copy in the run folder."""
    copy = folder / "ledger.jsonl"
    return replay(read_jsonl(copy), copy)


@pytest.mark.slow
@pytest.mark.parametrize("total", [0.0, 4.0])
def test_a_sampled_run_is_charged_on_a_plan(tmp_path: Path, loopback: Any, total: float) -> None:
    """Every attempt is one of the plan's releases, spare ones too; a resume finds the same plan."""
    strategy, book = DPFedAvg(WIDE, sampler=POISSON), tmp_path / "book.jsonl"
    shared: dict[str, Any] = {
        "population_name": "p",
        "ledger": book,
        "ledger_epsilon": total,
        "num_rounds": 2,
    }
    shared["epsilon"] = 2.0

    class Late(Trainer):
        def __call__(self, message: Message) -> Message | None:
            reply = super().__call__(message)
            late = bool(self.asked) and self.asked[-1][0].attempt == 1 == self.asked[-1][0].round
            return None if late else reply

    nodes: dict[int, Trainer] = {100 + i: (Late if i < 2 else Trainer)(i, [1.0]) for i in range(4)}
    result = train(loopback(nodes), tmp_path / "run", strategy, **shared)
    assert result.rounds == 2
    header = read_jsonl(book)[0]
    z = calibrate(2.0, 3, gaussian_delta(DELTA), sampling_rate=0.25)
    most = most_releases(z, 0.25, total or 2.0, gaussian_delta(DELTA))
    assert (header["noise_multiplier"], header["sampling_rate"]) == (z, 0.25)
    assert header["budget"] == (most if total else 3)
    assert not total or most > 6
    charges = charges_of(tmp_path / "run")
    asked = [(c.round, c.attempt, c.state) for c in charges]
    assert asked == [(1, 1, "reserved"), (1, 2, "committed"), (2, 1, "committed")]
    assert {(c.noise_multiplier, c.sampling_rate) for c in charges} == {(z, 0.25)}
    distance = sum(c.total_variation for c in charges)
    assert 0 < distance <= allowed_distance(DELTA)
    assert result.spent <= 2.0
    # Another rate is another plan.
    other = DPFedAvg(WIDE, sampler=Sampler("poisson", 0.5))
    with pytest.raises(LedgerError, match="is not covered by the plan"):
        train(loopback(trainers()), tmp_path / "b", other, **shared)
    with pytest.raises(LedgerError, match="this one asks all of them"):
        train(loopback(trainers()), tmp_path / "c", DPFedAvg(WIDE), **shared)
    # The same call reads the folder; the next run has what the total leaves.
    assert train(loopback(trainers()), tmp_path / "run", strategy, **shared).rounds == 2
    assert len(replay(read_jsonl(book), book)) == 3
    if total:
        assert train(loopback(trainers()), tmp_path / "d", strategy, **shared).rounds == 2
        return
    with pytest.raises(NoRelease, match="used up"):
        train(loopback(trainers()), tmp_path / "d", strategy, **shared)


def test_a_draw_of_nodes_divides_by_their_share(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(4)
    strategy = DPFedAvg(WIDE, sampler=Sampler("fixed", nodes=2))
    result = train(loopback(nodes), tmp_path, strategy, num_rounds=1)
    assert sum(bool(node.asked) for node in nodes.values()) == 2
    assert strategy.denominator == 2.0
    assert result.statement.sampler == "fixed"
    with pytest.raises(ValueError, match="draws 5 of nodes = 4"):
        train(loopback(nodes), tmp_path / "b", DPFedAvg(sampler=Sampler("fixed", nodes=5)))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"noise": "nobody"}, "noise\n.*'nodes' or 'aggregator'.*'nobody'"),
        ({"server_optimizer": "sgd"}, "server_optimizer\n.*'fedavgm'.*'sgd'"),
        ({"clip_norm": 0.0}, "clip_norm\n.*greater than 0.*input_value=0.0"),
        ({"clip_norm": math.inf}, "clip_norm\n.*finite"),
        ({"server_learning_rate": math.nan}, "server_learning_rate\n.*finite"),
        ({"server_momentum": 1.0}, "server_momentum\n.*less than 1"),
        ({"beta_2": -0.1}, "beta_2\n.*greater than or equal to 0"),
        ({"tau": 0.0}, "tau\n.*greater than 0"),
        ({"target_quantile": 0.0}, "target_quantile\n.*greater than 0"),
        ({"clip_learning_rate": 0.0}, "clip_learning_rate\n.*greater than 0"),
        ({"adaptive_clipping": True, "noise": "aggregator"}, "needs training.noise = 'nodes'"),
        ({"epochs": 2}, "epochs\n.*not permitted"),
    ],
)
def test_settings_that_cannot_be_are_refused(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        AveragingConfig(**keys)


def test_the_name_of_a_sampler_is_none() -> None:
    with pytest.raises(ValueError, match=r"sampler = 'poisson' must be a Sampler, as in Sampler\("):
        DPFedAvg(sampler="poisson")  # type: ignore[arg-type]


def test_sampling_is_refused_where_it_amplifies_nothing() -> None:
    strategy = DPFedAvg(AveragingConfig(noise="aggregator"), sampler=POISSON)
    with pytest.raises(ValueError, match=r"sampling-rate = 0\.25: .* or noise = 'nodes'"):
        strategy.phase(3)


def test_it_waits_for_all_users_unless_told_otherwise(tmp_path: Path, loopback: Any) -> None:
    with pytest.raises(TooFewNodes):
        train(loopback(trainers(4)), tmp_path, users=8)
    result = train(loopback(trainers(7)), tmp_path / "b", users=8, nodes=7, num_rounds=1)
    assert result.rounds == 1


# Noise of the aggregator ------------------------------------------------------------------


def test_an_aggregators_noise_is_accounted_exactly(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(2, users=50)
    strategy = DPFedAvg(AveragingConfig(noise="aggregator", server_optimizer="fedavgm"))
    result = train(
        loopback(nodes), tmp_path / "run", strategy, users=100, noise_keys=tmp_path / "keys"
    )
    assert result.noise_multiplier == pytest.approx(
        calibrate(8.0, 3, gaussian_delta(DELTA)), rel=1e-6
    )
    assert result.spent == pytest.approx(8.0, rel=1e-6) and result.spent <= 8.0
    assert {noise.source for _, _, noise in nodes[100].asked} == {"aggregator"}
    assert result.statement.noise_source == "aggregator"
    assert result.statement.accountant == "exact" and result.statement.spare_rounds == 0
    assert "trusted" in result.statement.threat_model
    assert not [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]


def test_an_aggregators_noise_is_there(tmp_path: Path, loopback: Any) -> None:
    """The model differs from the exact one by noise of the promised size."""
    arrays = {"w": np.zeros(4000, dtype=np.float32)}
    node = Trainer(0, [0.0] * 100)
    result = DPFedAvg(AveragingConfig(noise="aggregator")).start(
        loopback({100: node}),
        record(arrays),
        num_rounds=1,
        epsilon=1.0,
        delta=DELTA,
        users=100,
        nodes=1,
        folder=tmp_path / "run",
        noise_keys=tmp_path / "keys",
        aggregation=PlainSum(),
    )
    moved = result.arrays["w"].numpy()
    assert moved.std() == pytest.approx(calibrate(1.0, 1, DELTA) / 100, rel=0.06)
    assert result.metrics[0]["excess"] < 0.25


# Resume -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_any_write_it_ends_with_the_same_bits(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Writes(monkeypatch)
    asked: list[int] = []

    def once(folder: Path) -> TrainingResult:
        nodes = trainers(2, users=2)
        strategy = DPFedAvg(AveragingConfig(
            clip_norm=0.5, server_optimizer="fedadam", server_learning_rate=0.1,
            adaptive_clipping=True,
        ))  # fmt: skip
        try:
            return train(loopback(nodes), folder, strategy, num_rounds=2, nodes=2)
        finally:
            asked.append(len(nodes[100].asked))

    whole, resumed = killed_everywhere(writes, once, tmp_path)
    assert len(resumed) > 20
    for result in resumed:
        assert bits(result) == bits(whole)
        assert result.rounds == 2
        assert [row["clip_norm"] for row in result.metrics] == [
            row["clip_norm"] for row in whole.metrics
        ]
    assert max(asked) <= 2


@pytest.mark.parametrize("strategy", [DPFedAvg, DPFTRL])
def test_a_number_in_the_place_of_the_section_is_told(strategy: Any) -> None:
    with pytest.raises(TypeError, match=r"\(0\.5\).*AveragingConfig\(clip_norm=0\.5\)"):
        strategy(0.5)


@pytest.mark.parametrize(
    ("changed", "error"),
    [({"noise": "node"}, "noise"), ({"clip_norm": -1.0}, "clip_norm|clip-norm"),
     ({"clip_norm": math.nan}, "clip_norm|clip-norm"),
     ({"noise": "aggregator", "adaptive_clipping": True}, "adaptive-clipping")],
)  # fmt: skip
def test_a_section_is_checked_however_it_was_made(changed: dict[str, Any], error: str) -> None:
    """A copy with other values is checked by nobody; an unknown trust must not be the larger."""
    with pytest.raises(ValueError, match=error):
        DPFedAvg(AveragingConfig().model_copy(update=changed))


def test_keys_that_an_app_does_not_read_are_refused(tmp_path: Path, loopback: Any) -> None:
    section = TrainingConfig(clip_norm=1.0, parameters="lora")
    with pytest.raises(ValueError, match="parameters is a key of the training"):
        train(loopback(trainers()), tmp_path, DPFedAvg(section))


def test_an_aggregation_has_a_name(tmp_path: Path, loopback: Any) -> None:
    result = train(loopback(trainers()), tmp_path, aggregation="plain")
    assert result.rounds == 3 and result.statement.aggregation == "plain"
