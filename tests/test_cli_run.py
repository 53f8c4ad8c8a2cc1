"""`privsyn run` ends with the ServerApp's error, however slow Flower is to answer."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.cli_run import RunFailed, _watch
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
