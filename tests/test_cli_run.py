"""`privsyn run` ends with the ServerApp's error, however slow Flower is to answer."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower import cli_run
from privsyn_flower.cli_run import RunFailed, _watch, run_command
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
    for _ in range(2):  # prepared data is found again, and so is what was skipped
        folder = run_command(tmp_path / "empty.toml", settings, None)
        err = capfd.readouterr().err
        assert "users.csv: skipped 1,001 of 2,001 rows: 1,000 x the text is empty (lines 3, " in err
        assert "; 1 x the row has 1 fields" in err
        assert [path.name for path in folder.iterdir()] == ["config.toml"]
        (folder / "config.toml").unlink()
    with pytest.raises(RunFailed, match=r"data\.users = 10, but the source gives only 9"):
        run_command(tmp_path / "empty.toml", [*settings, "data.users=10"], None)
    assert not (folder / "config.toml").exists()  # nothing is left that would have to be resumed
