"""What several tests share about private evolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from privsyn_flower.strategies import PrivateEvolution


class Numbered:
    """Variation that says how often, and as which of its call, a text was varied."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        self.calls.append(list(texts))
        return [f"{text} v{i}r{int(rng.integers(10**6))}" for i, text in enumerate(texts)]


def calls(method: PrivateEvolution) -> list[list[str]]:
    found: Any = method.variation
    return list(found.calls)
