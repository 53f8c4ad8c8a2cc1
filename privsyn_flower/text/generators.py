"""Completions by a causal language model (PrE-Text, section 3 (6); Llama-2-7B in the paper).

A sampling loop of its own, because `generate` draws from torch's global generator: here every
completion has its uniforms from the caller's numpy generator, so the text does not depend on the
batch it lands in (up to the last bits of the logits), and no global seed is touched.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsyn_flower.common.arrays import F32, I64, Bools
from privsyn_flower.common.progress import Progress, bar
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.text.models.adapters import attach, base_of, check_adapter, detach
from privsyn_flower.text.models.batches import longest_first
from privsyn_flower.text.models.decoding import (
    STOP_EVERY,
    CausalBatch,
    Seq2SeqBatch,
    banned_tokens,
    cache_argument,
    check_sampling,
    choose_tokens,
)
from privsyn_flower.text.models.devices import empty_cache, map_batches, resolve_device
from privsyn_flower.text.models.pretrained import decode, load_model, load_tokenizer
from privsyn_flower.text.prompts import HEADING, THINKING, without_thinking
from privsyn_flower.text.protocols import Reply, Sampling

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("privsyn_flower")

KEY = "models.generator"
PLACE = "<<prompt>>"  # stands for the prompt in a chat template


class HuggingFaceGenerator:
    """Any Hugging Face causal language model (an AdaptableGenerator, an Answering).

    Args:
        model: folder or hub name.
        temperature, top_p: of the sampling (1.0 and 1.0 in the paper).
        top_k: likeliest tokens that are drawn from; 0: all.
        repetition_penalty: of the tokens that a completion has already; 1: none.
        max_tokens: new tokens in a completion (85 in the paper's code).
        batch_size: completions that are generated side by side.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        stop: a completion ends before the first of these strings, and at the end-of-text token.
        dtype: `auto` (bfloat16 on CUDA, and of weights kept so on a CPU that multiplies them; else
            float32) or a torch dtype's name.
        chat: a prompt is a user's turn in the tokenizer's chat template.
        thinking_tag: of what a reasoning model writes for itself; it is left out, and a text that
            ends within is empty. "": it stays.
        progress: True for a bar on stderr in long calls, or a function to call.
    """

    key = KEY  # of the configuration, named in errors
    batched = True  # prompts are answered side by side
    auto_class = "AutoModelForCausalLM"

    @named_as_arguments
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        max_tokens: int = 85,
        batch_size: int = 64,
        device: str = "auto",
        stop: Sequence[str] = (HEADING,),
        dtype: str = "auto",
        chat: bool = False,
        thinking_tag: str = THINKING,
        progress: bool | Progress = True,
    ) -> None:
        check_sampling("expand", temperature, top_p, top_k, repetition_penalty)
        if min(max_tokens, batch_size) < 1:
            raise ValueError(f"expand: {max_tokens=} and {batch_size=} must be at least 1")
        if isinstance(stop, str) or not all(stop):
            raise ValueError(f"stop = {stop!r}: must be a sequence of non-empty strings")
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self.max_tokens = max_tokens
        self.repetition_penalty = repetition_penalty
        self.batch_size, self.stop, self.progress = batch_size, tuple(stop), progress
        self.thinking_tag = thinking_tag
        self.device = resolve_device(device)
        self._name, self._dtype, self._closed = model, dtype, False
        self._adapted: Any = None  # PEFT's wrapper around self.model, when an adapter is on
        self._adapter: Path | None = None  # its folder, also while the model rests
        self.tokenizer, self.chat = load_tokenizer(model, self.key), chat
        self._turn = chat_turn(self.tokenizer, model) if chat else ([], [])
        self.model = self._load()
        self._context = int(getattr(self.model.config, "max_position_embeddings", 1 << 30))
        if max_tokens >= self._context:
            raise ValueError(
                f"expand.max-tokens = {max_tokens}: must be below the model's context of "
                f"{self._context} tokens"
            )
        self._ends = end_tokens(self.tokenizer, self.model)
        vocabulary = self.model.get_output_embeddings().weight.shape[0]
        self._banned = banned_tokens(self.tokenizer, vocabulary, self._ends).to(self.device)
        self._cache = cache_argument(self.model, self.key)
        self._accepts = set(inspect.signature(self.model.forward).parameters)
        self.takes_positions = "position_ids" in self._accepts

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        """m prompts -> m lists of n completions, each ending before the first stop string.

        A prompt that leaves no room for max_tokens loses its beginning; how many did is logged.
        """
        if n < 1:
            raise ValueError(f"n = {n}: at least one completion per prompt")
        self._wake()
        uniforms = rng.random((len(prompts), n, self.max_tokens), dtype=np.float32)
        return [
            [without_thinking(text, self.thinking_tag) or "" for text, _ in found]
            for found in self._decode(self._encode(prompts), uniforms)
        ]

    def reach(self) -> None:
        """Read the model, if it rests."""
        self._wake()

    def answer(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Reply]:
        """n prompts -> n replies, uncut, side by side (an Answering). Raises as `complete`."""
        self._wake()
        if sampling.max_tokens + sum(map(len, self._turn)) >= self._context:
            raise ValueError(
                f"max_tokens = {sampling.max_tokens}: an answer must be shorter than the model's "
                f"context of {self._context} tokens less the turn around a prompt"
            )
        asked = copy.copy(self)  # the same model, sampled from as we are told
        asked.temperature, asked.top_p = sampling.temperature, sampling.top_p
        asked.top_k, asked.max_tokens = sampling.top_k, sampling.max_tokens
        asked.repetition_penalty, asked.stop, asked.progress = 1.0, (), False
        encoded = asked._encode(prompts)
        uniforms = np.zeros((len(prompts), 1, sampling.max_tokens), dtype=np.float32)
        for row, seed in enumerate(seeds):
            uniforms[row, 0] = np.random.default_rng(seed).random(len(uniforms[row, 0]), np.float32)
        found = asked._decode(encoded, uniforms)
        return [
            Reply(without_thinking(text, self.thinking_tag) or "", len(ids), tokens)
            for ids, ((text, tokens),) in zip(encoded, found, strict=True)
        ]

    def _decode(
        self, encoded: Sequence[Sequence[int]], uniforms: F32
    ) -> list[list[tuple[str, int]]]:
        """m prompts, uniforms (m, n, tokens) -> n texts of each, and how many tokens they have."""
        n, tokens = uniforms.shape[1:]
        width = max(1, self.batch_size // n)
        batches = list(longest_first([len(ids) for ids in encoded], width))

        def decode_batch(batch: list[int]) -> list[tuple[str, int]]:
            draws = uniforms[batch].reshape(-1, tokens)
            return self._batch([encoded[i] for i in batch], n, draws)

        result: list[list[tuple[str, int]]] = [[] for _ in encoded]
        done = map_batches(decode_batch, batches, self.device)
        with bar(self.progress, "generating", len(encoded) * n) as advance:
            for batch, texts in zip(batches, done, strict=True):
                for place, i in enumerate(batch):
                    result[i] = texts[place * n : (place + 1) * n]
                advance(len(texts))
        if self.device == "cpu":
            empty_cache(self.device)
        return result

    def use_adapter(self, folder: Path | None) -> None:
        """Generate with the LoRA adapter in `folder` on top of the base; None: the base exactly.

        AdapterError for a folder that is missing, damaged or of another base.
        """
        self._wake(adapted=False)
        base = base_of(self._name, self.model.config, self.key)
        if folder is not None:
            check_adapter(folder, base)
        if self._adapted is not None:
            self.model, self._adapted = detach(self._adapted), None
        self._adapter = None
        if folder is not None:
            self._adapted, self._adapter = attach(self.model, folder, base), folder

    def rest(self) -> None:
        """Leave the accelerator's memory until the model is used again.

        Nothing is moved: waking up reads the weights from their files, which on an H100 took 3 s
        for 16 GB where moving them to main memory took 15 s.
        """
        if self.model is None or self.device == "cpu":
            return
        self.model = self._adapted = None
        empty_cache(self.device)

    def close(self) -> None:
        """Let go of the model; after it `complete` and `use_adapter` raise RuntimeError."""
        self.model = self._adapted = None
        self._closed = True
        empty_cache(self.device)

    @property
    def first(self) -> int | None:
        """The token that an encoder-decoder's decoder starts from; None of a causal model."""
        return None

    def _load(self) -> Any:
        return load_model(self.auto_class, self._name, self.key, self.device, self._dtype)

    def _wake(self, *, adapted: bool = True) -> None:
        """The model in memory. adapted: with the adapter that it wore before it rested."""
        if self._closed:
            raise RuntimeError("this generator was closed")
        if self.model is not None:
            return
        self.model = self._load()
        if adapted and self._adapter is not None:
            self.use_adapter(self._adapter)

    def _batch(
        self, prompts: Sequence[Sequence[int]], copies: int, uniforms: F32
    ) -> list[tuple[str, int]]:
        """Completions of prompts of similar length, one after another, and their tokens."""
        if self.first is None:
            return CausalBatch(self, prompts, copies, uniforms).run()
        return Seq2SeqBatch(self, prompts, copies, uniforms, self.first).run()

    def _encode(self, prompts: Sequence[str]) -> list[list[int]]:
        if not len(prompts):
            return []
        # In a chat the turn around a prompt has the special tokens.
        # The library's own words name the length of one prompt, which may be PRIVATE.
        encoded: list[list[int]] = self.tokenizer(
            list(prompts), add_special_tokens=not self.chat, verbose=False
        )["input_ids"]
        before, after = self._turn
        room = self._context - self.max_tokens - len(before) - len(after)
        self._tell_cut(encoded, room)
        # A model needs one token to continue from, also after an empty prompt.
        start = [self.tokenizer.bos_token_id or int(self._ends[0] if self._ends.size else 0)]
        return [[*before, *ids[-room:], *after] or start for ids in encoded]

    def _tell_cut(self, encoded: Sequence[Sequence[int]], room: int) -> None:
        """Log how many prompts have more than `room` tokens."""
        long = sum(len(ids) > room for ids in encoded)
        if long:
            logger.warning(
                "%d of %d prompts exceed %d tokens (the model's %d less expand.max-tokens = %d) "
                "and lose their beginning", long, len(encoded), room, self._context, self.max_tokens
            )  # fmt: skip

    def forward(
        self, ids: torch.Tensor, attention: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """New tokens (r, l), attention over all tokens so far -> logits (r, v) after the last."""
        import torch

        arguments: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": positions,
            self._cache: cache,
            "use_cache": True,
            # Not 1: of that a view comes, and a batch of views copies the vocabulary for every row.
            "logits_to_keep": torch.tensor([ids.shape[1] - 1], device=ids.device),
        }
        # Not every architecture takes explicit positions or can skip the other logits.
        arguments = {key: value for key, value in arguments.items() if key in self._accepts}
        logits: torch.Tensor = self.model(**arguments).logits
        return logits[:, -1]

    def choose(self, logits: torch.Tensor, uniforms: F32, seen: I64 | None = None) -> I64:
        """(r, v), (r,), tokens of each completion so far (r, t) -> (r,) drawn tokens."""
        import torch

        before = seen if self.repetition_penalty != 1 else None
        chosen = choose_tokens(
            logits,
            torch.from_numpy(uniforms).to(logits.device),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            banned=self._banned,
            repetition_penalty=self.repetition_penalty,
            seen=None if before is None else torch.from_numpy(before).to(logits.device),
        )
        tokens: I64 = chosen.cpu().numpy()
        return tokens

    def ended(self, tokens: I64) -> Bools:
        """Which tokens are end-of-text."""
        return np.isin(tokens, self._ends)

    def stopped(self, tokens: I64) -> Bools:
        """(r, t) tokens so far -> which rows hold a stop string among their last tokens."""
        if not self.stop:
            return np.zeros(len(tokens), dtype=np.bool_)
        # A token is at least one byte, so a string of k bytes spans at most k tokens.
        window = max(len(string.encode()) for string in self.stop) + STOP_EVERY
        tails = self.tokenizer.batch_decode(
            tokens[:, -window:].tolist(), clean_up_tokenization_spaces=False
        )
        found = [any(string in tail for string in self.stop) for tail in tails]
        return np.array(found, dtype=np.bool_)  # also of no row

    def text(self, tokens: I64) -> str:
        """Tokens of one completion -> its text, cut before the first stop string."""
        text = decode(self.tokenizer, tokens.tolist())
        return text[: min([text.find(s) for s in self.stop if s in text], default=len(text))]


def end_tokens(tokenizer: Any, model: Any) -> I64:
    """Every end-of-text token that the tokenizer or the model's generation settings name."""
    named = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])} - {None}
    return np.array(sorted(ends), dtype=np.int64)


def no_chat_template(model: str | os.PathLike[str]) -> str:
    """What is wrong with a model that no conversation can be had with."""
    return (
        f"generation.chat = true: {KEY} = {os.fspath(model)!r} has no chat template; name a model "
        "that was taught to follow instructions, or set chat = false"
    )


def chat_turn(tokenizer: Any, model: str | os.PathLike[str]) -> tuple[list[int], list[int]]:
    """Tokens before and after a prompt that is a user's turn, up to where the model's begins.

    The prompt itself is tokenised apart: text that spells a special token stays text. Raises
    ValueError for a tokenizer without a chat template, or whose template leaves the prompt out.
    """
    if not tokenizer.chat_template:
        raise ValueError(no_chat_template(model))
    turn = tokenizer.apply_chat_template(
        [{"role": "user", "content": PLACE}], tokenize=False, add_generation_prompt=True
    )
    before, found, after = turn.partition(PLACE)
    if not found:
        raise ValueError(f"generation.chat = true: {KEY}'s chat template leaves the prompt out")
    first, last = (
        tokenizer(part, add_special_tokens=False, split_special_tokens=False)["input_ids"]
        if part
        else []
        for part in (before, after)
    )
    return list(first), list(last)
