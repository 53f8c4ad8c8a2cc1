"""Ways to vary a text: mask-filling, retrieval of a public text near it, or a language model.

`MaskFill` is PrE-Text's Variation (section 3 (4), Algorithm 1 line 9). How many tokens are masked
is counted per text: the authors' code takes the minimum over the batch, which ties a text's
variation to its neighbours in the batch. `Retrieval` proposes a public text near a survivor: fluent
by construction, cheap, and post-processing of what is public. `Rewrite` is Aug-PE's VARIATION_API
(Xie et al. 2024, section 3): a model that follows instructions says a text again in a style that is
drawn for it. `Continue` needs no such model: it goes on with a list whose only entry is the text.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.common.arrays import F32, F64, I64, Bools
from privsyn_flower.common.progress import Progress, bar
from privsyn_flower.common.units import beginning, units
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.config.evolution import STYLE, TEXT, check_instruction
from privsyn_flower.text.models.decoding import banned_tokens, check_sampling, choose_tokens
from privsyn_flower.text.models.devices import map_batches, resolve_device
from privsyn_flower.text.models.pretrained import decode, load_model, load_tokenizer
from privsyn_flower.text.prompts import expand_prompt, parse_completion
from privsyn_flower.text.protocols import AdaptableGenerator, Embedder, Variation

if TYPE_CHECKING:
    import torch


KEY = "models.infiller"


class MaskFill:
    """Mask-fill variation by any Hugging Face masked language model (a Variation).

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

    def _vary_batch(self, ids: Sequence[I64], content: Sequence[Bools], draws: F64) -> I64:
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

    def _fill(self, tokens: I64, attended: Bools, ranks: I64, uniforms: F64) -> I64:
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
                logits, draws, temperature=self.temperature, top_p=self.top_p, banned=self._banned
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
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: I64, columns: I64
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


BLOCK_VALUES = 1 << 24  # similarities held at once (64 MB)


class Retrieval:
    """Each text -> one of its nearest public texts, drawn uniformly (a Variation).

    Args:
        pool: public texts; repeated ones count once.
        pool_embeddings: (n, d) unit rows of `pool`, by `embedder`.
        embedder: embeds texts that are not in the pool.
        neighbors: how many nearest pool texts to draw from, the text itself excluded.
        table: of the configuration, for errors.
    """

    @named_as_arguments
    def __init__(
        self,
        pool: Sequence[str],
        pool_embeddings: npt.NDArray[np.floating],
        embedder: Embedder,
        neighbors: int = 16,
        table: str = "pretext",
    ) -> None:
        if pool_embeddings.shape != (len(pool), embedder.dimension):
            raise ValueError(
                f"pool embeddings have shape {pool_embeddings.shape}, "
                f"expected ({len(pool)}, {embedder.dimension}): one row per pool text"
            )
        if not np.isfinite(pool_embeddings).all():
            raise ValueError("pool embeddings hold NaN or infinity")
        first: dict[str, int] = {}
        for index, text in enumerate(pool):
            first.setdefault(text, index)
        if not 1 <= neighbors < len(first):
            most = len(first) - 1
            bound = f"must lie in [1, {most}]" if most > 0 else "there is nothing to retrieve"
            raise ValueError(
                f"{table}.retrieval-neighbors = {neighbors}: {bound} for a pool of {len(first)} "
                "distinct public texts; change it, or give more text (data.public-path, "
                "data.public-pool)"
            )
        self.embedder, self.neighbors = embedder, neighbors
        self._texts = list(first)
        self._row_of = {text: row for row, text in enumerate(self._texts)}
        rows = pool_embeddings[list(first.values())]
        self._rows: F32 = np.ascontiguousarray(rows, dtype=np.float32)

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n pool texts, none equal to the text it replaces."""
        picks = rng.integers(self.neighbors, size=len(texts))
        if not len(texts):
            return []
        queries, own = self._embed(texts)
        block = max(1, BLOCK_VALUES // len(self._texts))
        nearest = np.concatenate(
            [
                self._nearest(queries[start : start + block], own[start : start + block])
                for start in range(0, len(texts), block)
            ]
        )
        chosen = nearest[np.arange(len(texts)), picks]
        return [self._texts[row] for row in chosen]

    def _embed(self, texts: Sequence[str]) -> tuple[F32, I64]:
        """(n, d) rows, and (n,) the text's own place in the pool or -1; pool rows are reused."""
        own = np.array([self._row_of.get(text, -1) for text in texts])
        rows = self._rows[own]
        strangers = np.flatnonzero(own < 0)
        if strangers.size:
            distinct = list(dict.fromkeys(texts[i] for i in strangers.tolist()))
            place = {text: k for k, text in enumerate(distinct)}
            embedded = self.embedder.embed(distinct)
            rows[strangers] = embedded[[place[texts[i]] for i in strangers.tolist()]]
        return rows, own

    def _nearest(self, queries: F32, own: I64) -> I64:
        """(b, d) -> (b, neighbors) pool rows by falling cosine; equal ones by pool order."""
        similarity = queries @ self._rows.T
        inside = np.flatnonzero(own >= 0)
        similarity[inside, own[inside]] = -np.inf
        near = np.argpartition(-similarity, self.neighbors - 1, axis=1)[:, : self.neighbors]
        near.sort(axis=1)
        order = np.argsort(-np.take_along_axis(similarity, near, axis=1), axis=1, kind="stable")
        return np.take_along_axis(near, order, axis=1)


