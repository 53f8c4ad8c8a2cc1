"""Drawing tokens from logits with uniforms that the caller drew, so that the randomness of a
text does not depend on which batch it landed in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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
    repetition_penalty: of the tokens (r, t) that a row has seen; see `penalised`.
    Returns (r,) int64. A row depends on no other row.
    """
    import torch

    if repetition_penalty != 1 and seen is not None and seen.shape[1]:
        logits = penalised(logits, seen, repetition_penalty)
    rows = max(1, BLOCK_VALUES // max(1, logits.shape[1]))
    parts = [
        _choose_block(block.float(), draws, temperature, top_p, top_k, banned)
        for block, draws in zip(torch.split(logits, rows), torch.split(uniforms, rows), strict=True)
    ]
    return torch.cat(parts)


def penalised(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Logits (r, v) with those of the tokens seen (r, t) made less likely, each once.

    A positive one is divided by the penalty and a negative one multiplied (Keskar et al. 2019,
    CTRL, section 4.1, for the sign as in common libraries).
    """
    import torch

    found = logits.gather(1, seen)
    return logits.scatter(1, seen, torch.where(found > 0, found / penalty, found * penalty))


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
        ranked, order = weights.sort(dim=-1, descending=True, stable=True)
        # A token stays while the mass before it is below top_p, so the first always stays.
        ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p, 0.0)
        ranked[:, 0].clamp_(min=torch.finfo(ranked.dtype).tiny)
        # Drawn in the vocabulary's order: where two weights are all but equal, their ranks may
        # change with the last bits of the logits, and with them every token behind the two.
        weights = torch.zeros_like(weights).scatter(1, order, ranked)
    mass = weights.cumsum(-1)
    total = mass[:, -1:]
    # In float32, u * total can round up to total, which would point past the last token of
    # positive weight; one step below it cannot.
    point = uniforms.to(mass)[:, None] * total
    point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(mass, point, right=True)[:, 0]
