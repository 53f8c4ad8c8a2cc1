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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli import run as cli_run
from privsyn_flower.app.cli.ending import NOT_USABLE, exit_status, show_outcome
from privsyn_flower.app.cli.main import app
from privsyn_flower.app.cli.run import (
    RunFailed,
    _claimed,
    _fresh_name,
    _watch,
    run_command,
)
from privsyn_flower.app.local.command import FlowerCommand
from privsyn_flower.app.local.simulation import FlowerError, LocalFlower
from privsyn_flower.common.progress import ProgressLog
from privsyn_flower.config import RunConfig, to_toml
from privsyn_flower.runs import RunFolder, log_size, write_json
from tests.rigs.display import BENCHMARK, SUMMARY
from tests.rigs.node_failures import note


class SlowFlower(LocalFlower):
    """A SuperLink whose `flwr` commands never answer in time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, port=1, run_id="7")
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The `flwr` commands that were asked, all of them too slow."""
    commands: list[str] = []

    def ask(_: Any, arguments: Sequence[str], __: Any, timeout: float) -> None:
        commands.append(arguments[0])
        raise subprocess.TimeoutExpired(["flwr", *arguments], timeout)

    monkeypatch.setattr(FlowerCommand, "ask", ask)
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


class Quiet(LocalFlower):
    """A SuperLink that says whatever it is told to."""

    def __init__(self, folder: Path, status: str = "finished:completed", log: str = "") -> None:
        super().__init__(folder, port=1, run_id="7")
        self.word, self.text = status, log

    def status(self) -> str:
        return self.word

    def log(self) -> str:
        return self.text

    def close(self) -> None:
        return


def finished(folder: Path, **changes: Any) -> Path:
    """A run folder as the ServerApp leaves it."""
    run = RunFolder(folder)
    summary = {**SUMMARY, "rounds_planned": 8, "ended_early": None, **changes}
    write_json(folder / "summary.json", summary)
    run.save_value("run", "the-run")
    config = RunConfig(cache=str(folder / "cache"))
    (folder / "config.toml").write_text(to_toml(config))
    return folder


def row(level: str, text: str) -> str:
    return f"2026-01-01 00:00:00,000 {level} {text}\n"


def test_warnings_of_the_run_are_shown_as_they_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = finished(tmp_path) / "run.log"
    log.write_text(row("WARNING", "of the run before the resume"))
    offset = log_size(tmp_path)
    with log.open("a") as file:
        file.write(row("INFO", "privacy: all") + row("WARNING", "round 1: 4 of 4 nodes refused"))
    _watch(tmp_path, Quiet(tmp_path), log=offset)
    err = capsys.readouterr().err.splitlines()
    assert err == ["warning: round 1: 4 of 4 nodes refused"]


