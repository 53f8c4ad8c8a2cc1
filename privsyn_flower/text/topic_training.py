"""Public texts -> topics: clusters of their embeddings, with keywords.

Source: CTCL (Tan et al. 2025, arXiv 2503.12347), section 3.2 and BERTopic (Grootendorst 2022,
arXiv 2203.05794). The default is spherical k-means (Dhillon and Modha 2001), whose number of topics
is given and which leaves no text out; HDBSCAN is the paper's.

Memory is bounded whatever the number of texts: of more than TEXTS_PER_TOPIC texts a topic, that
many are drawn (one pass over a stream), and centres, sizes and keywords are theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Literal, get_args

import numpy as np

from privsyn_flower.common.arrays import F32, Ints
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.text.kmeans import BLOCK, directions, spherical_kmeans
from privsyn_flower.text.protocols import Embedder
from privsyn_flower.text.topics import KEY, MOST_TOPICS, MOST_WORDS, TopicModel
from privsyn_flower.text.words import class_words

Clustering = Literal["k-means", "hdbscan"]

TEXTS_PER_TOPIC = 256  # drawn for each topic; centres hardly move with more
HDBSCAN_TEXTS = 20_000  # drawn for HDBSCAN, whose time grows with the square
CLUSTER_SIZE = 10  # texts of HDBSCAN's smallest cluster, as in BERTopic
NEIGHBOURS = 15  # of a text in UMAP, as in BERTopic
RERANKED = 3  # candidates for each keyword that is kept, when embeddings rank them


@named_as_arguments
def make_topics(
    texts: Iterable[str],
    embedder: Embedder,
    *,
    count: int,
    clustering: Clustering = "k-means",
    seed: int = 0,
    words: int = MOST_WORDS,
    rerank: bool = False,
    umap_components: int = 0,
    progress: Progress = silent,
) -> TopicModel:
    """PUBLIC texts -> at most `count` topics, the largest first, with `words` keywords each.

    texts: read once, so a stream will do; repeated and empty ones count once and not at all.
    clustering: "k-means" makes `count` topics; "hdbscan" as many as it finds, of which the `count`
    largest are kept, without its outliers, of rows in umap_components dimensions (0: as they are).
    Topics whose texts have no words are left out. rerank:
    keywords are the candidates whose own embeddings are nearest to the topic, as KeyBERT's. The
    same texts, embedder and seed give the same topics. Raises ValueError that says what to change.
    """
    if clustering not in get_args(Clustering):
        raise ValueError(f"ctcl.clustering = {clustering!r} must be one of {get_args(Clustering)}")
    if not 1 <= count <= MOST_TOPICS:
        raise ValueError(f"ctcl.topic-count = {count} must be from 1 to {MOST_TOPICS:,}")
    if not 1 <= words <= MOST_WORDS:
        raise ValueError(
            f"ctcl.topic-words = {words} must be from 1 to {MOST_WORDS}, what a condition holds"
        )
    if umap_components:
        _check_umap(umap_components, clustering)
    most = count * TEXTS_PER_TOPIC if clustering == "k-means" else HDBSCAN_TEXTS
    drawn = draw(texts, most, seed)
    rows = _embedded(drawn, embedder, progress)  # (n, d)
    if clustering == "k-means":
        labels, centres = spherical_kmeans(rows, count, seed, progress)
    else:
        near = reduced(rows, umap_components, seed) if umap_components else None
        labels, centres = density_clusters(rows, count, near)
    return _described(drawn, labels, centres, embedder, words, rerank)


def draw(texts: Iterable[str], most: int, seed: int) -> list[str]:
    """At most `most` distinct texts that are not empty, uniform over a stream (Vitter 1985, R)."""
    rng = seeded(seed, "topics", "texts")
    kept: list[str] = []
    for number, text in enumerate(text for text in texts if text.strip()):
        if number < most:
            kept.append(text)
        elif (place := int(rng.random() * (number + 1))) < most:
            kept[place] = text
    return list(dict.fromkeys(kept))


def _embedded(texts: Sequence[str], embedder: Embedder, progress: Progress) -> F32:
    """(n, d) unit rows. Raises ValueError for a row that is not finite."""
    rows = np.empty((len(texts), embedder.dimension), dtype=np.float32)
    for start in range(0, len(texts), BLOCK):
        progress("topics: embedding", start, len(texts))
        rows[start : start + BLOCK] = embedder.embed(texts[start : start + BLOCK])
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        raise ValueError(
            f"models.embedder gives rows that are not finite, first of text {wrong[0]}: "
            "use another, or another file of it"
        )
    progress("topics: embedding", len(texts), len(texts))
    return rows


def _check_umap(components: int, clustering: str) -> None:
    """Raises ValueError where UMAP cannot be used, before a text is embedded."""
    if clustering != "hdbscan":
        raise ValueError(f"ctcl.umap-components = {components} with {clustering}: set it to 0")
    if find_spec("umap") is None:
        raise ValueError(
            f"ctcl.umap-components = {components} needs umap-learn: pip install "
            "'privsyn-flower[umap]', or set it to 0"
        )


def reduced(rows: F32, components: int, seed: int) -> F32:
    """UMAP (McInnes et al. 2018) of unit rows (n, d) -> (n, components), with BERTopic's settings.

    Raises ValueError for fewer rows than its neighbours.
    """
    from umap import UMAP

    if len(rows) <= components + 1 or len(rows) <= NEIGHBOURS:
        raise ValueError(
            f"ctcl.umap-components = {components} with {len(rows)} different public texts: more of "
            f"them than {max(NEIGHBOURS, components + 1)} are needed; set it to 0, or give more"
        )
    own = UMAP(
        n_neighbors=NEIGHBOURS, n_components=components, min_dist=0.0, metric="cosine",
        random_state=seed & 0xFFFF_FFFF, n_jobs=1,
    )  # fmt: skip
    found: F32 = np.asarray(own.fit_transform(rows), dtype=np.float32)
    return found


def density_clusters(rows: F32, count: int, near: F32 | None = None) -> tuple[Ints, F32]:
    """HDBSCAN (Campello et al. 2013) of unit rows: labels (n,), -1 for outliers, and centres.

    near: rows of which the clusters are, the same ones in fewer dimensions; None: rows. Of the
    clusters the `count` largest are kept, each with the direction of its rows' sum. Of rows as they
    are these are the leaves of its tree at min_samples = 1: BERTopic's clusters would be few, among
    the 6,144 public docstrings of the demo 3, with 93 % outliers, against 51 leaves with 87 %. Of
    reduced ones they are BERTopic's own, by excess of mass.
    Time grows with the square of n. Raises ValueError when there are no clusters.
    """
    from sklearn.cluster import HDBSCAN

    found = np.full(len(rows), -1)
    if len(rows) >= CLUSTER_SIZE:
        options = {"min_samples": 1, "cluster_selection_method": "leaf"} if near is None else {}
        asked = HDBSCAN(min_cluster_size=CLUSTER_SIZE, copy=True, **options)
        found = asked.fit_predict(rows if near is None else near)  # (n,)
    if found.max(initial=-1) < 0:
        raise ValueError(
            f"ctcl.clustering = 'hdbscan' finds no cluster of {CLUSTER_SIZE} among {len(rows)} "
            "public texts: use k-means, or give more public text"
        )
    sizes = np.bincount(found[found >= 0])
    kept = np.argsort(-sizes, kind="stable")[:count]
    places = np.full(len(sizes) + 1, -1, dtype=np.intp)  # the last is that of the outliers, -1
    places[kept] = np.arange(len(kept))
    labels = places[found]
    return labels, directions(rows, labels, len(kept))


def _described(
    texts: Sequence[str], labels: Ints, centres: F32, embedder: Embedder, words: int, rerank: bool
) -> TopicModel:
    """Clusters -> the model: the largest first, without those that have no words."""
    members: list[list[str]] = [[] for _ in centres]
    for text, label in zip(texts, labels.tolist(), strict=True):
        if label >= 0:
            members[label].append(text)
    found = class_words(members, words * RERANKED if rerank else words)
    if rerank:
        found = rerank_keywords(found, centres, embedder, words)
    order = sorted(range(len(centres)), key=lambda place: -len(members[place]))
    order = [place for place in order if found[place]]
    if not order:
        raise ValueError(f"{KEY}: no topic has a word: the public text has no words of letters")
    return TopicModel(
        centres[order],
        tuple(found[place] for place in order),
        embedder.fingerprint,
        tuple(len(members[place]) for place in order),
    )


def rerank_keywords(
    candidates: Sequence[tuple[str, ...]], centres: F32, embedder: Embedder, words: int
) -> list[tuple[str, ...]]:
    """The `words` candidates of each centre (m, d) whose own rows are nearest to it, best first."""
    names = sorted({word for own in candidates for word in own})
    place = {word: number for number, word in enumerate(names)}
    rows = embedder.embed(names)  # (w, d)
    kept = []
    for own, centre in zip(candidates, centres, strict=True):
        likeness = rows[[place[word] for word in own]].astype(np.float64) @ centre
        kept.append(tuple(own[i] for i in np.argsort(-likeness, kind="stable")[:words]))
    return kept
