"""Evaluations of a drop-in app: figures, charges, resume, failures, and what a run keeps to."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privsyn_flower.client_apps import private_evaluation, private_training
from privsyn_flower.client_apps.dropin import training as dropin_training
from privsyn_flower.config import AveragingConfig
from privsyn_flower.privacy import Sampler
from privsyn_flower.privacy.accounting import calibrate, compose_gaussians, epsilon
from privsyn_flower.privacy.correlated import keys
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.ledger.journal import replay
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.planning import plan_privacy
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.question import TO_COME
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.strategies import DPFedAvg, PrivateEvaluation, TrainingResult
from privsyn_flower.strategies.averaging.app_evaluation import AppEvaluations
from privsyn_flower.strategies.averaging.generalised_fedavg import Diverged
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.engine import cohort
from privsyn_flower.strategies.engine.cohort import TooFewNodes
from privsyn_flower.strategies.engine.run_ledger import open_ledger
from tests.client_apps.rig import bare
from tests.conftest import node_context
from tests.rigs.app_evaluation import DELTA, Measured, accuracy, nodes_of, train
from tests.rigs.dp_fedavg import Writes, bits, killed_everywhere
from tests.strategies.training_rig import WEIGHTS, Trainer, ftrl


def ledger_of(folder: Path) -> Ledger:
    return open_ledger(RunFolder(folder / "run"))


def figures(result: TrainingResult) -> dict[int, float]:
    return {rnd: float(r["accuracy"]) for rnd, r in result.evaluate_metrics_clientapp.items()}  # type: ignore[arg-type]


# Settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "rounds", "expected"),
    [(0, 5, [5]), (1, 3, [1, 2, 3]), (2, 5, [2, 4, 5]), (5, 5, [5]), (9, 5, [5]), (2, 4, [2, 4])],
)
def test_the_final_model_is_always_measured(every: int, rounds: int, expected: list[int]) -> None:
    settings = PrivateEvaluation({"accuracy": (0, 1)}, every=every)
    assert settings.rounds(rounds) == expected and settings.count(rounds) == len(expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metrics": {}}, "0 metrics"),
        ({"metrics": {f"m{n}": (0, 1) for n in range(17)}}, "17 metrics"),
        ({"metrics": {"": (0, 1)}}, "called ''"),
        ({"metrics": {"num-examples": (0, 1)}}, "max_examples"),
        ({"metrics": {"a": (1, 0)}}, r"metrics\['a'\] = \(1, 0\)"),
        ({"metrics": {"a": (0, math.inf)}}, r"metrics\['a'\]"),
        ({"metrics": {"a": (math.nan, 1)}}, r"metrics\['a'\]"),
        ({"metrics": {"a": (0, 1, 2)}}, r"metrics\['a'\]"),
        ({"metrics": {"a": None}}, r"metrics\['a'\]"),
        ({"metrics": {"a": (0, 10**400)}}, r"metrics\['a'\]"),
        ({"metrics": {"a": (0, 1), "a-low": (0, 1)}}, "same names"),
        ({"every": -1}, "every = -1"),
        ({"every": 1.5}, "every = 1.5"),
        ({"max_examples": -1}, "max_examples = -1"),
        ({"max_examples": True}, "max_examples = True"),
        ({"confidence": 1.0}, "confidence = 1.0"),
        ({"confidence": "x"}, "confidence = 'x' must be a number between 0 and 1"),
        ({"metrics": ["a"]}, r"metrics = \['a'\] must be names with bounds"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PrivateEvaluation(**{"metrics": {"accuracy": (0, 1)}, **options})


def test_a_config_that_nobody_reads_or_that_cannot_travel_is_refused(
    tmp_path: Path, loopback: Any
) -> None:
    grid = loopback(nodes_of())
    with pytest.raises(ValueError, match="evaluation=PrivateEvaluation"):
        train(grid, tmp_path, evaluation=None, evaluate_config=ConfigRecord({"batch": 8}))
    with pytest.raises(ValueError, match=r"evaluate_config\['odd'\]"):
        train(grid, tmp_path, evaluate_config=ConfigRecord({"odd": ""}))
    assert grid.sent == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"evaluation": {"accuracy": (0, 1)}}, "evaluation = {.*} must be a PrivateEvaluation"),
        ({"evaluate_fn": lambda *_: 0.5}, "evaluate_fn returned 0.5 after round 0: must be a"),
        ({"evaluate_fn": lambda *_: {"a": "b"}}, "evaluate_fn returned {'a': 'b'} after round 0"),
    ],
)
def test_what_is_no_evaluation_is_refused_by_name(
    options: dict[str, Any], text: str, tmp_path: Path, loopback: Any
) -> None:
    grid = loopback(nodes_of())
    with pytest.raises(ValueError, match=text):
        train(grid, tmp_path, **options)
    assert grid.sent == []


# Whole runs -------------------------------------------------------------------------------


def test_figures_are_where_flower_has_them(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    nodes = nodes_of()
    grid = loopback(nodes)
    settings = PrivateEvaluation({"accuracy": (0, 1)}, every=2)
    for _ in range(2):  # the second call finds a finished run, and asks nobody
        result = train(grid, tmp_path, evaluation=settings, num_rounds=5)
        found = result.evaluate_metrics_clientapp
        assert list(found) == [2, 4, 5] and result.rounds == 5
        for rnd, row in found.items():
            assert row["accuracy"] == pytest.approx(accuracy(rnd), abs=1e-3)
            assert list(row) == ["accuracy", "accuracy-low", "accuracy-high"]
            assert row["accuracy-low"] < row["accuracy"] < row["accuracy-high"]  # type: ignore[operator]
        assert [len(node.measured) for node in nodes.values()] == [3, 3]
    assert [row.get("evaluation.accuracy") for row in result.metrics] == [
        None, *(pytest.approx(value, abs=1e-3) for value in (0.75,)), None,
        *(pytest.approx(value, abs=1e-3) for value in (accuracy(4), accuracy(5))),
    ]  # fmt: skip
    # What is told after a round counts the evaluations, too.
    assert result.metrics[-1]["epsilon_so_far"] == pytest.approx(result.spent)
    # One total, that of the run, whatever is asked next: it never falls.
    spent = {row["round"]: row["epsilon_so_far"] for row in result.metrics}
    for rnd in (2, 4, 5):
        own = RunFolder(tmp_path / "run" / "evaluations" / f"evaluation-{rnd:04d}")
        (row,) = own.metrics()
        assert spent[rnd - 1] < row["epsilon_so_far"] == pytest.approx(spent[rnd])
    assert "evaluation on the nodes after round 4" in caplog.text
    # One greeting of each function, and a model a round: evaluations know the nodes, and keep no
    # copy of a model.
    assert all(node.greeted == ["train", "evaluate"] for node in nodes.values())
    assert not list((tmp_path / "run").rglob("queries/*.npz"))
    runs = {ticket.run for ticket in nodes[100].measured}
    assert {run.rpartition("-evaluation-")[2] for run in runs} == {"0002", "0004", "0005"}


def test_the_rounds_announce_the_evaluation(tmp_path: Path, loopback: Any) -> None:
    """As it will be asked, but for its round: the app's own check can be called before it."""
    nodes = nodes_of()
    train(loopback(nodes), tmp_path, evaluate_config=ConfigRecord({"batch": 8}))
    *rounds, asked = nodes[100].queries
    assert asked.kind == "evaluation" and asked.options["config.batch"] == 8
    options = {key: value for key, value in asked.options.items() if key != "server-round"}
    assert [json.loads(str(query.options[TO_COME])) for query in rounds] == [options] * 3


