"""Encoder-decoder models (BART, T5): which folders hold one, and the loss of its pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privsyn_flower.text.models.batches import IGNORED, pad_rows
from privsyn_flower.text.models.pretrained import CAUSAL

if TYPE_CHECKING:
    import torch

SEQ2SEQ = "AutoModelForSeq2SeqLM"


def encodes(folder: Path) -> bool:
    """Whether a folder's model is an encoder-decoder, from its configuration alone."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return bool(config.get("is_encoder_decoder", False))


def auto_class(folder: Path) -> str:
    """The name of the auto class that loads a folder's language model."""
    return SEQ2SEQ if encodes(folder) else CAUSAL


def decoder_start(tokenizer: Any, config: Any) -> int:
    """The token that the decoder starts from: the tokenizer's first of a text where it has one, as
    in CTCL's released code, else the model's own. Raises ValueError for a model without one."""
    for token in (tokenizer.bos_token_id, config.decoder_start_token_id):
        if token is not None:
            return int(token)
    raise ValueError(f"{config.name_or_path!r} names no decoder_start_token_id")


def decoded(
    model: Any,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    first: int,
    least: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (n, l, v) of the targets' tokens, and these as labels (n, l), IGNORED in padding.

    The encoder reads the sources, padded to `least` tokens; the decoder `first` and the target's
    tokens but the last.
    """
    device = model.device
    ids, mask = (part.to(device) for part in pad_rows(sources, 0, least))
    wanted, there = (part.to(device) for part in pad_rows(targets, 0))
    read, _ = pad_rows([[first, *target[:-1]] for target in targets], 0)
    logits = model(
        input_ids=ids, attention_mask=mask, decoder_input_ids=read.to(device), use_cache=False
    ).logits
    return logits, wanted.masked_fill(there == 0, IGNORED)


def seq2seq_loss(
    model: Any, rows: Sequence[tuple[Sequence[int], int]], first: int, least: int = 0
) -> torch.Tensor:
    """Mean cross-entropy in nats over the targets' tokens. rows: ids, and how many of them are the
    source's. least: tokens that sources are padded to."""
    import torch

    sources, targets = [ids[:n] for ids, n in rows], [ids[n:] for ids, n in rows]
    logits, labels = decoded(model, sources, targets, first, least)
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED
    )
