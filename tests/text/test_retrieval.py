"""Retrieval never returns the text itself, draws among the nearest only, and mixes per text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from privsyn_flower.text.embedders import NgramEmbedder
from privsyn_flower.text.variation import Mixed, Retrieval

POOL = [
    f"public text {i} about {'tea' if i % 2 else 'arrays'} and {i * 37 % 101}" for i in range(60)
]
EMBEDDER = NgramEmbedder(64)
ROWS = EMBEDDER.embed(POOL)


def nearest(text: str, k: int) -> list[str]:
    """The k nearest pool texts other than `text`, one by one."""
    query = EMBEDDER.embed([text])[0]
    ranked = sorted(range(len(POOL)), key=lambda i: (-float(query @ ROWS[i]), i))
    return [POOL[i] for i in ranked if POOL[i] != text][:k]


def test_draws_every_neighbour_and_never_the_text_itself() -> None:
    variation = Retrieval(POOL, ROWS, EMBEDDER, neighbors=5)
    for text in (POOL[3], POOL[10], "a stranger about tea and 42"):
        varied = variation.vary([text] * 400, np.random.default_rng(0))
        assert text not in varied
        assert set(varied) == set(nearest(text, 5))
        counts = [varied.count(t) for t in set(varied)]
        assert min(counts) > 50, "neighbours are drawn uniformly"


def test_repeated_pool_texts_count_once() -> None:
    pool = [*POOL, POOL[3], POOL[3]]
    variation = Retrieval(pool, EMBEDDER.embed(pool), EMBEDDER, neighbors=2)
    varied = variation.vary([POOL[3]] * 50, np.random.default_rng(0))
    assert set(varied) == set(nearest(POOL[3], 2))


def test_one_neighbour_is_the_nearest() -> None:
    variation = Retrieval(POOL, ROWS, EMBEDDER, neighbors=1)
    varied = variation.vary(POOL, np.random.default_rng(0))
    assert varied == [nearest(text, 1)[0] for text in POOL]


def test_blocks_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    variation = Retrieval(POOL, ROWS, EMBEDDER, neighbors=8)
    texts = [*POOL[:20], "a stranger", "another stranger", "a stranger"]
    whole = variation.vary(texts, np.random.default_rng(4))
    monkeypatch.setattr("privsyn_flower.text.variation.BLOCK_VALUES", 150)
    assert variation.vary(texts, np.random.default_rng(4)) == whole
    assert variation.vary(texts, np.random.default_rng(5)) != whole
    assert variation.vary([], np.random.default_rng(4)) == []


def test_pool_texts_are_not_embedded_again() -> None:
    class Counting(NgramEmbedder):
        seen: ClassVar[list[str]] = []

        def embed(self, texts: Sequence[str]) -> np.ndarray:
            self.seen += texts
            return super().embed(texts)

    embedder = Counting(64)
    variation = Retrieval(POOL, ROWS, embedder, neighbors=3)
    variation.vary([POOL[0], "new", "new", POOL[1]], np.random.default_rng(0))
    assert embedder.seen == ["new"]


@pytest.mark.parametrize("neighbors", [0, 60, 100])
def test_neighbour_bounds(neighbors: int) -> None:
    with pytest.raises(ValueError, match=rf"retrieval-neighbors = {neighbors}.*\[1, 59\]"):
        Retrieval(POOL, ROWS, EMBEDDER, neighbors)
    for few in (0, 1):
        with pytest.raises(ValueError, match=r"nothing to retrieve .*data\.public-path"):
            Retrieval(POOL[:few], ROWS[:few], EMBEDDER, neighbors)


def test_wrong_embeddings() -> None:
    with pytest.raises(ValueError, match=r"\(59, 64\), expected \(60, 64\)"):
        Retrieval(POOL, ROWS[:-1], EMBEDDER, 3)
    broken = ROWS.copy()
    broken[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        Retrieval(POOL, broken, EMBEDDER, 3)


class Tag:
    """An infiller that signs its texts."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        return [f"{self.tag}:{text}" for text in texts]


def test_mixed_picks_per_text_and_keeps_the_order() -> None:
    texts = [str(i) for i in range(2000)]
    varied = Mixed(Tag("a"), Tag("b"), share=0.3).vary(texts, np.random.default_rng(0))
    assert [text.partition(":")[2] for text in varied] == texts
    assert sum(text.startswith("a:") for text in varied) == pytest.approx(600, abs=80)
    assert varied == Mixed(Tag("a"), Tag("b"), 0.3).vary(texts, np.random.default_rng(0))
    for share, tag in ((0.0, "b"), (1.0, "a")):
        only = Mixed(Tag("a"), Tag("b"), share).vary(texts, np.random.default_rng(0))
        assert {text[0] for text in only} == {tag}
    with pytest.raises(ValueError, match=r"retrieval-share = 1\.5"):
        Mixed(Tag("a"), Tag("b"), 1.5)
