"""LoRA adapters on disk: two files, tied to the base model they were trained on.

`adapter_model.safetensors` and `adapter_config.json` as PEFT and vLLM read them. The base is named
by its hub name and commit, or by its folder's name and fingerprint in the same two fields, so
that nothing tells where the folder was and an adapter is refused on another base.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import share
from privsyn_flower.common.randomness import untouched_randomness
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.pretrained import (
    CAUSAL,
    auto_model,
    check_weights,
    local_folder,
    model_config,
)

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


class AdapterError(ValueError):
    """An adapter folder is missing, damaged or of another base; the text names it."""


@dataclass(frozen=True)
class Base:
    """A base model: hub name and commit ("" when unknown), or folder name and fingerprint.

    key: of the configuration that names it, for errors.
    """

    name: str
    revision: str
    key: str = "models.generator"


def base_of(model: str | os.PathLike[str], config: Any, key: str) -> Base:
    """The identity of the base `model` (folder or hub name).

    config: the model's as it was loaded, which tells a hub's commit; None: it is not known.
    """
    folder = local_folder(model, key)
    if folder is None:
        return Base(os.fspath(model), str(getattr(config, "_commit_hash", None) or ""), key)
    return Base(folder.resolve().name, folder_fingerprint(folder), key)


def lora(rank: int, alpha: float) -> Any:
    """PEFT's configuration of an adapter on all projections of a causal LM, without dropout.

    POPri, appendix B; PrE-Text, section 4.2.
    """
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def save_adapter(model: Any, target: Path, base: Base) -> None:
    """Write the active adapter of a PeftModel into `target`, all or nothing; replaces an old one.

    The same weights give the same bytes.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        model.save_pretrained(scratch, save_embedding_layers=False)
        config = json.loads((scratch / CONFIG).read_text("utf-8"))
        config |= {"base_model_name_or_path": base.name, "revision": base.revision or None}
        config["target_modules"] = sorted(config["target_modules"])  # PEFT writes a set
        (scratch / CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", "utf-8")
        for path in scratch.iterdir():
            if path.name not in {WEIGHTS, CONFIG}:
                path.unlink()  # a model card
        share(scratch)
        if target.exists():
            shutil.rmtree(target)
        scratch.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def save_untrained(
    model: str | os.PathLike[str], key: str, target: Path, *, rank: int, alpha: float
) -> None:
    """Write the adapter of a training run of no steps, which changes nothing, into `target`.

    The base is laid out without its weights, which have to be there all the same. Raises
    ModelUnavailableError, and ValueError for a model that takes no adapters.
    """
    import torch
    from peft import get_peft_model

    config = model_config(model, key)
    check_weights(model, key)
    with untouched_randomness(), torch.device("meta"):
        base = auto_model(CAUSAL).from_config(config, trust_remote_code=False)
        peft = get_peft_model(base, lora(rank, alpha))
    for module in peft.modules():
        for name, weights in list(module.named_parameters(recurse=False)):
            if weights.requires_grad:  # the adapter's: an added pair of which one matrix is 0
                setattr(module, name, torch.nn.Parameter(torch.zeros(weights.shape)))
    save_adapter(peft, target, base_of(model, config, key))


def check_adapter(folder: Path, base: Base) -> dict[str, Any]:
    """The configuration of the adapter in `folder`; AdapterError unless it fits `base`."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{folder} is no adapter: {CONFIG} cannot be read") from error
    if not (folder / WEIGHTS).is_file():
        raise AdapterError(f"{folder} is no adapter: {WEIGHTS} is missing")
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{folder}: peft_type is {config.get('peft_type')!r}, not 'LORA'")
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    same = revision == base.revision if revision and base.revision else name == base.name
    if not same:
        raise AdapterError(
            f"{folder} is an adapter of the base {name!r} (revision {revision or 'unknown'}), "
            f"and {base.key} is {base.name!r} (revision {base.revision or 'unknown'}): use "
            "the model that the adapter was trained on"
        )
    return config


def _check_layers(folder: Path, base: Base) -> None:
    """Raises AdapterError for whole layers beside the adapter's own, which would replace the
    base's: PEFT saves the embeddings so when the vocabulary was resized."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / WEIGHTS, "np") as weights:
            whole = [name for name in weights.keys() if "lora_" not in name]  # noqa: SIM118
            shape = tuple(weights.get_slice(whole[0]).get_shape()) if whole else ()
    except (OSError, SafetensorError) as error:
        raise _unfit(folder, base, error) from error
    if whole:
        raise AdapterError(
            f"{folder} holds whole layers beside its LoRA matrices ({whole[0]} of shape {shape}), "
            f"as after a resized vocabulary; they would replace those of {base.key} = "
            f"{base.name!r}: merge it into its model and name that as {base.key}, or train an "
            "adapter without them"
        )


def attach(model: Any, folder: Path, base: Base) -> Any:
    """Put the adapter's layers into `model` for generation -> the PeftModel around it.

    The weights take the base's number format. `detach` gives the base back, bit for bit; after
    an AdapterError the model is as it was.
    """
    from peft import PeftConfig, PeftModelForCausalLM

    check_adapter(folder, base)
    config = PeftConfig.from_pretrained(str(folder))
    config.inference_mode = True
    try:
        peft: Any = PeftModelForCausalLM(model, config, autocast_adapter_dtype=False)
    except Exception as error:  # PEFT has several for layers that the base lacks
        raise _unfit(folder, base, error) from error
    try:
        load_weights(peft, folder, base)
    except AdapterError:
        detach(peft)
        raise
    return peft.eval()


def load_weights(peft: Any, folder: Path, base: Base) -> None:
    """Overwrite the active adapter of a PeftModel; AdapterError unless every layer fits."""
    from peft.utils import load_peft_weights, set_peft_model_state_dict

    _check_layers(folder, base)
    try:
        weights = load_peft_weights(str(folder), device=str(peft.device))
        loaded = set_peft_model_state_dict(peft, weights)
    except Exception as error:  # safetensors, torch and PEFT each have their own
        raise _unfit(folder, base, error) from error
    odd = [name for name in loaded.missing_keys if "lora_" in name] + loaded.unexpected_keys
    if odd:
        raise _unfit(folder, base, f"its layers differ in {odd[0]}")


def _unfit(folder: Path, base: Base, why: object) -> AdapterError:
    return AdapterError(
        f"{folder}: the adapter cannot be loaded into {base.key} = {base.name!r}: {why}"
    )


def detach(peft: Any) -> Any:
    """Take the adapter's layers out again -> the base model, as it was before `attach`."""
    model = peft.unload()
    if hasattr(model, "peft_config"):
        del model.peft_config
    return model
