"""Generators that write a text for a condition (CTCL, Tan et al. 2025, sections 3.1 and 3.3).

The condition, a few lines of public words (`conditions.py`), is a causal model's prompt, or what
an encoder-decoder model, BART in the paper, reads in its encoder. A repetition penalty counts the
text's own tokens alone in both: the keywords of the condition may be used.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.text.conditions import (
    MAX_SOURCE,
    Pair,
    encode_prompts,
    encode_sources,
    encode_texts,
    end_of_text,
    prompt,
)
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models.batches import (
    IGNORED,
    decoder_start,
    pad_rows,
    seq2seq_inputs,
    within_budget,
)
from privsyn_flower.text.models.devices import one_worker
from privsyn_flower.text.models.pretrained import SEQ2SEQ, model_config

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("privsyn_flower")

KEY = "models.conditional"
MAX_TARGET = 512  # tokens of a text with its end (Tan et al. 2025, section 4.1.3)
BATCH_TOKENS = 4096  # padded tokens whose loss is computed at once
Row = tuple[list[int], list[int]]  # ids of a condition, and of its text with the end


class ConditionalLM(HuggingFaceGenerator):
    """A causal language model that goes on after a condition and a blank line.

    It takes the arguments of `HuggingFaceGenerator` but `stop` and `chat`: a text ends at the
    end-of-text token. top_p: 0.95 and repetition_penalty: 1.5 in CTCL. max_source: most tokens of
    a condition; its end is cut. Raises ValueError for a tokenizer without an end of text.
    """

    key = KEY
    ahead = 1  # places from a token's logits to the token: a causal model's are of the next one

    @named_as_arguments
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_tokens: int = MAX_TARGET,
        max_source: int = MAX_SOURCE,
        **options: Any,
    ) -> None:
        if max_source < 1:
            raise ValueError(f"ctcl.max-source = {max_source}: must be at least 1")
        super().__init__(model, max_tokens=max_tokens, stop=(), **options)
        end_of_text(self.tokenizer)
        self.max_source = max_source

    def loss(self, pairs: Sequence[Pair], length: int = MAX_TARGET) -> float:
        """Mean over texts of a text's mean cross-entropy in nats a token; no pairs: ValueError.

        length: tokens of a text, with its end, that are looked at, at most `longest_text`.
        Conditions carry no loss.
        """
        import torch

        if not pairs:
            raise ValueError("loss: at least one pair is needed")
        self._wake()
        total = 0.0
        rows = sorted(self.training_rows(pairs, length), key=_tokens)
        for batch in within_budget(rows, BATCH_TOKENS, _tokens):
            inputs = {name: part.to(self.device) for name, part in self.collate(batch).items()}
            labels = inputs.pop("labels")
            with one_worker(), torch.inference_mode():
                logits = self.model(**inputs, use_cache=False).logits
                told = logits[:, : logits.shape[1] - self.ahead]
                total += sum(mean_losses(told, labels[:, self.ahead :]))
        return total / len(pairs)

    @property
    def longest_text(self) -> int:
        """Tokens of a text, with its end, that have room after the longest condition."""
        return max(1, self._context - self.max_source)

    def training_rows(self, pairs: Sequence[Pair], length: int = MAX_TARGET) -> list[Row]:
        """What the model learns from: ids of each condition, and of its text with the end."""
        sources = self._encode([pair.condition for pair in pairs])
        most = min(length, self.longest_text)
        targets = encode_texts(self.tokenizer, [pair.text for pair in pairs], most)
        return list(zip(sources, targets, strict=True))

    def collate(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        """The model's inputs for some rows; labels (n, l) are IGNORED but at the texts' tokens."""
        ids, mask = pad_rows([source + target for source, target in rows], 0)
        labels = ids.masked_fill(mask == 0, IGNORED)
        for row, (source, _) in zip(labels, rows, strict=True):
            row[: len(source)] = IGNORED
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def _encode(self, prompts: Sequence[str]) -> list[list[int]]:
        most = min(self.max_source, self._context - self.max_tokens)
        return encode_prompts(self.tokenizer, [prompt(one) for one in prompts], most)


class Seq2SeqLM(ConditionalLM):
    """An encoder-decoder model (BART, T5): the encoder reads the condition, the decoder writes.

    The decoder starts from the tokenizer's first token of a text where it has one, as in CTCL's
    released code, else from the model's own start.
    """

    auto_class = SEQ2SEQ
    ahead = 0

    @property
    def first(self) -> int:
        """The token that the decoder starts from. Raises ValueError for a model without one."""
        return decoder_start(self.tokenizer, self.model.config)

    @property
    def longest_text(self) -> int:
        """The decoder has all of its room for the text."""
        return self._context

    def collate(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        """As for a causal model: the decoder is taught the text's tokens and its end."""
        sources, targets = zip(*rows, strict=True)
        return seq2seq_inputs(sources, targets, self.first)

    def _encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """The encoder has room of its own, and reads the tokenizer's special tokens."""
        return encode_sources(self.tokenizer, prompts, min(self.max_source, self._context))


def open_conditional(model: str | os.PathLike[str], **options: Any) -> ConditionalLM:
    """The generator in a folder, or of a hub name: causal or encoder-decoder, by its config.

    options: as of `ConditionalLM`. Raises ModelUnavailableError, or ValueError for a model or
    settings that cannot be.
    """
    encodes = bool(getattr(model_config(model, KEY), "is_encoder_decoder", False))
    return (Seq2SeqLM if encodes else ConditionalLM)(model, **options)


def mean_losses(logits: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """Logits (n, l, v), labels (n, l) -> each row's mean cross-entropy where a label is, in nats.

    A row without labels has 0.
    """
    import torch

    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2).float(), labels, ignore_index=IGNORED, reduction="none"
    )
    counts = (labels != IGNORED).sum(1).clamp(min=1)
    found: list[float] = (losses.double().sum(1) / counts).tolist()
    return found


def _tokens(row: Row) -> int:
    return sum(map(len, row))
