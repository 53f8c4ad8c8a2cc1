"""DP-FTRL: correlated noise over the rounds, turns, and resume with the same noise."""

from __future__ import annotations

import inspect
import math
import stat
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from privsyn_flower.client_apps import private_training
from privsyn_flower.config import AveragingConfig, FtrlConfig
from privsyn_flower.config.training import MechanismName
from privsyn_flower.privacy.accounting import calibrate
from privsyn_flower.privacy.correlated import (
    NAMES,
    Participation,
    calibrate_correlated,
    epsilon_correlated,
    factorization,
    keys,
)
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.strategies import DPFTRL, TrainingResult
from privsyn_flower.strategies.averaging.server_optimizers import FedAvg
from privsyn_flower.strategies.engine.aggregation import PlainSum
from tests.conftest import node_context
from tests.rigs.dp_fedavg import Kill, Writes, bits, killed_everywhere, numbers
from tests.strategies.training_rig import WEIGHTS, Trainer, ftrl, record, trainers

DELTA = 1e-6


def train(grid: Any, folder: Path, strategy: DPFTRL, **options: Any) -> TrainingResult:
    settings = {
        "num_rounds": 6,
        "epsilon": 4.0,
        "delta": DELTA,
        "users": 4,
        "folder": folder / "run",
        "noise_keys": folder / "keys",
        "aggregation": PlainSum(),
        "timeout": 0.2,
        "node_timeout": 0.5,
        **options,
    }
    arrays = settings.pop("arrays", WEIGHTS)
    return strategy.start(grid, record(arrays), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("independent", {}),
        ("tree", {}),
        ("tree-honaker", {}),
        ("tree-restart", {"restart_every": 2, "completion": True}),
        ("banded", {"bands": 3}),
        ("blt", {"buffers": 2}),
    ],
)
def test_the_model_has_the_noise_of_its_prefix_sum(
    tmp_path: Path, loopback: Any, mechanism: Any, options: dict[str, Any]
) -> None:
    """Users who change nothing: after T rounds the model is off by the noise of T releases."""
    rounds, clip, size = 4, 0.5, 3000
    node = Trainer(0, [0.0] * 50, rate=0.0)
    strategy = ftrl(clip, mechanism=mechanism, server_optimizer="fedavg", **options)
    arrays = {"w": np.zeros(size, dtype=np.float32)}
    result = train(
        loopback({1: node}), tmp_path, strategy, num_rounds=rounds, users=50, nodes=1, arrays=arrays
    )
    pattern = Participation(rounds)
    matrix = factorization(mechanism, rounds, participation=pattern, **options)
    z = calibrate_correlated(4.0, DELTA, matrix, pattern)
    assert epsilon_correlated(z, DELTA, matrix, pattern) <= 4.0
    moved = result.arrays["w"].numpy()
    assert moved.std() == pytest.approx(matrix.prefix_std()[-1] * z * clip / 50, rel=0.06)
    # and each release on its own has the noise that the metrics say
    for number, row in enumerate(result.metrics):
        std = float(matrix.release_std()[number]) * z * clip
        assert row["noise_std"] == pytest.approx(std, rel=0.011)
        assert row["update_norm"] == pytest.approx(row["noise_norm_expected"], rel=0.06)
    assert result.spent == pytest.approx(4.0, rel=1e-5) and result.spent <= 4.0


