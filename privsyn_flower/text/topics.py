"""A topic model: points on the unit sphere with keywords, made of public text, used everywhere.

Source: CTCL (Tan et al. 2025, arXiv 2503.12347), section 3.2: clusters of embedded public
documents, ten keywords each; a document belongs to the topic whose vector is closest to its own.
Two files make a model: topics.safetensors holds the vectors, topics.json the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F32, Ints
from privsyn_flower.common.files import write_atomic
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.queries.votes import Question, nearest_candidates, prepare

KEY = "ctcl.topics"
ROWS_FILE, WORDS_FILE = "topics.safetensors", "topics.json"
FORMAT = 1  # of the two files
SCHEME = "privsyn-topics-1"  # of the fingerprint
MOST_TOPICS = 65_535
MOST_WORDS = 10  # of a topic: what a condition holds
LONGEST_WORD = 64  # characters; KeyBERT's may be phrases
SEPARATORS = ",\n\r"  # between keywords and lines of a condition
_UNIT = 1e-3  # how far a norm may be from 1


@dataclass(frozen=True, eq=False)
class TopicModel:
    """rows: (m, d) float32, each of L2 norm 1. keywords: m times 1 to 10 words, best first.
    embedder: fingerprint of what the rows come from. sizes: (m,) public texts of each topic, or
    () where nobody knows. All public. Raises ValueError that names what is wrong."""

    rows: F32
    keywords: tuple[tuple[str, ...], ...]
    embedder: str
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_rows(self.rows)
        _check_keywords(self.keywords, len(self.rows))
        if not self.embedder:
            raise ValueError(f"{KEY}: topics must name their embedder's fingerprint")
        if self.sizes and (len(self.sizes) != len(self.rows) or min(self.sizes) < 0):
            raise ValueError(f"{KEY}: {len(self.sizes)} sizes of {len(self.rows)} topics")

    def __len__(self) -> int:
        """m, the number of topics."""
        return len(self.rows)

    @property
    def dimension(self) -> int:
        """d, the length of a row."""
        return int(self.rows.shape[1])

    def assign(self, rows: F32) -> Ints:
        """(n, d) -> (n,): the topic of the greatest cosine; ties go to the lowest index.

        -1 for a row that is not finite, which has no topic. A row's topic depends on that row
        alone, and is the one that `votes` with metric "cosine" would vote for. Memory: blocks of 8
        MB. Raises ValueError on another dimension.
        """
        chosen, voted = nearest_candidates(np.asarray(rows, np.float32), None, self._question)
        found = np.full(len(rows), -1, dtype=np.intp)
        found[voted] = chosen[:, 0]
        return found

    @cached_property
    def _question(self) -> Question:
        return prepare(self.rows, 1, "cosine")

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over rows, words and embedder, hexadecimal; sizes do not count."""
        digest = hashlib.sha256(f"{SCHEME}:{self.rows.shape}:{self.embedder}:".encode())
        digest.update(self.rows.astype("<f4").tobytes())
        digest.update(json.dumps(self.keywords).encode())
        return digest.hexdigest()


def _check_rows(rows: F32) -> None:
    if rows.dtype != np.float32 or rows.ndim != 2 or not rows.size or len(rows) > MOST_TOPICS:
        raise ValueError(
            f"{KEY}: rows of {rows.dtype} {rows.shape} must be float32 of 1 to {MOST_TOPICS:,} "
            "topics"
        )
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)  # (m,)
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= _UNIT))  # NaN is wrong as well
    if len(wrong):
        raise ValueError(
            f"{KEY}: row {wrong[0]} has norm {norms[wrong[0]]:g}, expected 1: make the topics again"
        )


def _check_keywords(keywords: Sequence[Sequence[str]], size: int) -> None:
    if len(keywords) != size:
        raise ValueError(f"{KEY}: {len(keywords)} lists of keywords for {size} topics")
    for number, words in enumerate(keywords):
        if not 1 <= len(words) <= MOST_WORDS:
            raise ValueError(
                f"{KEY}: topic {number} has {len(words)} keywords, expected 1 to {MOST_WORDS}, "
                "which is what a condition holds: make the topics with --words within that"
            )
        for word in words:
            clean = word.strip() == word and not any(c in word for c in SEPARATORS)
            if not clean or not 1 <= len(word) <= LONGEST_WORD:
                raise ValueError(
                    f"{KEY}: keyword {word[:80]!r} of topic {number} must have 1 to "
                    f"{LONGEST_WORD} characters, no comma, no new line and no space around it"
                )


def save_topics(model: TopicModel, folder: Path) -> None:
    """Write a model's two files into a folder, made where it is not there.

    The file of words comes last and names the digest of the rows, so that a write that was cut
    short is seen as damage. Raises OSError.
    """
    from safetensors.numpy import save

    packed = save({"topics": np.ascontiguousarray(model.rows)})
    facts = {
        "format": FORMAT,
        "embedder": model.embedder,
        "fingerprint": model.fingerprint,
        "rows": hashlib.sha256(packed).hexdigest(),
        "sizes": list(model.sizes),
        "keywords": [list(words) for words in model.keywords],
    }
    write_atomic(folder / ROWS_FILE, packed)
    write_atomic(folder / WORDS_FILE, json.dumps(facts, ensure_ascii=False, indent=1).encode())


