"""Llamas of published sizes with random weights, and a tokenizer that makes their text countable.

Speed needs no trained weights. The vocabulary is made-up words, one token each, so a text of n
words is n tokens, however it came about.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.text.models.devices import empty_cache
from privsyn_flower.text.prompts import expand_prompt

# Sizes as in the models' published configurations.
LLAMA = {"vocab_size": 128256, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 2048, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    },
    "llama-3.2-1b": LLAMA | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "llama-3-8b": LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    },
}  # fmt: skip
FRAME = 50  # tokens at most that are no made-up word
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")
SYLLABLES = [a + b for a in "bdfghjklmnprstvz" for b in "aeiou"]


def made_up(number: int) -> str:
    """A word of its own for every number."""
    word = ""
    for _ in range(3):
        number, place = divmod(number, len(SYLLABLES))
        word += SYLLABLES[place]
    return word


def make_tokenizer(size: int, folder: Path) -> None:
    """`size` tokens: special ones, the words around a prompt's examples, made-up words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    frame = expand_prompt(["", "", ""]).split()
    words = [*SPECIAL, *dict.fromkeys(frame)]
    words += [made_up(number) for number in range(size - len(words))]
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        unk_token="<unk>",
    ).save_pretrained(folder)  # fmt: skip


def make_model(shape: str, folder: Path, device: str) -> None:
    """A Llama of this shape with random weights in `folder`, unless it is there."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    if (folder / "config.json").is_file():
        return
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(**SHAPES[shape], **ends), dtype=torch.bfloat16
        )
    model.save_pretrained(scratch, max_shard_size="4GB")
    make_tokenizer(SHAPES[shape]["vocab_size"], scratch)
    scratch.rename(folder)
    del model
    empty_cache(device)


def parameters(shape: str) -> int:
    """How many numbers a model of this shape has."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPES[shape]))
    return sum(weights.numel() for weights in model.parameters())


def random_texts(shape: str, count: int, words: int, rng: np.random.Generator) -> list[str]:
    """`count` texts of so many words, each word a token."""
    drawn = rng.integers(SHAPES[shape]["vocab_size"] - FRAME, size=(count, words)).tolist()
    return [" ".join(map(made_up, row)) for row in drawn]
