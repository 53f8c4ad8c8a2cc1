"""Flower's command line in a process that loads it once, with a stand-in for `flwr` itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from privsyn_flower.app.local.command import HOME, FlowerCommand
from privsyn_flower.app.local.simulation import flower_environment

FLWR = """
import json, os, sys, time

with open("loaded", "a") as file:
    print(os.getpid(), file=file)
if "BROKEN" in os.environ:
    raise ImportError("no module named flower")

def app():
    _, command, *rest = sys.argv
    if command == "sleep":
        with open("asleep", "w") as file:
            print(os.getpid(), file=file)
        time.sleep(3600)
    if command == "exit":
        sys.exit(json.loads(rest[0]))
    if command == "raise":
        raise ValueError("of the command's own")
    print("beside", file=sys.stderr)
    print(json.dumps([os.getpid(), os.getcwd(), rest, sys.stdin.read()]))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a home in which a `flwr` is installed that takes the place of Flower's."""
    place = tmp_path / "site"
    about = place / "flwr-9.9.9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flwr\nVersion: 9.9.9\n")
    (about / "entry_points.txt").write_text("[console_scripts]\nflwr = stand_in:app\n")
    (place / "stand_in.py").write_text(FLWR)
    (tmp_path / "home").mkdir()
    return {**os.environ, HOME: str(tmp_path / "home"), "PYTHONPATH": str(place)}


@pytest.fixture
def command() -> Iterator[FlowerCommand]:
    found = FlowerCommand()
    yield found
    found.close()


def loaded(environment: dict[str, str]) -> list[int]:
    """The processes that loaded `flwr` so far."""
    return [int(line) for line in Path(environment[HOME], "loaded").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] == b"Z"
    except OSError:
        return True


def eventually(holds: Callable[[], bool], seconds: float = 600.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def test_it_is_loaded_once_and_each_question_has_a_process(
    command: FlowerCommand, environment: dict[str, str]
) -> None:
    long = "ü" * 200_000  # more than a pipe holds
    answers = [command.ask(["say", word], environment, 60) for word in ("one", long)]
    (process,) = loaded(environment)
    assert os.getsid(process) == process  # Ctrl-C is sent to another
    pids = set()
    for answer, word in zip(answers, ("one", long), strict=True):
        pid, folder, rest, stdin = json.loads(answer.stdout)
        assert (folder, rest, stdin) == (environment[HOME], [word], "")
        assert (answer.returncode, answer.stderr) == (0, "beside\n")
        pids.add(pid)
    assert len(pids) == 2 and process not in pids
    command.close()
    assert gone(process)


@pytest.mark.parametrize(
    ("asked", "code", "told"),
    [
        (["exit", "0"], 0, ""),
        (["exit", "3"], 3, ""),
        (["exit", '"no run of this number"'], 1, "no run of this number\n"),
        (["raise"], 1, "ValueError: of the command's own"),
    ],
)
def test_how_it_ended_is_told(
    command: FlowerCommand, environment: dict[str, str], asked: list[str], code: int, told: str
) -> None:
    found = command.ask(asked, environment, 60)
    assert (found.returncode, found.stdout) == (code, "")
    assert told in found.stderr and bool(found.stderr) == bool(told)


def test_no_answer_in_time_ends_it_and_the_next_question_has_its_own(
    command: FlowerCommand, environment: dict[str, str]
) -> None:
    command.ask(["exit", "0"], environment, 60)
    with pytest.raises(subprocess.TimeoutExpired):
        command.ask(["sleep"], environment, 1.0)
    asleep = Path(environment[HOME], "asleep")
    first = loaded(environment)[0]
    assert eventually(lambda: gone(first))
    assert not asleep.exists() or eventually(lambda: gone(int(asleep.read_text())))
    assert json.loads(command.ask(["say"], environment, 60).stdout)[2] == []
    assert len(loaded(environment)) == 2


def test_another_environment_and_an_end_by_somebody_else_start_it_anew(
    command: FlowerCommand, environment: dict[str, str]
) -> None:
    command.ask(["exit", "0"], environment, 60)
    command.ask(["exit", "0"], {**environment, "PORT": "2"}, 60)
    first, second = loaded(environment)
    assert gone(first)
    os.kill(second, signal.SIGKILL)
    assert eventually(lambda: gone(second))
    assert command.ask(["exit", "4"], {**environment, "PORT": "2"}, 60).returncode == 4


def test_what_cannot_be_loaded_says_why(
    command: FlowerCommand, environment: dict[str, str]
) -> None:
    found = command.ask(["list"], {**environment, "BROKEN": "1"}, 60)
    assert found.returncode == 1 and "ImportError: no module named flower" in found.stderr


def test_it_ends_with_the_process_that_started_it(environment: dict[str, str]) -> None:
    program = (
        "import json, sys, time; from privsyn_flower.app.local.command import FlowerCommand\n"
        "command = FlowerCommand(); command.ask(['exit', '0'], json.loads(sys.argv[1]), 60)\n"
        "print('asked', flush=True); time.sleep(3600)"
    )
    line = [sys.executable, "-c", program, json.dumps(environment)]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None and starter.stdout.readline() == b"asked\n"
        starter.send_signal(signal.SIGKILL)
    (process,) = loaded(environment)
    assert eventually(lambda: gone(process))


@pytest.mark.slow
def test_flowers_own(command: FlowerCommand, tmp_path: Path) -> None:
    """Its answer is that of `flwr` in a process of its own."""
    environment = flower_environment(tmp_path, 1)
    asked = ["config", "list", "--format", "json"]
    found = command.ask(asked, environment, 120)
    alone = subprocess.run(
        ["flwr", *asked], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.returncode == 0 and json.loads(found.stdout) == json.loads(alone.stdout)
