"""What Flower's processes are started with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from privsyn_flower.app.local.simulation import flower_environment


def test_threads_that_wait_do_not_spin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert flower_environment(tmp_path, 1)["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # the user's own
    assert flower_environment(tmp_path, 1)["OMP_WAIT_POLICY"] == "ACTIVE"


def test_flowers_json_has_no_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's kernel forces colours on all that it starts."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")
    command = [sys.executable, "-c", "from rich.console import Console as C; C().print_json('[1]')"]
    coloured, plain = (
        subprocess.run(command, env=env, capture_output=True, check=True).stdout
        for env in (dict(os.environ), flower_environment(tmp_path, 1))
    )
    assert b"\x1b" in coloured and b"\x1b" not in plain
