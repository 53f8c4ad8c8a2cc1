"""A tracker that raises, hangs or lags is one warning, and no second of a run."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.tracking import tracker as tracker_file
from privsyn_flower.app.tracking.events import Ended, Event, RoundReleased, RunStarted, Stage
from privsyn_flower.app.tracking.named import TrackerUnavailable
from privsyn_flower.app.tracking.of_run import tracking_of
from privsyn_flower.app.tracking.tracker import Tracker, Tracking

RUN = "0f" * 16


class Notebook:
    """A tracker that keeps what it is told. fail: the event at which it raises."""

    def __init__(self, fail: type[Event] | None = None) -> None:
        self.told: list[Event] = []
        self.threads: set[str] = set()
        self.fail = fail

    def _note(self, event: Event) -> None:
        self.threads.add(threading.current_thread().name)
        self.told.append(event)
        if self.fail is not None and isinstance(event, self.fail):
            raise ConnectionError("no route\nto http://ada:secret@" + "service" * 50)

    run_started = round_released = stage = ended = _note


class Hanging(Notebook):
    """A tracker whose service answers when `door` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.door = threading.Event()

    def _wait(self, event: Event) -> None:
        self.door.wait(60)

    round_released = _wait


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [{"round": r, "noise_std": float(r), "released": [0.5]} for r in range(first, last + 1)]


def start(trackers: list[Tracker], folder: Path, before: int = 0) -> Tracking:
    found = tracking_of(trackers, folder)
    found.run_started(RUN, "run", {"users": 9, "privacy": "not listed"}, {"rounds": 4}, before)
    return found


def test_a_tracker_is_told_in_order_on_its_own_thread(tmp_path: Path) -> None:
    book = Notebook()
    found = start([book], tmp_path)
    found.stage("data", 0.5)
    found.released("topics", rows(1, 1), main=False)
    found.released("rounds", rows(1, 2), main=True)
    found.stage("rounds", 3.0)
    found.ended("finished", {"rounds": 2, "privacy": "a text", "epsilon_ledger": None})
    assert book.told == [
        RunStarted(RUN, "run", {"users": 9}, {"rounds": 4}),
        Stage("data", 0.5, 0),
        RoundReleased("topics", 1, {"noise_std": 1.0}),
        RoundReleased("rounds", 1, {"noise_std": 1.0}),
        RoundReleased("rounds", 2, {"noise_std": 2.0}),
        Stage("rounds", 3.0, 2),
        Ended("finished", 2, {"rounds": 2}),
    ]
    assert book.threads == {"tracker-Notebook"}


def test_after_the_result_nothing_is_told(tmp_path: Path) -> None:
    """The benchmark's stages, and its figures, come later."""
    book = Notebook()
    with start([book], tmp_path) as found:
        found.ended("finished", {"rounds": 1})
        found.stage("benchmark", 9.0)
        found.released("rounds", rows(7, 7), main=True)
        found.ended("finished", {"rounds": 9})
    assert [type(event) for event in book.told] == [RunStarted, Ended]


def test_a_resumed_run_repeats_no_step_and_tells_what_was_missed(tmp_path: Path) -> None:
    book = Notebook()
    found = start([book], tmp_path)
    found.stage("data", 1.0)
    found.released("rounds", rows(1, 2), main=True)
    found.ended("stopped")
    again = start([book], tmp_path, before=4)  # two more were released when nobody could be told
    again.stage("models", 1.0)
    again.released("rounds", rows(1, 4), main=True)
    again.released("rounds", rows(5, 5), main=True)
    again.ended("finished", {"rounds": 5})
    steps = [event.round for event in book.told if isinstance(event, RoundReleased)]
    assert steps == [1, 2, 3, 4, 5]
    assert [e.released for e in book.told if isinstance(e, RunStarted)] == [0, 4]
    assert [e.status for e in book.told if isinstance(e, Ended)] == ["stopped", "finished"]
    after = start([book], tmp_path, before=5)  # for its benchmark alone
    after.released("rounds", rows(1, 5), main=True)
    after.ended("finished", {"rounds": 5})
    assert isinstance(book.told[-1], Ended) and len(steps) == 5
    assert sum(isinstance(event, RunStarted) for event in book.told) == 2


