"""A run tells its trackers through a file, and no tracker can stop it or hold it up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.tracking import Trackers, TrackerUnavailable, trackers
from privsyn_flower.app.tracking import trackers as trackers_file
from privsyn_flower.app.tracking.trackers import EVENTS, notes, read_events
from privsyn_flower.strategies.engine.callbacks import Callbacks, RunStart

RUN = "0f" * 16
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is what the file has."""
    monkeypatch.setattr(trackers_file, "START", "pass")


def told(folder: Path) -> list[Any]:
    """The run's events, in short: begin, (group/part, step), status."""
    found: list[Any] = []
    for event, _ in read_events(folder / EVENTS, 0):
        if "log" in event:
            log = event["log"]
            found.append(("/".join(filter(None, (log["group"], log["part"]))), log["step"]))
        else:
            found.append("begin" if "begin" in event else event["end"]["status"])
    return found


def rows(first: int, last: int) -> Rows:
    return [{"round": r, "noise_std": float(r), "released": [0.5]} for r in range(first, last + 1)]


def begun(folder: Path, **before: Rows) -> Trackers:
    found = Trackers(["tensorboard"])
    facts = {"users": 9, "privacy": "not listed"}
    found.run_started(RunStart(RUN, folder, facts, {"rounds": 4}, before))
    return found


def test_a_run_is_told_in_order(tmp_path: Path) -> None:
    found = begun(tmp_path)
    found.stage("data", 0.5)
    found.round_ended("topics", rows(1, 1)[0])
    for row in rows(1, 2):
        found.round_ended("rounds", row)
    found.stage("rounds", 3.0)
    found.run_ended({"rounds": 2, "privacy": "a text", "epsilon_ledger": None})
    assert told(tmp_path) == [
        "begin",
        ("stage_seconds/data", 0),
        ("topics", 1),
        ("rounds", 1),
        ("rounds", 2),
        ("stage_seconds/rounds", 2),
        ("result", 2),
        "finished",
    ]
    begin, *_ = (event for event, _ in read_events(tmp_path / EVENTS, 0))
    facts = {"run": RUN, "name": tmp_path.name, "facts": {"users": 9}, "settings": {"rounds": 4}}
    assert begin == {"begin": facts}
    text = (tmp_path / EVENTS).read_text()
    assert "not listed" not in text and "released" not in text and "a text" not in text


def test_no_times_where_they_tell_how_many_were_sampled(tmp_path: Path) -> None:
    found = Trackers(["tensorboard"])
    settings = {"nodes": 1, "aggregation": "plain", "sampler": "poisson"}
    found.run_started(RunStart(RUN, tmp_path, {}, settings, {}))
    found.stage("rounds", 3.0)
    times = {"seconds": 2.0, "exchange_seconds": 1.0}
    found.round_ended("rounds", {"round": 1, "noise_std": 5.0, **times})
    found.run_ended({"rounds": 1, "wall_seconds": 9.0})
    text = (tmp_path / EVENTS).read_text()
    assert "seconds" not in text and "noise_std" in text


def test_after_the_result_nothing_is_told(tmp_path: Path) -> None:
    """The benchmark's stages, and its figures, come later."""
    found = begun(tmp_path)
    found.run_ended({"rounds": 1})
    found.stage("benchmark", 9.0)
    found.round_ended("rounds", rows(7, 7)[0])
    found.run_ended({"rounds": 9})
    assert told(tmp_path) == ["begin", ("result", 0), "finished"]


