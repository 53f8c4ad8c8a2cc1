"""How large a model is: from its files where they are here, else from a table of named models."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privsyn_flower.config import RunConfig
from privsyn_flower.text.embedders import (
    MINILM,
    MINILM_HUB,
    MINILM_INT8,
    MINILM_PACKAGE,
    ngram_dimension,
    shipped,
)
from privsyn_flower.text.models.pretrained import ModelUnavailableError, hub_cache, local_folder
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS, RECIPES, Recipe, embedded

LSTM = "lstm"
HEADER = struct.Struct("<Q")  # bytes of a safetensors file's header, before it


@dataclass(frozen=True)
class Shape:
    """A model's size. Counts of entries, not bytes.

    parameters: all of them. body: without embeddings of tokens and the head to them. head: of the
    matrix from a row to the vocabulary's scores, also where it is the embedding's. width: of a
    token's row between layers. inner: of the feed-forward layers. key_width: of keys, and of
    values. dimension: of an embedder's rows. source: where the numbers are from. here: the model is
    on this machine, or made by the run. encoder: the part of body before a decoder; 0: no decoder.
    """

    name: str
    parameters: int
    body: int
    head: int
    width: int
    layers: int
    heads: int
    inner: int
    key_width: int
    vocabulary: int
    dimension: int
    source: str
    here: bool = False
    encoder: int = 0

    def lora(self, rank: int) -> int:
        """Parameters of low-rank factors on all projections of all layers."""
        attention = 2 * 2 * self.width + 2 * (self.width + self.key_width)
        matrices = 2 * self.width * self.width + 2 * self.width * self.key_width
        each = self.width * self.inner
        feed = round((self.body / max(1, self.layers) - matrices) / each) if each else 0
        return rank * self.layers * (attention + max(0, feed) * (self.width + self.inner))


def _named(
    name: str, parameters: int, sizes: tuple[int, int, int, int, int, int], tables: int, **more: Any
) -> Shape:
    """sizes: width, layers, heads, inner, key width, vocabulary. tables: matrices of the
    vocabulary's size among the parameters."""
    width, layers, heads, inner, key_width, vocabulary = sizes
    head = vocabulary * width
    dimension = more.pop("dimension", width)
    source = f"the shape that {more.pop('source')} states"
    return Shape(
        name, parameters, parameters - tables * head, head, width, layers, heads, inner, key_width,
        vocabulary, dimension, source, **more,
    )  # fmt: skip


# Shapes as the models' config.json have them; parameters as the libraries build them, which the
# tests count. Where a model is here, its own files are read instead.
NAMED = {
    shape.name: shape
    for shape in (
        _named("meta-llama/Meta-Llama-3-8B", 8_030_261_248, (4096, 32, 32, 14336, 1024, 128256), 2,
               source="Grattafiori et al. 2024 (arXiv 2407.21783), Table 3,"),
        _named("meta-llama/Llama-2-7b-hf", 6_738_415_616, (4096, 32, 32, 11008, 4096, 32000), 2,
               source="Touvron et al. 2023 (arXiv 2307.09288)"),
        _named("meta-llama/Llama-2-7b-chat-hf", 6_738_415_616,
               (4096, 32, 32, 11008, 4096, 32000), 2,
               source="Touvron et al. 2023 (arXiv 2307.09288)"),
        _named("FacebookAI/roberta-large", 355_412_057, (1024, 24, 16, 4096, 1024, 50265), 1,
               source="Liu et al. 2019 (arXiv 1907.11692)"),
        _named("FacebookAI/roberta-base", 124_697_433, (768, 12, 12, 3072, 768, 50265), 1,
               source="Liu et al. 2019 (arXiv 1907.11692)"),
        _named("distilbert/distilgpt2", 81_912_576, (768, 6, 12, 3072, 768, 50257), 1,
               source="its model card (six of GPT-2's layers)"),
        _named("openai-community/gpt2", 124_439_808, (768, 12, 12, 3072, 768, 50257), 1,
               source="Radford et al. 2019 (the smallest GPT-2)"),
        _named("prajjwal1/bert-small", 28_795_194, (512, 4, 8, 2048, 512, 30522), 1,
               source="Turc et al. 2019 (arXiv 1908.08962)"),
        # The encoder of T5-3B, as its card says: 24 layers, 32 heads of 128, and a layer to 768.
        _named("sentence-transformers/sentence-t5-xl", 1_241_696_256,
               (1024, 24, 32, 16384, 4096, 32128), 1, dimension=768,
               source="Raffel et al. 2020 (arXiv 1910.10683) for T5-3B"),
        # Of T5-base; a layer from 768 to 768 follows.
        _named("sentence-transformers/sentence-t5-base", 110_218_368,
               (768, 12, 12, 3072, 768, 32128), 1,
               source="Raffel et al. 2020 (arXiv 1910.10683) for T5-base"),
        _named("sentence-transformers/stsb-roberta-base-v2", 124_645_632,
               (768, 12, 12, 3072, 768, 50265), 1,
               source="Liu et al. 2019 (arXiv 1907.11692) for RoBERTa-base"),
        # T5 1.1 with 24 layers on either side; the library ties the head to the embedding.
        _named("google/flan-t5-xl", 2_783_959_040, (2048, 24, 32, 5120, 2048, 32128), 1,
               encoder=1_157_729_280, source="config.json of T5 1.1 XL"),
        _named(MINILM, 22_713_216, (384, 6, 12, 1536, 384, 30522), 1,
               source="its model card"),
    )
}  # fmt: skip
NAMED[MINILM_HUB] = replace(NAMED[MINILM], name=MINILM_HUB)


