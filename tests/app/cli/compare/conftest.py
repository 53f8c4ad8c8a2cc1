"""Grids whose runs are made up: a stand-in for `privsyn run` that writes what it is told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from privsyn_flower.app.cli.compare import command

# Figures depend on the configuration alone. BREAK is an epsilon at which it fails once it is there.
STAND_IN = """
import json, os, shutil, sys, time, tomllib
from pathlib import Path

import numpy as np

from privsyn_flower.evaluation.intervals import save_user_sums

words = sys.argv[1:]
resumed = words[1] == "--resume"
source = Path(words[2]) / "config.toml" if resumed else Path(words[1])
config = tomllib.loads(source.read_text())
folder = Path(config["run-folder"])
with open(os.environ["CALLS"], "a") as calls:
    calls.write(f"{'resume' if resumed else 'run'} {folder.name}\\n")
if not resumed:
    shutil.copyfile(source, folder / "config.toml")
if config["epsilon"] == float(os.environ.get("BREAK", 0)):
    print("warning: something", file=sys.stderr)
    print("error: the votes\\ndrowned", file=sys.stderr)
    sys.exit(1)
time.sleep(float(os.environ.get("SLEEP", 0)))
trains = config["method"].startswith("dp-")
name = "trained" if trains else "synthetic"
tokens = np.array([40.0, 60.0, 100.0, 20.0])
accuracy = 0.2 + 0.01 * np.log(config["epsilon"]) - 0.02 * (not trains) + 0.001 * config["seed"]
own = {name: accuracy, "random_public": 0.15, "private": 0.3}
skill = np.array([0.5, 1.0, 1.2, 1.0])
right = {key: np.stack([tokens * skill * value, tokens], axis=1) for key, value in own.items()}
save_user_sums(folder, ["a", "b", "c", "d"], {"accuracy": right})
exact = {key: float(s[:, 0].sum() / s[:, 1].sum()) for key, s in right.items()}
summary = {
    "method": config["method"], "users": config["data"]["users"], "rounds": config["rounds"],
    "epsilon": config["epsilon"], "delta": 1e-6, "accountant": "exact", "unit": "user",
    "adjacency": "zero-out", "noise_multiplier": 1.0, "ended_early": None,
    "threat_model": "trusted aggregator" if config["method"] == "dp-ftrl" else "honest-but-curious",
    "participations_per_user": 2, "bytes_down_per_user_round": 1000,
    "bytes_up_per_user_round": 10,
    "benchmark": {
        "held_out": "test", "held_out_users": 4, "held_out_tokens": 220, "task": "next-token",
        "methods": {"random_public": "(a) public", "private": "(c) private", name: "(b)"},
        "learning_rate": 0.001, "accuracy": exact,
        "accuracy_interval": {key: [v - 0.01, v + 0.01] for key, v in exact.items()},
        "accuracy_difference": {f"{name}-random_public": [0.05, 0.04, 0.06]},
        "loss": {key: 5 - v for key, v in exact.items()},
        "loss_interval": {key: [4.9 - v, 5.1 - v] for key, v in exact.items()},
        "loss_difference": {f"{name}-random_public": [-0.05, -0.06, -0.04]},
        "costs": {"client_cpu_seconds_per_user": 0.5 + trains, "server_wall_seconds": 3.0},
    },
}
(folder / "summary.json").write_text(json.dumps(summary))
"""

GRID = """
title = "Both"
seeds = [0, 1]
against = "dp-fedavg"

[set]
benchmark = true

[axes]
epsilon = [2.0, 1000.0]

[[methods]]
name = "pretext"
label = "PrE-Text"
config = "pretext.toml"
references = ["random_public", "private"]

[[methods]]
name = "dp-fedavg"
config = "dp-fedavg.toml"

[[methods]]
name = "dp-ftrl"
config = "dp-ftrl.toml"
set = { training.noise = "aggregator" }
only = { epsilon = ["2"] }
seeds = [0]
"""
SMALL = 'method = "{}"\nrounds = 2\n[data]\nusers = 40\nprivate-packages = "rich"\n'


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two methods at two epsilons with two seeds, and a third at one with one: nine runs."""
    for method in ("pretext", "dp-fedavg", "dp-ftrl"):
        (tmp_path / f"{method}.toml").write_text(SMALL.format(method))
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return path


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """What is called in the place of `privsyn`; pictures have tests of their own."""
    monkeypatch.setattr(command, "draw", lambda *_: [])
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls.txt"))
    return [sys.executable, str(script)]


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], list[str]]:
    """What was called so far, a line each."""
    path = tmp_path / "calls.txt"
    return lambda: path.read_text().splitlines() if path.exists() else []
