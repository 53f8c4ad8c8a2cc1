"""Before a long stage the run says how long; it never fails by it, and asks nothing private."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.cli.display import Display
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.progress import FORETOLD, ProgressLog, read_events
from privsyn_flower.runs import RunFolder, StageClock, write_jsonl
from privsyn_flower.server_apps import foretell
from privsyn_flower.server_apps.estimates.machine import Machine
from privsyn_flower.server_apps.estimates.stages import shapes_of
from privsyn_flower.server_apps.estimates.timing import key
from privsyn_flower.server_apps.foretell import Foretold
from privsyn_flower.server_apps.methods import recipe_of

ROOT = Path(__file__).parents[2]
BOX = Machine("a box", "cpu", 2, 2**34, 2**34, {"4": 1e12, "2": 1e12}, 1e12)
TOKENS = {
    "embedding": 4300.0,
    "scoring": 4300.0,
    "mask-filling": 43_000.0,
    "generation": 700.0,
    "fine-tuning": 2048.0,
    "imitation": 2048.0,
    "preferences": 1024.0,
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A machine of known speeds; the seconds that were allowed for timing."""
    allowed: list[float] = []

    def times(config: RunConfig, tasks: Any, machine: Machine, *, seconds: float) -> Machine:
        allowed.append(seconds)
        shapes = shapes_of(config)
        speeds = {
            key(task, shape): TOKENS[task.kind]
            for task in tasks
            if (shape := shapes[task.model]) is not None
        }
        return replace(machine, speeds=speeds)

    monkeypatch.setattr(foretell, "this_machine", lambda cache, device: BOX)
    monkeypatch.setattr(foretell, "timed", times)
    return allowed


def told(folder: RunFolder) -> dict[str, str]:
    events, _ = read_events(folder.path / "progress.jsonl", 0)
    return {event["stage"]: event[FORETOLD] for event in events if FORETOLD in event}


def announcer(config: RunConfig, folder: RunFolder) -> Foretold:
    return Foretold(config, folder, ProgressLog(folder.path / "progress.jsonl"))


def test_each_long_stage_is_told_once(folder: RunFolder, timed: list[float]) -> None:
    config = load_config(ROOT / "configs" / "demo.toml")
    clock = StageClock(folder, announcer(config, folder))
    for stage in ("data", "models", "rounds", "rounds", "expansion", "control", "benchmark"):
        with clock(stage):
            pass
    found = told(folder)
    assert timed == [foretell.TIMING_SECONDS], "once, and for about a second"
    # 6,144 pool texts of 43 tokens at 100 texts a second.
    assert found["models"].startswith("about 61 s when") and "in the cache" in found["models"]
    # 8 x 192 candidates, 8,000 private texts, 15 x 192 and 96 mask-fills; 80 s of them in round 1.
    assert found["rounds"].startswith("about 98 s when")
    assert "first round about 82 s" in found["rounds"]
    assert found["expansion"].startswith("about 2 min when")
    # Four fine-tunings of 80 s, two at once, each in a process of its own that takes 5 s to begin.
    assert found["benchmark"].startswith("about 3 min when")
    assert found["benchmark"].endswith(", 2 fine-tunings at once")
    assert set(found) == {"models", "rounds", "expansion", "control", "benchmark"}
    assert set(clock.seconds) == {"data", *found}


def test_a_resumed_run_is_told_what_is_left(folder: RunFolder, timed: list[float]) -> None:
    config = load_config(ROOT / "configs" / "popri-demo.toml", {"popri.prompts": 384})
    folder.save_checkpoint(3, {}, {"round": 3})
    write_jsonl(folder.path / "synthetic.jsonl", [])
    announce = announcer(config, folder)
    for stage in ("rounds", "expansion", "unaligned"):
        announce(stage)
    found = told(folder)
    # One round of 3,072 completions of 70 tokens and their rows is left.
    whole = [t for t in recipe_of(config).work(config) if t.stage == "rounds" and t.times == 4]
    assert {task.times for task in announce._left("rounds")} == {1} and whole
    assert "first round" not in found["rounds"]
    assert set(found) == {"rounds", "unaligned"}, "the synthetic text is there"


