"""Variation by retrieval: a public text near the one to vary, and a mixture of two Infillers.

PrE-Text needs no more of Variation than that it proposes public text near a survivor. A nearest
neighbour in a public pool does that without a language model: fluent by construction, cheap, and
post-processing of what is already public.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from privsyn_flower.arrays import F32, I64
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.text.protocols import Embedder, Infiller

BLOCK_VALUES = 1 << 24  # similarities held at once (64 MB)


class Retrieval:
    """Each text -> one of its nearest public texts, drawn uniformly (an Infiller).

    Args:
        pool: public texts; repeated ones count once.
        pool_embeddings: (n, d) unit rows of `pool`, by `embedder`.
        embedder: embeds texts that are not in the pool.
        neighbors: how many nearest pool texts to draw from, the text itself excluded.
        table: of the configuration, for errors.
    """

    @named_as_arguments
    def __init__(
        self,
        pool: Sequence[str],
        pool_embeddings: npt.NDArray[np.floating],
        embedder: Embedder,
        neighbors: int = 16,
        table: str = "pretext",
    ) -> None:
        if pool_embeddings.shape != (len(pool), embedder.dimension):
            raise ValueError(
                f"pool embeddings have shape {pool_embeddings.shape}, "
                f"expected ({len(pool)}, {embedder.dimension}): one row per pool text"
            )
        if not np.isfinite(pool_embeddings).all():
            raise ValueError("pool embeddings hold NaN or infinity")
        first: dict[str, int] = {}
        for index, text in enumerate(pool):
            first.setdefault(text, index)
        if not 1 <= neighbors < len(first):
            most = len(first) - 1
            bound = f"must lie in [1, {most}]" if most > 0 else "there is nothing to retrieve"
            raise ValueError(
                f"{table}.retrieval-neighbors = {neighbors}: {bound} for a pool of {len(first)} "
                "distinct public texts; change it, or give more text (data.public-path, "
                "data.public-pool)"
            )
        self.embedder, self.neighbors = embedder, neighbors
        self._texts = list(first)
        self._row_of = {text: row for row, text in enumerate(self._texts)}
        rows = pool_embeddings[list(first.values())]
        self._rows: F32 = np.ascontiguousarray(rows, dtype=np.float32)

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n pool texts, none equal to the text it replaces."""
        picks = rng.integers(self.neighbors, size=len(texts))
        if not len(texts):
            return []
        queries, own = self._embed(texts)
        block = max(1, BLOCK_VALUES // len(self._texts))
        nearest = np.concatenate(
            [
                self._nearest(queries[start : start + block], own[start : start + block])
                for start in range(0, len(texts), block)
            ]
        )
        chosen = nearest[np.arange(len(texts)), picks]
        return [self._texts[row] for row in chosen]

    def _embed(self, texts: Sequence[str]) -> tuple[F32, I64]:
        """(n, d) rows, and (n,) the text's own place in the pool or -1; pool rows are reused."""
        own = np.array([self._row_of.get(text, -1) for text in texts])
        rows = self._rows[own]
        strangers = np.flatnonzero(own < 0)
        if strangers.size:
            distinct = list(dict.fromkeys(texts[i] for i in strangers.tolist()))
            place = {text: k for k, text in enumerate(distinct)}
            embedded = self.embedder.embed(distinct)
            rows[strangers] = embedded[[place[texts[i]] for i in strangers.tolist()]]
        return rows, own

    def _nearest(self, queries: F32, own: I64) -> I64:
        """(b, d) -> (b, neighbors) pool rows by falling cosine; equal ones by pool order."""
        similarity = queries @ self._rows.T
        inside = np.flatnonzero(own >= 0)
        similarity[inside, own[inside]] = -np.inf
        near = np.argpartition(-similarity, self.neighbors - 1, axis=1)[:, : self.neighbors]
        near.sort(axis=1)
        order = np.argsort(-np.take_along_axis(similarity, near, axis=1), axis=1, kind="stable")
        return np.take_along_axis(near, order, axis=1)


class Mixed:
    """Vary each text by `first` with probability `share`, else by `second` (an Infiller)."""

    @named_as_arguments
    def __init__(self, first: Infiller, second: Infiller, share: float) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"pretext.retrieval-share = {share}: must lie in [0, 1]")
        self.first, self.second, self.share = first, second, share

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n variations, in order."""
        use_first = rng.random(len(texts)) < self.share
        result = list(texts)
        for infiller, mine in ((self.first, use_first), (self.second, ~use_first)):
            places = np.flatnonzero(mine)
            varied = infiller.vary([texts[i] for i in places.tolist()], rng)
            for place, text in zip(places, varied, strict=True):
                result[place] = text
        return result
