"""run.log: our lines only, for the owner only, over resumes; its warnings can be followed."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from privsyn_flower import run_log
from privsyn_flower.run_log import log_size, logged, read_warnings
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.averaging import start as training
from privsyn_flower.strategies.engine import cohort

OURS = logging.getLogger("privsyn_flower")


def warn(text: str) -> None:
    """As a strategy does: the file of the line is one of the package."""
    record = OURS.makeRecord(OURS.name, logging.WARNING, cohort.__file__, 1, text, (), None)
    OURS.handle(record)


def test_every_run_folder_has_one_that_grows_over_resumes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for text in ("first", "second"):
        with folder.lock():
            warn(text)
    path = tmp_path / "run.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = path.read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["WARNING first", "WARNING second"]
    warn("after the run")
    assert "after" not in path.read_text()


def test_only_lines_of_this_package_are_kept(tmp_path: Path) -> None:
    flower = logging.getLogger("flwr")
    with logged(tmp_path):
        flower.warning("of the app, about a user")  # this file is none of the package's
        OURS.warning("of somebody who uses our logger")
        record = flower.makeRecord("flwr", logging.WARNING, training.__file__, 1, "ours", (), None)
        flower.handle(record)
    assert [line.split()[2:] for line in (tmp_path / "run.log").read_text().splitlines()] == [
        ["WARNING", "ours"]
    ]


def test_warnings_are_read_as_they_come(tmp_path: Path) -> None:
    assert read_warnings(tmp_path, 0) == ([], 0) and log_size(tmp_path) == 0
    with logged(tmp_path):
        warn("one\nWARNING of two lines")
        found, offset = read_warnings(tmp_path, 0)
        assert found == ["one | WARNING of two lines"]
        with (tmp_path / "run.log").open("a") as file:
            file.write(
                "2026-01-01 00:00:00,000 INFO privacy: all of it\n2026-01-01 00:00:01,0 WARN"
            )
        found, offset = read_warnings(tmp_path, offset)
        assert found == []
        with (tmp_path / "run.log").open("a") as file:
            file.write("ING disk\n")
        assert read_warnings(tmp_path, offset) == (["disk"], log_size(tmp_path))


def test_a_log_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, logged(tmp_path):
        patch.setattr(os, "write", full)
        warn("lost")
        patch.undo()
        warn("kept")
    assert "lost" not in (tmp_path / "run.log").read_text()
    (tmp_path / "other" / "run.log").mkdir(parents=True)
    with logged(tmp_path / "other"):
        warn("lost")
    assert not [h for h in OURS.handlers if isinstance(h, run_log._File)]
