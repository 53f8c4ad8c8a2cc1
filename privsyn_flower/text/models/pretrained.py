"""Hugging Face models and tokenizers from a folder or the hub, with errors that say what to do."""

from __future__ import annotations

import importlib
import json
import math
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import UnavailableError, cache_home
from privsyn_flower.common.units import VERSION

CAUSAL, SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
CLASSIFIER = "AutoModelForSequenceClassification"
GENERATION, LOSSES = "transformers.generation.candidate_generator", "transformers.loss.loss_utils"
HIDDEN = ("is_sklearn_available", "is_scipy_available")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # and with .index.json, where they are parts

HEADER = struct.Struct("<Q")  # bytes of a safetensors file's header, before it


class ModelUnavailableError(UnavailableError):
    """A model can neither be read from disk nor fetched; the text names the ways out."""


def local_folder(name: str | os.PathLike[str], key: str) -> Path | None:
    """The folder that `name` points to, or None when it can only be a hub name.

    Raises ModelUnavailableError for what is written as a path but is no folder; `key` is the
    configuration key named in the message.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    if text.startswith(("/", ".", "~", "\\")) or text.count("/") > 1 or path.is_file():
        raise ModelUnavailableError(f"{key} = {text!r}: no such model folder")
    return None


def hub_cache(name: str, kind: str = "models") -> Path:
    """The folder of a model or data set in the cache of the hub, whether it is there or not."""
    home = os.environ.get("HF_HOME") or cache_home() / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    return cache / f"{kind}--{name.replace('/', '--')}"


def hub_snapshot(name: str) -> Path | None:
    """The newest snapshot of a model in the cache of the hub; None where there is none."""
    snapshots = (hub_cache(name) / "snapshots").glob("*")
    found = [path for path in snapshots if (path / "config.json").is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def count_parameters(folder: Path) -> int:
    """Floating-point entries in a folder's safetensors files, by their headers; 0 without any.

    Raises OSError, ValueError, KeyError and struct.error for damaged ones.
    """
    return sum(map(_entries, folder.glob("*.safetensors")))


def _entries(path: Path) -> int:
    with path.open("rb") as file:
        (length,) = HEADER.unpack(file.read(HEADER.size))
        header: dict[str, Any] = json.loads(file.read(min(length, path.stat().st_size)))
    header.pop("__metadata__", None)
    tensors = [one for one in header.values() if one["dtype"].startswith(("F", "BF"))]
    return sum(math.prod(one["shape"]) for one in tensors)


def know_model(source: str | os.PathLike[str]) -> None:
    """Make our own architecture known to the Auto classes where a folder is of it."""
    if _word_model(source) is not None:
        import privsyn_flower.text.models.lstm  # noqa: F401 - registers itself


def _word_model(source: str | os.PathLike[str]) -> dict[str, Any] | None:
    """config.json of a folder of our own architecture; None of another."""
    try:
        config = json.loads((Path(source) / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    ours = isinstance(config, dict) and config.get("model_type") == "privsyn-lstm"
    return config if ours else None


def _units(source: str, key: str) -> int:
    """The version of the units that a model's words are; 0 of a model without. The node's and the
    server's agree, because config.json is in the model's fingerprint."""
    version = (_word_model(source) or {}).get("units", 0)
    if version in (0, VERSION):
        return int(version)
    raise ModelUnavailableError(
        f"{key} = {source!r} reads text that is cut by version {version!r} of the units, this "
        f"installation cuts by version {VERSION}: install the version that made the model, or make "
        "it anew"
    )


def load_tokenizer(name: str | os.PathLike[str], key: str) -> Any:
    """The model's tokenizer; text that spells a special token stays ordinary text."""
    from transformers import AutoTokenizer

    source = str(local_folder(name, key) or name)
    units = _units(source, key)
    try:
        # Documentation is full of literal "<mask>" and "[SEP]": without this they would turn
        # into control tokens of the model.
        found = AutoTokenizer.from_pretrained(
            source, split_special_tokens=True, trust_remote_code=False
        )
    except Exception as error:  # the hub client raises errors of several libraries
        raise _unavailable(source, key, error) from error
    found.units = units
    return found


def model_config(name: str | os.PathLike[str], key: str) -> Any:
    """The configuration of a model, without its weights. Raises ModelUnavailableError."""
    import transformers

    source = str(local_folder(name, key) or name)
    know_model(source)
    try:
        # A model may bring code of its own: that is never run, and nobody is asked about it.
        return transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # the hub client raises errors of several libraries
        raise _unavailable(source, key, error) from error


def encodes(folder: Path) -> bool:
    """Whether a folder's model is an encoder-decoder, from its configuration alone."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return bool(config.get("is_encoder_decoder", False))


def auto_class(folder: Path) -> str:
    """The name of the auto class that loads a folder's language model or classifier."""
    if classes_in(folder):
        return CLASSIFIER
    return SEQ2SEQ if encodes(folder) else CAUSAL


