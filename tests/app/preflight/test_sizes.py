"""Sizes of models: the table agrees with the libraries, and a model's own files are read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
from safetensors.numpy import save_file

from privsyn_flower.app.preflight.sizes import NAMED, read_size, size_of
from privsyn_flower.config import RunConfig
from privsyn_flower.text.models import lstm
from privsyn_flower.text.models.parameters import base_shapes
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS


def sizes(width: int, layers: int, heads: int, inner: int, vocabulary: int) -> dict[str, int]:
    return {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": inner, "vocab_size": vocabulary,
    }  # fmt: skip


def t5(width: int, layers: int, heads: int, inner: int, head: int, **more: Any) -> t.T5Config:
    own = {"d_model": width, "num_layers": layers, "num_heads": heads, "d_ff": inner}
    return t.T5Config(vocab_size=32128, d_kv=head, **own, **more)


ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1}
LLAMA2 = t.LlamaConfig(**sizes(4096, 32, 32, 11008, 32000))
LLAMA3 = t.LlamaConfig(**sizes(4096, 32, 32, 14336, 128256), num_key_value_heads=8)
BASE = t.RobertaConfig(**sizes(768, 12, 12, 3072, 50265), **ROBERTA)
LARGE = t.RobertaConfig(**sizes(1024, 24, 16, 4096, 50265), **ROBERTA)
MINILM = t.BertConfig(**sizes(384, 6, 12, 1536, 30522))
SMALL = t.BertConfig(**sizes(512, 4, 8, 2048, 30522), is_decoder=True)
CAUSAL, MASKED = t.AutoModelForCausalLM.from_config, t.AutoModelForMaskedLM.from_config
# As the code of this project loads each, without its weights; and the row that a layer adds.
BUILT = {
    "meta-llama/Meta-Llama-3-8B": (CAUSAL, LLAMA3, 0),
    "meta-llama/Llama-2-7b-hf": (CAUSAL, LLAMA2, 0),
    "meta-llama/Llama-2-7b-chat-hf": (CAUSAL, LLAMA2, 0),
    "FacebookAI/roberta-large": (MASKED, LARGE, 0),
    "FacebookAI/roberta-base": (MASKED, BASE, 0),
    "distilbert/distilgpt2": (CAUSAL, t.GPT2Config(n_layer=6), 0),
    "openai-community/gpt2": (CAUSAL, t.GPT2Config(), 0),
    "prajjwal1/bert-small": (CAUSAL, SMALL, 0),
    "sentence-transformers/sentence-t5-xl": (
        t.T5EncoderModel, t5(1024, 24, 32, 16384, 128), 1024 * 768,
    ),
    "sentence-transformers/sentence-t5-base": (
        t.T5EncoderModel, t5(768, 12, 12, 3072, 64), 768 * 768,
    ),
    "sentence-transformers/stsb-roberta-base-v2": (t.RobertaModel, BASE, 0),
    "google/flan-t5-xl": (
        t.AutoModelForSeq2SeqLM.from_config,
        t5(2048, 24, 32, 5120, 64, feed_forward_proj="gated-gelu"), 0,
    ),
    "minilm": (t.BertModel, MINILM, 0),
    "sentence-transformers/all-MiniLM-L6-v2": (t.BertModel, MINILM, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_the_tables_counts_are_the_libraries(name: str) -> None:
    build, config, more = BUILT[name]
    with torch.device("meta"):
        model: Any = build(config)
    assert NAMED[name].parameters == sum(p.numel() for p in model.parameters()) + more
    assert NAMED[name].dimension == (768 if more else config.hidden_size)


def test_low_rank_factors_are_counted_about() -> None:
    layer = 4 * sum(
        rows + columns
        for rows, columns in [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 3
    )
    found = NAMED["meta-llama/Meta-Llama-3-8B"].adapter(4)
    assert found == pytest.approx(32 * layer, rel=0.6)


def test_shipped_models_are_read_from_their_files() -> None:
    config = RunConfig()
    for kind in ("generator", "downstream"):
        size = size_of(kind, config)
        assert size is not None and size.here and size.source == "its files"
        shapes = base_shapes(PACKAGE_ASSETS / kind)
        assert size.parameters == sum(map(math.prod, shapes.values()))
    embedder = size_of("embedder", config)
    assert embedder is not None and embedder.dimension == 384


def test_what_is_not_known_is_none(tmp_path: Path) -> None:
    models = {"generator": "somebody/unheard-of", "embedder": "ngram-64"}
    config = RunConfig.from_flat({f"models.{kind}": name for kind, name in models.items()})
    assert size_of("generator", config) is None
    ngram = size_of("embedder", config)
    assert ngram is not None and (ngram.dimension, ngram.parameters) == (64, 0)
    assert read_size(tmp_path, "empty") is None
    (tmp_path / "config.json").write_text('{"rows": 8}')
    save_file({"a": np.zeros((4, 8), np.float32)}, tmp_path / "model.safetensors")
    assert read_size(tmp_path, "strange") is None, "no width"
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    own = read_size(tmp_path, "own")
    assert own is not None and (own.parameters, own.dimension) == (32, 8)


@pytest.mark.parametrize("words", [{}, {"vocab_size": 500, "hidden_size": 12, "embedding_size": 6}])
def test_the_lstm_is_as_large_as_it_is_built(words: dict[str, int]) -> None:
    keys = {"vocab_size": "words", "hidden_size": "hidden", "embedding_size": "embedding"}
    own = {f"models.lstm-{keys[name]}": value for name, value in words.items()}
    size = size_of("downstream", RunConfig.from_flat({"models.downstream": "lstm", **own}))
    with torch.device("meta"):
        model = lstm.LstmForCausalLM(lstm.LstmConfig(**words))
    assert size is not None
    assert size.parameters == sum(value.numel() for value in model.parameters())
