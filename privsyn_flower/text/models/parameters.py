"""Public model parameters on their way to a node: named arrays relative to a base model.

Only what differs from the base travels, as the bytes of a safetensors file. A tensor under its
own name replaces the base's; a pair NAME.up (rows, k) and NAME.down (k, columns) adds their
product to it, which is what a LoRA adapter is. Nothing is unpickled, nothing names a file or a
model hub, and every array must fit a parameter of the base by name, shape and type.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.common.arrays import U8
from privsyn_flower.text.fingerprints import file_digest
from privsyn_flower.text.models.pretrained import auto_class

Array = npt.NDArray[Any]
Parameters = Mapping[str, Array]
Shapes = Mapping[str, tuple[int, ...]]

UP, DOWN = ".up", ".down"
TYPES = (np.dtype(np.float32), np.dtype(np.float16))
_HEADER_BYTES = 1 << 10  # of a safetensors header for each parameter of the base, at most

# Options of an adapter that a product of two matrices does not express; some initialisations
# change the base's own weights.
_PLAIN = {"use_dora": False, "alpha_pattern": {}, "rank_pattern": {}, "layer_replication": None}
_INITIAL = (True, False, "gaussian", "orthogonal")


MOST_MODELS = 16  # in one question


def model_names(models: int) -> list[str]:
    """What the models of a question are called on the wire: model-a, model-b, ..."""
    return [f"model-{chr(ord('a') + number)}" for number in range(models)]


class ParametersError(ValueError):
    """Parameters do not fit the base model; the text names the array and what was expected."""


def pack_parameters(parameters: Parameters) -> U8:
    """Named float32 or float16 arrays -> the bytes of a safetensors file: (n,) uint8."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(array, order="C") for name, array in sorted(parameters.items())}
    return np.frombuffer(save(arrays), dtype=np.uint8)


def unpack_parameters(packed: Array, shapes: Shapes) -> dict[str, Array]:
    """Bytes from an untrusted side -> named arrays that fit a base of these shapes.

    Raises ParametersError. No more is read than the base's own parameters twice over.
    """
    from safetensors.numpy import load

    most = sum(2 * 4 * math.prod(shape) + _HEADER_BYTES for shape in shapes.values())
    if packed.dtype != np.uint8 or packed.ndim != 1 or not 8 <= packed.size <= most:
        raise ParametersError(
            f"{packed.dtype} {packed.shape} is no safetensors file of at most {most} bytes"
        )
    try:
        arrays: dict[str, Array] = load(packed.tobytes())
    except Exception as error:  # a hostile header can raise anything
        raise ParametersError(f"not a safetensors file ({type(error).__name__})") from None
    check_parameters(arrays, shapes)
    return arrays


def check_parameters(parameters: Parameters, shapes: Shapes) -> None:
    """Raise ParametersError unless each array fits the base by name, shape, type and is finite."""
    for name, array in parameters.items():
        if array.dtype not in TYPES:
            raise ParametersError(f"{name} has type {array.dtype}, expected float32 or float16")
        if not np.isfinite(array).all():
            raise ParametersError(f"{name} has entries that are not finite")
        target = name.removesuffix(UP).removesuffix(DOWN)
        if name in shapes:
            if array.shape != shapes[name]:
                raise ParametersError(f"{name} has shape {array.shape}, expected {shapes[name]}")
        elif name in (target + UP, target + DOWN) and target in shapes:
            _check_half(name, target, parameters, shapes[target])
        else:
            raise ParametersError(f"the base model has no parameter {target!r}")


def _check_half(name: str, target: str, parameters: Parameters, shape: tuple[int, ...]) -> None:
    """One of the two matrices whose product is added to a (rows, columns) parameter."""
    up, down = parameters.get(target + UP), parameters.get(target + DOWN)
    if up is None or down is None or target in parameters:
        raise ParametersError(f"{name} needs {target}{UP} and {target}{DOWN}, and no {target}")
    rank = up.shape[-1] if up.ndim == 2 else 0
    if len(shape) != 2 or not 1 <= rank <= min(shape):
        raise ParametersError(f"{target} of shape {shape} takes no product of rank {rank}")
    if up.shape != (shape[0], rank) or down.shape != (rank, shape[1]):
        raise ParametersError(
            f"{target}{UP} {up.shape} and {target}{DOWN} {down.shape} do not make {shape}"
        )


