"""What several tests share about conditional."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.text.conftest import make_tokenizer

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bart_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BART of two layers with random weights."""
    import transformers

    folder = tmp_path_factory.mktemp("bart")
    tokenizer = make_tokenizer(folder, masked=True)
    config = transformers.BartConfig(
        vocab_size=len(tokenizer) + 3, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_position_embeddings=120, bos_token_id=0, pad_token_id=1,
        eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BartForConditionalGeneration(config)
        for parameter in model.parameters():  # else a new BART says the same of every source
            parameter.data.mul_(4)
        model.save_pretrained(folder)
    return folder
