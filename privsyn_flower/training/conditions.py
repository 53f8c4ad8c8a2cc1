"""Conditions of a question's local training: what each text is learned from. PUBLIC.

CTCL (Tan et al. 2025, arXiv 2503.12347, section 3.3) trains on pairs of a topic's keywords and a
text. The question brings the topic model, quantised as the candidates of a vote are; the node
finds the topic of each of its texts with its own embedder and writes the prompt itself. Which topic
that is never leaves it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.common.arrays import F32, I8
from privsyn_flower.protocol.packing import int8_rows
from privsyn_flower.protocol.question import MOST_CLASSES, OptionValue
from privsyn_flower.text.conditions import condition
from privsyn_flower.text.topics import MOST_TOPICS, TopicModel

ROWS, SCALES, WORDS = "topic-rows", "topic-scales", "topic-words"  # extra arrays of a question

MOST_DIMENSIONS = 8192
MOST_NUMBERS = 1 << 26  # of all topics' rows together
MOST_WORD_BYTES = 1 << 20  # of all keywords as JSON; the paper's 13,000 take a tenth of that
MOST_CHARACTERS = 200  # of a document type, a class or a fingerprint
MOST_SOURCE = 1024  # tokens of a condition

_KEY = "condition"
_WORDS = ("embedder", "document_type", "labels")  # fields of `ConditionOptions` that may be ""


@dataclass(frozen=True)
class Conditions:
    """What texts are conditioned on. Raises ValueError for a value out of bounds.

    topics: None for no topic: every text is then learned from the same words. document_type: a
    public line of every condition. labels: the public class list: a text's class is a line of its
    condition, and texts of no class in the list are left out; (): no classes. max_source: tokens of
    a condition, at most; the rest is cut.
    """

    topics: TopicModel | None = None
    document_type: str = ""
    labels: tuple[str, ...] = ()
    max_source: int = 128

    def __post_init__(self) -> None:
        self.options()

    def options(self) -> ConditionOptions:
        """What of it travels as options, checked."""
        topics = self.topics
        return ConditionOptions(
            topics=0 if topics is None else len(topics),
            embedder="" if topics is None else topics.embedder,
            document_type=self.document_type,
            labels=json.dumps(list(self.labels)) if self.labels else "",
            max_source=self.max_source,
        )

    def to_options(self) -> dict[str, OptionValue]:
        """The options of an update question about pairs: condition.max-source and so on."""
        return self.options().to_options()

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The question's further arrays: rows (m, d) int8, scales (m,), words (bytes,) uint8.

        Raises ValueError for more words than may travel.
        """
        if self.topics is None:
            return {}
        rows, scales = int8_rows(self.topics.rows)
        words = json.dumps([list(own) for own in self.topics.keywords]).encode()
        packed = np.frombuffer(words, dtype=np.uint8)
        arrays: dict[str, NDArray[Any]] = {ROWS: rows, SCALES: scales, WORDS: packed}
        _topics(self.options(), arrays)  # what no node would take is not sent
        return arrays

    @classmethod
    def from_query(
        cls, options: Mapping[str, OptionValue], extra: Mapping[str, NDArray[Any]]
    ) -> Conditions | None:
        """What an update question from an untrusted side says; None for one without conditions.

        extra: its further arrays. Raises ValueError: missing, unknown, out of bounds, or not of the
        options' size.
        """
        asked = ConditionOptions.from_options(options)
        if asked is None:
            return None
        topics = _topics(asked, extra) if asked.topics else None
        return cls(topics, asked.document_type, asked.classes, asked.max_source)

    def pairs(self, texts: Sequence[str], rows: F32) -> tuple[list[str], list[str]]:
        """One user's texts and the condition of each, PRIVATE; without those that have none.

        rows: the texts' embeddings (n, d), PRIVATE, () rows where they could not be computed; not
        looked at without topics. A text whose row is not finite is left out, and one of no class.
        """
        words: Sequence[tuple[str, ...] | None] = [()] * len(texts)
        if self.topics is not None:
            if len(rows) != len(texts):
                return [], []
            found = self.topics.assign(rows).tolist()  # of these alone, whoever else is here
            words = [None if topic < 0 else self.topics.keywords[topic] for topic in found]
        labels = self._labels(texts)
        kept = [i for i in range(len(texts)) if words[i] is not None and labels[i] is not None]
        told = [condition(words[i] or (), self.document_type, labels[i] or "") for i in kept]
        return [texts[i] for i in kept], told

    def _labels(self, texts: Sequence[str]) -> Sequence[str | None]:
        """The class of each text, "" where there are none, None outside of the list."""
        if not self.labels:
            return [""] * len(texts)
        from privsyn_flower.data import label_of  # loaded where texts are

        known = set(self.labels)
        return [label if (label := label_of(text)) in known else None for text in texts]


