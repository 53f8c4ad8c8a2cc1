"""Questions about a model under audit: updates and evaluations, by a base of four numbers a token.

What a gradient is enters no bound, so the base is the shipped model, cut to its first layer and to
4 of its coordinates: a user's vector is then short enough for many trials, and the nodes train and
evaluate it with the code that they use for any other.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.audit.path import Case
from privsyn_flower.client_apps.evaluation import EVALUATION
from privsyn_flower.client_apps.updates import UPDATE
from privsyn_flower.common.arrays import F32
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.training import training_strategy
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.server_apps.selection import evaluation_caps
from privsyn_flower.strategies.evaluation.strategy import evaluation_query
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS
from privsyn_flower.training import LocalTraining
from privsyn_flower.training.low_rank import initial_parameters

WIDTH = 4
LAYERS = "model.layers.0.post_attention_layernorm.weight,model.norm.weight"
LONGEST = 2048  # tokens of a sequence
LARGE_STEP = 1e4  # the canary's change is this many clip norms times its gradient
SIDES = ["alpha beta gamma delta", "one two three four five"]


def update_case(config: RunConfig, users: int, folder: Path) -> Case:
    """The configured method's first question, about two layers of the small base in `folder`.

    One local step, so large that every user's change is clipped; over two layers, so that a clip
    of each layer by itself would be too long.
    """
    base = small_base(folder)
    training, strategy = config.training, training_strategy(config)
    step = min(max(1.0, LARGE_STEP * training.clip_norm), 9e5)
    local = LocalTraining(
        optimizer=training.optimizer,
        learning_rate=step,
        momentum=0.0,
        weight_decay=0.0,
        epochs=1,
        batch_size=8,
        max_steps=1,
        sequence_length=16,
        trained=LAYERS,
    )
    strategy.begin(
        initial_parameters(base, "layers", patterns=LAYERS),
        model=folder_fingerprint(base),
        rounds=config.rounds,
        users=users,
        options=dict(local.to_options()),
        noise_multiplier=privacy_plan(config).main.multiplier,
        nodes=config.nodes,
    )
    cap = config.data.samples_per_user
    canary, other = ([side] * cap for side in SIDES)
    return Case(strategy.ask(1), UPDATE, canary, other[:1], other, base)


def evaluation_case(config: RunConfig, folder: Path) -> Case:
    """Two models, one of them upside down, on as much text as counts.

    The joint clip of a run never shortens an answer, because no answer reaches its bound. Here the
    bound is 1, which the share of counted tokens reaches alone, so that the clip is looked at.
    """
    base, caps = small_base(folder), evaluation_caps(config)
    other = {
        name: -array for name, array in initial_parameters(base, "layers", patterns=LAYERS).items()
    }
    query = evaluation_query(
        {"start": {}, "final": other},
        fingerprint=folder_fingerprint(base),
        caps=replace(caps, bound=1.0),
    )
    cap = config.data.samples_per_user
    canary, crowd = ([" ".join([side] * caps.sequence_length)] * cap for side in SIDES)
    return Case(query, EVALUATION, canary, crowd[:1], crowd, base)


def small_base(folder: Path) -> Path:
    """The shipped causal model, cut, in `folder`/base; its tokenizer as it is."""
    from safetensors.numpy import load_file, save_file

    shipped, base = PACKAGE_ASSETS / "downstream", folder / "base"
    base.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(shipped / name, base / name)
    config: dict[str, Any] = json.loads((shipped / "config.json").read_text("utf-8"))
    sizes = ("hidden_size", "intermediate_size", "head_dim")
    counts = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config |= dict.fromkeys(sizes, WIDTH) | dict.fromkeys(counts, 1)
    config |= {"dtype": "float32", "max_position_embeddings": LONGEST}
    (base / "config.json").write_text(json.dumps(config), "utf-8")
    weights = load_file(shipped / "model.safetensors")
    cut = {name: _cut(name, array) for name, array in weights.items() if _in_first_layer(name)}
    save_file(cut, base / "model.safetensors", metadata={"format": "pt"})
    return base


def _in_first_layer(name: str) -> bool:
    return ".layers." not in name or ".layers.0." in name


def _cut(name: str, array: np.ndarray[Any, Any]) -> F32:
    """The first WIDTH numbers along every axis but the vocabulary's."""
    cut = [slice(WIDTH)] * array.ndim
    if "embed_tokens" in name:
        cut[0] = slice(None)
    return np.ascontiguousarray(array[tuple(cut)], dtype=np.float32)
