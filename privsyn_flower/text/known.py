"""An embedder that remembers: public texts that come back round after round are embedded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from privsyn_flower.text.protocols import Embedder


class KnownRows:
    """Wraps an embedder with the rows of known texts, in memory only; nodes do not use it.

    texts and rows (n, d): known from the start, for example the pool and its cached embeddings.
    """

    def __init__(
        self, embedder: Embedder, texts: Sequence[str], rows: npt.NDArray[np.float32]
    ) -> None:
        if len(texts) != len(rows):
            raise ValueError(f"{len(texts)} texts and {len(rows)} rows: one row per text is needed")
        self.embedder = embedder
        self.fingerprint = embedder.fingerprint
        self.dimension = embedder.dimension
        self._rows: dict[str, npt.NDArray[np.float32]] = dict(zip(texts, rows, strict=True))

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """texts -> unit rows (n, d) float32; each distinct new text is computed once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if new:
            self._rows.update(zip(new, self.embedder.embed(new), strict=True))
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return np.stack([self._rows[text] for text in texts])
