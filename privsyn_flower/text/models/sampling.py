"""Drawing tokens from logits with uniforms that the caller drew, so that the randomness of a
text does not depend on which batch it landed in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BLOCK_VALUES = 1 << 24  # logits handled at once: bounds the temporaries to about 0.3 GB


def check_sampling(section: str, temperature: float, top_p: float) -> None:
    """Raise ValueError unless temperature > 0 and 0 < top_p <= 1; names the keys."""
    if not temperature > 0:
        raise ValueError(f"{section}.temperature = {temperature}: must be above 0")
    if not 0 < top_p <= 1:
        raise ValueError(f"{section}.top-p = {top_p}: must lie in (0, 1]")


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
    banned: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per row by inversion of its distribution function.

    logits: (r, v). uniforms: (r,) in [0, 1). banned: (v,) bool, of probability 0.
    top_p keeps the fewest most probable tokens whose probabilities reach it (nucleus sampling,
    Holtzman et al. 2020, section 3.1), counted after the temperature and the ban.
    Returns (r,) int64. A row depends on no other row.
    """
    import torch

    rows = max(1, BLOCK_VALUES // max(1, logits.shape[1]))
    parts = [
        _choose_block(block.float(), draws, temperature, top_p, banned)
        for block, draws in zip(torch.split(logits, rows), torch.split(uniforms, rows), strict=True)
    ]
    return torch.cat(parts)


def _choose_block(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    temperature: float,
    top_p: float,
    banned: torch.Tensor | None,
) -> torch.Tensor:
    import torch

    if banned is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    weights = torch.softmax(logits / temperature, dim=-1)
    ranked: torch.Tensor | None = None
    if top_p < 1:
        weights, ranked = weights.sort(dim=-1, descending=True, stable=True)
        # A token stays while the mass before it is below top_p, so the first always stays.
        weights = weights.masked_fill(weights.cumsum(-1) - weights >= top_p, 0.0)
        weights[:, 0].clamp_(min=torch.finfo(weights.dtype).tiny)
    mass = weights.cumsum(-1)
    total = mass[:, -1:]
    # In float32, u * total can round up to total, which would point past the last token of
    # positive weight; one step below it cannot.
    point = uniforms.to(mass)[:, None] * total
    point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
    chosen = torch.searchsorted(mass, point, right=True)
    return (chosen if ranked is None else ranked.gather(1, chosen))[:, 0]
