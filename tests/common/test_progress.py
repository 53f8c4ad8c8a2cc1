"""Progress events on disk."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privsyn_flower.common import progress
from privsyn_flower.common.progress import ProgressLog, Steps, bar, read_events


def test_half_a_line_costs_the_events_on_it_and_nothing_else(tmp_path: Path) -> None:
    """A kill or a full disk leaves one; the resumed run writes on behind it."""
    path = tmp_path / "progress.jsonl"
    ProgressLog(path)("first", 1, 1)
    with path.open("a") as file:
        file.write('{"t": 1.0, "sta')
    log = ProgressLog(path)
    log("lost", 1, 1)
    log("third", 1, 1)
    events, offset = read_events(path, 0)
    assert [event["stage"] for event in events] == ["first", "third"]
    assert offset == path.stat().st_size and read_events(path, offset) == ([], offset)


def test_where_no_bar_can_be_drawn_a_line_comes_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a log, a bar is a line for each of its states."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with caplog.at_level("INFO", "privsyn_flower"), bar(True, "generating", 400) as advance:
        for _ in range(400):
            now[0] += 0.125
            advance(1)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"generating: {n} of 400" for n in (80, 160, 240, 320, 400)]
    assert capsys.readouterr().err == ""


def test_steps_are_named_when_they_begin() -> None:
    events: list[Any] = []
    steps = Steps(lambda *event: events.append(event), "benchmark", 3)
    with steps.task("one"):
        pass
    with steps.task("two"):
        pass
    steps.end()  # the third was not needed
    assert events == [("benchmark", 0, 3, "one"), ("benchmark", 1, 3, "two"), ("benchmark", 3, 3)]


def test_steps_side_by_side_never_go_back() -> None:
    events: list[Any] = []
    steps = Steps(lambda *event: events.append(event[1:]), "benchmark", 4)
    with ExitStack() as first:
        first.enter_context(steps.task("one"))
        with steps.task("two"):
            pass
        second = ExitStack()
        second.enter_context(steps.task("three"))
    second.close()
    with steps.task("four"):
        pass
    assert events == [
        (0, 4, "one"),
        (0, 4, "two, beside 1 more"),
        (1, 4, "one"),
        (1, 4, "three, beside 1 more"),
        (2, 4, "three"),
        (3, 4, "four"),
    ]
