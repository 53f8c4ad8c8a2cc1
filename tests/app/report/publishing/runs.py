"""Run folders as runs leave them, with private files beside the public ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from privsyn_flower.app.report.registry import write_record
from privsyn_flower.common.files import file_digest
from privsyn_flower.config import RunConfig, to_toml
from privsyn_flower.runs import write_jsonl
from privsyn_flower.server_apps.privacy_plan import baseline, statement
from privsyn_flower.strategies.engine.record import claim_record

SECRET = "what-nobody-may-read"  # in every file that must not be copied
FIGURE = 0.87654  # of the benchmark, and of nothing else
BENCHMARK = {
    "accuracy": {"synthetic": FIGURE},
    "loss": {"synthetic": 3.25},
    "accuracy_interval": {"synthetic": [0.86, 0.89]},
    "methods": {"synthetic": "(b) on the synthetic text"},
    "verdict": ["against random public text: better"],
}
ROWS = [{"text": f"text {i} with a line\u2028of its own | <b>&"} for i in range(5)]


def make_run(
    folder: Path,
    *,
    rows: list[dict[str, Any]] | None = ROWS,
    model: bool = False,
    summary: dict[str, Any] | None = None,
    **flat: Any,
) -> Path:
    """A finished run's folder. summary: what stands in it beside the claim. flat: of the config."""
    folder.mkdir(parents=True)
    (folder / "private").mkdir()
    config = RunConfig.from_flat(
        {"run-folder": str(folder), "cache": str(folder / "cache"), **flat}
    )
    said: Any = baseline(config) or statement(config)
    found = {
        "version": "0.0.9",
        "method": config.method,
        "dataset": f"files:{folder}/private/users.jsonl",
        "users": config.data.users,
        "rounds": 0 if baseline(config) else config.rounds,
        "rounds_planned": 0 if baseline(config) else config.rounds,
        **claim_record(said),
        **(summary or {}),
    }
    if rows is not None:
        write_jsonl(folder / "synthetic.jsonl", rows)
        found = {
            "synthetic_samples": len(rows),
            "synthetic_sha256": file_digest(folder / "synthetic.jsonl"),
            **found,
        }
    (folder / "summary.json").write_text(json.dumps(found))
    (folder / "config.toml").write_text(to_toml(config))
    (folder / "privacy.md").write_text(said.page())
    write_record(folder, found)
    if model:
        write_model(folder / "model", folder)
    for name in ("run.log", "ledger.jsonl", "benchmark/PRIVATE-user-sums.npz", "error.txt",
                 "checkpoints/round-0001.json", "models/training-0001.safetensors",
                 "private/users.jsonl", "control.jsonl", "accuracy.png", ".lock"):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{SECRET} {folder}")
    return folder


def write_model(folder: Path, run: Path) -> None:
    """A causal LM of a few numbers, whose config.json names a place."""
    folder.mkdir()
    about = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8,
        "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "tie_word_embeddings": True,
        "_name_or_path": f"{run}/start",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about))
    square, layer = np.ones((4, 4), np.float32), "model.layers.0"
    names = [f"{layer}.self_attn.{one}_proj.weight" for one in "qkvo"]
    names += [f"{layer}.mlp.{one}_proj.weight" for one in ("gate", "up", "down")]
    weights = dict.fromkeys(names, square)
    norms = [f"{layer}.input_layernorm.weight", f"{layer}.post_attention_layernorm.weight"]
    weights |= dict.fromkeys([*norms, "model.norm.weight"], square[0])
    weights["model.embed_tokens.weight"] = np.ones((8, 4), np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "training.json").write_text(json.dumps({"init": str(run), "said": SECRET}))
