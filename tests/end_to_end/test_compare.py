"""`privsyn compare` with real runs: one grid, its table and pictures."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from privsyn_flower.evaluation.intervals import FILE
from tests.rigs.run import command
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def test_two_real_runs(mini: Path, causal_folder: Path, tmp_path: Path) -> None:
    """Through Flower: one configuration, two epsilons, and a table with intervals over users."""
    text = (mini / "mini.toml").read_text()
    text = text.replace("[models]", f'[models]\ndownstream = "{causal_folder}"')
    (tmp_path / "mini.toml").write_text(text)
    (tmp_path / "grid.toml").write_text(
        'seeds = [0]\n[set]\nbenchmark = true\nevaluation.steps = 2\n'
        'evaluation.batch-size = 8\nevaluation.sequence-length = 16\n'
        'evaluation.learning-rates = "1e-3"\nevaluation.controls = ""\nrounds = 1\n'
        '[axes]\nepsilon = [50.0, 1000.0]\n'
        '[[methods]]\nname = "pretext"\nconfig = "mini.toml"\nreferences = ["private"]\n'
    )  # fmt: skip
    privsyn = str(Path(sys.executable).parent / "privsyn")
    asked = ["compare", "grid.toml", "--out", "out"]
    done = subprocess.run([privsyn, *asked], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "out"
    out = tmp_path / "out"
    page = (out / "table.md").read_text()
    assert "users [" in page and "users~" not in page.partition("## closeness")[0]
    assert page.count(" (no guarantee) |") == 2  # both are far beyond what promises anything
    with (out / "runs.csv").open(newline="") as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["done", "done"]
    assert (out / "accuracy-epsilon.png").exists() and (out / "cost.png").exists()
    for folder in out.glob("runs/*"):
        assert ((folder / FILE).stat().st_mode & 0o777) == 0o600
    code, _, told = command(*asked, cwd=tmp_path)
    assert code == 0 and "running" not in " ".join(told)
