"""The Flower Hub bundle by plain `flwr run`, where privsyn-flower itself is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from scripts.hub_bundle import NAME, write
from tests.end_to_end.conftest import flwr

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
ROOT = Path(__file__).parent.parent.parent


def without_us(folder: Path) -> Path:
    """The programs of an environment with all that ours has, by links, but this package."""
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = Path(sysconfig.get_path("purelib"))
    for path in ours.iterdir():
        if NAME not in path.name.replace("_", "-") and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    programs = folder / "bin"
    for path in Path(sys.executable).parent.glob("fl*"):  # Flower's
        text = path.read_text("utf-8").partition("\n")[2]
        (programs / path.name).write_text(f"#!{programs / 'python'}\n{text}", "utf-8")
        (programs / path.name).chmod(0o755)
    return programs


def test_a_bundle_runs_where_the_package_is_not_installed(
    mini: Path, tmp_path: Path, flower_environment: dict[str, str]
) -> None:
    """Its ServerApp, its nodes, and a process that it starts by the package's name."""
    programs = without_us(tmp_path / "venv")
    environment = {**flower_environment, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"  # the hub installs them
    command = [programs / "python", "-c", "import privsyn_flower"]
    absent = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "No module named 'privsyn_flower'" in absent.stderr
    bundle, folder, config = tmp_path / NAME, tmp_path / "run", tmp_path / "run.toml"
    write(ROOT, bundle)
    config.write_text(
        f'run-folder = "{folder}"\ntrackers = "tensorboard"\n' + (mini / "mini.toml").read_text()
    )
    command = [programs / "flwr", "run", bundle, "--stream", "--run-config", config]
    command += ["--federation-config", "num-supernodes=3 client-resources-num-cpus=1"]
    result = flwr(command, environment, tmp_path)
    log = result.stdout + result.stderr
    assert result.returncode == 0 and (folder / "summary.json").exists(), log
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 2 and summary["synthetic_samples"] > 0
    assert (folder / "report.html").exists()
    assert list(folder.rglob("events.out.tfevents*")), log  # its tracker's process found the code
    assert "Traceback" not in log
