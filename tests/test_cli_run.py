"""`privsyn run` ends with the ServerApp's error, however slow Flower is to answer, and leaves
nothing behind, however it is ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from privsyn_flower import cli_run
from privsyn_flower.cli_run import RunFailed, _fresh_folder, _watch
from privsyn_flower.config import RunConfig
from privsyn_flower.launch import FlowerError, LocalFlower


class SlowFlower(LocalFlower):
    """A SuperLink whose `flwr` commands never answer in time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, port=1, run_id="7")
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The `flwr` commands that were started, all of them too slow."""
    commands: list[str] = []

    def run(command: list[str], *_: Any, timeout: float, **__: Any) -> None:
        commands.append(command[1])
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_a_written_error_needs_no_word_of_flowers(tmp_path: Path, asked: list[str]) -> None:
    (tmp_path / "error.txt").write_text("ImportError: no such library\n")
    flower = SlowFlower(tmp_path)
    with pytest.raises(RunFailed, match=r"^ImportError: no such library$"):
        _watch(tmp_path, flower)
    assert flower.closed and asked == []


def test_a_flower_that_does_not_answer_is_named(tmp_path: Path, asked: list[str]) -> None:
    flower = SlowFlower(tmp_path)
    with pytest.raises(FlowerError, match="flwr list did not answer within 180 s"):
        flower.status()
    with pytest.raises(FlowerError, match="flwr log did not answer within 60 s"):
        flower.log()
    assert asked == ["list", "log"]


# A run in a process of its own whose SuperLink is a `sleep`. It sends itself the signals that a
# shell repeats, at the worst moments.
COMMAND = """
import os, signal, subprocess, sys
from pathlib import Path
from privsyn_flower import cli_run
from privsyn_flower.config import RunConfig
from privsyn_flower.launch import LocalFlower
from privsyn_flower.processes import end_group

folder = Path(sys.argv[1])

def note(word):
    with (folder / "notes").open("a") as file:
        print(word, file=file)

class Flower(LocalFlower):
    def start(self):
        self.process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        note(self.process.pid)
    def submit(self, config):
        note("submitted")
        return "1"
    def status(self):
        return "running"
    def stop(self):
        os.kill(os.getpid(), signal.SIGHUP)
        note("stopped")
    def close(self):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        end_group(self.process.pid, self.process)
        note("closed")

cli_run.LocalFlower = Flower
cli_run._start(folder, RunConfig(), None)
"""


class Terminal:
    """A run that a terminal controls."""

    def __init__(self, folder: Path, prepare: Callable[[], Any] = lambda: None) -> None:
        self.notes = folder / "notes"
        self.master, slave = pty.openpty()

        def control() -> None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            prepare()

        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(folder)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=control,
        )
        os.close(slave)

    def wait_for(self, word: str) -> list[str]:
        deadline = time.monotonic() + 60
        while not self.notes.exists() or word not in self.notes.read_text().split():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        return self.notes.read_text().split()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.master)


def ends_with_nothing_left(terminal: Terminal) -> None:
    terminal.process.wait(30)
    server, *words = terminal.notes.read_text().split()
    assert words == ["submitted", "stopped", "closed"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(server), 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(**options: Any) -> Terminal:
        made.append(Terminal(tmp_path, **options))
        made[0].wait_for("submitted")
        return made[0]

    yield start
    made[0].close()
    made[0].process.kill()
    made[0].process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(made[0].notes.read_text().split()[0]), signal.SIGKILL)


def test_a_closed_terminal_ends_the_run(terminal: Callable[..., Terminal]) -> None:
    run = terminal()
    run.close()
    ends_with_nothing_left(run)


@pytest.mark.parametrize("sign", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_each_signal_ends_the_run(terminal: Callable[..., Terminal], sign: int) -> None:
    # Tests that run in the background have SIGINT ignored.
    run = terminal(prepare=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    run.process.send_signal(sign)
    ends_with_nothing_left(run)


def test_nohup_outlives_its_terminal(terminal: Callable[..., Terminal]) -> None:
    run = terminal(prepare=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    run.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(1)
    run.process.send_signal(signal.SIGTERM)
    ends_with_nothing_left(run)


def test_runs_of_one_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 1, 2, 3, 4, 5)

    class Clock:
        @staticmethod
        def now() -> datetime:
            return now

    monkeypatch.setattr(cli_run, "datetime", Clock)
    start = Barrier(8)

    def fresh(_: int) -> Path:
        start.wait()
        return _fresh_folder(RunConfig())

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(fresh, range(8)))
    name = "pretext-eps7.58-20260102-030405"
    assert {folder.name for folder in folders} == {name, *(f"{name}-{n}" for n in range(2, 9))}
    assert all(folder.is_dir() for folder in folders)
