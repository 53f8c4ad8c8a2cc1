"""A run tells its trackers of its rounds and stages, and nothing that is not public."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.preflight import check_ready
from privsyn_flower.app.tracking import Ended, RoundReleased, RunStarted, Stage, Tracker
from privsyn_flower.app.tracking.of_run import tracking_of
from privsyn_flower.app.tracking.tracker import Tracking
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps import run as run_file
from privsyn_flower.server_apps.pipeline import Pipeline
from tests.app.tracking.test_tracker import Notebook
from tests.server_apps.in_process import (
    PRETEXT,
    grid_for,
    run,
    shared,
    simulated,
    small_config,
)

__all__ = ["shared"]


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """In the place of a library, whichever name the configuration has."""
    found = Notebook()

    def of(trackers: Iterable[str | Tracker], folder: Path) -> Tracking:
        return tracking_of([found for _ in trackers], folder)

    monkeypatch.setattr(run_file, "tracking_of", of)
    return found


def config(shared: Path, causal_folder: Path, **values: Any) -> RunConfig:
    return small_config(
        shared,
        causal_folder,
        **{**PRETEXT, "rounds": 3, "epsilon": 500.0, "trackers": "tensorboard", **values},
    )


@pytest.mark.slow
def test_a_whole_run_is_told(
    shared: Path, causal_folder: Path, tmp_path: Path, loopback: Any, book: Notebook
) -> None:
    settings = config(shared, causal_folder, benchmark=True)
    summary, _ = run(settings, loopback, tmp_path / "run")
    start, *between, end = book.told
    assert isinstance(start, RunStarted) and isinstance(end, Ended)
    assert start.run == RunFolder(tmp_path / "run").load_value("run")
    assert start.facts == {
        key: summary[key]
        for key in ("version", "method", "unit", "adjacency", "accountant", "threat_model",
                    "privacy_short", "users", "rounds_planned", "epsilon", "delta",
                    "noise_multiplier", "rho_zcdp")
    } | {"nodes": 3}  # fmt: skip
    assert start.settings["pretext.population"] == 16 and start.released == 0
    rounds = [event for event in between if isinstance(event, RoundReleased)]
    rows = RunFolder(tmp_path / "run").metrics()
    assert [(e.phase, e.round) for e in rounds] == [("rounds", 1), ("rounds", 2), ("rounds", 3)]
    assert [e.values["epsilon_so_far"] for e in rounds] == [row["epsilon_so_far"] for row in rows]
    stages = [event.name for event in between if isinstance(event, Stage)]
    assert stages[:2] == ["data", "models"] and "rounds" in stages
    assert (end.status, end.round, end.figures["rounds"]) == ("finished", 3, 3)
    assert end.privacy_short == summary["privacy_short"]
    assert end.figures["synthetic_samples"] == summary["synthetic_samples"]
    # The benchmark came after, and left no trace.
    assert "benchmark" in summary["stage_seconds"] and "benchmark" not in stages
    assert set(stages) < set(summary["stage_seconds"])


def test_a_resumed_run_repeats_no_step(
    shared: Path, causal_folder: Path, tmp_path: Path, loopback: Any, book: Notebook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    settings, path = config(shared, causal_folder), tmp_path / "run"
    save = RunFolder.save_checkpoint

    def cut(folder: RunFolder, rnd: int, *rest: Any) -> None:
        save(folder, rnd, *rest)
        if rnd == 2:  # released and on disk, and not told
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save_checkpoint", cut)
    folder = RunFolder(path)
    with pytest.raises(KeyboardInterrupt), folder.lock():
        Pipeline(settings, grid_for(loopback, simulated(settings)), folder).run()
    assert isinstance(book.told[-1], Ended) and book.told[-1].status == "stopped"
    assert [e.round for e in book.told if isinstance(e, RoundReleased)] == [1]
    monkeypatch.setattr(RunFolder, "save_checkpoint", save)
    run(settings, loopback, path)
    assert [e.round for e in book.told if isinstance(e, RoundReleased)] == [1, 2, 3]
    first, second = (event for event in book.told if isinstance(event, RunStarted))
    assert first.run == second.run and (first.released, second.released) == (0, 2)
    assert [e.status for e in book.told if isinstance(e, Ended)] == ["stopped", "finished"]


def test_a_run_is_the_same_whatever_its_tracker_does(
    shared: Path, causal_folder: Path, tmp_path: Path, loopback: Any, book: Notebook,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    book.fail = RunStarted
    settings = config(shared, causal_folder, **{"simulation-seeded-noise": True})
    with caplog.at_level(logging.WARNING, "flwr"):
        with_failure, _ = run(settings, loopback, tmp_path / "a")
    assert len([text for text in caplog.messages if "tracker Notebook" in text]) == 1
    without, _ = run(
        config(shared, causal_folder, trackers="", **{"simulation-seeded-noise": True}),
        loopback, tmp_path / "b",
    )  # fmt: skip
    clocks = {"stage_seconds", "wall_seconds"}
    assert {k: v for k, v in with_failure.items() if k not in clocks} == {
        k: v for k, v in without.items() if k not in clocks
    }
    synthetic = [(tmp_path / name / "synthetic.jsonl").read_bytes() for name in "ab"]
    assert synthetic[0] == synthetic[1]


def test_a_method_that_asks_nobody_is_told_too(
    shared: Path, causal_folder: Path, tmp_path: Path, loopback: Any, book: Notebook
) -> None:
    run(config(shared, causal_folder, method="expand-only"), loopback, tmp_path / "run")
    assert isinstance(book.told[0], RunStarted) and isinstance(book.told[-1], Ended)
    assert book.told[-1].status == "finished" and book.told[0].facts["epsilon"] == 0.0
    assert not [event for event in book.told if isinstance(event, RoundReleased)]


def test_a_failed_run_is_told_as_failed(
    shared: Path, causal_folder: Path, tmp_path: Path, loopback: Any, book: Notebook
) -> None:
    settings = config(shared, causal_folder, **{"data.public-path": str(tmp_path / "none.jsonl")})
    with pytest.raises(Exception, match=r"none\.jsonl"):
        run(settings, loopback, tmp_path / "run")
    assert isinstance(book.told[-1], Ended) and book.told[-1].status == "failed"


def test_what_is_missing_is_said_before_anything_is_done(
    shared: Path, causal_folder: Path, tmp_path: Path, loopback: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    settings = config(shared, causal_folder)
    monkeypatch.setattr(
        "privsyn_flower.app.tracking.named.importlib.util.find_spec", lambda name: None
    )
    found = [finding.text for finding in check_ready(settings, tmp_path / "run")]
    line = "pip install 'privsyn-flower[tensorboard]'"
    assert [text for text in found if line in text]
    with pytest.raises(ValueError, match="tensorboard is not installed"):
        run(settings, loopback, tmp_path / "run")
    assert not (tmp_path / "run" / "queries").exists()
    with pytest.raises(ConfigError, match="'grafana' is none of tensorboard, mlflow, wandb"):
        RunConfig.from_flat({"trackers": "tensorboard, grafana"})
