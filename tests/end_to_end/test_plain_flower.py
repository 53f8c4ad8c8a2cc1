"""`flwr run .` from the repository, without our command: own FLWR_HOME and port, ended by pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from privsyn_flower.local.processes import free_port
from privsyn_flower.local.simulation import QUIET
from tests.end_to_end.conftest import processes_mentioning

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def flower_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    home = tmp_path / "flower-home"
    home.mkdir()
    binaries = Path(sys.executable).parent
    yield {
        **os.environ,
        **QUIET,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
    }
    deadline = time.monotonic() + 20
    while (left := processes_mentioning(str(home))) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        time.sleep(0.5)


def test_flwr_run_with_a_config_file(
    mini: Path, tmp_path: Path, flower_environment: dict[str, str]
) -> None:
    config = tmp_path / "run.toml"
    folder = tmp_path / "run"
    config.write_text(f'run-folder = "{folder}"\n' + (mini / "mini.toml").read_text())
    command = ["flwr", "run", str(ROOT), "--stream", "--run-config", str(config)]
    command += ["--federation-config", "num-supernodes=3 client-resources-num-cpus=1"]
    result = subprocess.run(
        command, env=flower_environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    log = result.stdout + result.stderr
    assert "privsyn INFO rounds 2/2" in log
    summary = json.loads((folder / "summary.json").read_text())
    assert (folder / "report.html").exists()
    assert summary["rounds"] == 2
    assert summary["synthetic_samples"] > 0