def test_a_resumed_run_shows_no_progress_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `privsyn run --resume` draws begins where the run goes on."""
    folder = finished(tmp_path)
    before = ProgressLog(folder / "progress.jsonl")
    before("preparing", 1, 1)
    before("rounds", 1, 3)

    class Going(Quiet):
        def start(self) -> None:
            return

        def submit(self, config: RunConfig) -> None:
            ProgressLog(folder / "progress.jsonl")("expanding", 1, 1)

    monkeypatch.setattr(cli_run, "LocalFlower", Going)
    cli_run._start(folder, RunConfig(cache=str(tmp_path / "cache")), None)
    err = capsys.readouterr().err
    assert err == "writing text from seeds: 1 of 1 texts\n"


def run_cli(monkeypatch: pytest.MonkeyPatch, result: Any) -> Any:
    """`privsyn run` whose work is done: a folder, or what it raises."""

    def command(*_: Any) -> Path:
        if isinstance(result, Exception):
            raise result
        show_outcome(result)
        return Path(result)

    monkeypatch.setattr(cli_run, "run_command", command)
    return CliRunner().invoke(app, ["run"])


def test_a_run_that_ended_early_has_a_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "the ledger of population X is used up"
    result = run_cli(
        monkeypatch, finished(tmp_path, rounds=1, rounds_planned=2, ended_early=reason)
    )
    assert result.exit_code == 3
    assert f"ended early after 1 of 2 rounds: {reason}" in result.stdout
    assert result.stdout.splitlines()[-1] == str(tmp_path)
    whole = run_cli(monkeypatch, finished(tmp_path))
    assert whole.exit_code == 0 and "ended early" not in whole.stdout


def test_failures_of_simulated_nodes_are_for_the_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = finished(tmp_path / "run")
    note(folder / "cache" / "nodes", "0-of-4", run="the-run", users=3)
    note(folder / "cache" / "nodes", "1-of-4", run="another")
    result = run_cli(monkeypatch, folder)
    assert result.exit_code == 0
    assert "warning: NameError at train.py:12 on 1 nodes, 3 times: zeros" in result.stderr
    assert "NameError" not in result.stdout


def test_a_full_disk_is_the_reason_and_has_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device", str(tmp_path / "checkpoints"))
    result = run_cli(monkeypatch, full)
    assert result.exit_code == 1
    assert result.stderr.strip() == (
        f"error: {tmp_path}/checkpoints: No space left on device (free space there, then "
        "`privsyn run --resume FOLDER`)"
    )
    text = f"{tmp_path}/checkpoints: No space left on device (free space there, ...)"
    log = f"Traceback ...\nExit Code: 700\nFor more information, visit: <...>\nprivsyn: {text}\n\n"
    monkeypatch.setattr(cli_run, "STATUS_EVERY", 0.0)
    with pytest.raises(RunFailed) as caught:  # there was no room for error.txt
        _watch(tmp_path, Quiet(tmp_path, "finished:failed", log))
    assert str(caught.value) == text


def due(folder: Path) -> Path:
    """A run folder as the ServerApp leaves it when the benchmark begins."""
    return finished(folder, unfinished="benchmark", privacy_short="Epsilon = 7.58.")


@pytest.mark.parametrize("how", ["ctrl-c", "error", "killed"])
def test_a_result_stands_whatever_ends_its_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    folder = due(tmp_path)
    flower = Quiet(folder, "running" if how == "ctrl-c" else "finished:failed")
    monkeypatch.setattr(cli_run, "STATUS_EVERY", 0.0)
    if how == "error":
        (folder / "error.txt").write_text("ModelUnavailableError: no such model\n")
    if how == "ctrl-c":

        def interrupt(_: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(cli_run.time, "sleep", interrupt)
        monkeypatch.setattr(flower, "stop", lambda: None)
    assert _watch(folder, flower) == folder
    out, err = capsys.readouterr()
    assert f"the result is ready in {folder}: its benchmark follows" in err
    assert ("error: ModelUnavailableError: no such model" in err) == (how == "error")
    assert ("finished:failed and no benchmark" in err) == (how == "killed")
    assert err.splitlines()[-1].endswith(f"finish that alone with: privsyn run --resume {folder}")
    assert "privacy  Epsilon = 7.58." in out
    assert exit_status(folder) == 4
    assert exit_status(finished(tmp_path / "whole")) == 0


def test_the_result_is_told_once_and_before_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, looks = due(tmp_path), []
    log = ProgressLog(folder / "progress.jsonl")
    log("rounds", 8, 8)
    log("benchmark", 0, 7, "distances")

    def wait(_: float) -> None:
        looks.append(capsys.readouterr().err)
        if len(looks) == 3:
            finished(folder, benchmark=BENCHMARK)

    monkeypatch.setattr(cli_run.time, "sleep", wait)
    _watch(folder, Quiet(folder))
    out, err = capsys.readouterr()
    assert ["the result is ready" in told for told in looks] == [True, False, False]
    first = looks[0].splitlines()
    assert first[0] == "asking the users: 8 of 8 rounds"
    assert first[-1] == "benchmark, not covered by epsilon: 0 of 7 parts, distances"
    assert "the result is ready" not in err and "accuracy 0.2209 on next tokens" in out
    assert exit_status(folder) == 0


def test_the_seeds_come_first_and_before_them_that_a_result_is_of_no_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"seeds": 9, "synthetic_samples": 9, "dropped": {"too short": 1357}}
    found |= {"unusable": ["72% of the written words"]}
    folder = finished(tmp_path, **found)
    (folder / "seeds.jsonl").write_text(
        "".join(f'{{"text": "seed {i}", "round": 1, "votes": {9 - i}}}\n' for i in range(9))
    )
    show_outcome(folder)
    out, err = capsys.readouterr()
    assert out.splitlines()[:8] == [
        "NOT USABLE: 72% of the written words",
        "9 texts that the users' votes picked, seeds.jsonl; of most votes:",
        *(f"    seed {i}" for i in range(5)),
        out.splitlines()[7],
    ]
    assert out.splitlines()[7].startswith("privacy")
    assert "1,357 too short" in err and "--resume" in err
    assert exit_status(folder) == NOT_USABLE == 5


# A run in a process of its own whose SuperLink is a `sleep`. It sends itself the signals that a
# shell repeats, at the worst moments.
COMMAND = """
import os, signal, subprocess, sys
from pathlib import Path
from privsyn_flower.app.cli import run as cli_run
from privsyn_flower.config import RunConfig
from privsyn_flower.app.local.simulation import LocalFlower
from privsyn_flower.app.local.processes import end_group

folder = Path(sys.argv[1])

def note(word):
    with (folder / "notes").open("a") as file:
        print(word, file=file)

class Flower(LocalFlower):
    def start(self):
        self.process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
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

class Display(cli_run.Display):
    def __enter__(self):
        display = super().__enter__()
        note("shown")
        return display

