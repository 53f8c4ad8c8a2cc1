"""Made-up people, and a run with synthetic text, for the tests of `privsyn inspect`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.inspect.texts import Texts
from privsyn_flower.config import RunConfig, to_toml
from privsyn_flower.text.embedders import NgramEmbedder

WORDS = [f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in "nrst"]


def sentence(rng: np.random.Generator, size: int = 14) -> str:
    return " ".join(WORDS[i] for i in rng.integers(len(WORDS), size=size))


def people(prefix: str, users: int, rng: np.random.Generator, texts: int = 4) -> dict[str, Any]:
    return {f"{prefix}{i}": [sentence(rng) for _ in range(texts)] for i in range(users)}


def texts(
    synthetic: Sequence[str],
    private: Mapping[str, Sequence[str]],
    held_out: Mapping[str, Sequence[str]] | None = None,
    public: Sequence[str] = (),
) -> Texts:
    """Texts as `read_texts` gives them, compared by hashed n-grams."""
    return Texts(list(synthetic), private, held_out or {}, public, lambda: NgramEmbedder(512))


def write_users(path: Path, users: Mapping[str, Sequence[str]]) -> Path:
    rows = [{"user_id": user, "text": text} for user, own in users.items() for text in own]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_run(folder: Path, synthetic: Sequence[str] | None, **flat: Any) -> Path:
    """A run's folder with what an inspection reads of it. synthetic: None writes no text."""
    folder.mkdir(parents=True)
    base = {"models.embedder": "ngram-512", "data.source": "files", "models.device": "cpu"}
    config = RunConfig.from_flat({**base, "cache": str(folder / "cache"), **flat})
    (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
    if synthetic is not None:
        lines = [json.dumps({"text": text}) for text in synthetic]
        (folder / "synthetic.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder
