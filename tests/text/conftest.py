"""Small random Hugging Face models in ordinary folders; nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SENTENCES = [
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "Return the mean of the array along the given axis, ignoring missing values.",
    "We are looking for a senior engineer who enjoys working with small teams.",
    "Original Text Sample 1\nA short text about tea.\nOriginal Text Sample 2\nAnother one.",
    "List of 6 diverse original text samples:",
    "Numbers such as 3.14 and words such as café don't trouble the tokenizer.",
]


def in_one_thread() -> Iterator[None]:
    """Models this small lose far more to waiting threads than they gain."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


one_thread = pytest.fixture(autouse=True, scope="package", name="one_thread")(in_one_thread)


def make_tokenizer(folder: Path, *, masked: bool, vocabulary: int = 600) -> Any:
    """A byte-level BPE tokenizer trained on SENTENCES, with RoBERTa's or Llama's specials."""
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if masked else ["<s>", "</s>"]
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        SENTENCES, vocab_size=vocabulary, min_frequency=1, special_tokens=specials,
        show_progress=False,
    )  # fmt: skip
    bpe._tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>" if masked else "<s> $A",
        special_tokens=[(token, bpe.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    if masked:
        names |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, **names)
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_random(kind: Any, config: Any, folder: Path) -> Path:
    """A model of random weights, the same each time."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def masked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer RoBERTa with random weights and 8 more vocabulary rows than tokens."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    folder = tmp_path_factory.mktemp("masked")
    tokenizer = make_tokenizer(folder, masked=True)
    config = RobertaConfig(
        vocab_size=len(tokenizer) + 8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=100, pad_token_id=1, bos_token_id=0,
        eos_token_id=2,
    )  # fmt: skip
    return save_random(RobertaForMaskedLM, config, folder)


@pytest.fixture(scope="session")
def causal_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("causal")
    tokenizer = make_tokenizer(folder, masked=False)
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=64, max_position_embeddings=200,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return save_random(LlamaForCausalLM, config, folder)