def test_what_is_promised(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(4)
    strategy = ftrl(mechanism="banded", min_separation=2)
    result = train(loopback(nodes), tmp_path, strategy)
    said = result.statement
    assert (said.noise_source, said.accountant) == ("aggregator", "exact")
    assert (said.min_separation, said.most_participations) == (2, 3)
    assert said.correlated and said.spare_rounds == 0
    assert "trusted aggregator" in said.threat_model
    assert "at most 3 rounds, 2 or more apart" in said.sentence()
    # What three rounds of independent noise would need for the same epsilon.
    assert result.noise_multiplier == pytest.approx(
        calibrate(4.0, 3, gaussian_delta(DELTA)), rel=1e-6
    )
    noise = nodes[100].asked[0][2]
    assert noise.source == "aggregator"
    assert noise.multiplier == pytest.approx(result.noise_multiplier)


def test_nodes_take_turns(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(6, users=2)
    strategy = ftrl(1e3, mechanism="tree", min_separation=3, server_optimizer="fedavg")
    result = train(loopback(nodes), tmp_path, strategy, users=12, num_rounds=6)
    for place, node in enumerate(nodes.values()):
        assert [ticket.round for ticket, _, _ in node.asked] == [place % 3 + 1, place % 3 + 4]
    assert strategy.denominator == 4.0
    assert [row["surviving_weight"] for row in result.metrics] == [4.0] * 6
    options = nodes[100].asked[0][1].options
    assert (options["min-separation"], options["cycle"]) == (3, 0)
    assert options["max-participations"] == 0


def test_users_of_every_node_take_turns(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(2, users=4)
    strategy = ftrl(mechanism="tree", min_separation=2, max_participations=3, schedule="users")
    train(loopback(nodes), tmp_path, strategy, users=8, nodes=2)
    assert all(len(node.asked) == 6 for node in nodes.values())
    assert strategy.denominator == 4.0
    options = nodes[100].asked[0][1].options
    assert (options["min-separation"], options["cycle"]) == (2, 2)
    assert options["max-participations"] == 3


def test_fewer_participations_need_less_noise(tmp_path: Path) -> None:
    def multiplier(**options: Any) -> float:
        matrix, pattern = ftrl(mechanism="banded", bands=2, **options).correlated(12)
        return calibrate_correlated(1.0, DELTA, matrix, pattern)

    assert multiplier() > multiplier(min_separation=3) > multiplier(max_participations=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_separation": 4}, r"ftrl\.min-separation = 4 exceeds rounds = 3: lower it"),
        ({"max_participations": 2}, r"ftrl\.max-participations = 2 turns .* end before rounds = 3"),
    ],
)
def test_turns_that_do_not_fit_are_refused_before_anybody_is_asked(
    tmp_path: Path, loopback: Any, options: dict[str, int], text: str
) -> None:
    """In a ServerApp of one's own, too, where no configuration has been checked."""
    nodes = trainers(2, users=4)
    strategy = ftrl(mechanism="tree", schedule="users", **options)
    with pytest.raises(ValueError, match=text):
        train(loopback(nodes), tmp_path, strategy, users=8, nodes=2, num_rounds=3)
    assert not any(node.asked for node in nodes.values())


def test_nobody_is_trusted_unless_it_says_so() -> None:
    assert DPFTRL().phase(8).source == "nodes"
    plain = DPFTRL(AveragingConfig(noise="aggregator"))
    assert plain.ftrl == FtrlConfig() and plain.optimizer == FedAvg(1.0)
    assert plain.phase(8).source == "aggregator"


def test_a_mechanism_left_to_its_defaults_is_that_of_the_configuration() -> None:
    given = inspect.signature(factorization).parameters
    for name in ("restart_every", "completion", "bands", "buffers"):
        assert given[name].default == FtrlConfig.model_fields[name].default
    assert get_args(MechanismName) == NAMES


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"mechanism": "forest"}, "mechanism\n.*'banded'.*'forest'"),
        ({"schedule": "dice"}, "schedule\n.*'users' or 'nodes'.*'dice'"),
        ({"min_separation": 0}, "min_separation\n.*greater than or equal to 1.*input_value=0"),
        ({"max_participations": -1}, "max_participations\n.*equal to 0.*input_value=-1"),
        ({"completion": True}, "ftrl.completion = true: they belong to"),
        ({"rounds": 8}, "rounds\n.*not permitted"),
    ],
)
def test_settings_that_cannot_be_are_refused(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FtrlConfig(**keys)


# Resume -----------------------------------------------------------------------------------


@pytest.fixture
def one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run has the same key, so that runs can be compared."""
    monkeypatch.setattr(keys.secrets, "token_bytes", lambda size: b"k" * size)


@pytest.mark.slow
def test_killed_at_any_write_it_ends_with_the_same_bits(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch, one_key: None
) -> None:
    writes = Writes(monkeypatch)

    def once(folder: Path) -> TrainingResult:
        strategy = ftrl(0.5, mechanism="banded", bands=2)
        return train(loopback(trainers(2)), folder, strategy, num_rounds=2, users=2)

    whole, resumed = killed_everywhere(writes, once, tmp_path)
    assert len(resumed) > 20
    for folder, result in zip(sorted(tmp_path.iterdir()), [whole, *resumed], strict=True):
        assert bits(result) == bits(whole)
        assert result.rounds == 2 and result.spent == whole.spent
        assert not [path for path in (folder / "keys").rglob("*") if path.is_file()]


CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"min_separation": 3}, {}, "min_separation = 3 was 2"),
    ({"max_participations": 4}, {}, "max_participations = 4 was 3"),
    ({"clip_norm": 2.0}, {}, "clip_norm = 2.0 was 1.0"),
    ({"mechanism": "blt"}, {}, "correlated = 'blt' was 'banded'"),
    ({"schedule": "users"}, {}, "turns = 'users' was 'nodes 2'"),
    ({}, {"epsilon": 3.0}, "epsilon = 3.0 was 4.0"),
    ({}, {"delta": 1e-7}, "delta = 1e-07 was 1e-06"),
    ({}, {"num_rounds": 5}, "rounds = 5 was 6"),
    ({}, {"users": 5}, "users = 5 was 4"),
    ({}, {"min_surviving_weight": 0.5}, "min_surviving_weight = 0.5 was 0.85"),
    ({}, {"population_name": "all", "ledger": "x.jsonl"}, "population_name = 'all' was ''"),
]


def test_a_begun_run_keeps_what_it_promised(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strategy(**other: Any) -> DPFTRL:
        own = {"mechanism": "banded", "bands": 2, "min_separation": 2, "max_participations": 3}
        return ftrl(**{**own, **other})

    writes = Writes(monkeypatch)
    writes.fatal = 40
    with pytest.raises(Kill):
        train(loopback(trainers(4)), tmp_path, strategy())
    writes.fatal = -1
    assert list((tmp_path / "run" / "releases").glob("round-*"))
    nodes = trainers(4)
    for changed, options, words in CHANGES:
        with pytest.raises(ValueError, match=words):
            train(loopback(nodes), tmp_path, strategy(**changed), **options)
    assert not any(node.asked for node in nodes.values())
    assert train(loopback(nodes), tmp_path, strategy()).rounds == 6


def test_the_key_lies_outside_the_run_and_is_the_owners_alone(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Writes(monkeypatch)
    writes.fatal = 26
    with pytest.raises(Kill):
        train(loopback(trainers(2)), tmp_path, ftrl(), users=2)
    found = [path for path in (tmp_path / "keys").rglob("key") if path.is_file()]
    assert len(found) == 1 and stat.S_IMODE(found[0].stat().st_mode) == 0o600
    secret = found[0].read_bytes()
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes()
    found[0].unlink()
    writes.fatal = -1
    with pytest.raises(keys.NoiseKeyMissing):
        train(loopback(trainers(2)), tmp_path, ftrl(), users=2)


# A whole app ------------------------------------------------------------------------------


def app_node(node_id: int, partition: int, count: int) -> Any:
    """Somebody's train function, on a node of its own, in a simulation."""
    place = {"partition-id": partition, "num-partitions": count}
    context: Context = node_context(place, node_id=node_id)

    @private_training
    def handle(message: Message, context: Context) -> Message:
        arrays = {name: a.numpy() for name, a in message.content["arrays"].items()}
        trained = ArrayRecord({name: Array(a + np.float32(0.25)) for name, a in arrays.items()})
        return Message(RecordDict({"arrays": trained}), reply_to=message)

    return lambda message: handle(message, context)


@pytest.mark.parametrize(
    ("noise", "schedule", "answers"), [("aggregator", "nodes", 3), ("nodes", "users", 6)]
)
def test_under_secure_aggregation_with_real_nodes(
    tmp_path: Path,
    loopback: Any,
    monkeypatch: pytest.MonkeyPatch,
    noise: str,
    schedule: str,
    answers: int,
) -> None:
    """Rows of a matrix are of all nodes in every round, whoever's turn it is."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    grid = loopback({10 + i: app_node(10 + i, i, 6) for i in range(6)})
    own = {"noise": noise, "schedule": schedule}
    strategy = ftrl(mechanism="banded", min_separation=2, server_optimizer="fedavg", seed=1, **own)
    result = train(
        grid,
        tmp_path,
        strategy,
        aggregation="secure",
        users=6,
        num_rounds=4,
        epsilon=1e3,
        timeout=5.0,
    )
    # 0.25 in 8 coordinates is a norm of 0.71: unclipped; four rounds of it, and little noise
    for name, array in numbers(result.arrays).items():
        assert array == pytest.approx(WEIGHTS[name] + 1.0, abs=0.2)
    assert [row["nodes_answered"] for row in result.metrics] == [answers] * 4
    assert result.statement.aggregation == "secure"
    assert math.isfinite(result.spent)
