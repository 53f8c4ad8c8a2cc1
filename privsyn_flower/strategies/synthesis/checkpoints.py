"""Which epoch's adapter a round keeps (POPri, appendix B.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from privsyn_flower.evaluation.metrics import frechet_distance
from privsyn_flower.strategies.synthesis.responses import Writer
from privsyn_flower.text.protocols import Embedder, Trained

Distance = Callable[[Sequence[str]], float]  # of generated texts to what they should be like


@dataclass(frozen=True)
class Checkpoints:
    """Compares the epochs of a training by what they write: `samples` responses each.

    validation: public texts. private_distance: to private text, which epsilon does not cover; the
    paper's choice, for benchmarks only. rounds: the rounds are compared by the kept epochs, too.
    """

    choice: Literal["last", "public", "private"]
    writer: Writer
    samples: int
    embedder: Embedder
    validation: list[str]
    private_distance: Distance | None = None
    rounds: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError when the choice lacks what it needs, or has what it must not see."""
        if self.choice == "public" and len(self.validation) < 2:
            raise ValueError(
                "popri.checkpoint = 'public' needs public validation text (data.public-validation)"
            )
        if (self.choice == "private") != (self.private_distance is not None):
            raise ValueError(
                f"popri.checkpoint = {self.choice!r}: a distance to private text is given with "
                "'private' only, and only by a benchmark (benchmark = true), because epsilon does "
                "not cover the choice"
            )

    def keep(self, rnd: int, trained: Sequence[Trained]) -> tuple[int, float | None]:
        """Trained epochs of a round -> the place of the one to keep, and the Frechet distance of
        its texts to the public validation text (None without such text, without texts, and where
        nothing is compared: no text is generated for a figure alone)."""
        last = len(trained) - 1
        if self.choice == "last" and not (self.rounds and self.validation):
            return last, None
        epochs = [last] if self.choice == "last" else list(range(len(trained)))
        texts = {epoch: self._texts(rnd, trained[epoch]) for epoch in epochs}
        public = {epoch: self.public_distance(texts[epoch]) for epoch in epochs}
        measured = public
        if self.private_distance is not None:
            measured = {epoch: self.private_distance(texts[epoch]) for epoch in epochs}
        kept = min(epochs, key=lambda epoch: measured[epoch])
        return kept, public[kept] if math.isfinite(public[kept]) else None

    def public_distance(self, texts: Sequence[str]) -> float:
        """Frechet distance of the embeddings; infinite when there is too little to compare."""
        if min(len(texts), len(self.validation)) < 2:
            return math.inf
        return frechet_distance(self.embedder.embed(texts), self.embedder.embed(self.validation))

    def _texts(self, rnd: int, one: Trained) -> list[str]:
        """Usable texts of an epoch; every epoch of a round gets the same prompts."""
        written = self.writer.write(one.adapter, self.samples, 1, (rnd, "selection"))
        return [text for row in written.texts for text in row if text]
