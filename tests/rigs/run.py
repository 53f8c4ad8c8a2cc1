"""What several tests share about run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest


def finish(process: Any, seconds: float = 1500) -> tuple[int, list[str], list[str]]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out.strip().splitlines(), err.strip().splitlines()


def wait_for(path: Path, text: str, seconds: float = 1500) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.02)
    pytest.fail(f"{text!r} did not appear in {path} within {seconds} s")
