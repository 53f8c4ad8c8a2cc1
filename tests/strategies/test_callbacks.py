"""`start` in anyone's ServerApp calls the callbacks that it is given."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.tracking import Trackers, TrackerUnavailable
from privsyn_flower.privacy.release import TooFewSurvivors
from privsyn_flower.strategies import Callback, CheckFailed, DPFedAvg, Question, RunStart
from privsyn_flower.strategies.engine.callbacks import Callbacks
from privsyn_flower.strategies.engine.rounds import NothingLearned
from tests.rigs.ctcl import (
    base,
    made,
    nodes,
    started,
)
from tests.rigs.dp_fedavg import WIDE, train
from tests.rigs.rounds import Counting, VotingNode, engine
from tests.strategies.training_rig import trainers
from tests.text.conftest import causal_folder

__all__ = ["base", "causal_folder"]


class Notebook(Callback):
    """Notes every call. fail: the one in which it raises, `error`."""

    def __init__(self, fail: str = "", error: Exception | None = None) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fail, self.error = fail, error or ConnectionError("http://ada:secret@service is gone")

    def __getattribute__(self, name: str) -> Any:
        if name not in vars(Callback) or name.startswith("_") or name == "check":
            return super().__getattribute__(name)

        def note(*values: Any) -> None:
            self.calls.append((name, values))
            if name == self.fail:
                raise self.error

        return note

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def rounds(self) -> list[tuple[str, int]]:
        ended = [values for name, values in self.calls if name == "round_ended"]
        return [(phase, row["round"]) for phase, row in ended]


class Checking(Notebook):
    check = True


ROUND = ["question_asked", "released", "round_ended"]


def test_a_training_is_told_round_by_round(tmp_path: Path, loopback: Any) -> None:
    book = Notebook()
    result = train(loopback(trainers()), tmp_path / "clinics", callbacks=[book])
    assert book.names() == ["run_started", *3 * ROUND, "run_ended"]
    start: RunStart = book.calls[0][1][0]
    assert start.folder == tmp_path / "clinics" and start.rows == {}
    assert start.facts["method"] == "DPFedAvg" and start.facts["users"] == 4
    assert start.facts["privacy_short"] != result.statement.short()  # which says "Simulated"
    assert book.rounds() == [("rounds", 1), ("rounds", 2), ("rounds", 3)]
    rows = [values[1] for name, values in book.calls if name == "round_ended"]
    assert [row["update_norm"] for row in rows] == [row["update_norm"] for row in result.metrics]
    (summary,) = book.calls[-1][1]
    assert (summary["rounds"], summary["epsilon_ledger"]) == (3, result.spent)
    assert summary["privacy_short"] == result.statement.short()


def test_what_is_told_of_a_release_cannot_be_changed(tmp_path: Path, loopback: Any) -> None:
    book = Notebook()
    train(loopback(trainers()), tmp_path / "run", callbacks=[book], num_rounds=1)
    question, noisy, noise_std = next(v for name, v in book.calls if name == "released")
    assert isinstance(question, Question) and len(question.nodes) == 4
    assert noise_std > 0 and noisy.dtype == np.float64
    for array in (noisy, *question.query.arrays()):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_a_training_goes_on_in_the_same_run(tmp_path: Path, loopback: Any) -> None:
    """Also where the first start had no callback: the rounds before are told at the start."""
    grid, book = loopback(trainers()), Notebook()

    class Cut(DPFedAvg):
        def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
            if rnd == 3:
                raise KeyboardInterrupt
            return super().learn(rnd, released, noise_std)

    with pytest.raises(KeyboardInterrupt):
        train(grid, tmp_path / "run", Cut(WIDE))
    with pytest.raises(KeyboardInterrupt):
        train(grid, tmp_path / "run", Cut(WIDE), callbacks=[book])
    assert book.names() == ["run_started", "run_failed"]
    train(grid, tmp_path / "run", callbacks=[book])
    assert book.rounds() == [("rounds", 3)]
    starts = [values[0] for name, values in book.calls if name == "run_started"]
    assert [row["round"] for row in starts[0].rows["rounds"]] == [1, 2]
    assert len({start.run for start in starts}) == 1


def test_a_question_beside_the_rounds_has_its_own_name(
    tmp_path: Path, loopback: Any, base: Path
) -> None:
    book = Notebook()
    strategy = made(base, filter=False)
    started(strategy, nodes(tmp_path, loopback, base), tmp_path / "run", callbacks=[book])
    assert book.rounds() == [("topics", 1), ("rounds", 1), ("rounds", 2)]


def test_an_observer_that_raises_is_one_warning(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises is never taken for an error of the engine, whose failed attempts are paid."""
    for fail, error in (
        ("run_started", None),
        ("question_asked", TooFewSurvivors("as the engine says it")),
        ("released", NothingLearned("as the engine says it")),
        ("round_ended", KeyError("row")),
        ("run_ended", None),
    ):
        caplog.clear()
        bad, good = Notebook(fail, error), Notebook()
        with caplog.at_level(logging.WARNING, "flwr"):
            result = train(loopback(trainers()), tmp_path / fail, callbacks=[bad, good])
        assert result.rounds == 3 and bad.names() == good.names()
        (first, *count) = [text for text in caplog.messages if text.startswith("callback")]
        assert first.startswith(f"callback Notebook.{fail}: ") and "secret" not in first
        assert len(count) == (fail in ROUND)  # 3 calls raised an error


@pytest.mark.parametrize("error", [TooFewSurvivors("no"), NothingLearned("no"), ValueError("no")])
@pytest.mark.parametrize("fail", ROUND)
def test_a_check_ends_the_run_and_leaves_no_charge_open(
    fail: str, error: Exception, tmp_path: Path, loopback: Any
) -> None:
    run = engine(tmp_path, loopback({100 + i: VotingNode(25, i) for i in range(4)}), Counting())
    run.callbacks = Callbacks([Checking(fail, error)])
    with pytest.raises(CheckFailed, match=f"Checking: {type(error).__name__}: no"):
        run.run()
    states = [(charge.round, charge.state) for charge in run.ledger.charges()]
    assert states == ([] if fail == "question_asked" else [(1, "committed")])
    run.callbacks = Callbacks()
    assert run.run() == 3  # what was released is paid once
    assert len(run.ledger.charges()) == 3


def test_a_check_that_fails_at_the_end_changes_nothing(tmp_path: Path, loopback: Any) -> None:
    grid = loopback(trainers())
    assert train(grid, tmp_path / "run", callbacks=[Checking("run_ended")]).rounds == 3
    with pytest.raises(CheckFailed, match="ConnectionError"):
        train(grid, tmp_path / "other", callbacks=[Checking("run_started")])
    assert not (tmp_path / "other" / "queries").exists()


def test_what_is_no_callback_is_refused_before_anything_is_asked(
    tmp_path: Path, loopback: Any
) -> None:
    grid: Any = loopback(trainers())
    with pytest.raises(TypeError, match="str is no Callback"):
        train(grid, tmp_path / "run", callbacks=["tensorboard"])
    with pytest.raises(TrackerUnavailable, match="'grafana' is unknown"):
        train(grid, tmp_path / "run", callbacks=[Trackers(["grafana"])])
    assert grid.sent == []
