"""What the methods need of text models: three small protocols, no base classes.

An implementation is any object with these members; `embedders.py`, `infillers.py`,
`retrieval.py` and `generators.py` hold the ones that ship.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


@runtime_checkable
class Embedder(Protocol):
    """Text -> a point on the unit sphere (Phi in PrE-Text, section 3 (2))."""

    @property
    def dimension(self) -> int:
        """d, the length of a row."""

    @property
    def fingerprint(self) -> str:
        """Names the function text -> row: equal fingerprints embed alike, whatever the path."""

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """n texts -> (n, d) float32, every row of L2 norm 1 (also that of an empty text).

        Texts of one call may share rounding and failures; those of different users never share
        a call (`data.EmbeddingCache`).
        """


@runtime_checkable
class Infiller(Protocol):
    """Text -> a variation of it (Variation in PrE-Text, section 3 (4))."""

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n variations in the same order; all randomness comes from `rng`."""


@runtime_checkable
class Generator(Protocol):
    """Prompt -> completions by a causal language model (PrE-Text, section 3 (6))."""

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        """m prompts -> m lists of n completions each, without the prompt."""