@named_as_arguments
def load_topics(folder: Path, embedder: str = "") -> TopicModel:
    """The model in a folder. embedder: the fingerprint that it must have; "": any.

    Raises ValueError where there is none, where a file is damaged, and on another embedder.
    """
    facts = _read_json(folder / WORDS_FILE)
    found = facts.get("format") if isinstance(facts, dict) else None
    if found != FORMAT:
        way = "make the topics again"
        if isinstance(facts, dict) and "topic_representations" in facts:
            way = "it is BERTopic's: privsyn topics import"
        raise ValueError(f"{folder / WORDS_FILE} ({KEY}): format {found!r}, not {FORMAT}: {way}")
    packed = _read(folder / ROWS_FILE)
    if hashlib.sha256(packed).hexdigest() != facts.get("rows"):
        raise ValueError(
            f"{folder / ROWS_FILE} ({KEY}) is not the file that {WORDS_FILE} names: copy the "
            "folder again, or make the topics again"
        )
    keywords = _word_lists(facts.get("keywords"), folder / WORDS_FILE)
    sizes = facts.get("sizes")
    if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
        raise _damaged(folder / WORDS_FILE, "sizes are no whole numbers")
    rows = _tensor(packed, "topics", folder / ROWS_FILE)
    model = TopicModel(rows, keywords, str(facts.get("embedder") or ""), tuple(sizes))
    if model.fingerprint != facts.get("fingerprint"):
        raise _damaged(folder / WORDS_FILE, "its words or its embedder have changed")
    if embedder and model.embedder != embedder:
        raise ValueError(
            f"{folder} ({KEY}): topics of embedder {model.embedder[:16]}, and the run's is "
            f"{embedder[:16]}: set models.embedder to theirs, or make topics with it"
        )
    return model


def import_bertopic(folder: Path, embedder: str) -> TopicModel:
    """The topics of a BERTopic folder as CTCL's authors publish theirs.

    topic_embeddings.safetensors holds an array `topic_embeddings` (m or m + 1, d), whose first row
    is that of the outliers where BERTopic kept one; topic_infos.json a list of {"topic_idx",
    "topic_words"}. Outliers, index -1, are no topic and are left out. embedder: fingerprint of what
    the folder was made with, which its files do not tell. Raises ValueError on files that are
    missing, damaged, or do not fit.
    """
    listed, vectors = folder / "topic_infos.json", folder / "topic_embeddings.safetensors"
    words = _bertopic_words(_read_json(listed), listed)
    rows = _tensor(_read(vectors), "topic_embeddings", vectors)
    outliers = len(rows) - len(words)
    if sorted(words) != list(range(len(words))) or outliers not in (0, 1):
        raise ValueError(
            f"{folder}: {len(rows)} rows and topics {min(words)}..{max(words)}, {len(words)} of "
            "them: expected topics from 0 without gaps, and a row for each (with or without one "
            "for outliers)"
        )
    wide = rows[outliers:].astype(np.float64)  # (m, d)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (norms > 0).all() or not np.isfinite(norms).all():
        raise _damaged(vectors, "a row is zero or not finite")
    keywords = tuple(words[number] for number in range(len(words)))
    return TopicModel((wide / norms).astype(np.float32), keywords, embedder)


def _bertopic_words(infos: Any, path: Path) -> dict[int, tuple[str, ...]]:
    """topic_infos.json -> words of every topic but the outliers."""
    found: dict[int, tuple[str, ...]] = {}
    for info in infos if isinstance(infos, list) else []:
        number = info.get("topic_idx") if isinstance(info, dict) else None
        if type(number) is not int or number in found:
            raise _damaged(path, f"topic_idx {number!r} is no number, or is there twice")
        if number != -1:
            found[number] = _word_lists([info.get("topic_words")], path)[0]
    if not found:
        raise _damaged(path, "it lists no topics")
    return found


def _word_lists(value: Any, path: Path) -> tuple[tuple[str, ...], ...]:
    lists = value if isinstance(value, list) else []
    if not lists or not all(
        isinstance(words, list) and all(isinstance(word, str) for word in words) for words in lists
    ):
        raise _damaged(path, "keywords are no lists of strings")
    return tuple(tuple(words) for words in lists)


def _tensor(packed: bytes, name: str, path: Path) -> F32:
    """The array `name` of a safetensors file, as float32 (m, d)."""
    from safetensors.numpy import load

    try:
        array = load(packed)[name]
    except Exception as error:  # a damaged header can raise anything
        raise _damaged(path, f"no array {name!r} ({type(error).__name__})") from None
    if array.ndim != 2 or array.dtype.kind != "f" or not math.prod(array.shape):
        raise _damaged(path, f"{name} is {array.dtype} {array.shape}, expected a matrix of floats")
    return np.asarray(array, dtype=np.float32)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"no topics ({KEY}): {path} is not there") from None


def _read_json(path: Path) -> Any:
    packed = _read(path)
    try:
        return json.loads(packed)
    except (RecursionError, ValueError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} ({KEY}) is damaged: {what}: copy it again, or make the topics again")
