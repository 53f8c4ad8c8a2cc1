"""What several tests share about preference."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.preference.trainer import PreferenceTrainer
from privsyn_flower.text.prompts import HEADING, expand_prompt

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


@pytest.fixture(scope="module")
def generator(causal_folder: Path) -> HuggingFaceGenerator:
    return HuggingFaceGenerator(causal_folder, max_tokens=8, device="cpu", progress=False)


def token_logps(
    generator: HuggingFaceGenerator, adapter: Path | None, responses: Iterable[tuple[str, str]]
) -> list[np.ndarray]:
    """Of each response to its prompt, with the next heading: by a forward pass of its own."""
    import torch

    generator.use_adapter(adapter)
    found = []
    for prompt, response in responses:
        before = len(generator.tokenizer(prompt)["input_ids"])
        ids = torch.tensor([generator.tokenizer(f"{prompt}{response}\n{HEADING}")["input_ids"]])
        with torch.no_grad():
            scores = generator.model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        found.append(scores.gather(1, ids[0, 1:, None])[before - 1 :, 0].numpy())
    generator.use_adapter(None)
    return found


KILLED = """
import os, signal, sys, json, torch
torch.set_num_threads(1)
from pathlib import Path
from privsyn_flower.text.preference import PreferenceTrainer
stop, model, settings, rows, start, work = json.loads(sys.argv[1])
def progress(stage, done, total):
    if done == stop:
        os.kill(os.getpid(), signal.SIGKILL)
PreferenceTrainer(Path(model), progress=progress, **settings).train(
    rows, start=Path(start) if start else None, work=Path(work), seed=7)
"""


def killed_in_step(
    step: int, model: Path, settings: dict[str, Any], rows: Any, start: Path | None, work: Path
) -> None:
    """A training in a process of its own that gets SIGKILL."""
    job = [step, str(model), settings, rows, str(start) if start else "", str(work)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, json.dumps(job)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == -signal.SIGKILL
