"""What several tests share about evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.protocol.question import Query
from privsyn_flower.strategies.evaluation.strategy import Caps, evaluation_query
from privsyn_flower.text.fingerprints import folder_fingerprint
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

CAPS = Caps(max_tokens=60, max_loss=9.0, sequence_length=20)


def models() -> dict[str, Any]:
    """The base, and one that has learned to say something else."""
    rng = np.random.default_rng(0)
    other = {"model.norm.weight": 5 * rng.standard_normal(32).astype(np.float32)}
    part = "model.layers.0.mlp.up_proj.weight"
    other[f"{part}.up"] = rng.standard_normal((64, 2)).astype(np.float32)
    other[f"{part}.down"] = rng.standard_normal((2, 32)).astype(np.float32)
    return {"base": {}, "other": other}


@pytest.fixture
def base(causal_folder: Path) -> Path:
    return causal_folder


def question(base: Path, given: Any = None, caps: Caps = CAPS) -> Query:
    return evaluation_query(given or models(), fingerprint=folder_fingerprint(base), caps=caps)