def test_a_run_without_one_is_as_before(tmp_path: Path, loopback: Any) -> None:
    nodes = nodes_of()
    result = train(loopback(nodes), tmp_path, evaluation=None)
    assert result.evaluate_metrics_clientapp == {} and result.statement.evaluations == 0
    assert not any(node.measured for node in nodes.values())
    assert result.noise_multiplier == calibrate(8.0, 4, gaussian_delta(DELTA))


STRATEGIES: dict[str, TrainingStrategy] = {
    "nodes": DPFedAvg(),
    "poisson": DPFedAvg(sampler=Sampler("poisson", 0.5)),
    "drawn": DPFedAvg(sampler=Sampler("fixed", nodes=2)),
    "aggregator": DPFedAvg(AveragingConfig(noise="aggregator")),
    "turns of nodes": ftrl(mechanism="banded", min_separation=2),
    "turns of users": ftrl(mechanism="tree", min_separation=2, schedule="users"),
    "at most twice": ftrl(mechanism="blt", max_participations=2, min_separation=3),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "poisson")) for name in STRATEGIES],
)
@pytest.mark.parametrize("every", [0, 2])
def test_all_releases_together_cost_no_more_than_epsilon(
    tmp_path: Path, loopback: Any, name: str, every: int
) -> None:
    rounds, strategy = 4, STRATEGIES[name]
    settings = PrivateEvaluation({"accuracy": (0, 1)}, every=every, confidence=0.1)
    extra = settings.count(rounds)
    nodes = nodes_of(4, users=400)
    options: dict[str, Any] = {"num_rounds": rounds, "users": 1600, "nodes": 4}
    result = train(loopback(nodes), tmp_path, strategy, evaluation=settings, **options)
    assert list(result.evaluate_metrics_clientapp) == settings.rounds(rounds)
    assert result.statement.evaluations == extra
    assert f"and {extra} evaluation" in result.statement.sentence()
    copy = tmp_path / "run" / "ledger.jsonl"
    charges = replay(read_jsonl(copy), copy)
    assert len(charges) == rounds + extra
    assert {charge.state for charge in charges} == {"committed"}
    assert result.spent <= 8.0
    beside = [charge for charge in charges if charge.query == "evaluation"]
    z = [charge.noise_multiplier for charge in beside]
    assert z == [pytest.approx(result.noise_multiplier)] * extra
    if result.statement.noise_source == "nodes":
        rate = result.statement.sampling_rate
        spent = epsilon(
            result.noise_multiplier, rounds + extra + 1, gaussian_delta(DELTA),
            sampling_rate=rate,
        )  # fmt: skip
        assert 7.9 < spent <= 8.0
        assert {c.sampling_rate for c in charges} == {rate}
    else:  # all of it is spent: an evaluation costs what one participation does
        assert result.spent == pytest.approx(8.0, rel=1e-5)
        participations = result.statement.most_participations + extra
        together = compose_gaussians([result.noise_multiplier] * participations)
        assert compose_gaussians(c.noise_multiplier for c in charges) == pytest.approx(together)
        assert not [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
    asked = [len(node.measured) for node in nodes.values()]
    assert sum(asked) == (2 if name == "drawn" else 4) * extra


@pytest.mark.slow
def test_more_evaluations_need_more_noise(tmp_path: Path) -> None:
    for strategy in STRATEGIES.values():
        z = [
            plan_privacy(
                8.0, DELTA, strategy.phases(6, 1, nodes=4, evaluations=extra)
            ).main.equivalent
            for extra in (0, 1, 4)
        ]
        assert z[0] < z[1] < z[2]


# Resume -----------------------------------------------------------------------------------


@pytest.fixture
def one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run has the same key, so that runs can be compared."""
    monkeypatch.setattr(keys.secrets, "token_bytes", lambda size: b"k" * size)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nodes", "turns of nodes"])
def test_killed_at_any_write_it_measures_once_and_the_same(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch, one_key: None, name: str
) -> None:
    writes = Writes(monkeypatch)
    answers: dict[Path, list[str]] = {}

    def once(folder: Path) -> TrainingResult:
        nodes = nodes_of()
        settings = PrivateEvaluation({"accuracy": (0, 1)}, every=1)
        try:
            return train(
                loopback(nodes), folder, STRATEGIES[name], evaluation=settings, num_rounds=2,
                epsilon=20.0,
            )  # fmt: skip
        finally:
            answers.setdefault(folder, []).extend(t.run for t in nodes[100].measured)

    whole, resumed = killed_everywhere(writes, once, tmp_path)
    assert len(resumed) > 40 and list(figures(whole)) == [1, 2]
    lost = 0
    for folder, result in zip(sorted(tmp_path.iterdir()), [*resumed, whole], strict=True):
        found = figures(result)
        assert bits(result) == bits(whole) and result.spent <= 20.0
        assert found == {rnd: figures(whole)[rnd] for rnd in found}
        lost += len(found) < 2
        for rnd in (1, 2):
            row = result.metrics[rnd - 1].get("evaluation.accuracy")
            assert row == found.get(rnd)
        committed = [
            c.run[-4:]
            for c in _charges(folder / "run")
            if c.query == "evaluation" and c.state == "committed"
        ]
        assert committed == [f"{rnd:04d}" for rnd in found]
        assert not [path for path in (folder / "keys").rglob("*") if path.is_file()]
        # Only the last one has an attempt to spare, after a kill while the answers travel.
        assert [t[-4:] for t in answers[folder]].count("0001") <= (1 if name == "nodes" else 2)
        assert len(answers[folder]) <= 3
    # Node's noise: an evaluation in between that was sent and never stored is paid for, and lost.
    assert lost <= (3 if name == "nodes" else 0)


def _charges(run: Path) -> list[Any]:
    return open_ledger(RunFolder(run)).charges()


CHANGES: list[PrivateEvaluation | None] = [
    None,
    PrivateEvaluation({"accuracy": (0, 1)}, every=1),
    PrivateEvaluation({"accuracy": (0, 2)}),
    PrivateEvaluation({"f1": (0, 1)}),
    PrivateEvaluation({"accuracy": (0, 1)}, max_examples=5),
]


@pytest.mark.parametrize("other", CHANGES)
def test_a_begun_run_keeps_to_its_evaluation(
    tmp_path: Path, loopback: Any, other: PrivateEvaluation | None
) -> None:
    nodes = nodes_of()
    train(loopback(nodes), tmp_path, num_rounds=1)
    asked = len(nodes[100].asked)
    with pytest.raises(ValueError, match=r"was begun with other values: .*evaluation"):
        train(loopback(nodes), tmp_path, num_rounds=1, evaluation=other)
    assert (len(nodes[100].asked), len(nodes[100].measured)) == (asked, 1)


def test_another_model_under_the_same_name_is_refused(tmp_path: Path, loopback: Any) -> None:
    strategy, nodes = DPFedAvg(), nodes_of()
    train(loopback(nodes), tmp_path, strategy, num_rounds=1)
    measured = strategy.evaluations
    assert isinstance(measured, AppEvaluations)
    assert measured.after(1, strategy.parameters())["accuracy"] == pytest.approx(0.5, abs=1e-3)
    other = {name: array + 1 for name, array in strategy.parameters().items()}
    with pytest.raises(ValueError, match="choose another name"):
        measured.after(1, other)
    assert len(nodes[100].measured) == 1


# Failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nodes", "turns of nodes"])
def test_an_evaluation_that_fails_loses_no_training(
    tmp_path: Path,
    loopback: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    nodes = nodes_of()
    nodes[100].failing = 10 if name != "nodes" else 1
    settings = PrivateEvaluation({"accuracy": (0, 1)}, every=2)
    options: dict[str, Any] = {"evaluation": settings, "num_rounds": 4, "timeout": 0.1}
    for _ in range(2):
        result = train(loopback(nodes), tmp_path, STRATEGIES[name], **options)
        assert result.rounds == 4 and result.spent <= 8.0
        assert 2 not in result.evaluate_metrics_clientapp
    assert "the evaluation after round 2 gave nothing" in caplog.text
    assert not [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
    second = [t for t in nodes[100].measured if t.run.endswith("0002")]
    if name == "nodes":  # charged, so it is not repeated: the spare one is the rounds'
        assert len(second) == 1 and list(figures(result)) == [4]
    else:  # it has cost nothing, and is given up after a few
        assert 1 < len(second) < 6


def test_a_kill_while_a_failed_evaluation_is_given_up_leaves_no_key(
    tmp_path: Path, loopback: Any
) -> None:
    strategy, nodes = DPFedAvg(AveragingConfig(noise="aggregator")), nodes_of()
    nodes[100].failing = 10
    train(loopback(nodes), tmp_path, strategy, timeout=0.1)
    measured = strategy.evaluations
    assert measured is not None
    keys.NoiseKey.create(tmp_path / "keys", f"{measured.session.plan().run}-evaluation-0003")
    asked = len(nodes[100].measured)
    assert measured.after(3, strategy.parameters()) == {}
    assert len(nodes[100].measured) == asked
    assert not [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]


def test_the_last_evaluation_may_use_what_the_rounds_have_left(
    tmp_path: Path, loopback: Any
) -> None:
    for spare, used in ((1, 0), (1, 1), (2, 1)):
        folder = tmp_path / f"{spare}-{used}"
        nodes = nodes_of()
        nodes[100].failing = 1
        _silent_once(nodes[101], used)
        result = train(loopback(nodes), folder, spare_rounds=spare, timeout=0.1)
        tickets = [(t.round, t.attempt) for t in nodes[100].measured]
        paid = spare > used
        assert tickets == [(1, 1), (1, 2)][: 1 + paid]
        assert list(figures(result)) == [3] * paid
        assert len(_charges(folder / "run")) == 3 + used + len(tickets) <= 3 + spare + 1
        assert result.spent <= 8.0


def _silent_once(node: Measured, times: int) -> None:
    """Keep quiet about the first so many training questions."""
    rates = iter([True] * times)
    asked = Trainer.__call__

    class Quiet(Measured):
        def __call__(self, message: Message) -> Message | None:
            if not greeting.is_hello(message) and message.metadata.message_type == "train":
                self.silent = next(rates, False)
                return asked(self, message)
            return super().__call__(message)

    node.__class__ = Quiet


def test_noise_above_the_users_gives_no_figure(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    result = train(loopback(nodes_of()), tmp_path, epsilon=0.05)
    assert result.rounds == 3 and result.evaluate_metrics_clientapp == {}
    assert "sum of the users' weights is" in caplog.text
    assert len(_charges(tmp_path / "run")) == 4


def test_a_run_that_ends_early_measures_what_it_has(tmp_path: Path, loopback: Any) -> None:
    nodes = nodes_of()
    original = Trainer.__call__

    class Tired(Measured):
        def __call__(self, message: Message) -> Message | None:
            self.silent = len(self.asked) >= 2
            return super().__call__(message)

    nodes[101].__class__ = Tired
    for _ in range(2):
        result = train(loopback(nodes), tmp_path, spare_rounds=0, num_rounds=5)
        assert result.rounds == 2 and list(figures(result)) == [2]
        assert figures(result)[2] == pytest.approx(accuracy(2), abs=1e-3)
        assert [len(node.measured) for node in nodes.values()] == [1, 1]
    assert original is Trainer.__call__ and result.spent <= 8.0


def test_no_more_evaluations_than_are_paid_for(tmp_path: Path, loopback: Any) -> None:
    strategy, nodes = DPFedAvg(), nodes_of()
    train(loopback(nodes), tmp_path, strategy)
    measured = strategy.evaluations
    assert measured is not None
    assert measured.after(2, strategy.parameters(), last=True) == {}
    assert len(nodes[100].measured) == 1


def test_evaluations_draw_other_nodes_than_the_rounds_do(tmp_path: Path, loopback: Any) -> None:
    nodes = nodes_of(12, users=10)
    settings = PrivateEvaluation({"accuracy": (0, 1)}, every=1, confidence=0.01)
    train(
        loopback(nodes), tmp_path, DPFedAvg(sampler=Sampler("fixed", nodes=4)), users=120, nodes=12,
        evaluation=settings, epsilon=50.0,
    )  # fmt: skip
    drawn = [
        frozenset(
            n
            for n, node in nodes.items()
            if any(t.run.endswith(f"{rnd:04d}") for t in node.measured)
        )
        for rnd in (1, 2, 3)
    ]
    assert all(len(one) == 4 for one in drawn) and len(set(drawn)) > 1


# A whole app ------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[ClientApp]:
    """Three users a node; user 2 has no rows, and the functions tell all they know."""
    found = ClientApp()
    names = {"users": lambda context: [f"{context.node_id}-{n}" for n in range(3)]}

    @found.train()
    @private_training(**names)
    def train(message: Message, context: Any) -> Message:
        arrays = {n: Array(a.numpy() + 1) for n, a in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

    @found.evaluate()
    @private_evaluation(**names)
    def evaluate(message: Message, context: Any) -> Message:
        config = message.content["config"]
        user = int(str(config["user"])[-1])
        first = float(message.content["arrays"]["b"].numpy()[0])
        metrics = {
            "loss": first + config["shift"],
            "rows": 10.0 * user,
            "num-examples": 0 if user == 2 else 5 + 100 * user,
        }
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    yield found


@pytest.mark.parametrize(
    ("kind", "another", "found"),
    [
        ("none", False, "have no @private_evaluation"),
        ("reads nothing", False, "have no @private_evaluation"),
        ("reads arrays", True, r"failed \(Flower error code 2\) in evaluate"),
        ("reads nothing", True, "sent no facts .*"),
    ],
)
def test_an_evaluate_function_that_is_not_private_is_found_before_round_1(
    tmp_path: Path, loopback: Any, monkeypatch: Any, kind: str, another: bool, found: str
) -> None:
    """Nothing is trained or charged, and nobody is asked how well a model does; where the app has
    no private evaluate function (`another`), none is called."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(dropin_training, "EVALUATED", {"another"} if another else set())
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.1)
    app = ClientApp()
    app.train()(private_training(_never))
    if kind != "none":

        @app.evaluate()
        def evaluate(message: Message, context: Any) -> Message:
            if kind == "reads arrays":
                message.content["arrays"]
            metrics = MetricRecord({"accuracy": 0.5})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

    own = {n: node_context({"partition-id": n - 1, "num-partitions": 2}, node_id=n) for n in (1, 2)}
    grid = loopback({n: lambda message, n=n: app(message, own[n]) for n in own})
    said = (
        rf"^2 of 2 nodes {found}: their "
        r"evaluate function is not private. Put @private_evaluation below @app.evaluate\(\) in"
    )
    with pytest.raises(TooFewNodes, match=said):
        train(grid, tmp_path, users=2, node_timeout=60.0)
    types = ["train"] * 2 + ["evaluate"] * 2 * another
    assert [m.metadata.message_type for m in grid.sent] == types
    assert all(greeting.is_hello(message) for message in grid.sent)
    assert ledger_of(tmp_path).charges() == []


