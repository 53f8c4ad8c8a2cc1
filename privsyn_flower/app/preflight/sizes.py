"""How large a model is: by its files where they are here, else by a table of named models."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from privsyn_flower.common.python_path import asset
from privsyn_flower.config import RunConfig, cache_folder
from privsyn_flower.text.embedders import (
    MINILM,
    MINILM_HUB,
    MINILM_INT8,
    minilm_package,
    ngram_dimension,
    shipped,
)
from privsyn_flower.text.models.gguf import imported, package_file, packaged
from privsyn_flower.text.models.pretrained import (
    ModelUnavailableError,
    count_parameters,
    hub_snapshot,
    local_folder,
)
from privsyn_flower.text.tiny.assets import RECIPES, embedded

LSTM = "lstm"
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")  # keys of config.json
ROWS = (("2_Dense", "out_features"), ("1_Pooling", "word_embedding_dimension"))


@dataclass(frozen=True)
class Size:
    """parameters: entries, not bytes. dimension: of an embedder's rows, or of a token's row.
    source: where the numbers are from. here: on this machine, or trained by the run."""

    name: str
    parameters: int
    dimension: int
    source: str
    here: bool = False

    def adapter(self, rank: int) -> int:
        """Parameters of low-rank factors on all its matrices, about: of a square one
        `rank * 2 * dimension`, in the place of `dimension^2`."""
        return 2 * rank * self.parameters // max(1, self.dimension)


# Parameters as the libraries build them, which the tests count; the shapes are those that the
# papers and model cards state. Where a model is here, its own files are read instead.
NAMED = {
    name: Size(name, parameters, dimension, f"as {source} states it")
    for name, parameters, dimension, source in (
        ("meta-llama/Meta-Llama-3-8B", 8_030_261_248, 4096,
         "Grattafiori et al. 2024 (arXiv 2407.21783), Table 3,"),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616, 4096,
         "Touvron et al. 2023 (arXiv 2307.09288)"),
        ("meta-llama/Llama-2-7b-chat-hf", 6_738_415_616, 4096,
         "Touvron et al. 2023 (arXiv 2307.09288)"),
        ("FacebookAI/roberta-large", 355_412_057, 1024, "Liu et al. 2019 (arXiv 1907.11692)"),
        ("FacebookAI/roberta-base", 124_697_433, 768, "Liu et al. 2019 (arXiv 1907.11692)"),
        ("distilbert/distilgpt2", 81_912_576, 768, "its model card (six of GPT-2's layers)"),
        ("openai-community/gpt2", 124_439_808, 768, "Radford et al. 2019 (the smallest GPT-2)"),
        ("prajjwal1/bert-small", 28_795_194, 512, "Turc et al. 2019 (arXiv 1908.08962)"),
        # Encoders of T5 1.0, and a layer from their width to 768.
        ("sentence-transformers/sentence-t5-xl", 1_241_696_256, 768,
         "Raffel et al. 2020 (arXiv 1910.10683) for T5-3B"),
        ("sentence-transformers/sentence-t5-base", 110_218_368, 768,
         "Raffel et al. 2020 (arXiv 1910.10683) for T5-base"),
        ("sentence-transformers/stsb-roberta-base-v2", 124_645_632, 768,
         "Liu et al. 2019 (arXiv 1907.11692) for RoBERTa-base"),
        ("google/flan-t5-xl", 2_783_959_040, 2048, "config.json of T5 1.1 XL"),
        (MINILM, 22_713_216, 384, "its model card"),
        (MINILM_HUB, 22_713_216, 384, "its model card"),
    )
}  # fmt: skip


def size_of(kind: str, config: RunConfig) -> Size | None:
    """The size of `models.KIND`; None where neither its files nor the table tell it."""
    name: str = getattr(config.models, kind)
    if kind == "embedder" and (dimension := ngram_dimension(name)) is not None:
        return Size(name, 0, dimension, "hashed n-grams", True)
    if (kind, name) == ("downstream", LSTM):
        return _lstm(config)
    folder = model_files(kind, name, config)
    found = None if folder is None else read_size(folder, name)
    if found is None and (model := packaged(kind, name)) is not None:
        here = package_file(model) is not None
        return Size(name, model.parameters, model.width, f"the package {model.package}", here)
    if found is None and name == "tiny":
        return _tiny(kind)
    if found is None and kind == "embedder" and name == MINILM_INT8:  # the same layers
        return replace(NAMED[MINILM], name=name, here=folder is not None)
    return found or NAMED.get(name)


def model_files(kind: str, name: str, config: RunConfig) -> Path | None:
    """A model's folder on this machine: named, shipped, or in the hub's cache. Loads nothing."""
    if place := embedded(kind, name):
        named = Path(config.assets) / place / "config.json" if config.assets else None
        file = named or asset(f"{place}/config.json")
        return file.parent if file and file.is_file() else None
    if (model := packaged(kind, name)) is not None:
        return imported(model, cache_folder(config))
    if kind == "embedder" and name == MINILM_INT8:
        return shipped(name)
    if kind == "embedder" and name == MINILM:
        if (folder := minilm_package()) is not None:
            return folder
        name = MINILM_HUB
    try:
        return local_folder(name, f"models.{kind}") or hub_snapshot(name)
    except ModelUnavailableError:
        return None


def read_size(folder: Path, name: str) -> Size | None:
    """The size of a model by config.json and the headers of its weights; None where either is
    missing or names its width in another way."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        parameters = count_parameters(folder)
        width = next((int(config[key]) for key in WIDTHS if config.get(key)), 0)
        dimension = _row(folder) or width
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None
    return Size(name, parameters, dimension, "its files", True) if parameters and width else None


def _row(folder: Path) -> int:
    """Entries of a row of a sentence-transformers folder; 0 where its files do not say."""
    for path, key in ROWS:
        file = folder / path / "config.json"
        if file.is_file():
            return int(json.loads(file.read_text("utf-8")).get(key, 0))
    return 0


def _tiny(kind: str) -> Size:
    """A tiny model that a run trains: a Llama of the recipe's width (`text.tiny.training`)."""
    recipe = RECIPES[kind]
    layer = 4 * recipe.width**2 + 3 * recipe.width * (8 * recipe.width // 3)
    parameters = recipe.layers * layer + recipe.vocabulary * recipe.width
    return Size("tiny", parameters, recipe.width, "text/tiny/assets.py, about", True)


def _lstm(config: RunConfig) -> Size:
    """The keyboard's LSTM at its largest vocabulary, with coupled gates (Wu et al. 2024, section
    4)."""
    models = config.models
    words, width, cells = models.lstm_words, models.lstm_embedding, models.lstm_hidden
    gates = 3 * cells
    body = 2 * width * gates + gates + cells * width
    parameters = body + 2 * words * width + words
    return Size(LSTM, parameters, width, "text/models/lstm.py, at most", True)
