"""A run tells its trackers of its rounds and stages, and nothing that is not public."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.preflight import check_ready
from privsyn_flower.app.tracking import trackers as trackers_file
from privsyn_flower.app.tracking.trackers import EVENTS, read_events
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.runs import RunFolder
from tests.server_apps.in_process import PRETEXT, run


@pytest.fixture(autouse=True)
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is what the file of events has."""
    monkeypatch.setattr(trackers_file, "START", "pass")


def told(folder: Path, kind: str) -> list[Any]:
    """The events of a kind, begin, log or end; logs in the groups of rounds alone."""
    found = [event[kind] for event, _ in read_events(folder / EVENTS, 0) if kind in event]
    beside = ("stage_seconds", "result")
    return [one for one in found if kind != "log" or one["group"] not in beside]


def logged(folder: Path, group: str) -> list[dict[str, Any]]:
    """Numbers of a group, in their order."""
    found = [event["log"] for event, _ in read_events(folder / EVENTS, 0) if "log" in event]
    return [one for one in found if one["group"] == group]


@pytest.fixture
def config(small: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Dotted keys on top of a run of three rounds -> the configuration."""
    base = {**PRETEXT, "rounds": 3, "epsilon": 500.0, "trackers": "tensorboard"}
    return lambda **values: small(**{**base, **values})


@pytest.mark.slow
def test_a_whole_run_is_told(config: Any, tmp_path: Path, loopback: Any) -> None:
    settings, path = config(benchmark=True), tmp_path / "run"
    summary, _ = run(settings, loopback, path)
    (start,), (end,) = told(path, "begin"), told(path, "end")
    assert start["run"] == RunFolder(path).load_value("run")
    assert start["facts"] == {
        key: summary[key]
        for key in ("version", "method", "unit", "adjacency", "accountant", "threat_model",
                    "privacy_short", "users", "rounds_planned", "epsilon", "delta",
                    "noise_multiplier", "rho_zcdp")
    } | {"nodes": 3}  # fmt: skip
    assert start["settings"]["pretext.population"] == 16
    rounds, rows = told(path, "log"), RunFolder(path).metrics()
    assert [(r["group"], r["step"]) for r in rounds] == [("rounds", step) for step in (1, 2, 3)]
    assert [r["values"]["epsilon_so_far"] for r in rounds] == [r["epsilon_so_far"] for r in rows]
    stages = [stage["part"] for stage in logged(path, "stage_seconds")]
    assert stages[:2] == ["data", "models"] and "rounds" in stages
    (result,) = logged(path, "result")
    assert (end["status"], result["step"], result["values"]["rounds"]) == ("finished", 3, 3)
    assert end["privacy_short"] == summary["privacy_short"]
    assert result["values"]["synthetic_samples"] == summary["synthetic_samples"]
    # The benchmark came after, and left no trace.
    assert "benchmark" in summary["stage_seconds"] and "benchmark" not in stages
    assert set(stages) < set(summary["stage_seconds"])


def test_a_resumed_run_repeats_no_step(
    config: Any, tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, path = config(), tmp_path / "run"
    save = RunFolder.save_checkpoint

    def cut(folder: RunFolder, rnd: int, *rest: Any) -> None:
        save(folder, rnd, *rest)
        if rnd == 2:  # released and on disk, and not told
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save_checkpoint", cut)
    with pytest.raises(KeyboardInterrupt):
        run(settings, loopback, path)
    assert told(path, "end")[-1]["status"] == "stopped"
    assert [one["step"] for one in told(path, "log")] == [1]
    monkeypatch.setattr(RunFolder, "save_checkpoint", save)
    run(settings, loopback, path)
    assert [one["step"] for one in told(path, "log")] == [1, 2, 3]
    first, second = told(path, "begin")
    assert first["run"] == second["run"]
    assert [end["status"] for end in told(path, "end")] == ["stopped", "finished"]


@pytest.mark.slow
def test_a_run_is_the_same_whatever_its_tracker_does(
    config: Any, tmp_path: Path, loopback: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers_file, "START", "raise SystemExit(9)")
    settings = config(**{"simulation-seeded-noise": True})
    with_failure, _ = run(settings, loopback, tmp_path / "a")
    assert (
        len([text for text in caplog.messages if "tracker tensorboard: its process" in text]) == 1
    )
    without, _ = run(
        config(trackers="", **{"simulation-seeded-noise": True}),
        loopback, tmp_path / "b",
    )  # fmt: skip
    clocks = {"stage_seconds", "wall_seconds"}
    assert {k: v for k, v in with_failure.items() if k not in clocks} == {
        k: v for k, v in without.items() if k not in clocks
    }
    synthetic = [(tmp_path / name / "synthetic.jsonl").read_bytes() for name in "ab"]
    assert synthetic[0] == synthetic[1]


def test_a_method_that_asks_nobody_is_told_too(config: Any, tmp_path: Path, loopback: Any) -> None:
    run(config(method="expand-only"), loopback, tmp_path / "run")
    (start,), (end,) = told(tmp_path / "run", "begin"), told(tmp_path / "run", "end")
    assert end["status"] == "finished" and start["facts"]["epsilon"] == 0.0
    assert told(tmp_path / "run", "log") == []


def test_a_failed_run_is_told_as_failed(config: Any, tmp_path: Path, loopback: Any) -> None:
    settings = config(**{"data.public-path": str(tmp_path / "none.jsonl")})
    with pytest.raises(Exception, match=r"none\.jsonl"):
        run(settings, loopback, tmp_path / "run")
    assert told(tmp_path / "run", "end")[-1]["status"] == "failed"


def test_what_is_missing_is_said_before_anything_is_done(
    config: Any, tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config()
    monkeypatch.setattr(
        "privsyn_flower.app.tracking.trackers.importlib.util.find_spec", lambda name: None
    )
    found = [finding.text for finding in check_ready(settings, tmp_path / "run")]
    line = "pip install 'privsyn-flower[tensorboard]'"
    assert [text for text in found if line in text]
    with pytest.raises(ValueError, match="tensorboard is not installed"):
        run(settings, loopback, tmp_path / "run")
    assert not (tmp_path / "run" / "queries").exists()
    with pytest.raises(ConfigError, match="'grafana' is none of tensorboard, mlflow, wandb"):
        RunConfig.from_flat({"trackers": "tensorboard, grafana"})
