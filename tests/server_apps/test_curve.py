"""A training that is measured between its rounds: paid before, made once, and it only looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Error, Message

from privsyn_flower.app.report.tables import report
from privsyn_flower.config import ConfigError, RunConfig, cache_folder
from privsyn_flower.data import Federation, prepare
from privsyn_flower.evaluation.drawing import draw_curve
from privsyn_flower.privacy import calibrate
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods import curve
from privsyn_flower.server_apps.methods.curve import UNREACHED, Curve, drawable
from privsyn_flower.server_apps.privacy_plan import privacy_plan, statement
from privsyn_flower.server_apps.selection import evaluation_caps
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.engine.cohort import TooFewNodes
from privsyn_flower.text.models.lm_metrics import Scorer
from tests.server_apps.in_process import (
    DP_FEDAVG,
    FTRL,
    HANDLERS,
    Killed,
    charges,
    committed,
    killing,
    run,
)

pytestmark = pytest.mark.slow


ROUNDS = {"training.public-steps": 0, "training.evaluate-rounds": "0,2", "aggregation": "plain"}


@pytest.fixture
def configured(small: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Dotted keys on top of DP-FTRL in four rounds, measured at the start and after two."""
    return partial(small, **{**DP_FEDAVG, **FTRL, **ROUNDS})


def names(path: Path) -> list[str]:
    """What each release was charged for, in order: "" for a round."""
    run = RunFolder(path).load_value("run")
    return [row["run"].removeprefix(run).removeprefix("-") for row in committed(path)]


ORDER = ["evaluation-0000", "", "", "evaluation-0002", "", "", "evaluation"]


def test_a_curve_from_the_start_to_the_end(
    configured: Any, loopback: Any, tmp_path: Path, keys: Path
) -> None:
    config = configured(**{"training.evaluate": True})
    summary, _ = run(config, loopback, tmp_path / "run")
    # Each was paid for before, and made when its round came.
    assert names(tmp_path / "run") == ORDER
    assert "in each of 2 rounds and in each evaluation" in summary["privacy"]
    assert "and 3 evaluations of models on the nodes" in summary["privacy"]
    assert summary["epsilon_ledger"] == pytest.approx(summary["epsilon"], rel=1e-6)
    assert [path for path in keys.rglob("*") if path.is_file()] == []

    points = summary["evaluation_curve"]
    assert [point["round"] for point in points] == [0, 2, 4]
    assert "accuracy_gained" not in points[0]
    for point in points:
        assert point["loss_low"] < point["loss"] < point["loss_high"]
    for point in points[1:]:
        value, low, high = point["loss_saved"]
        assert low < value < high
        # Told as a difference: far less noise than in the two losses.
        assert high - low < 0.5 * (point["loss_high"] - point["loss_low"])
    assert points[2]["accuracy"] == summary["evaluation"]["estimates"]["final"]["accuracy"]
    (row,) = [row for row in RunFolder(tmp_path / "run").metrics() if row["round"] == 2]
    assert row["evaluation.accuracy"] == points[1]["accuracy"]
    assert (tmp_path / "run" / "evaluation_curve.png").read_bytes().startswith(b"\x89PNG")
    table = report([summary])
    assert f"| 2 | {points[1]['accuracy']:.4f} [" in table and "failed" not in table

    # Half of the users train in a round; an evaluation asks all of them.
    for number in (0, 2):
        own = RunFolder(tmp_path / "run" / "evaluations" / f"evaluation-{number:04d}")
        released = own.load_release(1)
        assert released is not None
        assert abs(released[0] - everybodys_tokens(config)) < 5 * own.metrics()[0]["noise_std"]

    again, grid = run(config, loopback, tmp_path / "run")
    assert grid.sent == [] and again["evaluation_curve"] == points