def test_the_choice_of_public_text_is_told(folder: RunFolder, timed: list[float]) -> None:
    settings: dict[str, Any] = {
        "method": "dp-ftrl", "training.noise": "aggregator", "proximity.filter": True,
        "data.public-pool": 6000, "data.sample-words": 32,
    }  # fmt: skip
    announcer(RunConfig.from_flat(settings), folder)("proximity")
    # Two models on 6,000 texts of 43 tokens, 100 a second.
    assert told(folder)["proximity"].startswith("about 2 min when")
    write_jsonl(folder.path / "proximity.jsonl", [])
    again = announcer(RunConfig.from_flat(settings), folder)
    again("proximity")
    assert again._left("proximity") == []
    settings["proximity.filter"] = False
    without = announcer(RunConfig.from_flat(settings), RunFolder(folder.path / "without"))
    assert without._left("proximity") == []


def test_rows_without_rounds_are_told(folder: RunFolder, timed: list[float]) -> None:
    settings: dict[str, Any] = {"method": "dp-prompt", "benchmark": True, "data.users": 100}
    announce = announcer(RunConfig.from_flat(settings), folder)
    for stage in ("models", "rounds", "expansion", "benchmark"):
        announce(stage)
    found = told(folder)
    # 100 users' 8 texts of 64 tokens at 700 tokens a second.
    assert found["expansion"].startswith("about 73 s when")
    assert set(found) == {"expansion", "benchmark"}


def test_first_candidates_are_written_once(folder: RunFolder, timed: list[float]) -> None:
    settings = {"method": "pe", "pe.initial": "model", "pe.prompt": "Write.", "pe.copies": 7}
    config = RunConfig.from_flat(settings)
    announcer(config, folder)("models")
    assert "models" in told(folder)
    write_jsonl(folder.path / "initial.jsonl", [])
    assert not announcer(config, folder)._left("models")


def test_real_nodes_work_is_not_this_machines(folder: RunFolder, timed: list[float]) -> None:
    settings: dict[str, Any] = {"method": "dp-fedavg", "data.source": "files", "data.users": 10_000}
    config = RunConfig.from_flat({**settings, "models.downstream": "distilbert/distilgpt2"})
    announcer(config, folder)("rounds")
    assert told(folder) == {}
    simulated = RunConfig.from_flat({**settings, "data.path": "users.jsonl"})
    announcer(simulated, folder)("rounds")
    assert "rounds" in told(folder)


def test_a_run_of_little_work_times_nothing(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Machine:
        raise AssertionError("asked for the machine")

    monkeypatch.setattr(foretell, "this_machine", never)
    for name in ("test", "popri-test"):
        announce = announcer(load_config(ROOT / "configs" / f"{name}.toml"), folder)
        for stage in ("models", "rounds", "expansion"):
            announce(stage)
    assert told(folder) == {}


@pytest.mark.parametrize("error", [OSError, RuntimeError, KeyError, TypeError])
def test_an_estimate_that_fails_ends_no_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails(*_: Any, **__: Any) -> Machine:
        raise error("no such device")

    monkeypatch.setattr(foretell, "this_machine", fails)
    with StageClock(folder, announcer(load_config(ROOT / "configs" / "demo.toml"), folder))(
        "rounds"
    ):
        pass
    assert told(folder) == {}


def test_the_terminal_shows_the_line(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLog(folder.path / "progress.jsonl").foretell("rounds", "about 4 min")
    events, _ = read_events(folder.path / "progress.jsonl", 0)
    with Display() as display:
        display.show(events[0])
    assert capsys.readouterr().err == "asking the users: about 4 min\n"
