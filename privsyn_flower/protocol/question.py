"""What a server asks: a query and its ticket. `noise` is what its sum must carry. All PUBLIC."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from privsyn_flower.common.arrays import F32, I8, U8, U16
from privsyn_flower.protocol.packing import int8_rows, pack_rows, projected

T = TypeVar("T")
Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
OptionValue = str | int | float
MOST_CLASSES = 1024  # of a class-conditional question
ROTATION_BYTES = 32
TO_COME = "evaluation"  # the option of an app's training: options of its evaluation, a JSON object
METRICS = "metrics"  # the option of an evaluation by an app's own metrics: their names and bounds


@dataclass(frozen=True)
class Ticket:
    """What every message, charge and release is bound to."""

    run: str
    query: str
    round: int
    attempt: int


@dataclass(frozen=True)
class Query:
    """One public question to every node; each user answers with a vector of L2 norm <= bound.

    rows (m, d) int8 and scales (m,) float32: row i of the question is rows[i] * scales[i].
    Quantising costs no privacy because the question is public, and the quantised question is
    the one that is stored, sent and answered, so that all sides see the same numbers.
    extra: further public arrays of a kind's question, by name ([a-z-]+).
    """

    kind: str
    rows: I8
    scales: F32
    length: int
    bound: float
    model: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    extra: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """All arrays of the question, in the order in which they are hashed."""
        return [self.rows, self.scales, *(self.extra[name] for name in sorted(self.extra))]

    @cached_property
    def packed(self) -> list[np.ndarray[Any, Any]]:
        """The same arrays as they travel, rows and scales in one; made once for all nodes."""
        rows = pack_rows(self.rows, self.scales)
        return [rows, *(self.extra[name] for name in sorted(self.extra))]

    @classmethod
    def votes(
        cls,
        candidates: Floats,
        *,
        bound: float,
        model: str,
        clip: str = "normalised",
        samples_cap: int = 8,
        neighbors: int = 1,
        metric: str = "l2",
        classes: Sequence[str] | None = None,
        labels: Sequence[str] = (),
    ) -> Query:
        """Candidates (m, d), public: which are nearest to your texts? Answer: votes (m,).

        model is the embedder's fingerprint; a node with another embedder refuses. classes: (m,)
        the class of each candidate, one of `labels`, the public class list: a text votes within
        its own; None: none.
        Raises ValueError when candidates are not a finite matrix or fewer than neighbors, and on
        classes that do not belong to them.
        """
        matrix = np.asarray(candidates, dtype=np.float32)
        if matrix.ndim != 2 or not np.isfinite(matrix).all() or len(matrix) < max(1, neighbors):
            raise ValueError(
                f"candidates of shape {matrix.shape} must be a finite (m, d) matrix with "
                f"m >= neighbors = {neighbors}"
            )
        rows, scales = int8_rows(matrix)
        options: dict[str, OptionValue] = {
            "clip": clip,
            "samples-cap": samples_cap,
            "neighbors": neighbors,
            "metric": metric,
        }
        extra: dict[str, np.ndarray[Any, Any]] = {}
        if classes is not None:
            extra["classes"] = _class_numbers(classes, labels, len(rows), "candidates")
            options["labels"] = json.dumps(list(labels))
            fewest = int(np.unique(extra["classes"], return_counts=True)[1].min())
            if fewest < neighbors:
                raise ValueError(
                    f"a class has {fewest} candidates, fewer than neighbors = {neighbors}"
                )
        return cls("votes", rows, scales, len(rows), float(bound), model, options, extra)

    def by_class(self, labels: Sequence[str]) -> Query:
        """This vote question, of candidates without classes, to be answered for each of the public
        classes apart: (classes m,).

        A text votes among the candidates of its own class, candidate j of class c at place
        c m + j; texts of no class in the list do not vote. Raises ValueError on labels that are not
        distinct names.
        """
        _class_numbers([], labels, 0, "candidates")
        options = {**self.options, "labels": json.dumps(list(labels))}
        return replace(self, length=len(labels) * len(self.rows), options=options)

    @classmethod
    def scores(
        cls,
        candidates: Floats,
        *,
        bound: float,
        model: str,
        score: str = "standardised",
        samples_cap: int = 8,
        groups: Sequence[int],
        classes: Sequence[str] | None = None,
        labels: Sequence[str] = (),
        dimension: int = 0,
    ) -> Query:
        """Candidates (m, d), public: how similar is each to your texts? Answer: scores (m,).

        score: how a user's vector is made (`queries.scores`). groups: (K,) candidates of each
        prompt, in order. classes: (K,) the class of each prompt, one of `labels`, the public
        class list; None: none. dimension: 0 < r < d sends candidates in r dimensions, with the
        projection; scores are then inner products in those (`projected`).
        Raises ValueError on candidates that are not a finite matrix, and on groups, classes or a
        dimension that do not belong to them.
        """
        matrix = np.asarray(candidates, dtype=np.float32)
        if matrix.ndim != 2 or not len(matrix) or not np.isfinite(matrix).all():
            raise ValueError(f"candidates of shape {matrix.shape} must be a finite (m, d) matrix")
        counts = np.asarray(groups)
        extra: dict[str, np.ndarray[Any, Any]] = {"groups": _group_sizes(counts, len(matrix))}
        options: dict[str, OptionValue] = {"score": score, "samples-cap": samples_cap}
        if classes is not None:
            extra["classes"] = _class_numbers(classes, labels, len(counts), "prompts")
            options["labels"] = json.dumps(list(labels))
        if dimension:
            rows, scales, extra["projection"] = projected(matrix, dimension)
            options["dimension"] = rows.shape[1]
        else:
            rows, scales = int8_rows(matrix)
        return cls("scores", rows, scales, len(rows), float(bound), model, options, extra)

    @classmethod
    def update(
        cls,
        parameters: U8,
        *,
        length: int,
        bound: float,
        model: str,
        rotation: bytes,
        options: Mapping[str, OptionValue],
    ) -> Query:
        """Public parameters to train from; answer: each user's clipped change of them (length,).

        parameters: (bytes,) named arrays as safetensors. length: coordinates of one user's vector.
        bound: its L2 norm. model: fingerprint of what the parameters belong to. rotation: 32
        public bytes, fresh for each round. options: clip-norm, the schedule, local training.
        Raises ValueError on parameters that are no bytes, and on another rotation or length.
        """
        if parameters.dtype != np.uint8 or parameters.ndim != 1 or not parameters.size:
            raise ValueError(
                f"parameters of {parameters.dtype} {parameters.shape} must be (bytes,) uint8"
            )
        if len(rotation) != ROTATION_BYTES:
            raise ValueError(f"rotation has {len(rotation)} bytes, expected {ROTATION_BYTES}")
        if length < 1:
            raise ValueError(f"length = {length} must be at least 1")
        rows, scales = np.zeros((0, 0), dtype=np.int8), np.zeros(0, dtype=np.float32)
        given = {**options, "encoding": "dense", "rotation": rotation.hex()}
        extra = {"parameters": parameters}
        return cls("update", rows, scales, length, float(bound), model, given, extra)

    def only_for(self, group: str) -> Query:
        """This question, which nodes of other `resources` refuse; "": as it is."""
        return replace(self, options={**self.options, "resources": group}) if group else self

    def within_topics(self, topics: Floats, numbers: Sequence[int]) -> Query:
        """This vote question, of candidates without classes, to be answered within topics.

        A text votes among the candidates of the topic nearest to it by cosine, and not at all where
        that has none. topics (t, d), public; numbers (m,): the topic of each candidate.
        """
        rows, scales = int8_rows(np.asarray(topics, dtype=np.float32))
        own = np.asarray(numbers)
        if own.shape != (len(self.rows),) or not 0 <= own.min() <= own.max() < len(rows):
            raise ValueError(f"numbers must be one of {len(rows)} topics for each candidate")
        extra: dict[str, np.ndarray[Any, Any]] = {"topics": rows, "topic-scales": scales}
        extra["classes"] = own.astype(np.uint16)
        return replace(self, extra=extra)

    def once(self, make: Callable[[Query], T]) -> T:
        """make(self), made by the first who asks: the question does not change."""
        made: dict[Any, T] = self.__dict__.setdefault("_made", {})
        if make not in made:
            made[make] = make(self)
        return made[make]

    @property
    def labels(self) -> list[str]:
        """The public class list; empty for a question without classes. Raises ValueError."""
        if "labels" not in self.options:
            return []
        try:
            labels = json.loads(str(self.options["labels"]))
        except (ValueError, RecursionError):
            raise ValueError("the labels are not a list") from None
        names = isinstance(labels, list) and all(isinstance(name, str) and name for name in labels)
        if not names or not 1 <= len(labels) <= MOST_CLASSES or len(set(labels)) != len(labels):
            raise ValueError("the labels are not distinct names")
        return list(labels)

    @property
    def dense(self) -> bool:
        """Whether answers are rotated and rounded at random, as dense vectors are."""
        return self.options.get("encoding") == "dense"

    @property
    def rotation(self) -> bytes:
        """The public seed of a dense query's rotation. Raises ValueError when there is none."""
        seed = bytes.fromhex(str(self.options.get("rotation", "")))
        if len(seed) != ROTATION_BYTES:
            raise ValueError(f"option rotation has {len(seed)} bytes, expected {ROTATION_BYTES}")
        return seed

    def question(self) -> F32:
        """The decoded question (m, d) float32, public; what was projected is lifted again."""
        rows = self.rows.astype(np.float32) * self.scales[:, None]
        if "projection" in self.extra:
            # <Q c, x> = <c, Q^T x>: users' rows stay as they are.
            rows = rows @ self.extra["projection"].astype(np.float32).T
        return rows


def _group_sizes(groups: np.ndarray[Any, Any], size: int) -> U16:
    largest = np.iinfo(np.uint16).max
    whole = groups.ndim == 1 and groups.dtype.kind in "iu" and len(groups)
    if not whole or groups.min() < 1 or groups.max() > largest or groups.sum() != size:
        raise ValueError(
            f"groups must be whole numbers from 1 to {largest} that sum to the {size} candidates"
        )
    return groups.astype(np.uint16)


def _class_numbers(classes: Sequence[str], labels: Sequence[str], count: int, what: str) -> U16:
    place = {label: number for number, label in enumerate(labels)}
    if len(place) != len(labels) or not 1 <= len(place) <= MOST_CLASSES or "" in place:
        raise ValueError(f"labels must be 1 to {MOST_CLASSES} distinct class names")
    unknown = sorted(set(classes) - set(place))
    if unknown or len(classes) != count:
        raise ValueError(
            f"classes must name one of labels for each of the {count} {what}; "
            f"{len(classes)} are given, not in labels: {unknown[:3]}"
        )
    return np.array([place[name] for name in classes], dtype=np.uint16)
