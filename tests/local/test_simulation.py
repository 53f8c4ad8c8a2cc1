"""What Flower's processes are started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from privsyn_flower.local.simulation import flower_environment


def test_threads_that_wait_do_not_spin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert flower_environment(tmp_path, 1)["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # the user's own
    assert flower_environment(tmp_path, 1)["OMP_WAIT_POLICY"] == "ACTIVE"
