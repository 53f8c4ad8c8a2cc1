"""Files of a run are whole or absent, a folder has one holder, and run.log our lines only."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower import runs
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import (
    RunFolder,
    RunLocked,
    StageClock,
    log_size,
    logged,
    read_jsonl,
    read_warnings,
    write_jsonl,
)
from privsyn_flower.strategies.averaging import start as training
from privsyn_flower.strategies.engine import cohort

OURS = logging.getLogger("privsyn_flower")


def test_nan_never_reaches_a_json_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        RunFolder(tmp_path).save_value("x", float("nan"))


def test_query_and_release_round_trip(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.load_query(1) is None
    assert folder.load_release(1) is None
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    query = Query.votes(rows, bound=2.0, model="m", samples_cap=3)
    folder.save_query(1, query)
    loaded = folder.load_query(1)
    assert loaded is not None
    assert np.array_equal(loaded.question(), query.question())
    assert (loaded.bound, loaded.model, loaded.options) == (2.0, "m", query.options)
    released = np.random.default_rng(1).normal(size=5)
    folder.save_release(1, released)
    stored = folder.load_release(1)
    assert stored is not None
    assert stored.tobytes() == released.tobytes()


def test_metrics_follow_the_checkpoints(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.last_checkpoint() is None
    for rnd in (1, 2):
        folder.save_checkpoint(rnd, {"n": rnd}, {"round": rnd})
        folder.save_value(f"round-{rnd:04d}-facts", {"round": 99})
    folder.save_checkpoint(2, {"n": 2}, {"round": 2})  # written again after a kill
    assert [row["round"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2]
    last = folder.last_checkpoint()
    assert last is not None
    assert last["state"] == {"n": 2}


def test_rounds_have_no_largest_number(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for rnd in (9_999, 10_000, 10_001):
        folder.save_checkpoint(rnd, {"n": rnd}, {"round": rnd})
        folder.save_value(f"round-{rnd:04d}-facts", {"round": 99})
    last = folder.last_checkpoint()
    assert last is not None and last["state"] == {"n": 10_001}
    assert [row["round"] for row in folder.metrics()] == [9_999, 10_000, 10_001]


def _hold(path: str, ready: Any, done: Any) -> None:
    with RunFolder(path).lock():
        ready.set()
        done.wait(20)


def test_a_second_process_is_refused_by_name(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path), ready, done))
    process.start()
    try:
        assert ready.wait(30)
        with pytest.raises(RunLocked, match=str(process.pid)), RunFolder(tmp_path).lock():
            pytest.fail("two holders")
    finally:
        done.set()
        process.join(20)
    with RunFolder(tmp_path).lock():
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_stage_seconds_add_up_over_resumes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_value("seconds", {"rounds": 5.0})
    clock = StageClock(folder)
    with clock("rounds"):
        pass
    assert json.loads((tmp_path / "checkpoints" / "seconds.json").read_text())["rounds"] >= 5.0


def test_jsonl_keeps_every_unicode_line_separator(tmp_path: Path) -> None:
    rows = [{"text": "a\u2028b\u2029c\x85d"}, {"text": "plain"}]
    write_jsonl(tmp_path / "x.jsonl", rows)
    assert read_jsonl(tmp_path / "x.jsonl") == rows


def update_query(number: int) -> Query:
    parameters = np.full(50_000, number, dtype=np.uint8)
    return Query.update(parameters, length=5, bound=1.0, model="m", rotation=bytes(32), options={})


def test_a_models_question_is_kept_until_its_round_has_a_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_query(1, Query.votes(np.eye(3), bound=1.0, model="m"))
    folder.save_checkpoint(1, {}, {"round": 1})
    folder.save_query(2, update_query(2))
    asked = folder.load_query(2)
    assert asked is not None and asked.kind == "update" and asked.options["encoding"] == "dense"
    assert (asked.extra["parameters"] == 2).all()
    # What a kill between the checkpoint and the removal leaves goes with the next checkpoint.
    left = (tmp_path / "queries" / "round-0002.npz").read_bytes()
    folder.save_checkpoint(2, {}, {"round": 2})
    (tmp_path / "queries" / "round-0002.npz").write_bytes(left)
    folder.save_query(3, update_query(3))
    folder.save_checkpoint(3, {}, {"round": 3})
    folder.save_query(4, update_query(4))
    assert [path.name for path in sorted((tmp_path / "queries").iterdir())] == [
        "round-0001.npz",  # the benchmark reads the questions of other kinds
        "round-0004.npz",
    ]


def test_arrays_are_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    assert folder.load_arrays("server-0001") is None
    folder.save_arrays("server-0001", b"first")
    assert (tmp_path / "models" / "server-0001.safetensors").read_bytes() == b"first"

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            folder.save_arrays("server-0001", b"second")
    assert folder.load_arrays("server-0001") == b"first"
    folder.drop_arrays("server-0001")
    folder.drop_arrays("server-0001")
    assert folder.load_arrays("server-0001") is None


def test_half_a_release_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)  # nothing tidies up
        for rnd in (1, 2):
            with pytest.raises(KeyboardInterrupt):
                folder.save_release(rnd, np.ones(3))
    assert len(list((tmp_path / "releases").iterdir())) == 2
    folder.drop_unfinished_release(2)
    (left,) = (tmp_path / "releases").iterdir()
    assert "round-0001" in left.name and folder.load_release(1) is None


# run.log ---------------------------------------------------------------------------------


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
    assert not [h for h in OURS.handlers if isinstance(h, runs._LogFile)]
