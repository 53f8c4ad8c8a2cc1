"""A text classifier trained on the nodes, in one process: secure, and above the majority."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.config import load_config
from privsyn_flower.text.models.pretrained import classes_in
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS
from tests.end_to_end.conftest import MATHS, NATURE
from tests.server_apps.in_process import one_thread, run

__all__ = ["one_thread"]  # pytest finds the fixture by name

USERS, HELD_OUT = 60, 20
CONFIG = f"""
method = "dp-fedavg"
rounds = 5
spare-rounds = 0
epsilon = 500.0  # so huge that five rounds of 60 users learn something
nodes = 3
benchmark = true
stage-timeout = 300.0
cache = "{{folder}}/cache"
[data]
source = "files"
path = "{{folder}}/users.jsonl"
label-column = "label"
users = {USERS}
held-out-users = {HELD_OUT}
development-users = 0
public-validation = 0
near-duplicates = "keep"
[models]
downstream = "{PACKAGE_ASSETS / "infiller"}"
device = "cpu"
[training]
task = "classification"
labels = "nature, maths"
parameters = "lora"
lora-rank = 4
lora-factors = "up"
learning-rate = 0.1
clip-norm = 0.15
[evaluation]
task = "classification"
sequence-length = 32
steps = 4
batch-size = 16
learning-rates = "3e-4"
controls = ""
"""


@pytest.mark.slow
def test_a_classifier_of_labels_is_above_the_majority(tmp_path: Path, loopback: Any) -> None:
    rng = np.random.default_rng(0)
    with (tmp_path / "users.jsonl").open("w") as file:
        for user in range(USERS + HELD_OUT):
            for kind in rng.choice(["nature", "maths", "other"], 5, p=[0.55, 0.35, 0.1]):
                words = rng.choice(MATHS if kind == "maths" else NATURE, 8)
                row = {"user_id": f"u{user}", "text": " ".join(words), "label": kind}
                file.write(json.dumps(row) + "\n")
    path, folder = tmp_path / "run.toml", tmp_path / "run"
    path.write_text(CONFIG.format(folder=tmp_path))
    summary, _ = run(load_config(path), loopback, folder)
    found = summary["benchmark"]
    assert (found["task"], found["classes"]) == ("classification", ["nature", "maths"])
    accuracy = found["accuracy"]
    assert accuracy["trained"] > accuracy["majority"] + 0.1, accuracy
    assert set(accuracy) == {"pretrained", "majority", "trained", "private"}
    assert classes_in(folder / "model") == ("nature", "maths")
