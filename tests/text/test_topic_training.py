"""Topics of planted clusters: found again, the same each time, and what cannot be clustered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.common.arrays import F32
from privsyn_flower.text import kmeans, topic_training
from privsyn_flower.text.embedders import load_embedder
from privsyn_flower.text.encoders import unit
from privsyn_flower.text.kmeans import spherical_kmeans
from privsyn_flower.text.topic_training import draw, make_topics, rerank_keywords

SUBJECTS = ("river", "cloud", "kernel", "theorem")
AXES = np.eye(4, 16)


class Planted:
    """Rows close to the axis of the first subject in a text; outliers far from all; or anywhere."""

    dimension = 16
    fingerprint = "a" * 64

    def embed(self, texts: Sequence[str]) -> F32:
        rows = np.stack([self._row(text) for text in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def _row(self, text: str) -> np.ndarray[Any, Any]:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        noise = np.random.default_rng(seed).normal(size=self.dimension)
        near = [axis for axis, subject in zip(AXES, SUBJECTS, strict=True) if subject in text]
        if "outlier" in text:
            near = [-AXES.sum(axis=0)]
        return near[0] + 0.03 * noise if near else noise


def planted(sizes: Sequence[int] = (40, 30, 20, 10)) -> list[str]:
    texts = [f"the {s} number {i}" for s, n in zip(SUBJECTS, sizes, strict=True) for i in range(n)]
    return [texts[i] for i in np.random.default_rng(1).permutation(len(texts))]


@pytest.mark.parametrize("clustering", ["k-means", "hdbscan"])
def test_planted_clusters_are_found_largest_first(clustering: Any) -> None:
    texts = planted()
    if clustering == "hdbscan":
        texts = [*texts, *(f"outlier {i}" for i in range(5))]
    made = make_topics(texts, Planted(), count=4, clustering=clustering)
    assert made.sizes == (40, 30, 20, 10)  # no outlier counts
    assert [words[0] for words in made.keywords] == list(SUBJECTS)
    assert made.embedder == Planted.fingerprint
    assert made.assign(Planted().embed(SUBJECTS)).tolist() == [0, 1, 2, 3]
    again = make_topics(texts, Planted(), count=4, clustering=clustering)
    assert again.fingerprint == made.fingerprint


def test_hdbscan_keeps_the_largest_clusters_of_those_it_finds() -> None:
    made = make_topics(planted(), Planted(), count=2, clustering="hdbscan")
    assert made.sizes == (40, 30) and [words[0] for words in made.keywords] == ["river", "cloud"]


def test_texts_are_read_once_and_repeats_and_empty_ones_do_not_count() -> None:
    def stream() -> Iterator[str]:
        for text in planted():
            yield from (text, " ", text, "")

    assert make_topics(stream(), Planted(), count=4).sizes == (40, 30, 20, 10)


def test_of_many_texts_a_bounded_number_is_drawn_uniformly(monkeypatch: Any) -> None:
    embedded: list[int] = []

    class Counting(Planted):
        def embed(self, texts: Sequence[str]) -> F32:
            embedded.append(len(texts))
            return super().embed(texts)

    monkeypatch.setattr(topic_training, "TEXTS_PER_TOPIC", 15)
    monkeypatch.setattr(topic_training, "BLOCK", 16)
    made = make_topics(planted((4000, 3000, 2000, 1000)), Counting(), count=4)
    assert sum(embedded) == sum(made.sizes) == 60 and max(embedded) <= 16
    places = [int(text) for seed in range(60) for text in draw(map(str, range(500)), 100, seed)]
    counts = np.bincount(places, minlength=500)  # binomial, of mean 12 and deviation 3.1
    assert len(places) == 6000 and counts.max() <= 26
    # Early, late and middle texts alike: 2,000 each, of deviation 36.
    assert np.all(np.abs(counts.reshape(5, 100).sum(axis=1) - 1200) < 150)
    assert draw(map(str, range(500)), 100, 3) == draw(map(str, range(500)), 100, 3)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(6, 60), st.integers(0, 99))
def test_every_row_has_its_nearest_centre_and_every_centre_a_row(
    count: int, size: int, seed: int
) -> None:
    rows = np.random.default_rng(seed).normal(size=(size, 5))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    labels, centres = spherical_kmeans(rows, count, seed)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1, atol=1e-6)
    likeness = rows.astype(np.float64) @ centres.T
    chosen = np.take_along_axis(likeness, labels[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(chosen, likeness.max(axis=1), atol=1e-6)
    # At the end centres are the directions of their rows (at most a thousandth of them moves).
    sums = np.stack([rows[labels == i].sum(axis=0, dtype=np.float64) for i in range(count)])
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    np.testing.assert_allclose(sums / norms, centres, atol=1e-5)


def test_centres_are_as_good_as_those_of_euclidean_k_means() -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(4)
    rows = unit(rng.normal(size=(12, 20))[rng.integers(12, size=800)] + rng.normal(size=(800, 20)))
    found = [spherical_kmeans(rows, 12, seed)[1] for seed in range(4)]
    other = unit(cluster.KMeans(12, n_init=4, random_state=0).fit(rows).cluster_centers_)
    ours, theirs = (
        max(float((rows @ centres.T).max(axis=1).mean()) for centres in several)
        for several in (found, [other])
    )
    assert ours == pytest.approx(theirs, rel=0.01)


def test_an_empty_centre_takes_the_row_that_is_worst_off() -> None:
    rows = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 2]]
    centres = np.eye(3, dtype=np.float32)[[0, 1, 1]]
    labels = np.array([0, 0, 1, 1, 0])
    assert kmeans._none_empty(rows, labels, centres).tolist() == [0, 0, 1, 1, 2]
    assert kmeans._none_empty(rows, labels, centres[:2]) is labels


def test_equal_rows_are_one_topic() -> None:
    class Same(Planted):
        def embed(self, texts: Sequence[str]) -> F32:
            return np.tile(np.eye(16, dtype=np.float32)[0], (len(texts), 1))

    made = make_topics(planted(), Same(), count=4)
    assert len(made) == 1 and made.sizes == (100,)


def test_topics_without_words_are_left_out() -> None:
    numbers = [f"{i} {i + 1}" for i in range(30)]

    class Apart(Planted):
        def _row(self, text: str) -> np.ndarray[Any, Any]:
            if any(subject in text for subject in SUBJECTS):
                return super()._row(text)
            return np.eye(16)[9] + 1e-3 * super()._row(text)

    made = make_topics([*planted(), *numbers], Apart(), count=5)
    assert made.sizes == (40, 30, 20, 10)
    with pytest.raises(ValueError, match="no topic has a word"):
        make_topics(numbers, Apart(), count=2)


def test_reranking_puts_the_nearest_words_first() -> None:
    made = make_topics(planted(), Planted(), count=4, words=1, rerank=True)
    assert made.keywords == tuple((subject,) for subject in SUBJECTS)
    candidates = [("number", "strange", "river")]
    assert (
        rerank_keywords(candidates, np.eye(16, dtype=np.float32)[:1], Planted(), 2)[0][0] == "river"
    )


def test_topics_of_real_rows() -> None:
    texts = [f"{a} {b} {c}" for a in SUBJECTS for b in "xyz" for c in ("alpha", "beta", "gamma")]
    made = make_topics(texts, load_embedder("ngram-64"), count=4, seed=2, words=3)
    assert sum(made.sizes) == 36 and all(1 <= len(words) <= 3 for words in made.keywords)
    assert made.dimension == 64


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 101}, "topic-count = 101 is above the number of public texts, 100"),
        ({"count": 0}, "topic-count = 0 must be from 1"),
        ({"count": 65_536}, "must be from 1 to 65,535"),
        ({"words": 11}, "topic-words = 11 must be from 1 to 10, what a condition holds"),
        ({"words": 0}, "topic-words = 0"),
        ({"clustering": "dbscan"}, "ctcl.clustering = 'dbscan'"),
    ],
)
def test_options_out_of_bounds(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_topics(planted(), Planted(), **{"count": 4, **options})


@pytest.mark.parametrize("size", [3, 40])
def test_hdbscan_without_clusters(size: int) -> None:
    texts = [f"stray {i}" for i in range(size)]
    with pytest.raises(ValueError, match=f"finds no cluster of 10 among {size} public texts"):
        make_topics(texts, Planted(), count=4, clustering="hdbscan")


def test_no_texts_at_all() -> None:
    with pytest.raises(ValueError, match="number of public texts, 0"):
        make_topics(["", "  "], Planted(), count=1)


def test_an_embedder_that_gives_nan_is_named() -> None:
    class Broken(Planted):
        def embed(self, texts: Sequence[str]) -> F32:
            rows = super().embed(texts)
            rows[3, 2] = np.nan
            return rows

    with pytest.raises(ValueError, match=r"models\.embedder gives rows that are not finite.* 3"):
        make_topics(planted(), Broken(), count=4)


def test_umap_comes_before_hdbscan_and_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="umap-components = 5 with k-means"):
        make_topics(planted(), Planted(), count=2, umap_components=5)
    options: dict[str, Any] = {"count": 9, "clustering": "hdbscan", "umap_components": 5}
    monkeypatch.setattr(topic_training, "find_spec", lambda _: None)

    class Unasked(Planted):
        def embed(self, texts: Sequence[str]) -> F32:
            raise AssertionError("texts were embedded before the package was looked for")

    with pytest.raises(ValueError, match=r"needs umap-learn: pip install 'privsyn-flower\[umap\]'"):
        make_topics(planted(), Unasked(), **options)
    monkeypatch.undo()
    monkeypatch.setattr(topic_training, "_check_umap", lambda *_: None)
    monkeypatch.setattr(topic_training, "reduced", lambda rows, components, seed: rows[:, :2])
    assert 2 <= len(make_topics(planted(), Planted(), **options)) <= 9


def test_umap_finds_planted_topics() -> None:
    pytest.importorskip("umap")
    made = make_topics(
        planted(), Planted(), count=9, clustering="hdbscan", umap_components=2, seed=3
    )
    again = make_topics(
        planted(), Planted(), count=9, clustering="hdbscan", umap_components=2, seed=3
    )
    assert len(made) >= 2 and made.fingerprint == again.fingerprint
    with pytest.raises(ValueError, match="more of them than 15 are needed"):
        topic_training.reduced(np.eye(9, dtype=np.float32), 2, 0)
