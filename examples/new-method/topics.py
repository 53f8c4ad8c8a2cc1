"""How many users write about each of some public topics, as noisy votes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from privsyn_flower import Query, SynthesisStrategy
from privsyn_flower.text import Embedder


class Topics(SynthesisStrategy):
    """Each text votes for the topic nearest to it; a user's votes together have L2 norm 1."""

    rounds = 1

    def __init__(self, topics: Sequence[str], *, embedder: Embedder) -> None:
        self.topics, self.embedder = list(topics), embedder
        self.seeds: list[str] = []  # topics that stand out of the noise, the most popular first
        self.votes: list[float] = []
        self.noise_std = 0.0

    def ask(self, rnd: int) -> Query:
        rows = self.embedder.embed(self.topics)  # (m, d)
        return Query.votes(rows, bound=1.0, model=self.embedder.fingerprint)

    def learn(self, rnd: int, released: np.ndarray, noise_std: float) -> dict[str, Any]:
        self.votes, self.noise_std = released.tolist(), noise_std  # (m,)
        ranked = sorted(zip(self.votes, self.topics, strict=True), reverse=True)
        self.seeds = [topic for votes, topic in ranked if votes > 3 * noise_std]
        return {"topics_found": len(self.seeds)}

    def state(self) -> dict[str, Any]:
        return {"seeds": self.seeds, "votes": self.votes, "noise_std": self.noise_std}

    def restore(self, state: dict[str, Any]) -> None:
        self.seeds, self.votes = state["seeds"], state["votes"]
        self.noise_std = state["noise_std"]
