"""DP-FTRL whose nodes answer rows of a matrix: what is made of them, charged, and gone on with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.common.arrays import F64
from privsyn_flower.config import AveragingConfig, FtrlConfig
from privsyn_flower.privacy.accounting import gaussian_epsilon
from privsyn_flower.privacy.correlated import Participation
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.protocol.noise import encoded_bound, integer_plan, matrix_of
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies import DPFTRL, TrainingResult
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.matrix_noise import MatrixNoise
from tests.rigs.dp_fedavg import Kill, Writes, bits, killed_everywhere
from tests.strategies.training_rig import ftrl, record, trainers

DELTA, ROUNDS = 1e-6, 6
WIDE = 10.0  # cuts nothing that these nodes answer


def strategy(**keys: Any) -> DPFTRL:
    own = {"mechanism": "banded", "bands": 3, "server_optimizer": "fedavg", "clip_norm": WIDE}
    return ftrl(**{**own, "noise": "nodes", "schedule": "users", **keys})


def train(grid: Any, folder: Path, method: DPFTRL | None = None, **options: Any) -> TrainingResult:
    settings = {
        "num_rounds": ROUNDS,
        "epsilon": 4.0,
        "delta": DELTA,
        "users": 4,
        "folder": folder / "run",
        "aggregation": PlainSum(),
        "min_surviving_weight": 0.5,
        "timeout": 0.2,
        "node_timeout": 0.5,
        **options,
    }
    return (method or strategy()).start(grid, record(), **settings)


class Rows:
    """A grid of nodes, some of which miss rounds: (node, round, attempt)."""

    def __init__(self, loopback: Any, *missed: tuple[int, int, int], nodes: int = 4) -> None:
        self.nodes, self.missed = trainers(nodes), set(missed)
        self.grid = loopback({name: self._node(name) for name in self.nodes})

    def _node(self, name: int) -> Any:
        node = self.nodes[name]

        def handle(message: Any) -> Any:
            node.silent = False
            reply = node(message)
            if not node.asked:
                return reply
            ticket = node.asked[-1][0]
            return None if (name, ticket.round, ticket.attempt) in self.missed else reply

        return handle

    def rows(self, rnd: int, missing: set[int]) -> F64:
        """The sum of the nodes' rows of a round in units of a vector, before it is rotated back."""
        _, query, noise = next(iter(self.nodes.values())).asked[0]
        matrix = matrix_of(query)
        assert matrix is not None
        here = [node for name, node in self.nodes.items() if name not in missing]
        total = sum(matrix.row(rnd, node.past.get) for node in here)  # type: ignore[misc, arg-type]
        return np.asarray(total) / integer_plan(query, noise).scale / matrix.unit


def charges(folder: Path) -> list[tuple[int, str, float]]:
    """(round, state, mu^2) of the run's own ledger."""
    where = RunFolder(folder / "run").load_value("ledger")["path"]
    run = RunFolder(folder / "run").load_value("run")
    ledger = Ledger.open(Path(where), population=f"run {run}", total_epsilon=4.0, total_delta=DELTA)
    return [(c.round, c.state, c.noise_multiplier**-2) for c in ledger.charges()]


def learned(folder: Path) -> list[F64]:
    """What each round taught, made of the stored releases by solving C y = R."""
    run = RunFolder(folder / "run")
    rows = np.array([run.load_release(rnd) for rnd in range(1, ROUNDS + 1)])
    matrix, _ = strategy().correlated(ROUNDS)
    assert isinstance(matrix, IntegerMatrix)
    column = np.zeros(ROUNDS)
    column[: matrix.bands] = np.array(matrix.coefficients) / matrix.unit
    whole = np.array([np.roll(column, s) for s in range(ROUNDS)]).T
    return list(np.linalg.solve(np.tril(whole), rows))


