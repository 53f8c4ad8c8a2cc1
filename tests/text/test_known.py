"""Known public texts are looked up, new ones computed once, and the rows are the embedder's."""

from __future__ import annotations

import numpy as np
import pytest

from privsyn_flower.text import load_embedder
from privsyn_flower.text.known import KnownRows


class Counting:
    """The n-gram embedder, counting what it is asked."""

    def __init__(self) -> None:
        self.inner = load_embedder("ngram-16")
        self.fingerprint, self.dimension = self.inner.fingerprint, self.inner.dimension
        self.asked: list[str] = []

    def embed(self, texts):
        self.asked += list(texts)
        return self.inner.embed(texts)


def test_rows_are_the_embedders_and_computed_once() -> None:
    counting = Counting()
    pool = ["one text", "another text"]
    known = KnownRows(counting, pool, counting.inner.embed(pool))
    texts = ["new", "one text", "new", "another text", "newer"]
    assert np.array_equal(known.embed(texts), counting.inner.embed(texts))
    assert counting.asked == ["new", "newer"]
    known.embed(["newer", "one text"])
    assert counting.asked == ["new", "newer"]
    assert known.embed([]).shape == (0, 16)
    assert known.fingerprint == counting.fingerprint


def test_rows_and_texts_must_match() -> None:
    with pytest.raises(ValueError, match="2 texts and 1 rows"):
        KnownRows(Counting(), ["a", "b"], np.zeros((1, 16), np.float32))