@dataclass(frozen=True)
class ConditionOptions:
    """The conditions' numbers that travel in a question's head. Raises ValueError.

    topics: how many; 0: none, and no embedder. labels: a JSON list; "": no classes.
    """

    topics: int
    embedder: str
    document_type: str
    labels: str
    max_source: int

    def __post_init__(self) -> None:
        for name, low, most in (("topics", 0, MOST_TOPICS), ("max_source", 1, MOST_SOURCE)):
            value = getattr(self, name)
            # A boolean is an int to Python, and no number to us.
            if type(value) is not int or not low <= value <= most:
                raise ValueError(
                    f"{_option(name)} = {value!r} must be a whole number from {low} to {most} "
                    f"(key ctcl.{name.replace('_', '-')})"
                )
        for name in ("embedder", "document_type"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
                raise ValueError(
                    f"{_option(name)} = {value!r:.80} must be words of at most {MOST_CHARACTERS} "
                    "characters"
                )
        if bool(self.topics) != bool(self.embedder):
            raise ValueError(f"{self.topics} topics of embedder {self.embedder!r}: one needs both")
        classes = self.classes
        if not all(isinstance(one, str) and 0 < len(one) <= MOST_CHARACTERS for one in classes):
            raise ValueError(f"{_option('labels')} are no names of at most {MOST_CHARACTERS}")
        if len(set(classes)) < len(classes) or len(classes) > MOST_CLASSES:
            raise ValueError(f"{_option('labels')} must be at most {MOST_CLASSES} distinct names")

    @property
    def classes(self) -> tuple[str, ...]:
        """The public class list. Raises ValueError for what is none."""
        if not isinstance(self.labels, str):
            raise ValueError(f"{_option('labels')} = {self.labels!r:.80} are no list")
        if not self.labels:
            return ()
        try:
            found = json.loads(self.labels)
        except (ValueError, RecursionError):
            raise ValueError(f"{_option('labels')} are no list") from None
        if not isinstance(found, list) or not found:
            raise ValueError(f"{_option('labels')} are no list of classes")
        return tuple(found)

    @property
    def arrays(self) -> set[str]:
        """The further arrays of such a question."""
        return {ROWS, SCALES, WORDS} if self.topics else set()

    def to_options(self) -> dict[str, OptionValue]:
        """The fields as a query's options; words that are "" are left out, as Flower cannot count
        the bytes of those."""
        values = {_option(field.name): getattr(self, field.name) for field in fields(self)}
        return {key: value for key, value in values.items() if value != ""}

    @classmethod
    def from_options(cls, options: Mapping[str, OptionValue]) -> ConditionOptions | None:
        """The fields among a query's options; None where there are none of them.

        Raises ValueError: missing, unknown, out of bounds.
        """
        known = {_option(field.name): field.name for field in fields(cls)}
        given = {key: value for key, value in options.items() if key.startswith(f"{_KEY}.")}
        if not given:
            return None
        full = {_option(name): "" for name in _WORDS} | given
        odd = sorted(set(known) ^ set(full))
        if odd:
            raise ValueError(f"options {odd} are missing or not known; known: {sorted(known)}")
        return cls(**{known[key]: value for key, value in full.items()})  # type: ignore[arg-type]


def _topics(asked: ConditionOptions, extra: Mapping[str, NDArray[Any]]) -> TopicModel:
    """The topic model of a question's arrays. Raises ValueError before anything large is made."""
    rows, scales, words = (extra.get(name, np.zeros(0)) for name in (ROWS, SCALES, WORDS))
    if rows.dtype != np.int8 or rows.ndim != 2 or len(rows) != asked.topics:
        raise ValueError(f"{ROWS} of {rows.dtype} {rows.shape} are not those of {asked.topics}")
    if not 1 <= rows.shape[1] <= MOST_DIMENSIONS or rows.size > MOST_NUMBERS:
        raise ValueError(f"{ROWS} of shape {rows.shape}: at most {MOST_NUMBERS} numbers")
    if scales.dtype != np.float32 or scales.shape != (len(rows),):
        raise ValueError(f"{SCALES} of {scales.dtype} {scales.shape}, expected ({len(rows)},)")
    return TopicModel(_unit(rows, scales), _keywords(words, len(rows)), asked.embedder)


def _unit(rows: I8, scales: F32) -> F32:
    """Quantised rows -> unit rows (m, d). Raises ValueError for one without a direction."""
    if not np.isfinite(scales).all() or not (scales > 0).all():
        raise ValueError(f"{SCALES} must be finite and above 0")
    values = rows.astype(np.float32)  # the scale of a row is no part of its direction
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ValueError(f"{ROWS} has a row of zeros: it has no direction")
    unit: F32 = (values / lengths).astype(np.float32)
    return unit


def _keywords(packed: NDArray[Any], topics: int) -> tuple[tuple[str, ...], ...]:
    """JSON bytes from an untrusted side -> keywords of each topic. Raises ValueError."""
    if packed.dtype != np.uint8 or packed.ndim != 1 or not 2 <= packed.size <= MOST_WORD_BYTES:
        raise ValueError(
            f"{WORDS} of {packed.dtype} {packed.shape} must be at most {MOST_WORD_BYTES} bytes: "
            "take fewer topics or keywords (keys ctcl.topic-count, ctcl.topic-words)"
        )
    try:
        found = json.loads(packed.tobytes())
    except (ValueError, RecursionError):
        raise ValueError(f"{WORDS} are no JSON") from None
    if not isinstance(found, list) or len(found) != topics:
        raise ValueError(f"{WORDS} are not those of {topics} topics")
    if not all(isinstance(own, list) and all(isinstance(w, str) for w in own) for own in found):
        raise ValueError(f"{WORDS} are no lists of words")
    return tuple(tuple(own) for own in found)  # how many and how long: the model's own check


def _option(name: str) -> str:
    return f"{_KEY}.{name.replace('_', '-')}"