def test_without_noise_every_round_is_learned_from_alone(tmp_path: Path, loopback: Any) -> None:
    """The nodes here add no noise: what is learned from is the sum of one round's updates."""
    rig = Rows(loopback)
    result = train(rig.grid, tmp_path)
    model = {"b": np.array([0.5, -1.0]), "w": np.arange(6).reshape(2, 3) / 8}
    targets = np.array([t for node in rig.nodes.values() for t in node.targets])
    for _ in range(ROUNDS):
        step = {
            name: np.mean([0.5 * (t - a) for t in targets], axis=0) for name, a in model.items()
        }
        model = {name: a + step[name] for name, a in model.items()}
    for name, array in result.arrays.items():
        assert array.numpy() == pytest.approx(model[name], abs=0.02)
    for rnd, mine in enumerate(learned(tmp_path), start=1):
        first = rig.nodes[100].asked[0]
        alone = sum(node.past[rnd] for node in rig.nodes.values()) / integer_plan(*first[1:]).scale
        norm = float(np.linalg.norm(alone))
        assert float(np.linalg.norm(mine)) == pytest.approx(norm, rel=1e-6)
        assert result.metrics[rnd - 1]["update_norm"] == pytest.approx(norm / 4, rel=1e-6)


def test_a_release_is_the_row_to_the_last_integer_whoever_is_missing(
    tmp_path: Path, loopback: Any
) -> None:
    """A node that misses a round takes its whole row along; its vector is in later rows."""
    rig = Rows(loopback, (101, 2, 1), (103, 5, 1), (101, 5, 1))
    result = train(rig.grid, tmp_path)
    run = RunFolder(tmp_path / "run")
    gone = {2: {101}, 5: {101, 103}}
    for rnd in range(1, ROUNDS + 1):
        released = run.load_release(rnd)
        assert released is not None
        norm = float(np.linalg.norm(rig.rows(rnd, gone.get(rnd, set()))))
        assert float(np.linalg.norm(released)) == pytest.approx(norm, rel=1e-12)
    assert [row["update_norm"] * 4 for row in result.metrics] == pytest.approx(
        [float(np.linalg.norm(own)) for own in learned(tmp_path)], rel=1e-9
    )
    assert [row["nodes_answered"] for row in result.metrics] == [4, 3, 4, 4, 2, 4]


def test_all_rounds_have_one_rotation_and_one_noise(tmp_path: Path, loopback: Any) -> None:
    rig = Rows(loopback)
    result = train(rig.grid, tmp_path, strategy(min_separation=2, max_participations=3))
    asked = rig.nodes[100].asked
    assert len({query.rotation for _, query, _ in asked}) == 1 < len(asked)
    assert len({noise for *_, noise in asked}) == 1
    matrix, noise = matrix_of(asked[0][1]), asked[0][2]
    assert matrix is not None and matrix.participation == Participation(ROUNDS, 2, 3)
    assert asked[0][1].options["cycle"] == 2
    assert (noise.source, noise.sampling_rate) == ("nodes", 1.0)
    # z is the noise's before it is correlated; a participation costs what the statement says
    z = noise.multiplier
    assert gaussian_epsilon(z / matrix.sensitivity(1), DELTA * 0.999) <= 4.0
    said = result.statement
    assert said.noise_multiplier == pytest.approx(z * math.sqrt(3) / matrix.sensitivity(1))
    assert (said.noise_source, said.correlated, said.most_participations) == ("nodes", "banded", 3)
    assert said.spare_rounds == 1


def test_the_figures_are_of_the_noise_of_all_rows(tmp_path: Path, loopback: Any) -> None:
    """Each row's noise is as large as the nodes that answered it make it."""
    rig = Rows(loopback, (101, 2, 1))
    result = train(rig.grid, tmp_path)
    _, query, noise = rig.nodes[100].asked[0]
    matrix = matrix_of(query)
    assert matrix is not None
    inverse, std = matrix.toeplitz.inverse(), noise.multiplier * encoded_bound(query, noise)
    weights = [4, 3, 4, 4, 4, 4]
    for rnd, row in enumerate(result.metrics, start=1):
        variance = sum(inverse[rnd - s] ** 2 * weights[s - 1] / 2 for s in range(1, rnd + 1))
        assert row["noise_std"] == pytest.approx(std * math.sqrt(variance))
        assert row["guaranteed_noise_std"] == pytest.approx(
            std * math.sqrt(float((inverse[:rnd] ** 2).sum()))
        )
        assert row["mechanism"] == "nodes, banded"


