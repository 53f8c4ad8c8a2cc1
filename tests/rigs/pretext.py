"""What several tests share about pretext."""

from __future__ import annotations

from typing import Any

import numpy as np

from privsyn_flower.config import PreTextConfig
from privsyn_flower.strategies import PrEText
from privsyn_flower.text import load_embedder
from tests.conftest import sentences


class Swap:
    """Variation that swaps one word for another, seeded."""

    def vary(self, texts: list[str], rng: np.random.Generator) -> list[str]:
        out = []
        for text in texts:
            words = text.split()
            words[int(rng.integers(len(words)))] = f"w{int(rng.integers(1000))}"
            out.append(" ".join(words))
        return out


def strategy(rounds: int = 3, seed: int = 0, **options: Any) -> PrEText:
    config = PreTextConfig(population=16, **{"lookahead": 2, **options})
    return PrEText(
        sentences(64, 0),
        embedder=load_embedder("ngram-64"),
        variation=Swap(),
        rounds=rounds,
        config=config,
        seed=seed,
    )
