"""Sizes of models: the table agrees with the libraries, and a model's own files are read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as t
from safetensors.numpy import save_file

from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.estimates.shapes import NAMED, Shape, read_shape, shape_of
from privsyn_flower.server_apps.methods import stages
from privsyn_flower.text.models import lstm
from privsyn_flower.text.models.parameters import base_shapes
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS


def llama(shape: Shape) -> t.PreTrainedModel:
    return t.AutoModelForCausalLM.from_config(
        t.LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_width * shape.heads // shape.width,
            intermediate_size=shape.inner,
        )
    )


def bert(kind: type, shape: Shape, **more: object) -> object:
    return kind(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        **more,
    )


def t5(shape: Shape, **more: str) -> t.T5Config:
    return t.T5Config(
        vocab_size=shape.vocabulary,
        d_model=shape.width,
        d_ff=shape.inner,
        num_layers=shape.layers,
        num_heads=shape.heads,
        d_kv=shape.key_width // shape.heads,
        **more,
    )


def built(name: str, shape: Shape) -> int:
    """Parameters of the model as the code of this project would load it, without its weights."""
    roberta = {"max_position_embeddings": 514, "type_vocab_size": 1}
    with torch.device("meta"):
        if "lama" in name:
            model = llama(shape)
        elif "stsb-roberta" in name:
            model = t.RobertaModel(bert(t.RobertaConfig, shape, **roberta))
        elif "roberta" in name:
            model = t.AutoModelForMaskedLM.from_config(bert(t.RobertaConfig, shape, **roberta))
        elif "gpt2" in name:
            config = t.GPT2Config(n_layer=shape.layers, n_embd=shape.width, n_head=shape.heads)
            model = t.AutoModelForCausalLM.from_config(config)
        elif "bert-small" in name:
            model = t.AutoModelForCausalLM.from_config(bert(t.BertConfig, shape, is_decoder=True))
        elif "flan" in name:
            model = t.AutoModelForSeq2SeqLM.from_config(t5(shape, feed_forward_proj="gated-gelu"))
            layers = model.encoder.named_parameters()
            own = sum(value.numel() for name, value in layers if "embed_tokens" not in name)
            assert shape.encoder == own
        elif "t5" in name:
            encoder = t.T5EncoderModel(t5(shape))
            return encoder.num_parameters() + shape.width * shape.dimension
        else:
            model = t.BertModel(bert(t.BertConfig, shape))
    return sum(value.numel() for value in model.parameters())


@pytest.mark.parametrize("name", NAMED)
def test_the_tables_counts_are_the_libraries(name: str) -> None:
    shape = NAMED[name]
    assert built(name, shape) == shape.parameters
    assert shape.head == shape.vocabulary * shape.width and 0 < shape.body < shape.parameters


def test_low_rank_factors_are_counted() -> None:
    shape = NAMED["meta-llama/Meta-Llama-3-8B"]
    rank, layer = 4, 0
    for rows, columns in [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 3:
        layer += rank * (rows + columns)
    assert shape.lora(rank) == 32 * layer


def test_shipped_models_are_read_from_their_files() -> None:
    config = RunConfig()
    for kind in ("generator", "downstream"):
        shape = shape_of(kind, config)
        assert shape is not None and shape.here and shape.source == "its files"
        sizes = base_shapes(PACKAGE_ASSETS / kind)
        assert shape.parameters == sum(map(math.prod, sizes.values()))
    embedder = shape_of("embedder", config)
    assert embedder is not None and embedder.dimension == 384


def test_what_is_not_known_is_none(tmp_path: Path) -> None:
    models = {"generator": "somebody/unheard-of", "embedder": "ngram-64", "downstream": "lstm"}
    config = RunConfig.from_flat({f"models.{kind}": name for kind, name in models.items()})
    assert shape_of("generator", config) is None
    ngram, words = shape_of("embedder", config), shape_of("downstream", config)
    assert ngram is not None and (ngram.dimension, ngram.parameters) == (64, 0)
    with torch.device("meta"):
        model = lstm.LstmForCausalLM(lstm.LstmConfig())
    assert words is not None
    assert words.parameters == sum(value.numel() for value in model.parameters())
    small = {"models.lstm-words": 500, "models.lstm-hidden": 12, "models.lstm-embedding": 6}
    words = shape_of("downstream", RunConfig.from_flat({"models.downstream": "lstm", **small}))
    with torch.device("meta"):
        model = lstm.LstmForCausalLM(
            lstm.LstmConfig(vocab_size=500, hidden_size=12, embedding_size=6)
        )
    assert words is not None
    assert words.parameters == sum(value.numel() for value in model.parameters())
    assert read_shape(tmp_path, "empty") is None
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    save_file({"a": np.zeros((4, 8), np.float32)}, tmp_path / "model.safetensors")
    assert read_shape(tmp_path, "strange") is None, "no layers, no vocabulary"
    (tmp_path / "config.json").write_text(
        '{"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 4, "num_attention_heads": 2}'
    )
    own = read_shape(tmp_path, "own")
    assert own is not None and (own.parameters, own.body, own.key_width) == (32, 0, 8)


def test_the_lstms_training_is_that_of_its_file() -> None:
    assert (stages.LSTM_STEPS, stages.LSTM_LONGEST) == (lstm.STEPS, lstm.LONGEST)