def test_a_row_that_is_asked_again_is_charged_as_one(tmp_path: Path, loopback: Any) -> None:
    lost = [(name, 3, 1) for name in (101, 102, 103)]
    rig = Rows(loopback, *lost)
    result = train(rig.grid, tmp_path)
    assert result.rounds == ROUNDS and not result.ended_early
    _, query, noise = rig.nodes[100].asked[0]
    matrix, z = matrix_of(query), noise.multiplier
    assert matrix is not None
    first = np.diff(matrix.toeplitz.cumulative_sensitivity(matrix.participation) ** 2, prepend=0.0)
    found = charges(tmp_path)
    assert [(rnd, state) for rnd, state, _ in found] == [
        (1, "committed"), (2, "committed"), (3, "reserved"), (3, "committed"), (4, "committed"),
        (5, "committed"), (6, "committed"),
    ]  # fmt: skip
    wanted = [*first[:3], matrix.row_norm**2, *first[3:]]
    assert [mu for *_, mu in found] == pytest.approx(np.array(wanted) / z**2)
    assert sum(mu for *_, mu in found) == pytest.approx((matrix.sensitivity(1) / z) ** 2)
    assert result.spent == pytest.approx(4.0, rel=1e-4) and result.spent <= 4.0
    # the same row: what was lost is not in the sum twice
    norm = float(np.linalg.norm(rig.rows(3, set())))
    released = RunFolder(tmp_path / "run").load_release(3)
    assert released is not None and float(np.linalg.norm(released)) == pytest.approx(norm)


def test_no_more_rows_are_asked_again_than_are_paid_for(tmp_path: Path, loopback: Any) -> None:
    lost = [(name, rnd, 1) for name in (101, 102, 103) for rnd in (3, 4)]
    result = train(Rows(loopback, *lost).grid, tmp_path)
    assert result.rounds == 3
    assert "spare-rounds = 1" in result.ended_early and "W_min = 2" in result.ended_early


def test_a_last_row_that_was_revealed_is_not_asked_again(tmp_path: Path, loopback: Any) -> None:
    """Nodes erase earlier rounds when the last one is unmasked: a second answer would lack them."""
    lost = [(name, ROUNDS, 1) for name in (101, 102, 103)]
    rig = Rows(loopback, *lost)
    result = train(rig.grid, tmp_path)
    assert result.rounds == ROUNDS - 1
    assert f"round {ROUNDS}, the last" in result.ended_early and "W_min = 2" in result.ended_early
    assert [ticket.round for ticket, *_ in rig.nodes[100].asked] == list(range(1, ROUNDS + 1))


