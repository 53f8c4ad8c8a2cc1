"""What several tests share about preference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privsyn_flower.text.preference.trainer import PreferenceTrainer
from privsyn_flower.text.prompts import expand_prompt

PAIRS = [
    {
        "prompt": expand_prompt([f"{word} b c"]),
        "chosen": f"{word} tea",
        "rejected": "river fox",
    }
    for word in ("Return", "quick", "senior", "array", "small", "near")
]


def trainer(folder: Path, **settings: Any) -> PreferenceTrainer:
    defaults = {"learning_rate": 1e-2, "epochs": 1, "batch_size": 6, "beta": 0.1}
    options = {"device": "cpu", "progress": False, **defaults, **settings}
    return PreferenceTrainer(folder, **options)
