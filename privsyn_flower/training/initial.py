"""What a federation's training starts from: the arrays that travel, and which are trained. PUBLIC.

For the server. Nodes have the base model; what is not in the arrays stays the base's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.text.models.encoder_decoders import auto_class
from privsyn_flower.text.models.parameters import DOWN, UP, base_shapes
from privsyn_flower.training.layout import matches
from privsyn_flower.training.low_rank import initial_factors, linear_weights

Kind = Literal["full", "layers", "lora"]
Factors = Literal["both", "up"]
Arrays = dict[str, NDArray[Any]]


def initial_parameters(
    folder: Path,
    kind: Kind,
    *,
    rank: int = 8,
    factors: Factors = "both",
    patterns: str = "",
    seed: int = 0,
) -> Arrays:
    """The named arrays of a run's first question, float32 (fixed random factors: float16).

    folder: the base model, which the nodes have too. kind: "full", all of its parameters;
    "layers", those whose names match `patterns` (globs with commas between); "lora", factors of
    this rank for its linear layers, those that match `patterns` where there are any. The training
    is told which arrays it may change by `trained_patterns`. Raises ValueError when nothing
    matches, and on a rank that is too large.
    """
    shapes = base_shapes(folder)
    if kind == "lora":
        targets = _targets(folder, patterns)
        return initial_factors(shapes, targets, rank=rank, factors=factors, seed=seed)
    chosen = [name for name in shapes if kind == "full" or matches(name, patterns)]
    if not chosen:
        raise _nothing(patterns, sorted(shapes))
    base = _weights(folder)
    return {name: base[name] for name in chosen}


def trained_patterns(
    folder: Path, kind: Kind, *, factors: Factors = "both", patterns: str = ""
) -> str:
    """Which of the `initial_parameters` are trained: the value of LocalTraining.trained.

    factors "up": only the factors on the output's side are (FFA-LoRA).
    """
    if kind != "lora":
        return patterns if kind == "layers" else "*"
    if factors == "both":
        return f"*{UP},*{DOWN}"
    sides = {DOWN if transposed else UP for transposed in _targets(folder, patterns).values()}
    if len(sides) == 1:
        return f"*{sides.pop()}"
    targets = _targets(folder, patterns)
    return ",".join(name + (DOWN if transposed else UP) for name, transposed in targets.items())


def _targets(folder: Path, patterns: str) -> dict[str, bool]:
    weights = linear_weights(folder)
    kept = {name: flag for name, flag in weights.items() if matches(name, patterns or "*")}
    if not kept:
        raise _nothing(patterns, sorted(weights))
    return kept


def _nothing(patterns: str, names: list[str]) -> ValueError:
    return ValueError(
        f"training.layers = {patterns!r} matches no parameter of models.downstream: it has "
        f"{', '.join(names[:4])} and {max(0, len(names) - 4)} more"
    )


def _weights(folder: Path) -> Arrays:
    """The base's parameters by name, float32."""
    from privsyn_flower.text.models.pretrained import load_model

    model = load_model(auto_class(folder), folder, "models.downstream", "cpu", "float32")
    return {name: value.numpy().astype(np.float32) for name, value in model.named_parameters()}