def classes_in(folder: Path) -> tuple[str, ...]:
    """The classes of a folder's text classifier, from its configuration; () of a language model."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if not str((config.get("architectures") or [""])[0]).endswith("ForSequenceClassification"):
        return ()
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # left out by transformers
    return tuple(str(names[key]) for key in sorted(names, key=int))


def check_weights(name: str | os.PathLike[str], key: str) -> None:
    """Raise ModelUnavailableError for a model without weights; of the hub, a first file of them is
    fetched."""
    from transformers.utils import cached_file

    source, problem = str(local_folder(name, key) or name), OSError("no weights")
    for file in (*WEIGHTS, *(f"{file}.index.json" for file in WEIGHTS)):
        try:
            if cached_file(source, file) is not None:
                return
        except OSError as error:
            problem = error
    raise _unavailable(source, key, problem)


def check_model(name: str | os.PathLike[str], key: str) -> None:
    """Raise ModelUnavailableError unless a model with its tokenizer is here, or was fetched just
    now; nothing is loaded."""
    model_config(name, key)
    load_tokenizer(name, key)
    check_weights(name, key)


def auto_model(kind: str) -> Any:
    """transformers' class of this name, imported without scikit-learn and scipy.

    Where they are installed transformers imports them, with pandas: more than a second of a
    processor and 100 MB in every process, for a way of drafting tokens, and losses of models that
    find objects in pictures, which are not used here.
    """
    import transformers
    from transformers import utils

    if GENERATION not in sys.modules:
        available = {name: getattr(utils, name) for name in HIDDEN}
        try:
            for name in HIDDEN:
                setattr(utils, name, lambda: False)
            for module in (GENERATION, LOSSES):
                importlib.import_module(module)
        finally:
            for name, function in available.items():
                setattr(utils, name, function)
    return getattr(transformers, kind)


def load_model(
    kind: str,
    name: str | os.PathLike[str],
    key: str,
    device: str,
    dtype: str,
    *,
    safetensors: bool = False,
) -> Any:
    """A model for inference on `device`; `kind` is the auto class, AutoModelForMaskedLM for one.

    dtype: `auto` (bfloat16 on CUDA, and of weights kept so on a CPU that multiplies them; else
    float32) or a torch dtype's name. safetensors: weights of no other format are read. Raises
    ModelUnavailableError, also for an encoder-decoder as a causal model: its decoder alone, with
    random weights where it looked at the encoder, would pass for one.
    """
    import torch

    from privsyn_flower.text.models.devices import multiplies_bfloat16
    from privsyn_flower.text.models.libraries import without_bars

    source = str(local_folder(name, key) or name)
    config = model_config(name, key)
    if kind == CAUSAL and getattr(config, "is_encoder_decoder", False):
        raise ModelUnavailableError(only_decoder(source, key))
    short = getattr(config, "dtype", None) is torch.bfloat16 and multiplies_bfloat16(device)
    fast = device.startswith("cuda") or short
    wanted = ("bfloat16" if fast else "float32") if dtype == "auto" else dtype
    try:
        if kind == CAUSAL and getattr(config, "is_decoder", None) is False:
            config.is_decoder = True  # else BERT and its like read the token they are to predict
        with without_bars():
            model = auto_model(kind).from_pretrained(
                source, config=config, dtype=getattr(torch, wanted), trust_remote_code=False,
                use_safetensors=True if safetensors else None,
            )  # fmt: skip
    except Exception as error:
        raise _unavailable(source, key, error) from error
    return model.eval().requires_grad_(False).to(device)


def only_decoder(name: str, key: str) -> str:
    """What is wrong with an encoder-decoder (BART, T5) where a causal model is asked for."""
    return (
        f"{key} = {name!r} is an encoder-decoder, and what loads there is a causal language model: "
        "name one (as GPT-2 is). Both parts of it are used as models.conditional (method = "
        "'ctcl'), and as models.generator of method = 'dp-prompt'"
    )


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Ids -> text as it was written (" ." stays " ."), without special tokens.

    Sampled bytes need not end on a character: the halves, which would print as U+FFFD, go.
    """
    text: str = tokenizer.decode(
        list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text.replace("\N{REPLACEMENT CHARACTER}", "")


def _unavailable(source: str, key: str, error: Exception) -> ModelUnavailableError:
    reason = str(error).strip().splitlines()
    return ModelUnavailableError(
        f"{key} = {source!r} could not be loaded ({type(error).__name__}: "
        f"{reason[0] if reason else 'no message'}). Without a connection to the model hub, set "
        f"{key} to a local model folder or to 'tiny'."
    )


OWN = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model")
READING = ("added_tokens", "normalizer", "pre_tokenizer", "model")  # what makes ids of a text


def same_tokens(folder: Path, base: Path) -> bool:
    """Whether the models in two folders have the same tokenizer; an adapter without one has its
    base's. Raises ModelUnavailableError."""
    if folder == base or not any((folder / name).is_file() for name in OWN):
        return True
    own, other = (load_tokenizer(path, "models.downstream") for path in (folder, base))
    return bool(_reading(own) == _reading(other))


def _reading(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.get_vocab()
    told = json.loads(backend.to_str())
    return {key: told.get(key) for key in READING}