def shape_of(kind: str, config: RunConfig) -> Shape | None:
    """The shape of `models.KIND`; None where neither its files nor the table tell it."""
    name: str = getattr(config.models, kind)
    if kind == "embedder" and (dimension := ngram_dimension(name)) is not None:
        return Shape(name, 0, 0, 0, dimension, 0, 0, 0, 0, 0, dimension, "hashed n-grams", True)
    if (kind, name) == ("downstream", LSTM):
        return _lstm(config)
    folder = model_files(kind, name, config)
    found = None if folder is None else read_shape(folder, name)
    if found is not None:
        return found
    if name == "tiny":
        return _tiny(RECIPES[kind])
    if kind == "embedder" and name == MINILM_INT8:  # the same layers, in another file
        return replace(NAMED[MINILM], name=name, here=folder is not None)
    return NAMED.get(name)


def model_files(kind: str, name: str, config: RunConfig) -> Path | None:
    """A model's folder on this machine: named, shipped, or in the hub's cache. Loads nothing."""
    if place := embedded(kind, name):
        folder = Path(config.assets or PACKAGE_ASSETS) / place
        return folder if (folder / "config.json").is_file() else None
    if kind == "embedder" and name == MINILM_INT8:
        return shipped(name)
    if kind == "embedder" and name == MINILM:
        spec = importlib.util.find_spec(MINILM_PACKAGE)
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).parent / "model"
        name = MINILM_HUB
    try:
        return local_folder(name, f"models.{kind}") or _fetched(name)
    except ModelUnavailableError:
        return None


def _fetched(name: str) -> Path | None:
    """The newest snapshot of a model in the cache of the hub."""
    snapshots = (hub_cache(name) / "snapshots").glob("*")
    found = [path for path in snapshots if (path / "config.json").is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def read_shape(folder: Path, name: str) -> Shape | None:
    """The shape of a model by config.json and the headers of its weights; None where either is
    missing or of a kind that names its sizes in another way."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        sizes = _tensors(folder)
    except (OSError, ValueError, KeyError, struct.error):
        return None
    width = _first(config, "hidden_size", "n_embd", "d_model", "dim")
    layers = _first(config, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    vocabulary = _first(config, "vocab_size")
    if not (width and layers and vocabulary and sizes):
        return None
    parameters = sum(map(math.prod, sizes.values()))
    tables = sum(shape == (vocabulary, width) for shape in sizes.values())
    heads = _first(config, "num_attention_heads", "n_head", "num_heads", "n_heads") or 1
    per_head = _first(config, "head_dim", "d_kv") or width // heads
    return Shape(
        name,
        parameters,
        parameters - tables * vocabulary * width,
        vocabulary * width,
        width,
        layers,
        heads,
        _first(config, "intermediate_size", "n_inner", "d_ff", "hidden_dim") or 4 * width,
        (_first(config, "num_key_value_heads") or heads) * per_head,
        vocabulary,
        _rows(folder) or width,
        "its files",
        True,
        _encoder(sizes),
    )


def _encoder(sizes: Mapping[str, tuple[int, ...]]) -> int:
    """Entries of the layers before a decoder's; 0 where there is none."""
    if not any(name.startswith("decoder.") for name in sizes):
        return 0
    return sum(
        math.prod(shape)
        for name, shape in sizes.items()
        if name.startswith("encoder.") and "embed_tokens" not in name
    )


def _first(config: Mapping[str, Any], *keys: str) -> int:
    return next((int(config[key]) for key in keys if config.get(key)), 0)


def _rows(folder: Path) -> int:
    """Entries of a row of a sentence-transformers folder; 0 where its files do not say."""
    for path, key in (("2_Dense", "out_features"), ("1_Pooling", "word_embedding_dimension")):
        file = folder / path / "config.json"
        if file.is_file():
            return int(json.loads(file.read_text("utf-8")).get(key, 0))
    return 0


def _tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all floating-point tensors in a folder, by the headers of its safetensors files."""
    found = dict[str, tuple[int, ...]]()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = HEADER.unpack(file.read(HEADER.size))
            header = json.loads(file.read(min(length, path.stat().st_size)))
        found |= {
            name: tuple(tensor["shape"])
            for name, tensor in header.items()
            if name != "__metadata__" and tensor["dtype"].startswith(("F", "BF"))
        }
    return found


def _tiny(recipe: Recipe) -> Shape:
    """A tiny model that a run trains: a Llama of the recipe's width (`text.tiny.training`)."""
    inner = 8 * recipe.width // 3
    body = recipe.layers * (4 * recipe.width**2 + 3 * recipe.width * inner)
    table = recipe.vocabulary * recipe.width
    return Shape(
        "tiny", body + table, body, table, recipe.width, recipe.layers, recipe.heads, inner,
        recipe.width, recipe.vocabulary, recipe.width, "text/tiny/assets.py, about", True,
    )  # fmt: skip


def _lstm(config: RunConfig) -> Shape:
    """The keyboard's LSTM at its largest vocabulary, with coupled gates (Wu et al. 2024, section
    4). Its row of a step is that of the gates."""
    models = config.models
    words, width, cells = models.lstm_words, models.lstm_embedding, models.lstm_hidden
    gates = 3 * cells
    body = 2 * width * gates + gates + cells * width
    return Shape(
        LSTM, body + 2 * words * width + words, body, words * width, gates, 1, 0, 0, 0, words,
        width,        "text/models/lstm.py, at most", True,
    )  # fmt: skip