class Mixed:
    """Vary each text by `first` with probability `share`, else by `second` (a Variation)."""

    @named_as_arguments
    def __init__(self, first: Variation, second: Variation, share: float) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"pretext.retrieval-share = {share}: must lie in [0, 1]")
        self.first, self.second, self.share = first, second, share

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n variations, in order."""
        use_first = rng.random(len(texts)) < self.share
        result = list(texts)
        for variation, mine in ((self.first, use_first), (self.second, ~use_first)):
            places = np.flatnonzero(mine)
            varied = variation.vary([texts[i] for i in places.tolist()], rng)
            for place, text in zip(places, varied, strict=True):
                result[place] = text
        return result


class Rewrite:
    """Each text written anew by instruction (a Variation).

    Args:
        generator: follows instructions; it writes without an adapter.
        instruction: the prompt; `{text}` stands for the text, `{style}` for its style.
        styles: one is drawn for each text; empty: the instruction has no `{style}`.
        min_words, max_words: a text whose variation is shorter stays as it is; longer ones are
            cut (0: uncut).
    """

    def __init__(
        self,
        generator: AdaptableGenerator,
        instruction: str,
        styles: Sequence[str] = (),
        *,
        min_words: int = 4,
        max_words: int = 0,
    ) -> None:
        check_instruction(instruction, bool(styles), "pretext.rewrite")
        self.generator, self.instruction, self.styles = generator, instruction, tuple(styles)
        self.min_words, self.max_words = min_words, max_words

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n variations, in order."""
        styles = [""] * len(texts)
        if self.styles:
            styles = [self.styles[i] for i in rng.integers(len(self.styles), size=len(texts))]
        prompts = [  # the style first: a text may hold the word {style}
            self.instruction.replace(STYLE, style).replace(TEXT, " ".join(text.split()))
            for text, style in zip(texts, styles, strict=True)
        ]
        found = _completed(self.generator, prompts, rng)
        read = (" ".join(one.split()) for one in found)
        return _usable(texts, read, self.min_words, self.max_words)


class Continue:
    """For each text the next entry of a list that begins with it (a Variation).

    Args: as those of Rewrite; the generator need not follow instructions.
    """

    def __init__(
        self, generator: AdaptableGenerator, *, min_words: int = 4, max_words: int = 0
    ) -> None:
        self.generator, self.min_words, self.max_words = generator, min_words, max_words

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n variations, in order."""
        found = _completed(self.generator, [expand_prompt([text]) for text in texts], rng)
        read = (parse_completion(one, self.min_words) or "" for one in found)
        return _usable(texts, read, self.min_words, self.max_words)


def _completed(
    generator: AdaptableGenerator, prompts: Sequence[str], rng: np.random.Generator
) -> list[str]:
    """One completion of each prompt by the base model."""
    generator.use_adapter(None)
    return [one for (one,) in generator.complete(prompts, 1, rng)]


def _usable(
    texts: Sequence[str], varied: Iterable[str], min_words: int, max_words: int
) -> list[str]:
    """The variations, cut to max_words; in the place of a short one, the text itself."""
    result = []
    for text, new in zip(texts, varied, strict=True):
        result.append(beginning(new, max_words) if len(units(new)) >= min_words else text)
    return result