def test_notes_of_another_run_are_not_this_ones(tmp_path: Path) -> None:
    notes = tmp_path / "checkpoints" / "tracked-Notebook.json"
    notes.parent.mkdir()
    notes.write_text(json.dumps({"run": "ab" * 16, "rounds": {"rounds": 9}, "over": True}))
    book = Notebook()
    found = start([book], tmp_path)
    found.released("rounds", rows(1, 1), main=True)
    found.ended("finished")
    assert len(book.told) == 3


@pytest.mark.parametrize("fail", [RunStarted, RoundReleased, Stage, Ended])
def test_one_that_raises_is_one_warning_and_the_others_go_on(
    fail: type[Event], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Notebook(fail), Notebook()
    with caplog.at_level(logging.WARNING, "flwr"):
        found = start([bad, good], tmp_path)
        found.released("rounds", rows(1, 3), main=True)
        found.stage("rounds", 1.0)
        found.ended("finished", {"rounds": 3})
    assert [type(event) for event in good.told].count(RoundReleased) == 3
    assert isinstance(good.told[-1], Ended)
    assert isinstance(bad.told[-1], fail)
    (warning,) = [record.getMessage() for record in caplog.records]
    told = f"ConnectionError: no route to http://{'service' * 50}"[:300]
    assert warning == f"tracker Notebook: {told}; the run goes on without it (docs/tracking.md)"


def test_one_that_hangs_holds_up_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    slow, good = Hanging(), Notebook()
    with caplog.at_level(logging.WARNING, "flwr"):
        found = start([good, slow], tmp_path)
        found.patience = 1.0
        found.released("rounds", rows(1, 9), main=True)
        found.ended("finished", {"rounds": 9})
    assert not slow.door.is_set() and slow.told[1:] == []  # it hangs still
    slow.door.set()
    assert [type(event) for event in good.told].count(RoundReleased) == 9
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "tracker Hanging: it did not finish in time" in warning


def test_one_that_lags_loses_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_file, "WAITING", 5)
    slow = Hanging()
    with caplog.at_level(logging.WARNING, "flwr"):
        found = start([slow], tmp_path)
        while not slow.told:  # the first event is taken
            time.sleep(0.01)
        found.released("rounds", rows(1, 50), main=True)
        found.ended("finished")
    slow.door.set()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "it is 5 events behind" in warning


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError, "failed"), (KeyboardInterrupt, "stopped")]
)
def test_what_ends_a_run_is_told(error: type[BaseException], status: str, tmp_path: Path) -> None:
    book = Notebook()
    with pytest.raises(error), start([book], tmp_path) as found:
        found.released("rounds", rows(1, 1), main=True)
        raise error
    assert isinstance(book.told[1], RoundReleased)
    assert isinstance(book.told[2], Ended) and book.told[2].status == status


def test_what_must_not_be_told_stops_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    book = Notebook()
    with caplog.at_level(logging.WARNING, "flwr"):
        found = start([book], tmp_path)
        found.stage("Who wrote this?\n", 1.0)
        found.ended("finished")
    assert [type(event) for event in book.told] == [RunStarted, Ended]
    assert "trackers are not told: name is a str of 16" in caplog.text


def test_without_trackers_there_is_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    found = tracking_of([], tmp_path)
    assert not found and threading.active_count() == before
    found.released("rounds", rows(1, 1), main=True)
    found.ended("finished")


def test_two_of_a_kind_have_notes_of_their_own(tmp_path: Path) -> None:
    found = start([Notebook(), Notebook()], tmp_path)
    found.ended("stopped")
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"tracked-Notebook.json", "tracked-Notebook-2.json"}


@pytest.mark.parametrize(
    ("trackers", "why"),
    [
        (["grafana"], "'grafana' is unknown; there are tensorboard, mlflow, wandb"),
        ("tensorboard", "give a list"),
    ],
)
def test_unknown_trackers_are_refused(trackers: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(TrackerUnavailable, match=why):
        tracking_of(trackers, tmp_path)


def test_a_missing_library_is_refused_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TrackerUnavailable, match=r"pip install 'privsyn-flower\[mlflow\]'"):
        tracking_of(["mlflow"], tmp_path)
    assert list(tmp_path.iterdir()) == []