def _never(message: Message, context: Any) -> Message:
    raise AssertionError("trained")


def test_a_node_whose_evaluate_function_is_not_private_takes_no_part(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nodes: dict[int, Any] = dict(nodes_of())

    class Undecorated(Trainer):
        def __call__(self, message: Message) -> Message | None:
            if message.metadata.message_type == "evaluate":
                raise KeyError("arrays")
            return super().__call__(message)

    nodes[102] = Undecorated(2, [1.0] * 20)
    result = train(loopback(nodes), tmp_path, users=120, nodes=3, min_surviving_weight=0.8)
    assert list(result.evaluate_metrics_clientapp) == [3]
    assert set(nodes[102].greeted) == {"train"} and nodes[102].asked == []
    assert "greeting: 1 of 3 nodes failed (Flower error code 2) in evaluate" in caplog.messages


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        DPFedAvg(AveragingConfig(clip_norm=10.0)),
        ftrl(10.0, min_separation=2, server_optimizer="fedavg"),
    ],
)
def test_an_app_is_measured_under_secure_aggregation(
    tmp_path: Path,
    loopback: Any,
    monkeypatch: pytest.MonkeyPatch,
    app: ClientApp,
    strategy: TrainingStrategy,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    bare(monkeypatch)  # what is on the model and the figures is then known

    def node(number: int) -> Any:
        place = {"partition-id": number, "num-partitions": 6}
        own = node_context(place, node_id=number + 1)
        return lambda message: app(message, own)

    grid = loopback({number + 1: node(number) for number in range(6)})
    result = train(
        grid,
        tmp_path,
        strategy,
        num_rounds=2,
        users=18,
        nodes=6,
        epsilon=5e3,  # hardly any noise
        aggregation="secure",
        timeout=5.0,
        evaluate_config=ConfigRecord({"shift": 0.25}),
        evaluation=PrivateEvaluation(
            {"loss": (0, 8), "rows": (0, 10)}, every=1, max_examples=20, confidence=0.999
        ),
    )
    first = float(WEIGHTS["b"][0])
    for rnd, row in result.evaluate_metrics_clientapp.items():
        assert row["loss"] == pytest.approx(first + rnd + 0.25, abs=0.3)
        # users 0 weigh 5 of 20, users 1 weigh 20 of 20
        assert row["rows"] == pytest.approx(10 * 20 / 25, abs=0.3)
        assert row["rows-low"] <= 8.0 <= row["rows-high"]  # type: ignore[operator]
    assert list(result.evaluate_metrics_clientapp) == [1, 2]
    assert all(r.count_bytes() for m in (*grid.sent, *grid.received) for r in m.content.values())
    types = [m.metadata.message_type for m in grid.sent if "secagg" in m.content]
    assert types.count("evaluate") == 2 * 5 * 6  # five stages, all nodes
    records = {(name, type(r).__name__) for m in grid.received for name, r in m.content.items()}
    assert records == {("answer", "ConfigRecord"), ("secagg", "ConfigRecord")}
    assert "with all its data" in result.statement.sentence()
    assert np.isfinite(result.spent)


class EndsEarly(DPFedAvg):
    """Leaves the server's step of round 2 undone, as parameters that are not finite would."""

    def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
        if rnd == 2:
            raise Diverged(rnd)
        return super().learn(rnd, released, noise_std)


class SilentOnce(Measured):
    """Gives no answer to the first attempt of round 3."""

    def __call__(self, message: Message) -> Message | None:
        if not greeting.is_hello(message) and message.metadata.message_type != "evaluate":
            _, ticket, _ = wire.read_ask(message, self.facts.weight)
            if (ticket.round, ticket.attempt) == (3, 1):
                return None
        return super().__call__(message)


@pytest.mark.parametrize("shared", [False, True])
def test_spare_attempts_are_spent_once_by_rounds_or_evaluations(
    tmp_path: Path, loopback: Any, shared: bool
) -> None:
    """What the last evaluation of an early end used is not the rounds' when the run goes on."""
    nodes = {100 + number: SilentOnce(number, 50) for number in range(2)}
    options: dict[str, Any] = {}
    if shared:
        options = {"population_name": "pop", "ledger": tmp_path / "pop.jsonl", "ledger_epsilon": 30}
    for node in nodes.values():
        node.failing = 2  # both attempts of the evaluation
    train(loopback(nodes), tmp_path, EndsEarly(), **options)
    result = train(loopback(nodes), tmp_path, DPFedAvg(), **options)
    where = tmp_path / "pop.jsonl" if shared else ""
    book = open_ledger(
        RunFolder(tmp_path / "run"), ledger=where, population_name="pop" if shared else ""
    )
    charged = Counter(charge.run.rpartition("-")[2] for charge in book.charges())
    assert sorted(charged.values()) == [2, 3], "three rounds, an evaluation and one spare"
    assert result.rounds == 2 and "attempts are charged" in result.ended_early
    assert result.spent <= result.epsilon
