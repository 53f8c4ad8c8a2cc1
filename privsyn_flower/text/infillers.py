"""Variation by mask-filling: PrE-Text, section 3 (4), Algorithm 1 line 9.

MASK% of a text's tokens are masked at random and filled in by a masked language model, and that
W_steps times over. How many tokens are masked is counted per text: the authors' code takes the
minimum over the batch, which ties a text's variation to its neighbours in the batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privsyn_flower.arrays import F64, I64, Bools
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.progress import Progress, bar
from privsyn_flower.text.models.devices import map_batches, resolve_device
from privsyn_flower.text.models.pretrained import decode, load_model, load_tokenizer
from privsyn_flower.text.models.sampling import banned_tokens, check_sampling, choose_tokens

if TYPE_CHECKING:
    import torch

KEY = "models.infiller"


class MaskFill:
    """Mask-fill variation by any Hugging Face masked language model (an Infiller).

    Args:
        model: folder or hub name (RoBERTa-large in the paper).
        mask_fraction: MASK%, the share of a text's tokens masked in one step (0.3 in the paper).
        steps: W_steps, mask-and-fill rounds over a text (2 in the paper).
        passes: forward passes that one step's masks are spread over. 1 fills them all at once;
            more let later fills see earlier ones; 0 fills one token at a time, as the authors'
            code does. The cost grows with it, and so does the fluency of adjacent fills.
        temperature, top_p: of the fill (1.0 and 1.0 in the paper).
        max_tokens: texts are cut to so many tokens, special ones included (64 in the paper).
        batch_size: texts in one forward pass.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        progress: True for a bar on stderr in long calls, or a function to call.
        table: of the configuration, for errors.
    """

    @named_as_arguments
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        mask_fraction: float = 0.3,
        steps: int = 2,
        passes: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int = 64,
        batch_size: int = 64,
        device: str = "auto",
        progress: bool | Progress = True,
        table: str = "pretext",
    ) -> None:
        if not 0 < mask_fraction < 1:
            raise ValueError(f"{table}.mask-fraction = {mask_fraction}: must lie in (0, 1)")
        if min(steps, batch_size) < 1 or passes < 0:
            raise ValueError(f"{steps=}, {batch_size=} must be at least 1 and {passes=} at least 0")
        check_sampling(table, temperature, top_p)
        self.mask_fraction, self.steps, self.passes = mask_fraction, steps, passes
        self.temperature, self.top_p = temperature, top_p
        self.max_tokens, self.batch_size, self.progress = max_tokens, batch_size, progress
        self.device = resolve_device(device)
        self.tokenizer = load_tokenizer(model, KEY)
        if self.tokenizer.mask_token_id is None:
            raise ValueError(f"{KEY} = {os.fspath(model)!r} has no mask token: not a masked LM")
        self.model = load_model("AutoModelForMaskedLM", model, KEY, self.device, "float32")
        limit = _position_limit(self.model)
        if not 3 <= max_tokens <= limit:
            raise ValueError(f"{table}.max-tokens = {max_tokens}: must lie in [3, {limit}]")
        vocabulary = self.model.get_output_embeddings().weight.shape[0]
        self._banned = banned_tokens(self.tokenizer, vocabulary).to(self.device)

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n variations, in order; a text without tokens comes back as it is.

        What a text draws depends on `rng` and its place in `texts` alone, so batch size and the
        other texts change nothing but the last bits of the logits.
        """
        if not texts:
            return []
        ids, content = self._encode(texts)
        # Per text, step and position: a key that orders the masking, and a uniform for the fill.
        draws = rng.random((len(texts), self.steps, 2, self.max_tokens))
        order = sorted(range(len(texts)), key=lambda i: len(ids[i]))
        size = self.batch_size
        batches = [order[start : start + size] for start in range(0, len(order), size)]

        def vary_batch(batch: list[int]) -> I64:
            return self._vary_batch(
                [ids[i] for i in batch], [content[i] for i in batch], draws[batch]
            )

        result = list(texts)
        varied = map_batches(vary_batch, batches, self.device)
        with bar(self.progress, "varying", len(texts)) as advance:
            for batch, filled in zip(batches, varied, strict=True):
                for row, i in enumerate(batch):
                    kept = filled[row, : len(ids[i])][content[i]]
                    result[i] = decode(self.tokenizer, kept.tolist()).strip() or texts[i]
                advance(len(batch))
        return result

    def _encode(self, texts: Sequence[str]) -> tuple[list[I64], list[Bools]]:
        """Token ids of every text, and which of them are the text's own (not special)."""
        encoded = self.tokenizer(
            list(texts),
            truncation=True,
            max_length=self.max_tokens,
            return_special_tokens_mask=True,
        )
        ids = [np.asarray(row, dtype=np.int64) for row in encoded["input_ids"]]
        own = [np.asarray(row) == 0 for row in encoded["special_tokens_mask"]]
        return ids, own

    def _vary_batch(
        self,
        ids: Sequence[I64],
        content: Sequence[Bools],
        draws: F64,
    ) -> I64:
        """b texts, draws (b, steps, 2, max_tokens) -> (b, l) ids after all steps, right-padded."""
        length = max(len(row) for row in ids)
        pad = self.tokenizer.pad_token_id or 0
        tokens = np.stack([np.pad(row, (0, length - len(row)), constant_values=pad) for row in ids])
        own = np.stack([np.pad(row, (0, length - len(row))) for row in content])
        attended = np.arange(length) < np.array([[len(row)] for row in ids])
        for step in range(self.steps):
            keys, uniforms = draws[:, step, 0, :length], draws[:, step, 1, :length]
            ranks = mask_ranks(own, keys, self.mask_fraction)
            tokens = self._fill(tokens, attended, ranks, uniforms)
        return tokens

    def _fill(
        self,
        tokens: I64,
        attended: Bools,
        ranks: I64,
        uniforms: F64,
    ) -> I64:
        """Mask where ranks (b, l) >= 0, then fill in the order of the ranks."""
        import torch

        counts = ranks.max(axis=1, keepdims=True) + 1
        passes = self.passes or int(counts.max())
        turn = ranks if self.passes == 0 else ranks * passes // np.maximum(counts, 1)
        turn = np.where(ranks >= 0, turn, -1)
        tokens = np.where(ranks >= 0, self.tokenizer.mask_token_id, tokens)
        attention = torch.from_numpy(attended.astype(np.int64)).to(self.device)
        for now in range(passes):
            rows, columns = np.nonzero(turn == now)
            if rows.size == 0:
                continue
            logits = logits_at(
                self.model, torch.from_numpy(tokens).to(self.device), attention, rows, columns
            )
            draws = torch.from_numpy(uniforms[rows, columns]).to(self.device, torch.float32)
            chosen = choose_tokens(
                logits,
                draws,
                temperature=self.temperature,
                top_p=self.top_p,
                banned=self._banned,
            )
            tokens[rows, columns] = chosen.cpu().numpy()
        return tokens


