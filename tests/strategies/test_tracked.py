"""`start` in anyone's ServerApp tells the trackers that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.tracking import Ended, RoundReleased, RunStarted
from privsyn_flower.app.tracking.named import TrackerUnavailable
from privsyn_flower.strategies import DPFedAvg
from tests.app.tracking.test_tracker import Notebook
from tests.strategies.test_ctcl import base, made, nodes, started
from tests.strategies.test_dp_fedavg import WIDE, train
from tests.strategies.training_rig import trainers
from tests.text.conftest import causal_folder

__all__ = ["base", "causal_folder"]


def test_a_training_is_told_round_by_round(tmp_path: Path, loopback: Any) -> None:
    book = Notebook()
    result = train(loopback(trainers()), tmp_path / "clinics", trackers=[book])
    start, *rounds, end = book.told
    assert isinstance(start, RunStarted) and start.name == "clinics"
    assert start.facts["method"] == "DPFedAvg" and start.facts["users"] == 4
    assert start.facts["privacy_short"] != result.statement.short()  # which says "Simulated"
    assert [e.round for e in rounds if isinstance(e, RoundReleased)] == [1, 2, 3]
    assert [e.values["update_norm"] for e in rounds if isinstance(e, RoundReleased)] == [
        row["update_norm"] for row in result.metrics
    ]
    assert end == Ended("finished", 3, {"rounds": 3}, result.statement.short())


def test_a_training_goes_on_in_the_same_tracked_run(tmp_path: Path, loopback: Any) -> None:
    """Also where the first start had no tracker."""
    grid, book = loopback(trainers()), Notebook()

    class Cut(DPFedAvg):
        def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
            if rnd == 3:
                raise KeyboardInterrupt
            return super().learn(rnd, released, noise_std)

    with pytest.raises(KeyboardInterrupt):
        train(grid, tmp_path / "run", Cut(WIDE))
    with pytest.raises(KeyboardInterrupt):
        train(grid, tmp_path / "run", Cut(WIDE), trackers=[book])
    assert book.told[-1] == Ended("stopped", 2)
    train(grid, tmp_path / "run", trackers=[book])
    assert [e.round for e in book.told if isinstance(e, RoundReleased)] == [1, 2, 3]
    assert len({e.run for e in book.told if isinstance(e, RunStarted)}) == 1


def test_a_question_beside_the_rounds_has_its_own_name(
    tmp_path: Path, loopback: Any, base: Path
) -> None:
    book = Notebook()
    started(
        made(base, filter=False), nodes(tmp_path, loopback, base), tmp_path / "run", trackers=[book]
    )
    told = [(e.phase, e.round) for e in book.told if isinstance(e, RoundReleased)]
    assert told == [("topics", 1), ("rounds", 1), ("rounds", 2)]
    topics = next(e for e in book.told if isinstance(e, RoundReleased))
    assert "noise_std" in topics.values and "released" not in topics.values  # no counts
    end = book.told[-1]
    assert isinstance(end, Ended) and (end.status, end.figures) == ("finished", {"rounds": 2})


def test_an_unknown_tracker_is_refused_before_anything_is_asked(
    tmp_path: Path, loopback: Any
) -> None:
    grid = loopback(trainers())
    with pytest.raises(TrackerUnavailable, match="'grafana' is unknown"):
        train(grid, tmp_path / "run", trackers=["grafana"])
    assert grid.sent == []
