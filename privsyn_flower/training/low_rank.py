"""Low-rank factors (LoRA) behind linear layers: NAME.up and NAME.down of `text.models.parameters`.

The product up @ down is added to a weight in the shape in which the weight is stored. It is
never formed: the factors act on the layer's inputs, so a user's step costs no gradient and no
copy of a whole weight. Hu et al. 2022, "LoRA" (arXiv 2106.09685), with alpha = rank; training one
factor over a fixed random one is FFA-LoRA (Sun et al. 2024, arXiv 2403.12313, "Improving LoRA in
privacy-preserving federated learning").

`initial_parameters` is what a federation's training starts from, for the server: the arrays that
travel. Nodes have the base model; what is not in the arrays stays the base's. PUBLIC.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.common.randomness import seeded
from privsyn_flower.text.fingerprints import file_digest
from privsyn_flower.text.models.parameters import DOWN, UP, base_shapes, empty_model
from privsyn_flower.text.models.pretrained import auto_class, classes_in
from privsyn_flower.training.layout import matches

if TYPE_CHECKING:
    import torch


WEIGHT = ".weight"


def linear_weights(folder: Path) -> dict[str, bool]:
    """Weights of a language model's linear layers -> whether they are stored as (inputs, outputs).

    From the configuration alone; the last layer, from hidden states to tokens, is not among them,
    nor a classifier's head.
    """
    return dict(_linear_weights(folder, file_digest(folder / "config.json")))


@functools.lru_cache(maxsize=4)
def _linear_weights(folder: Path, _config: str) -> dict[str, bool]:
    model = empty_model(folder)
    head, body = model.get_output_embeddings(), _body(folder)
    return {
        name + WEIGHT: transposed
        for name, module in model.named_modules()
        if module is not head
        and name.startswith(body)
        and (transposed := _transposed(module)) is not None
    }


def _body(folder: Path) -> str:
    """What the names of all parameters but those of a classifier's head begin with."""
    return f"{empty_model(folder).base_model_prefix}." if classes_in(folder) else ""


def head_names(folder: Path) -> list[str]:
    """The parameters of a classifier's new head; none of a language model."""
    return [name for name in base_shapes(folder) if not name.startswith(_body(folder))]


def _transposed(module: Any) -> bool | None:
    """Whether a linear layer's weight is (inputs, outputs), as GPT-2's; None for other modules."""
    import torch
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, torch.nn.Linear):
        return False
    return True if isinstance(module, Conv1D) else None


def factor_targets(
    parameters: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> set[str]:
    """Names of the base's weights that the parameters have factors for."""
    others = set(parameters) - set(shapes)
    return {name.removesuffix(UP).removesuffix(DOWN) for name in others}


@contextlib.contextmanager
def add_factors(
    model: torch.nn.Module, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
) -> Iterator[None]:
    """Inside, the layers of these weights add inputs times the product of their factors.

    pairs: weight's name -> up (rows, k), down (k, columns), looked up anew in every pass. Raises
    ValueError for a weight that is no linear layer's.
    """
    with contextlib.ExitStack() as hooks:
        for name in pairs:
            module = model.get_submodule(name.removesuffix(WEIGHT))
            transposed = _transposed(module) if name.endswith(WEIGHT) else None
            if transposed is None:
                raise ValueError(f"{name} is no weight of a linear layer: it takes no factors")
            hooks.callback(module.register_forward_hook(_adds(pairs, name, transposed)).remove)
        yield


def _adds(
    pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]], name: str, transposed: bool
) -> Any:
    def hook(_module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        up, down = pairs[name]
        first, second = (up, down) if transposed else (down.T, up.T)
        return output + (inputs[0] @ first) @ second

    return hook


def initial_factors(
    shapes: Mapping[str, tuple[int, ...]],
    targets: Mapping[str, bool],
    *,
    rank: int,
    factors: str,
    seed: int,
) -> dict[str, NDArray[Any]]:
    """Factors whose product is zero: the input's side random, the output's side zeros. PUBLIC.

    targets: as `linear_weights` gives them. Random factors have variance 1 / inputs. factors
    "up": they stay as they are, and travel as float16, which holds them exactly.
    """
    parameters: dict[str, NDArray[Any]] = {}
    for name, transposed in targets.items():
        rows, columns = shapes[name]
        if not 1 <= rank <= min(rows, columns):
            raise ValueError(
                f"training.lora-rank = {rank} must be from 1 to {min(rows, columns)} for {name}"
            )
        rng = seeded(seed, "lora", name)
        inputs = rows if transposed else columns
        shape = (rows, rank) if transposed else (rank, columns)
        random = (rng.standard_normal(shape) / np.sqrt(inputs)).astype(np.float32)
        if factors == "up":
            random = random.astype(np.float16)
        zeros = np.zeros((rank, columns) if transposed else (rows, rank), dtype=np.float32)
        parameters[name + UP] = random if transposed else zeros
        parameters[name + DOWN] = zeros if transposed else random
    return parameters


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
    this rank for its linear layers, those that match `patterns` where there are any, and all of a
    classifier's head. The training
    is told which arrays it may change by `trained_patterns`. Raises ValueError when nothing
    matches, and on a rank that is too large.
    """
    shapes = base_shapes(folder)
    if kind == "lora":
        targets = _targets(folder, patterns)
        own = initial_factors(shapes, targets, rank=rank, factors=factors, seed=seed)
        head = head_names(folder)
        return {**own, **{name: _weights(folder)[name] for name in head}} if head else own
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
    head = head_names(folder)
    if factors == "both":
        return ",".join([f"*{UP}", f"*{DOWN}", *head])
    targets = _targets(folder, patterns)
    sides = {DOWN if transposed else UP for transposed in targets.values()}
    if len(sides) == 1:
        return ",".join([f"*{sides.pop()}", *head])
    own = [name + (DOWN if transposed else UP) for name, transposed in targets.items()]
    return ",".join([*own, *head])


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
