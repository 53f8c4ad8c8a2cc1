"""Tokens drawn from logits with the caller's uniforms, and batches of completions of such draws.

The randomness of a text does not depend on the batch it lands in. Rows that have ended leave the
batch; what a row says does not depend on the others, but for the last bits of the logits.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from privsyn_flower.common.arrays import F32, I64, Bools
from privsyn_flower.text.models.batches import pad_rows

if TYPE_CHECKING:
    import torch


BLOCK_VALUES = 1 << 24  # logits handled at once: bounds the temporaries to about 0.3 GB


def check_sampling(
    section: str, temperature: float, top_p: float, top_k: int = 0, repetition_penalty: float = 1.0
) -> None:
    """Raise ValueError unless temperature > 0, 0 < top_p <= 1, top_k >= 0 and
    repetition_penalty >= 1."""
    if not temperature > 0:
        raise ValueError(f"{section}.temperature = {temperature}: must be above 0")
    if not 0 < top_p <= 1:
        raise ValueError(f"{section}.top-p = {top_p}: must lie in (0, 1]")
    if top_k < 0:
        raise ValueError(f"{section}.top-k = {top_k}: must be at least 0")
    if not 1 <= repetition_penalty < math.inf:
        raise ValueError(f"repetition-penalty = {repetition_penalty}: must be at least 1")


def banned_tokens(tokenizer: Any, vocabulary: int, allowed: Iterable[int] = ()) -> torch.Tensor:
    """(vocabulary,) bool: ids that are never drawn.

    These are the tokenizer's special tokens except `allowed`, and the rows of a vocabulary
    matrix that was padded beyond the tokenizer's size.
    """
    import torch

    banned = torch.zeros(vocabulary, dtype=torch.bool)
    banned[len(tokenizer) :] = True
    special = [i for i in tokenizer.all_special_ids if i < vocabulary and i not in set(allowed)]
    banned[special] = True
    return banned


def choose_tokens(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    banned: torch.Tensor | None = None,
    repetition_penalty: float = 1.0,
    seen: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per row by inversion of its distribution function.

    logits: (r, v). uniforms: (r,) in [0, 1). banned: (v,) bool, of probability 0. temperature 0:
    the likeliest token. top_k: of the k likeliest alone (Fan et al. 2018), and of those as likely
    as the last of them; 0: of all.
    top_p keeps the fewest most probable tokens whose probabilities reach it (nucleus sampling,
    Holtzman et al. 2020, section 3.1), counted after the temperature, the ban and top_k.
    repetition_penalty: of the tokens (r, t) that a row has seen; see `penalise`.
    Returns (r,) int64. A row depends on no other row.
    """
    import torch

    if repetition_penalty != 1 and seen is not None and seen.shape[1]:
        logits = penalise(logits, seen, repetition_penalty)
    rows = max(1, BLOCK_VALUES // max(1, logits.shape[1]))
    parts = [
        _choose_block(block.float(), draws, temperature, top_p, top_k, banned)
        for block, draws in zip(torch.split(logits, rows), torch.split(uniforms, rows), strict=True)
    ]
    return torch.cat(parts)


def penalise(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Logits (r, v) with those of the tokens seen (r, t) made less likely, each once.

    A positive one is divided by the penalty and a negative one multiplied (Keskar et al. 2019,
    CTRL, section 4.1, for the sign as in common libraries).
    """
    import torch

    found = logits.gather(1, seen)
    return logits.scatter(1, seen, torch.where(found > 0, found / penalty, found * penalty))


LIKELY = 1024  # tokens that are ranked first: a nucleus is seldom larger, and a sort costs more


def _nucleus(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """Weights (r, v) with those of all tokens but the likeliest, whose mass reaches top_p, zero.

    Of equal ones those of lower number are likelier. Drawn in the vocabulary's order: where two
    weights are all but equal, their ranks may change with the last bits of the logits, and with
    them every token behind the two.
    """
    import torch

    if weights.shape[1] <= 4 * LIKELY:
        return _cut(weights, *weights.sort(dim=-1, descending=True, stable=True), top_p)
    ranked, order = weights.topk(LIKELY, dim=-1, sorted=False)
    order, rank = order.sort(dim=-1)
    ranked, rank = ranked.gather(1, rank).sort(dim=-1, descending=True, stable=True)
    # Of as many as the last one's weight some may be missing: the nucleus must end before them.
    before = torch.where(ranked > ranked[:, -1:], ranked, 0.0).cumsum(-1)[:, -1]
    kept = _cut(weights, ranked, order.gather(1, rank), top_p)
    if (wide := before < top_p).any():
        kept[wide] = _cut(
            weights[wide], *weights[wide].sort(dim=-1, descending=True, stable=True), top_p
        )
    return kept


def _cut(
    weights: torch.Tensor, ranked: torch.Tensor, order: torch.Tensor, top_p: float
) -> torch.Tensor:
    """The weights (r, v) of the first of those ranked (r, k), at places `order`; others zero."""
    import torch

    # A token stays while the mass before it is below top_p, so the first always stays.
    ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p, 0.0)
    ranked[:, 0].clamp_(min=torch.finfo(ranked.dtype).tiny)
    return torch.zeros_like(weights).scatter(1, order, ranked)


def _choose_block(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    temperature: float,
    top_p: float,
    top_k: int,
    banned: torch.Tensor | None,
) -> torch.Tensor:
    import torch

    if banned is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    if temperature == 0:
        return logits.argmax(dim=-1)
    if 0 < top_k < logits.shape[1]:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    weights = torch.softmax(logits / temperature, dim=-1)
    if top_p < 1:
        weights = _nucleus(weights, top_p)
    mass = weights.cumsum(-1)
    total = mass[:, -1:]
    # In float32, u * total can round up to total, which would point past the last token of
    # positive weight; one step below it cannot.
    point = uniforms.to(mass)[:, None] * total
    point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(mass, point, right=True)[:, 0]


STOP_EVERY = 4  # steps between looks for a stop string: decoding costs as much as a small model
SHARED = 8  # tokens that prompts must share to be read once: a pass of one row costs some
SHRINK_AT = 0.8  # finished rows leave the batch when so few of its rows are still going


CACHES = ("past_key_values", "cache")  # until transformers 5.23, and from 5.24 on


def cache_argument(model: Any, key: str) -> str:
    """The argument by which a model takes the keys and values of the tokens before.

    Without it a model would read each new token as a text's first. key: of the configuration, named
    in the ValueError for a model with no such argument.
    """
    accepted = inspect.signature(model.forward).parameters
    for name in CACHES:
        if name in accepted:
            return name
    raise ValueError(
        f"{key}: {type(model).__name__} takes no cache of earlier tokens (none of "
        f"{', '.join(CACHES)} is an argument of its forward): name another model, or install a "
        "tested version of transformers (constraints.txt)"
    )


class Sampler(Protocol):
    """What decoding needs of a generator: its model, and how tokens are drawn and read."""

    key: str  # of the configuration, named in errors
    model: Any
    device: str
    takes_positions: bool  # whether a causal model is told them

    def choose(self, logits: torch.Tensor, uniforms: F32, seen: I64 | None = None) -> I64:
        """(r, v), (r,), tokens of each completion so far (r, t) -> (r,) drawn tokens."""

    def ended(self, tokens: I64) -> Bools:
        """Which tokens are end-of-text."""

    def stopped(self, tokens: I64) -> Bools:
        """(r, t) tokens so far -> which rows hold a stop string among their last tokens."""

    def text(self, tokens: I64) -> str:
        """Tokens of one completion -> its text."""

    def forward(
        self, ids: torch.Tensor, attention: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """New tokens (r, l), attention over all tokens so far -> logits (r, v) after the last."""


class _Batch:
    """`copies` completions of each prompt. uniforms (r, steps): of each completion."""

    def __init__(self, owner: Sampler, copies: int, uniforms: F32) -> None:
        self.owner, self.copies, self.uniforms = owner, copies, uniforms
        self.tokens: I64 = np.zeros((len(uniforms), uniforms.shape[1]), dtype=np.int64)
        self.sizes: I64 = np.zeros(len(uniforms), dtype=np.int64)  # tokens of each completion

    def run(self) -> list[tuple[str, int]]:
        """Decode until every row has ended, stopped or reached the limit -> texts, their tokens."""
        import torch

        with torch.inference_mode():
            logits = self._begin()
            rows = np.arange(len(self.tokens))  # completion that each row of the batch belongs to
            going = np.ones(len(rows), dtype=np.bool_)  # rows that still count
            logits = self._keep(logits, rows // self.copies)
            for step in range(self.tokens.shape[1]):
                seen = self.tokens[rows, :step]
                chosen = self.owner.choose(logits, self.uniforms[rows, step], seen)
                self.tokens[rows, step] = chosen
                going &= ~self.owner.ended(chosen)
                self.sizes[rows[going]] = step + 1
                if step % STOP_EVERY == STOP_EVERY - 1:
                    going[going] = ~self.owner.stopped(self.tokens[rows[going], : step + 1])
                if not going.any() or step + 1 == self.tokens.shape[1]:
                    break
                if going.mean() < SHRINK_AT:
                    kept = np.flatnonzero(going)
                    self._keep(logits, kept)
                    rows, chosen, going = rows[kept], chosen[kept], going[kept]
                ids = torch.from_numpy(chosen[:, None]).to(self.owner.device)
                logits = self._step(ids, step)
        return [
            (self.owner.text(row[:size]), int(size))
            for row, size in zip(self.tokens, self.sizes, strict=True)
        ]

    def _keep(self, logits: torch.Tensor, rows: I64) -> torch.Tensor:
        """Reduce (or repeat) the batch to `rows`, in all that it keeps and in logits."""
        import torch

        index = torch.from_numpy(rows).to(self.owner.device)
        if len(rows) != logits.shape[0] or not np.array_equal(rows, np.arange(len(rows))):
            self._select(index)
        return logits[index]

    def _begin(self) -> torch.Tensor:
        """Feed the prompts -> logits (p, v) for the first token of each."""
        raise NotImplementedError

    def _step(self, ids: torch.Tensor, step: int) -> torch.Tensor:
        """Feed the completions' tokens (r, 1) of this step -> logits (r, v) for the next."""
        raise NotImplementedError

    def _select(self, index: torch.Tensor) -> None:
        """Only these rows, some maybe repeatedly, of all that is kept between steps."""
        raise NotImplementedError


def shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """How many first tokens all prompts share and one row may read for all, so that each still has
    a token of its own; 0: too few to be worth it, or one prompt."""
    shortest = min(prompts, key=len)
    found = 0
    while found < len(shortest) - 1 and all(ids[found] == shortest[found] for ids in prompts):
        found += 1
    return found if found >= SHARED and len(prompts) > 1 else 0


class CausalBatch(_Batch):
    """Prompts (ids) of similar length, after which a causal model goes on."""

    def __init__(
        self, owner: Sampler, prompts: Sequence[Sequence[int]], copies: int, uniforms: F32
    ) -> None:
        import torch
        from transformers import StaticCache
        from transformers.cache_utils import StaticLayer

        super().__init__(owner, copies, uniforms)
        self.length = max(len(ids) for ids in prompts)
        steps = uniforms.shape[1]
        # Allocated once: a growing cache is copied whole at every step (30 % slower on a CPU).
        self.cache = StaticCache(config=owner.model.config, max_cache_len=self.length + steps)
        # Only where a place in the cache says nothing of what a token sees.
        plain = owner.takes_positions and all(type(one) is StaticLayer for one in self.cache.layers)
        self.shared = shared_prefix(prompts) if plain else 0
        # Padding before what is not shared, so that the next token has one place in every row.
        ids = np.zeros((len(prompts), self.length), dtype=np.int64)
        attention = np.ones((len(prompts), self.length + steps), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            own = self.length - len(prompt) + self.shared
            ids[row, : self.shared] = prompt[: self.shared]
            ids[row, own:] = prompt[self.shared :]
            attention[row, self.shared : own] = 0
        self.ids = torch.from_numpy(ids).to(owner.device)
        self.attention = torch.from_numpy(attention).to(owner.device)
        self.positions = (self.attention.cumsum(1) - 1).clamp_(min=0)

    def _begin(self) -> torch.Tensor:
        import torch

        if self.shared:
            self._feed(self.ids[:1, : self.shared], 0, self.shared)
            rows = torch.zeros(len(self.ids), dtype=torch.int64, device=self.ids.device)
            self._select_cached(rows)
        return self._feed(self.ids[:, self.shared :], self.shared, self.length)

    def _step(self, ids: torch.Tensor, step: int) -> torch.Tensor:
        return self._feed(ids, self.length + step, self.length + step + 1)

    def _feed(self, ids: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Feed the first rows' tokens at places start..stop -> logits for the next one."""
        attention = self.attention[: len(ids), :stop]
        return self.owner.forward(
            ids, attention, self.positions[: len(ids), start:stop], self.cache
        )

    def _select(self, index: torch.Tensor) -> None:
        self._select_cached(index)
        self.attention, self.positions = self.attention[index], self.positions[index]

    def _select_cached(self, index: torch.Tensor) -> None:
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[index], layer.values[index]


class Seq2SeqBatch(_Batch):
    """Sources (ids) that an encoder reads; its decoder writes from the token `first` on."""

    def __init__(
        self,
        owner: Sampler,
        sources: Sequence[Sequence[int]],
        copies: int,
        uniforms: F32,
        first: int,
    ) -> None:
        import torch
        from transformers import DynamicCache, EncoderDecoderCache

        super().__init__(owner, copies, uniforms)
        ids, mask = pad_rows(sources, 0)  # the mask hides the padding
        self.ids, self.attention = ids.to(owner.device), mask.to(owner.device)
        self.first = torch.full((len(sources), 1), first, device=owner.device)
        self.states = torch.empty(0)
        self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self.cached = {cache_argument(owner.model, owner.key): self.cache}

    def _begin(self) -> torch.Tensor:
        encoder = self.owner.model.get_encoder()
        self.states = encoder(input_ids=self.ids, attention_mask=self.attention)[0]
        return self._step(self.first, 0)

    def _step(self, ids: torch.Tensor, step: int) -> torch.Tensor:
        from transformers.modeling_outputs import BaseModelOutput

        logits: torch.Tensor = self.owner.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self.states),
            attention_mask=self.attention,
            decoder_input_ids=ids,
            use_cache=True,
            **self.cached,
        ).logits
        return logits[:, -1]

    def _select(self, index: torch.Tensor) -> None:
        self.states, self.attention = self.states[index], self.attention[index]
        self.cache.batch_select_indices(index)
