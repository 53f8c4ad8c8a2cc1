"""What several tests share about runs: commands, their ends, and what a folder must not hold."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.runs import read_jsonl


def command(*arguments: str | Path, cwd: Path) -> tuple[int, list[str], list[str]]:
    """`privsyn` in this process, which has loaded its libraries already: as `finish` has it."""
    with contextlib.chdir(cwd):
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, arguments)))
    return done.exit_code, done.stdout.strip().splitlines(), done.stderr.strip().splitlines()


def finish(process: Any, seconds: float = 1500) -> tuple[int, list[str], list[str]]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out.strip().splitlines(), err.strip().splitlines()


def wait_for(path: Path, process: Any, text: str = "", seconds: float = 1500) -> None:
    """Until `text` is in the file, or the file or folder is there, by what `process` does.

    What does not come in time takes no processor any more.
    """
    deadline = time.monotonic() + seconds
    while not path.exists() or (text and text not in path.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            pytest.fail(f"{text or path} did not appear: {process.communicate(timeout=1500)[1]}")
        time.sleep(0.01)


def private_texts(mini: Path) -> list[bytes]:
    return [row["text"].encode() for row in read_jsonl(mini / "users.jsonl")]


def check_nothing_private(folder: Path, mini: Path) -> None:
    private = private_texts(mini)
    for file in (path for path in folder.rglob("*") if path.is_file()):
        data = file.read_bytes()
        assert not any(text in data for text in private), file