def test_a_resumed_run_repeats_no_step_and_tells_what_was_missed(tmp_path: Path) -> None:
    found = begun(tmp_path)
    found.stage("data", 1.0)
    for row in rows(1, 2):
        found.round_ended("rounds", row)
    found.run_failed("KeyboardInterrupt", True)
    again = begun(tmp_path, rounds=rows(1, 4))  # two more were released when nobody could be told
    again.stage("data", 2.0)
    again.round_ended("rounds", rows(5, 5)[0])
    again.run_ended({"rounds": 5, "ended_early": "the budget is used up"})
    assert told(tmp_path) == [
        "begin", ("stage_seconds/data", 0), ("rounds", 1), ("rounds", 2), "stopped",
        "begin", ("rounds", 3), ("rounds", 4), ("stage_seconds/data", 4), ("rounds", 5),
        ("result", 5), "ended early",
    ]  # fmt: skip
    before = (tmp_path / EVENTS).read_bytes()
    begun(tmp_path, rounds=rows(1, 5)).run_ended({"rounds": 5})  # for its benchmark alone
    assert (tmp_path / EVENTS).read_bytes() == before


def test_events_of_another_run_are_not_this_ones(tmp_path: Path) -> None:
    other = Trackers(["tensorboard"])
    other.run_started(RunStart("ab" * 16, tmp_path, {}))
    other.run_ended({})
    notes(tmp_path, "tensorboard").write_text(json.dumps({"offset": 9}))
    found = begun(tmp_path)
    found.round_ended("rounds", rows(1, 1)[0])
    assert told(tmp_path) == ["begin", ("rounds", 1)]
    assert not notes(tmp_path, "tensorboard").exists()


def test_half_a_line_is_passed_over(tmp_path: Path) -> None:
    begun(tmp_path).run_failed("ValueError", False)
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(b'{"log": {"gro')
    assert told(tmp_path) == ["begin", "failed"]
    begun(tmp_path).run_failed("ValueError", False)
    assert told(tmp_path) == ["begin", "failed", "begin", "failed"]


def test_a_library_that_failed_is_told_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next process, which begins with the run's newest start before that."""
    found = begun(tmp_path)
    for row in rows(1, 3):
        found.round_ended("rounds", row)
    found.run_ended({"rounds": 3})
    monkeypatch.setattr(trackers, "follow", lambda path: iter(read_events(path, 0)))
    calls: list[Any] = []

    class Failing:
        fail = True

        def begin(self, run: str, **_: Any) -> None:
            calls.append(run)

        def log(self, group: str, values: Any, step: int) -> None:
            calls.append((group, step))
            if self.fail and step == 2:
                raise ConnectionError

        def end(self, status: str, privacy_short: str) -> None:
            calls.append(status)

    library, note = Failing(), notes(tmp_path, "tensorboard")
    with pytest.raises(ConnectionError):
        trackers.serve(library, tmp_path / EVENTS, note, {"offset": 0})
    assert calls == [RUN, ("rounds", 1), ("rounds", 2)]
    calls.clear()
    library.fail = False
    trackers.serve(library, tmp_path / EVENTS, note, json.loads(note.read_text()))
    assert calls == [RUN, ("rounds", 2), ("rounds", 3), ("result", 3), "finished"]


def test_a_run_goes_on_where_nothing_can_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "checkpoints").write_text("no folder")
    callbacks = Callbacks([Trackers(["tensorboard"])])
    with callbacks.run(RunStart(RUN, tmp_path, {})) as summary:
        callbacks.round_ended("rounds", rows(1, 1)[0])
        summary |= {"rounds": 1}
    assert len([text for text in caplog.messages if "callback Trackers.run_started" in text]) == 1


def test_without_trackers_nothing_is_written(tmp_path: Path) -> None:
    found = Trackers([])
    found.run_started(RunStart(RUN, tmp_path, {}))
    found.round_ended("rounds", rows(1, 1)[0])
    found.run_ended({})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["grafana"], "'grafana' is unknown; there are tensorboard, mlflow, wandb"),
        ("tensorboard", "give a list"),
    ],
)
def test_unknown_trackers_are_refused(names: Any, why: str) -> None:
    with pytest.raises(TrackerUnavailable, match=why):
        Trackers(names)


def test_a_missing_library_is_refused_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TrackerUnavailable, match=r"pip install 'privsyn-flower\[mlflow\]'"):
        Trackers(["mlflow"])
