"""`flwr run .` from the repository, without our command: own FLWR_HOME and port, ended by pid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.conftest import flwr

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
ROOT = Path(__file__).parent.parent.parent


def test_flwr_run_with_a_config_file(
    mini: Path, tmp_path: Path, flower_environment: dict[str, str]
) -> None:
    config = tmp_path / "run.toml"
    folder = tmp_path / "run"
    config.write_text(f'run-folder = "{folder}"\n' + (mini / "mini.toml").read_text())
    command = ["flwr", "run", str(ROOT), "--stream", "--run-config", str(config)]
    command += ["--federation-config", "num-supernodes=3 client-resources-num-cpus=1"]
    result = flwr(command, flower_environment, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    log = result.stdout + result.stderr
    assert "privsyn INFO rounds 2/2" in log
    summary = json.loads((folder / "summary.json").read_text())
    assert (folder / "report.html").exists()
    assert summary["rounds"] == 2
    assert summary["synthetic_samples"] > 0