def everybodys_tokens(config: RunConfig) -> float:
    """Of all users, in users' caps; far more than the noise of these tests in half of them."""
    caps, scorer = evaluation_caps(config), Scorer(Path(config.models.downstream), "cpu")
    federation = Federation(prepare(config.data, cache_folder(config)))
    users = federation.shard(0, 1).values()
    limits = {"max_tokens": caps.max_tokens, "length": caps.sequence_length}
    rows = [scorer.encode(list(texts), **limits) for texts in users]
    return sum(len(row) - 1 for own in rows for row in own) / caps.max_tokens


PLACES: list[tuple[Any, str, Any]] = [
    (curve, "figures", None),  # the start is released, its figures are not kept
    (HANDLERS, "query.evaluation", lambda m, c: m.metadata.dst_node_id == 3),
    (RunFolder, "save_value", lambda self, name, value: name == "round-0002-evaluated"),
    (RunFolder, "save_checkpoint", lambda self, rnd, *a: rnd == 2 and "evaluations" not in str(
        self.path)),
    (TrainingStrategy, "learn", lambda self, rnd, *a: rnd == 3),
]  # fmt: skip


def test_a_killed_run_pays_once_and_loses_no_point(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = configured(**{"training.evaluate": True}), tmp_path / "run"
    for place, name, when in PLACES:
        with monkeypatch.context() as patch:
            if place is HANDLERS:
                _kill_handler(patch, name, when)
            else:
                killing(patch, place, name, when)
            with pytest.raises(Killed):
                run(config, loopback, path)
    summary, _ = run(config, loopback, path)
    assert names(path) == ORDER
    assert Counter(row["round"] for row in charges(path)) == Counter(
        row["round"] for row in committed(path)
    ) + Counter(
        {1: 1}
    )  # the attempt that the kill ended, which a trusted aggregator lost nothing by
    assert [point["round"] for point in summary["evaluation_curve"]] == [0, 2, 4]
    assert not any("failed" in point for point in summary["evaluation_curve"])
    assert summary["epsilon_ledger"] <= summary["epsilon"] * (1 + 1e-9)


def test_other_rounds_are_not_measured_by_a_run_that_goes_on(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many evaluations, so the promise is the same: only the rounds are others."""
    with monkeypatch.context() as patch:
        killing(patch, TrainingStrategy, "learn", lambda self, rnd, *a: rnd == 1)
        with pytest.raises(Killed):
            run(configured(), loopback, tmp_path / "run")
    with pytest.raises(ValueError, match=r"training\.evaluate-rounds = \[0, 3\] was \[0, 2\]"):
        run(configured(**{"training.evaluate-rounds": "0,3"}), loopback, tmp_path / "run")


def test_a_resume_that_begins_with_a_point_waits_for_nodes(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between a round's release and its checkpoint: who is missing then may still come."""
    config, path = configured(**{"node-timeout": 0.5}), tmp_path / "run"
    with monkeypatch.context() as patch:
        killing(patch, TrainingStrategy, "learn", lambda self, rnd, *a: rnd == 2)
        with pytest.raises(Killed):
            run(config, loopback, path)
    with monkeypatch.context() as patch:
        patch.setattr(loopback, "get_node_ids", lambda self: [])
        with pytest.raises(TooFewNodes):
            run(config, loopback, path)
    summary, _ = run(config, loopback, path)
    assert [point["round"] for point in summary["evaluation_curve"]] == [0, 2]
    assert not any("failed" in point for point in summary["evaluation_curve"])


def _kill_handler(patch: pytest.MonkeyPatch, name: str, when: Any) -> None:
    real = HANDLERS[name]

    def fatal(message: Message, context: Any) -> Message:
        if when(message, context):
            raise Killed(name)
        return real(message, context)

    patch.setitem(HANDLERS, name, fatal)


def test_an_evaluation_that_fails_leaves_the_training_alone(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def down(message: Message, context: Any) -> Message:
        asked.append(message.metadata.dst_node_id)
        return Message(Error(0, "down"), reply_to=message)

    monkeypatch.setitem(HANDLERS, "query.evaluation", down)
    summary, _ = run(configured(), loopback, tmp_path / "run")
    assert (summary["rounds"], summary["ended_early"]) == (4, None) and asked
    points = summary["evaluation_curve"]
    assert [point["round"] for point in points] == [0, 2]
    assert all("no round was released" in point["failed"] for point in points)
    table = report([summary])
    assert "| 2 | failed | - | - |" in table and "- round 2: no round was released" in table
    assert not (tmp_path / "run" / "evaluation_curve.png").exists()
    # Asked for nothing more by a resume.
    asked.clear()
    again, _ = run(configured(), loopback, tmp_path / "run")
    assert asked == [] and again["evaluation_curve"] == points


def test_points_by_rounds(tmp_path: Path) -> None:
    """The start comes with whichever evaluation there is; what was not made says so."""
    values = {"method": "dp-fedavg", "rounds": 9, "training.evaluate-rounds": "3, 6"}
    config = RunConfig.from_flat(values)
    folder = RunFolder(tmp_path)
    session: Any = SimpleNamespace(folder=folder)
    measured = Curve(config, session, tmp_path)
    own = {"accuracy": 0.25, "accuracy_low": 0.2, "accuracy_high": 0.3}
    start = {"accuracy": 0.1, "accuracy_low": 0.05, "accuracy_high": 0.15}
    gain = {"accuracy_gained": [0.15, 0.14, 0.16], "loss_saved": [1.0, 0.9, 1.1]}
    folder.save_value("round-0003-evaluated", {"round": 3, **own, **gain, "start": start})
    assert measured.points(5, None) == [
        {"round": 0, **start, "measured_after": 3},
        {"round": 3, **own, **gain},
        {"round": 6, "failed": UNREACHED},
    ]
    final = {"estimates": {"start": start, "final": own}, **gain}
    last = measured.points(5, final)[-1]
    assert last == {"round": 5, **own, **gain}
    assert measured.points(5, {"failed": "why"})[-1] == {"round": 5, "failed": "why"}
    rows = drawable(measured.points(5, final))
    assert rows["accuracy"] == [[0, 0.1, 0.05, 0.15], [3, 0.25, 0.2, 0.3], [5, 0.25, 0.2, 0.3]]
    assert rows["gained"] == [[3, 0.15, 0.14, 0.16], [5, 0.15, 0.14, 0.16]]
    assert draw_curve([], [], tmp_path / "none.png", caption="") is None


def test_the_rounds_pay_for_the_evaluations(configured: Any) -> None:
    """By hand: all are one Gaussian release, and an evaluation costs as much as one turn."""
    given = {"training.noise": "aggregator", "rounds": 8, "epsilon": 7.58, "method": "dp-fedavg"}
    given |= {"ftrl.mechanism": "blt", "ftrl.min-separation": 1}
    config = configured(**given, **{"training.evaluate": True})
    assert privacy_plan(config)["evaluation"].rounds == 3
    assert privacy_plan(config).main.multiplier == pytest.approx(
        calibrate(7.58, 8 + 3, gaussian_delta(config.delta))
    )
    assert statement(config).evaluations == 3


@pytest.mark.parametrize("value", ["2,0", "1,1", "x", "-1", "1.5", "1,²"])
def test_rounds_are_whole_numbers_in_order(value: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.evaluate-rounds = .*ascending and each once"):
        RunConfig.from_flat({"method": "dp-fedavg", "training.evaluate-rounds": value})


def test_the_last_round_has_a_key_of_its_own() -> None:
    values = {"method": "dp-fedavg", "rounds": 4, "training.evaluate-rounds": "0,4"}
    with pytest.raises(ConfigError, match=r"below rounds = 4.*training\.evaluate = true"):
        RunConfig.from_flat(values)
    with pytest.raises(ConfigError, match=r"training\.evaluate-rounds = '0'.*ctcl"):
        RunConfig.from_flat({"method": "ctcl", "training.evaluate-rounds": "0"})
