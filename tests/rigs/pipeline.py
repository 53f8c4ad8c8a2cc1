"""What several tests share about pipeline."""

from __future__ import annotations

from typing import Any

from privsyn_flower.protocol.question import Query
from privsyn_flower.text import load_embedder
from tests.conftest import sentences
from tests.rigs.rounds import Counting


class Asking(Counting):
    """Two rounds of votes or scores on public texts; can be killed when it learns."""

    def __init__(self, kind: str) -> None:
        super().__init__(2)
        self.kind, self.killed = kind, False

    def ask(self, rnd: int) -> Query:
        embedder = load_embedder("ngram-32")
        rows, given = embedder.embed(sentences(16, rnd)), {"model": embedder.fingerprint}
        if self.kind == "votes":
            return Query.votes(rows, bound=1.0, **given)
        return Query.scores(rows, bound=1.0, groups=[8, 8], **given)

    def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
        if self.killed:
            raise KeyboardInterrupt
        return super().learn(rnd, released, noise_std)