@pytest.mark.slow
def test_killed_at_any_write_it_ends_with_the_same_bits(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes outlive the server, and say the same about a round that is asked again."""
    writes, nodes = Writes(monkeypatch), dict[Path, Any]()

    def once(folder: Path) -> TrainingResult:
        grid = loopback(nodes.setdefault(folder, trainers(2)))
        return train(grid, folder, strategy(clip_norm=0.5), num_rounds=4, users=2)

    whole, resumed = killed_everywhere(writes, once, tmp_path)
    assert len(resumed) > 40
    early = 0
    folders = [tmp_path / "whole", *sorted(tmp_path.glob("killed-*"))]
    for folder, result in zip(folders, [whole, *resumed], strict=True):
        assert result.spent <= 4.0
        if result.rounds == 3:  # killed while the answers of the last round were out
            assert "round 4, the last" in result.ended_early
            early += 1
            continue
        assert result.rounds == 4 and bits(result) == bits(whole) and result.spent >= whole.spent
        assert not list((folder / "run" / "models").glob("decorrelated-*"))
    assert 1 <= early <= 4


def test_what_later_rounds_need_is_kept_and_made_again(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = trainers(4)
    whole = train(loopback(nodes), tmp_path / "whole")

    class End(Exception):
        pass

    def stop(done: int) -> Any:
        def evaluate(rnd: int, arrays: Any) -> None:
            if rnd == done:
                raise End

        return evaluate

    nodes, folder = trainers(4), tmp_path / "other"
    with pytest.raises(End):
        train(loopback(nodes), folder, evaluate_fn=stop(5))
    models = folder / "run" / "models"
    assert sorted(path.stem for path in models.glob("decorrelated-*")) == [
        "decorrelated-0004", "decorrelated-0005",
    ]  # fmt: skip
    (models / "decorrelated-0004.safetensors").unlink()
    assert bits(train(loopback(nodes), folder)) == bits(whole)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"bands": 2}, "noise = 'of the nodes z .* bands 2 .* was 'of the nodes z .* bands 3 "),
        ({"min_separation": 2}, "min_separation = 2 was 1"),
        ({"noise": "aggregator", "schedule": "users"}, "noise_source = 'aggregator' was 'nodes'"),
    ],
)
def test_a_begun_run_keeps_its_matrix(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch, keys: Any, words: str
) -> None:
    writes = Writes(monkeypatch)
    writes.fatal = 30
    with pytest.raises(Kill):
        train(loopback(trainers(4)), tmp_path)
    writes.fatal = -1
    nodes = trainers(4)
    with pytest.raises(ValueError, match=words) as raised:
        train(loopback(nodes), tmp_path, strategy(**keys), noise_keys=tmp_path / "keys")
    assert len(str(raised.value)) < 1500 and not any(node.asked for node in nodes.values())


@pytest.mark.parametrize(
    ("training", "ftrl_keys", "words"),
    [
        ({}, {"mechanism": "tree"}, r"ftrl\.mechanism = 'tree' .* 'banded.*'aggregator' if"),
        ({}, {"mechanism": "independent"}, r"ftrl\.mechanism = 'independent'"),
        ({}, {"schedule": "nodes", "min_separation": 2}, r"ftrl\.schedule = 'nodes' .* 'users'"),
        ({"adaptive_clipping": True}, {}, r"training\.adaptive-clipping = true .* false"),
    ],
)
def test_what_cannot_be_a_matrix_is_refused(training: Any, ftrl_keys: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DPFTRL(AveragingConfig(**training), FtrlConfig(**ftrl_keys))


def test_noise_is_for_its_own_matrix_asked_of_everybody(tmp_path: Path, loopback: Any) -> None:
    rig = Rows(loopback)
    train(rig.grid, tmp_path, num_rounds=4)
    query = rig.nodes[100].asked[0][1]
    matrix = matrix_of(query)
    assert matrix is not None
    plan = RoundPlan("r", 4, 1.0, min_surviving_weight=0.5)
    mechanism = MatrixNoise(matrix, 2.0, RunFolder(tmp_path / "other"))
    assert mechanism.noise(plan, query).multiplier == 2.0
    other = IntegerMatrix(matrix.coefficients[:2], matrix.participation)
    with pytest.raises(ValueError, match="matrix is not the one"):
        MatrixNoise(other, 2.0, RunFolder(tmp_path / "other")).noise(plan, query)
    for keys in ({"cycle": 2}, {"cohort_nodes": 2}, {"sampling_rate": 0.5}):
        with pytest.raises(ValueError, match="all nodes in every round"):
            mechanism.noise(RoundPlan("r", 4, 1.0, min_surviving_weight=0.5, **keys), query)
    with pytest.raises(ValueError, match="z = 0"):
        MatrixNoise(matrix, 0.0, RunFolder(tmp_path / "other"))
