"""What the methods need of text models: small protocols, no base classes.

An implementation is any object with these members; `embedders.py`, `variation.py`,
`generators.py` and `preference` hold the ones that ship.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from privsyn_flower.common.arrays import F32


@runtime_checkable
class Embedder(Protocol):
    """Text -> a point on the unit sphere (Phi in PrE-Text, section 3 (2))."""

    @property
    def dimension(self) -> int:
        """d, the length of a row."""

    @property
    def fingerprint(self) -> str:
        """Names the function text -> row: equal fingerprints embed alike, whatever the path."""

    def embed(self, texts: Sequence[str]) -> F32:
        """n texts -> (n, d) float32, every row of L2 norm 1 (also that of an empty text).

        Texts of one call may share rounding and failures; those of different users never share
        a call (`data.EmbeddingCache`).
        """


class PublicText(Protocol):
    """The public side of a federation (`data.Federation`), which models train on."""

    def public(self) -> list[str]:
        """The pool of public texts, in random order."""

    def public_general(self) -> list[str]:
        """The public corpus without its minority."""

    def public_groups(self) -> list[list[str]]:
        """The public corpus by module or author, texts in their original order."""


@runtime_checkable
class Variation(Protocol):
    """Text -> a variation of it (Variation in PrE-Text, section 3 (4))."""

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n variations in the same order; all randomness comes from `rng`."""


@runtime_checkable
class Generator(Protocol):
    """Prompt -> completions by a causal language model (PrE-Text, section 3 (6))."""

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        """m prompts -> m lists of n completions each, without the prompt."""


@runtime_checkable
class AdaptableGenerator(Generator, Protocol):
    """A generator whose base model takes LoRA adapters (POPri, Algorithm 1: Psi of each round)."""

    def use_adapter(self, folder: Path | None) -> None:
        """Generate with the adapter in a PEFT folder on top of the base; None: the base exactly.

        Stays until the next call. An error names a folder that is missing or of another base.
        """

    def rest(self) -> None:
        """Free the accelerator's memory while something else trains; `complete` wakes up."""

    def close(self) -> None:
        """Let go of the model, and end servers that this object started. Safe to call twice."""


@dataclass(frozen=True)
class Sampling:
    """How the tokens of an answer are drawn. Raises ValueError for what no model can do.

    temperature 0: the likeliest token each time. top_k: of so many likeliest tokens alone; 0: all.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                f"{self}: max_tokens must be at least 1, temperature and top_k at least 0, and "
                "top_p in (0, 1]"
            )


@dataclass(frozen=True)
class Reply:
    """One answer; text None: the server withheld it. Tokens are None where nobody told them."""

    text: str | None
    prompt_tokens: int | None = None
    tokens: int | None = None


@runtime_checkable
class Answering(Protocol):
    """A model that is asked many single questions (`public.asking`), each with its own sampling."""

    chat: bool  # a prompt is a user's turn
    batched: bool  # one call answers many prompts together; else calls of many threads do

    def reach(self) -> None:
        """Start the model or find it there, else raise what says why it is not."""

    def answer(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Reply]:
        """n prompts -> n replies, each drawn by its own seed."""


@dataclass(frozen=True)
class Trained:
    """One epoch of a training run: its adapter (a PEFT folder) and public numbers about it."""

    adapter: Path
    metrics: dict[str, float]


@runtime_checkable
class Trainer(Protocol):
    """Preference pairs -> adapters (POPri, Algorithm 1: DPO of Psi; SFT on the chosen); or
    completions with advantages (`advantage`, a number) -> adapters (DP-RFT: GRPO)."""

    def train(
        self, pairs: Sequence[Mapping[str, Any]], *, start: Path | None, work: Path, seed: int
    ) -> list[Trained]:
        """Pairs of `prompt`, `chosen` and `rejected` -> the adapter of each epoch, in order.

        start: adapter folder to go on from; None: a fresh adapter. work: a folder of this
        training alone, which keeps checkpoints: a call that was killed goes on where it was when
        it is repeated with the same arguments, and a finished one only returns its result.
        """