def base_shapes(folder: Path) -> Shapes:
    """Shapes of a language model's parameters, from its configuration alone (no weights)."""
    return _shapes(folder, file_digest(folder / "config.json"))


@functools.lru_cache(maxsize=4)
def _shapes(folder: Path, _config: str) -> Shapes:
    model = empty_model(folder)
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def empty_model(folder: Path) -> Any:
    """A folder's language model without weights, causal or encoder-decoder."""
    import torch
    import transformers

    from privsyn_flower.text.models.pretrained import auto_model, know_model

    know_model(folder)
    with torch.device("meta"):
        made = auto_model(auto_class(folder))
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        return made.from_config(config, trust_remote_code=False)


def longest_sequence(folder: Path) -> int:
    """Tokens that a model's configuration allows in one sequence; 2^31 where it names no limit."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    limits = (config.get(key) for key in ("max_position_embeddings", "n_positions"))
    return next((int(limit) for limit in limits if limit), 1 << 31)


def read_model(folder: Path, base: Path) -> dict[str, Array]:
    """How a model in `folder` differs from `base`: a PEFT LoRA adapter, or a whole causal LM.

    Both folders are the caller's own. Arrays are float32. Raises ParametersError for a kind of
    adapter that is no sum of products, or a model of another architecture.
    """
    if (folder / "adapter_config.json").is_file():
        return _read_adapter(folder)
    old, new = _named(base), _named(folder)
    if {n: a.shape for n, a in old.items()} != {n: a.shape for n, a in new.items()}:
        raise ParametersError(f"{folder} has other parameters than its base {base}")
    return {name: array for name, array in new.items() if not np.array_equal(array, old[name])}


def _named(folder: Path) -> dict[str, Array]:
    """The parameters of a language model by name, float32."""
    from privsyn_flower.text.models.pretrained import load_model

    kind, key = auto_class(folder), "models.downstream"
    model = load_model(kind, folder, key, "cpu", "float32", safetensors=True)
    return {name: value.numpy() for name, value in model.named_parameters()}


def _read_adapter(folder: Path) -> dict[str, Array]:
    from safetensors import safe_open

    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    odd = [key for key, plain in _PLAIN.items() if (config.get(key) or plain) != plain]
    odd += ["init_lora_weights"] if config.get("init_lora_weights", True) not in _INITIAL else []
    if odd or config.get("peft_type") != "LORA":
        raise ParametersError(f"{folder} is no plain LoRA adapter: {config.get('peft_type')} {odd}")
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    parameters: dict[str, Array] = {}
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
            array = file.get_tensor(key).float().numpy()
            name = key.removeprefix("base_model.model.")
            if name.endswith(".lora_B.weight"):
                parameters[name.replace(".lora_B.weight", ".weight" + UP)] = scale * array
            elif name.endswith(".lora_A.weight"):
                parameters[name.replace(".lora_A.weight", ".weight" + DOWN)] = array
            elif "lora_" in name:
                raise ParametersError(f"{folder}: {key} is not the LoRA of a linear layer")
            else:  # a layer that was trained whole
                parameters[name] = array
    return _transposed(parameters) if config.get("fan_in_fan_out") else parameters


def _transposed(parameters: dict[str, Array]) -> dict[str, Array]:
    """The products for weights stored as (inputs, outputs): (up down)' = down' up'."""
    swapped = {name: array for name, array in parameters.items() if not name.endswith((UP, DOWN))}
    for name, up in parameters.items():
        if name.endswith(UP):
            down = name.removesuffix(UP) + DOWN
            swapped[name], swapped[down] = parameters[down].T.copy(), up.T.copy()
    return swapped
