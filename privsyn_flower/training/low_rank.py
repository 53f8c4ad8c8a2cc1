"""Low-rank factors (LoRA) behind linear layers: NAME.up and NAME.down of `text.models.parameters`.

The product up @ down is added to a weight in the shape in which the weight is stored. It is
never formed: the factors act on the layer's inputs, so a user's step costs no gradient and no
copy of a whole weight. Hu et al. 2022, "LoRA" (arXiv 2106.09685), with alpha = rank; training one
factor over a fixed random one is FFA-LoRA (Sun et al. 2024, arXiv 2403.12313, "Improving LoRA in
privacy-preserving federated learning").
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.randomness import seeded
from privsyn_flower.text.digests import file_digest
from privsyn_flower.text.models.parameters import DOWN, UP, empty_model

if TYPE_CHECKING:
    import torch

WEIGHT = ".weight"


def linear_weights(folder: Path) -> dict[str, bool]:
    """Weights of a language model's linear layers -> whether they are stored as (inputs, outputs).

    From the configuration alone; the last layer, from hidden states to tokens, is not among them.
    """
    return dict(_linear_weights(folder, file_digest(folder / "config.json")))


@functools.lru_cache(maxsize=4)
def _linear_weights(folder: Path, _config: str) -> dict[str, bool]:
    model = empty_model(folder)
    head = model.get_output_embeddings()
    return {
        name + WEIGHT: transposed
        for name, module in model.named_modules()
        if module is not head and (transposed := _transposed(module)) is not None
    }


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
def added(
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
