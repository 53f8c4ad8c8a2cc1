"""What a stage computes: texts and tokens through which model, and the arithmetic of that."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from privsyn_flower.server_apps.estimates.shapes import Shape

Kind = Literal[
    "embedding", "mask-filling", "scoring", "generation", "fine-tuning", "imitation", "preferences"
]

TOKENS_PER_WORD = 4 / 3  # POPri, appendix F: 64 tokens are about 48 words
HEADING_TOKENS = 8  # of a line between two texts of a prompt


@dataclass(frozen=True)
class Task:
    """Equal pieces of work of one stage, at most: public numbers bound what nobody knows before.

    stage: as in `stage_seconds`. what: in words. model: its key in `[models]`. items: texts,
    completions or training sequences of one time; tokens: of each, written ones in a generation;
    shown: tokens of a prompt; batch: items computed together. scored: share of the tokens for
    which the vocabulary is scored. times: how often, most often once a round. nodes: done where
    the users' text is. cap: seconds after which it is ended; 0: none. key: what to lower when
    it does not fit. rank: of the low-rank factors that a fine-tuning trains; 0: all weights. entry:
    bytes of an entry of its matrix products. apart: times of it, and of others of its stage, may go
    on side by side (`beside`).

    An `imitation` is a generator's low-rank training on texts, as `preferences` is on pairs.
    """

    stage: str
    what: str
    kind: Kind
    model: str
    items: int
    tokens: int
    batch: int
    shown: int = 0
    scored: float = 1.0
    times: int = 1
    nodes: bool = False
    cap: float = 0.0
    key: str = ""
    rank: int = 0
    entry: int = 4
    apart: bool = False

    @property
    def total_tokens(self) -> float:
        """Tokens of all times: read ones, or of a generation those that are written."""
        return float(self.items) * self.tokens * self.times

    def once(self) -> Task:
        """One time of it."""
        return replace(self, times=1)


def tokens_of(words: int, most: int = 0) -> int:
    """Tokens of a text of so many words, about; cut to `most` (0: uncut)."""
    tokens = math.ceil(words * TOKENS_PER_WORD)
    return min(tokens, most) if most else tokens


def operations(task: Task, shape: Shape) -> float:
    """Floating-point operations of all times, attention's products of tokens with tokens left out.

    A pass over one token is two operations for each parameter in a product, and a training step
    three such passes (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). Low-rank training skips
    the products for the weights' own gradients: two passes. A generator's recomputes its layers,
    which is a third, and for preferences there are two responses and passes of the reference.
    In an encoder with a decoder, tokens of a prompt pass the one, and written ones the other.
    """
    scored = 2.0 * shape.head * task.scored
    if task.kind == "generation":
        shown = shape.encoder or shape.body
        written = (2.0 * (shape.body - shape.encoder) + scored) * task.tokens
        each = 2.0 * shown * task.shown + written
        return each * task.items * task.times
    if task.kind == "embedding":
        return 2.0 * shape.body * task.total_tokens
    return passes(task) * (2.0 * shape.body + scored) * task.total_tokens


def passes(task: Task) -> int:
    """Forward and backward passes over a token, each as much work as a forward one."""
    whole = {"fine-tuning": 3, "imitation": 3, "preferences": 6}.get(task.kind, 1)
    return 2 if task.rank else whole


def weight_bytes_read(task: Task, shape: Shape, entry: int) -> float:
    """Bytes of weights that come from memory: each step of a batch reads them all."""
    batches = math.ceil(task.items / max(1, task.batch)) * task.times
    weights = float(entry) * (shape.body + shape.head)
    if task.kind == "generation":
        return batches * ((task.tokens + 1) * weights - task.tokens * float(entry) * shape.encoder)
    return batches * weights * (1 if task.kind in ("embedding", "mask-filling", "scoring") else 3)