def mask_ranks(content: Bools, keys: F64, fraction: float) -> I64:
    """Which tokens of each sequence to mask, and in which order to fill them.

    content: (b, l), True at maskable tokens. keys: (b, l) in [0, 1); the smallest are masked.
    A sequence with c > 0 maskable tokens gets max(1, round(fraction * c)) masks (half rounds
    up). Returns (b, l): the rank 0, 1, ... of a masked token within its sequence, else -1.
    """
    tokens = content.sum(axis=1, keepdims=True)
    counts = np.maximum(np.floor(fraction * tokens + 0.5), 1).astype(np.int64)
    order = np.where(content, keys, np.inf).argsort(axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(keys.shape[1])[None, :], axis=1)
    return np.where(content & (ranks < counts), ranks, -1)


def logits_at(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    rows: I64,
    columns: I64,
) -> torch.Tensor:
    """(p, v) logits at p positions of (b, l) input, the head applied to those positions only.

    A hook on the encoder hands the head (1, p, d) hidden states in place of (b, l, d), in this
    thread alone: others may use the model meanwhile. It works for every masked LM whose head acts
    on each position alone (BERT, RoBERTa, DistilBERT, ModernBERT, ...), whatever the head is
    called. Raises TypeError for a model without a separate encoder.
    """
    import torch

    if model.base_model is model:
        raise TypeError(f"{KEY}: {type(model).__name__} has no encoder apart from its head")

    own = threading.get_ident()

    def keep(_module: Any, _inputs: Any, output: Any) -> Any:
        if threading.get_ident() != own:
            return None
        output.last_hidden_state = output.last_hidden_state[rows, columns].unsqueeze(0)
        return output

    handle = model.base_model.register_forward_hook(keep)
    try:
        with torch.inference_mode():
            logits: torch.Tensor = model(input_ids=input_ids, attention_mask=attention_mask).logits
    finally:
        handle.remove()
    return logits[0]


def _position_limit(model: Any) -> int:
    """Longest input in tokens; RoBERTa's position table starts after its padding index."""
    limit = int(getattr(model.config, "max_position_embeddings", 512))
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return limit if padding is None else limit - padding - 1