cli_run.LocalFlower = Flower
cli_run.Display = Display
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
        deadline = time.monotonic() + 600
        while not self.notes.exists() or word not in self.notes.read_text().split():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        return self.notes.read_text().split()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.master)


def ends_with_nothing_left(terminal: Terminal) -> None:
    terminal.process.wait(600)
    server, *words = terminal.notes.read_text().split()
    assert words == ["submitted", "shown", "stopped", "closed"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(server), 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(**options: Any) -> Terminal:
        made.append(Terminal(tmp_path, **options))
        made[0].wait_for("shown")
        return made[0]

    yield start
    made[0].close()
    made[0].process.kill()
    made[0].process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(made[0].notes.read_text().split()[0]), signal.SIGKILL)


@pytest.mark.slow
def test_a_closed_terminal_ends_the_run(terminal: Callable[..., Terminal]) -> None:
    run = terminal()
    run.close()
    ends_with_nothing_left(run)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_each_signal_ends_the_run(terminal: Callable[..., Terminal], sign: int) -> None:
    # Tests that run in the background have SIGINT ignored.
    run = terminal(prepare=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    run.process.send_signal(sign)
    ends_with_nothing_left(run)


@pytest.mark.slow
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
        return _claimed(_fresh_name(RunConfig()))

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(fresh, range(8)))
    name = "pretext-eps7.58-20260102-030405"
    assert {folder.name for folder in folders} == {name, *(f"{name}-{n}" for n in range(2, 9))}
    assert all(folder.is_dir() for folder in folders)


def test_a_run_begun_in_the_second_of_another_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_run, "_fresh_name", lambda config: Path("runs") / "one-second")
    for name in ("_check_ready", "_prepare"):
        monkeypatch.setattr(cli_run, name, lambda *_: None)
    monkeypatch.setattr(cli_run, "_start", lambda folder, *_: folder)
    (tmp_path / "empty.toml").write_text("")
    begun = [run_command(tmp_path / "empty.toml", [f"cache={tmp_path}"], None) for _ in range(2)]
    assert [folder.name for folder in begun] == ["one-second", "one-second-2"]
    assert all((folder / "config.toml").is_file() for folder in begun)


def test_skipped_rows_are_told_to_the_terminal_and_to_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_run, "_start", lambda folder, *_: folder)
    users = tmp_path / "users.csv"
    rows = [f"u{i % 9},{'' if i % 2 else f'text {i}'}\n" for i in range(2000)]
    users.write_text("user_id,text\n" + "".join(rows) + "u1\n")
    values = {
        "data.source": "files", "data.path": str(users), "data.users": 9, "nodes": 3,
        "data.held-out-users": 0, "data.development-users": 0,
        "cache": str(tmp_path / "cache"), "run-folder": str(tmp_path / "run"),
    }  # fmt: skip
    settings = [f"{key}={value}" for key, value in values.items()]
    (tmp_path / "empty.toml").write_text("")
    monkeypatch.setattr(cli_run, "check_ready", lambda *_, **__: [])  # it has no public text
    for _ in range(2):  # prepared data is found again, and so is what was skipped
        folder = run_command(tmp_path / "empty.toml", settings, None)
        err = capfd.readouterr().err
        assert "users.csv: skipped 1,001 of 2,001 rows: 1,000 x the text is empty (lines 3, " in err
        assert "; 1 x the row has 1 fields" in err
        assert {path.name for path in folder.iterdir()} == {"config.toml", ".starting"}
        (folder / "config.toml").unlink()
    with pytest.raises(RunFailed, match=r"data\.users = 10, but the source gives only 9"):
        run_command(tmp_path / "empty.toml", [*settings, "data.users=10"], None)
    assert not (folder / "config.toml").exists()  # nothing is left that would have to be resumed


def test_canaries_are_keys_of_a_new_simulation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[list[str]] = []

    def run(config: Any, settings: list[str], *_: Any) -> Path:
        given.append(settings)
        raise cli_run.RunFailed("far enough")

    monkeypatch.setattr(cli_run, "run_command", run)
    assert CliRunner().invoke(app, ["run", "--canaries", "9", "--set", "epsilon=2"]).exit_code == 1
    assert CliRunner().invoke(app, ["run"]).exit_code == 1
    (first, second), own = given, ["epsilon=2", "data.canaries=9", "benchmark=true"]
    assert first[:3] == own and first[3].startswith("data.seed=") and second == []
    more = ["run", "--canaries", "9", "--set", "data.seed=4"]
    assert CliRunner().invoke(app, more).exit_code == 1 and given.pop()[0] == "data.seed=4"
    assert len(given) == 2
    for where in (["--resume", str(tmp_path)], ["--federation", str(tmp_path)]):
        refused = CliRunner().invoke(app, ["run", "--canaries", "9", *where])
        assert refused.exit_code == 2 and "--canaries is for a new simulation" in refused.stderr
    assert len(given) == 2
