"""The page of a run that goes on: made when something is new, by a server that ends by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli import watch
from privsyn_flower.app.cli.main import app
from privsyn_flower.app.cli.watch import LivePage, going_on, serve, stamp_of
from privsyn_flower.app.report.serving import PageServer, Unavailable
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.common.progress import ProgressLog
from privsyn_flower.runs import RunFolder


def half_written(folder: Path) -> RunFolder:
    """A run in its second round, as a look between two bytes finds it."""
    run = RunFolder(folder)
    run.save_value("run", "abc")
    run.save_checkpoint(1, {}, {"round": 1, "nodes_answered": 8})
    ProgressLog(folder / "progress.jsonl")("rounds", 1, 8, "epsilon so far 0.4")
    for name in ("progress.jsonl", "synthetic.jsonl"):
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write('{"stage": "rou')
    (folder / ".summary.json.1-2.tmp").write_text('{"meth', encoding="utf-8")
    return run


class Made:
    """A page that counts how often it was made."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, folders: Sequence[Path]) -> str:
        self.count += 1
        return f"page {self.count}"


def test_a_page_is_made_when_files_changed_and_not_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    run, made = half_written(tmp_path / "run"), Made()
    page = LivePage(run.path, made)
    assert [page(), page()] == ["page 1", "page 1"]
    now[0] += 60
    assert page() == "page 1" and made.count == 1  # nothing is new
    ProgressLog(run.path / "progress.jsonl")("rounds", 2, 8)
    now[0] += 1
    assert page() == "page 1"  # too soon
    now[0] += 3
    assert page() == "page 2"
    run.save_checkpoint(2, {}, {"round": 2})
    now[0] += 60
    assert page() == "page 3"
    with run.lock():
        now[0] += 60
        assert page() == "page 4"  # it goes on again
        now[0] += 60
        assert page() == "page 4"
    now[0] += 60
    assert page() == "page 5"


def test_a_slow_page_is_made_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, log = [100.0], ProgressLog(tmp_path / "progress.jsonl")

    def slow(folders: Sequence[Path]) -> str:
        now[0] += 4.0  # of which this takes all from a run
        return str(now[0])

    for clock in ("monotonic", "thread_time"):
        monkeypatch.setattr(watch.time, clock, lambda: now[0])
    log("rounds", 0, 8)
    page = LivePage(tmp_path, slow)
    page()  # has libraries to load, too
    now[0] += 4
    log("rounds", 1, 8, "new")
    second = page()
    log("rounds", 2, 8, "newer")
    now[0] += 39
    assert page() == second
    now[0] += 2
    assert page() != second


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    run = half_written(tmp_path / "run")
    page = LivePage(run.path, Made())
    run.path.rename(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="run cannot be shown now"):
        page()
    with pytest.raises(OSError):
        stamp_of(run.path)
    assert not going_on(run.path)


def test_a_port_that_is_taken_and_a_folder_of_no_run(tmp_path: Path) -> None:
    taken = PageServer(str)
    with pytest.raises(ReportError, match=f"port = {taken.server_port}: .*in use; choose another"):
        serve(tmp_path, Made(), taken.server_port)
    taken.server_close()
    found = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert found.exit_code == 2 and "holds no run" in found.stderr


# The server in a process of its own; its page says what a run folder is read as.
SERVER = """
import json, sys
from pathlib import Path
from privsyn_flower.app.cli import watch
from privsyn_flower.app.report.reading import read_run

watch.EVERY = 0.2

def page(folders):
    run = read_run(folders[0])
    return json.dumps([run.state, run.progress[-1]["done"], len(run.texts(5)), run.problems])

watch.serve(Path(sys.argv[1]), page, 0, idle=1.0)
"""


def look(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=600) as answer:
        return json.loads(answer.read())


def until(address: str, wanted: Any) -> None:
    deadline = time.monotonic() + 600
    while (found := look(address)) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.3)


def test_a_run_is_followed_in_another_process_until_it_is_over(tmp_path: Path) -> None:
    run = half_written(tmp_path / "run")
    started = [sys.executable, "-c", SERVER, str(run.path)]
    with run.lock():
        before = sorted(path.name for path in run.path.iterdir())
        process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        until(address, ["running", 1.0, 0, []])
        time.sleep(1.5)  # longer than it waits for a look at a run that is over
        assert process.poll() is None
        with pytest.raises(urllib.error.HTTPError, match="404"):
            look(address[:-2] + "/")
        (run.path / "progress.jsonl").write_text("", encoding="utf-8")
        ProgressLog(run.path / "progress.jsonl")("rounds", 2, 8)
        until(address, ["running", 2.0, 0, []])
        assert sorted(path.name for path in run.path.iterdir()) == before
    until(address, ["stopped", 2.0, 0, []])
    assert process.wait(30) == 0
    assert process.stdout.read().decode() == "ended: the run is over, and nobody looks\n"
    with pytest.raises(OSError):
        look(address)


def test_ctrl_c_ends_the_page_and_not_the_run(tmp_path: Path) -> None:
    run = half_written(tmp_path / "run")
    with run.lock():
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(run.path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            # a shell's background jobs ignore it, and what they start
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout.read().decode() == "ended; the run itself was left alone\n"
        assert going_on(run.path)
