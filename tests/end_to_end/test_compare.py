"""`privsyn compare` with real runs: one grid, its table and pictures.

One of its runs has no rounds, so nobody is asked; what else such rows do:
tests/server_apps/test_baselines.py.
"""

from __future__ import annotations

import csv
import json
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
    """Through Flower: two methods, and a table with intervals over users."""
    text = (mini / "mini.toml").read_text()
    text = text.replace("[models]", f'[models]\ndownstream = "{causal_folder}"')
    (tmp_path / "mini.toml").write_text(text)
    (tmp_path / "grid.toml").write_text(
        'seeds = [0]\n[set]\nbenchmark = true\nevaluation.steps = 2\n'
        'evaluation.batch-size = 8\nevaluation.sequence-length = 16\n'
        'evaluation.learning-rates = "1e-3"\nevaluation.controls = ""\nrounds = 1\n'
        '[axes]\nepsilon = [50.0]\n'
        '[[methods]]\nname = "pretext"\nconfig = "mini.toml"\nreferences = ["private"]\n'
        '[[methods]]\nname = "public"\nconfig = "mini.toml"\nset = { method = "public-only" }\n'
    )  # fmt: skip
    privsyn = str(Path(sys.executable).parent / "privsyn")
    asked = ["compare", "grid.toml", "--out", "out"]
    done = subprocess.run([privsyn, *asked], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "out"
    out = tmp_path / "out"
    page = (out / "table.md").read_text()
    assert "users [" in page and "users~" not in page.partition("## closeness")[0]
    close, told = page.partition("## closeness")[2].split("## What epsilon means")
    assert told.count(" (no guarantee) |") == 1  # 50 is far beyond what promises anything
    assert close.count(" (no guarantee) |") == 2  # that row, and the private text
    with (out / "runs.csv").open(newline="") as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["done", "done"]
    assert (out / "accuracy.png").exists() and (out / "cost.png").exists()
    for folder in out.glob("runs/*"):
        assert ((folder / FILE).stat().st_mode & 0o777) == 0o600
    code, _, told = command(*asked, cwd=tmp_path)
    assert code == 0 and "running" not in " ".join(told)

    (folder,) = out.glob("runs/public-*")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["method"], summary["epsilon"], summary["rounds"]) == ("public-only", 0, 0)
    lines = (folder / "synthetic.jsonl").read_text().splitlines()
    assert len(lines) == summary["synthetic_samples"] == 200
    code, shown, err = command("run", "--resume", folder, cwd=tmp_path)
    assert code == 0 and shown[-1] == str(folder), err
    assert "Epsilon = 0: no user was asked anything" in " ".join(" ".join(shown).split())
    code, table, err = command("report", folder, cwd=tmp_path)
    assert code == 0 and "Public text alone: nobody was asked" in "\n".join(table), err


def test_what_would_be_no_result_is_refused_before_anything_starts(
    mini: Path, tmp_path: Path
) -> None:
    wrong = ["--set", "method=expand-private", "--set", f"run-folder={tmp_path / 'wrong'}"]
    code, _, err = command("run", mini / "mini.toml", *wrong, cwd=tmp_path)
    told = " ".join(err)
    assert code != 0 and "benchmark = true" in told
    assert "the seeds are the private texts" in told and not (tmp_path / "wrong").exists()
