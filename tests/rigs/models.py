"""What several tests share about models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.training.low_rank import initial_parameters
from tests.text.conftest import (
    causal_folder,  # noqa: F401
    in_one_thread,
    make_tokenizer,
    save_random,
)

one_thread = pytest.fixture(autouse=True, scope="module", name="one_thread")(in_one_thread)


@pytest.fixture(scope="module")
def folder(causal_folder: Path) -> Path:
    return causal_folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2, whose linear layers are stored as (inputs, outputs), with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt2")
    tokenizer = make_tokenizer(folder, masked=False)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=64,
        bos_token_id=0, eos_token_id=1, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5,
    )  # fmt: skip
    return save_random(GPT2LMHeadModel, config, folder)


def moved(folder: Path, seed: int = 0) -> dict[str, Any]:
    """A round's parameters: the base's, moved a little."""
    draw = np.random.default_rng(seed)
    return {
        name: (array + 0.05 * draw.standard_normal(array.shape)).astype(np.float32)
        for name, array in initial_parameters(folder, "full").items()
    }


def factors(folder: Path, which: Any = "both") -> dict[str, Any]:
    """Low-rank factors whose product is not zero."""
    start = initial_parameters(folder, "lora", rank=2, factors=which, seed=3)
    draw = np.random.default_rng(4)
    return {
        name: array if array.any() else 0.1 * draw.standard_normal(array.shape).astype(np.float32)
        for name, array in start.items()
    }
