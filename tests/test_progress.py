"""Progress events on disk."""

from __future__ import annotations

from pathlib import Path

from privsyn_flower.progress import ProgressLog, read_events


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
