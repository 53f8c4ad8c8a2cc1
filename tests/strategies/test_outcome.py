"""A strategy in somebody's ServerApp leaves a summary that the report takes like any run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.cli.ending import ending
from privsyn_flower.app.report.guarantee import checklist
from privsyn_flower.app.report.reading import read_run
from privsyn_flower.app.report.summaries import read_named
from privsyn_flower.app.report.tables import report
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies import DPFTRL
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.strategies.engine.outcome import note_samples
from tests.rigs.dp_fedavg import train
from tests.rigs.synthesis import Counting, grid_of
from tests.strategies.training_rig import ftrl, trainers


def test_a_training_in_an_app_is_reported_like_any_run(tmp_path: Path, loopback: Any) -> None:
    grid, folder = loopback(trainers(4)), tmp_path / "clinics"
    result = train(grid, folder)
    found = read_named(folder)
    assert (found["run"], found["seed"], found["method"]) == ("clinics", None, "dp-fedavg")
    assert (found["rounds"], found["rounds_planned"], found["ended_early"]) == (3, 3, None)
    assert found["users"] == 4 and found["epsilon"] == result.statement.epsilon
    assert found["epsilon_ledger"] == result.spent and found["epsilon_ledger_total"] == 8.0
    assert found["bytes_up_per_user_round"] > 0 and found["synthetic_samples"] == 0
    assert "| clinics | - | dp-fedavg |" in report([found])
    assert "dp-fedavg on data of the app" in ending(found, folder)
    assert "3 rounds were released" in checklist(found)
    run = read_run(folder)
    assert run.state == "finished" and run.ledger is not None and not run.problems
    before = (folder / "summary.json").read_bytes()
    train(grid, folder)  # finds a finished run
    assert (folder / "summary.json").read_bytes() == before


def test_a_trusted_aggregator_is_in_the_table_of_its_kind(tmp_path: Path, loopback: Any) -> None:
    strategy: Any = ftrl(10.0)
    assert isinstance(strategy, DPFTRL)
    train(loopback(trainers(4)), tmp_path, strategy, noise_keys=tmp_path.parent / "keys")
    assert report([read_named(tmp_path)]).startswith("**A trusted aggregator")


def test_a_run_that_goes_on_has_none_yet(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def learn(self: Any, *_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(Counting()), "learn", learn)
        with pytest.raises(Killed):
            counted(loopback, tmp_path)
    assert read_run(tmp_path).state == "stopped" and not (tmp_path / "summary.json").exists()
    counted(loopback, tmp_path)
    assert read_run(tmp_path).state == "finished"


def counted(loopback: Any, folder: Path) -> None:
    Counting().start(
        grid_of(loopback, [False] * 3), folder=folder, users=75, nodes=3, epsilon=4.0, delta=1e-5,
        aggregation=PlainSum(),
    )  # fmt: skip


def test_a_strategy_of_ones_own_is_called_by_its_name(tmp_path: Path, loopback: Any) -> None:
    counted(loopback, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["method"] == "Counting" and summary["claim"]["simulated"] is True
    note_samples(RunFolder(tmp_path), 7)
    again = json.loads((tmp_path / "summary.json").read_text())
    assert again == {**summary, "synthetic_samples": 7}
