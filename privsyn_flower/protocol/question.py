"""What a server asks: a query, its ticket, and the noise its sum must carry. All PUBLIC."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from privsyn_flower.arrays import F16, F32, F64, I8, U8, U16, U64
from privsyn_flower.privacy.encoding.dense import DensePlan, check_dense, decode_dense
from privsyn_flower.privacy.encoding.quantize import IntegerPlan, check_plan, decode
from privsyn_flower.privacy.encoding.rotation import padded_length
from privsyn_flower.privacy.noise.integer_noise import release_distance
from privsyn_flower.protocol.packing import pack_rows

T = TypeVar("T")
Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
OptionValue = str | int | float
Source = Literal["nodes", "aggregator"]
MOST_CLASSES = 1024  # of a class-conditional question
ROTATION_BYTES = 32
_STEP = 2.0**-11  # of a projected entry times the root of its direction's eigenvalue, at most 1
_COARSE = 255  # fine steps in a coarse one: what is left lies within -127..127
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
class Noise:
    """What the nodes of one query add, and what its sum must carry (rule 6).

    Users' vectors become integers of L2 norm at most `sensitivity`, summed mod 2^bits. A node
    that stands for w users adds discrete Gaussian noise of variance w / min_weight times
    (multiplier * sensitivity)^2 + 1/12 to every coordinate: survivors of honest weight W_min =
    min_weight carry the guaranteed noise, `colluding` weight on top of that is assumed to take its
    own noise off.

    scale: integers per unit of the vector; 0: sensitivity / bound. source "aggregator": the nodes
    add nothing, the sum that they give away is PRIVATE, and a trusted aggregator adds noise to it
    before anything else; `multiplier` is then that of independent Gaussian noise which would cost
    a user as much for each participation.
    """

    multiplier: float
    sensitivity: float
    bits: int
    min_weight: float
    colluding: float = 0.0
    sampling_rate: float = 1.0
    scale: float = 0.0
    source: Source = "nodes"


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


def projected(candidates: F32, dimension: int) -> tuple[I8, F32, F16]:
    """Unit candidates in r = `dimension` of d dimensions: rows (m, c) int8 and scales (m,) as of
    any question, and the projection (d, c) that lifts them again. Public.

    Onto their own principal directions, not centred: the r dimensions that keep most of their
    inner products with each other, and so with texts that are like them. An error along a direction
    costs what texts have along it, about the root of its eigenvalue: so each has a step of its
    own, in inverse proportion to that. Entries are then small where they matter little, and take
    few bits (`packing.py`). Directions with too many steps for int8 have two columns, c > r.
    Raises ValueError on a dimension outside 1..d - 1.
    """
    if not 0 < dimension < candidates.shape[1]:
        raise ValueError(
            f"dimension = {dimension} must be above 0 and below the embedder's, "
            f"{candidates.shape[1]} (key popri.dimension; 0 sends all of it)"
        )
    lengths = np.linalg.norm(candidates, axis=1, keepdims=True)
    units = (candidates / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    values, directions = np.linalg.eigh((units.T @ units).astype(np.float64) / len(units))
    directions = directions[:, ::-1][:, :dimension]  # (d, r)
    # float16 has no room for weights that are further apart.
    kept = np.maximum(values[::-1][:dimension], 1e-4 * values[-1])  # (r,)
    weights = np.sqrt(kept) if values[-1] > 0 else np.ones(dimension)  # zeros: any will do
    entries = (units @ directions.astype(np.float32)).astype(np.float64) * weights  # (m, r)
    whole = np.rint(entries / _STEP)  # (m, r)
    wide = np.flatnonzero(np.abs(whole).max(axis=0) > 127)
    coarse = np.rint(whole[:, wide] / _COARSE)
    whole[:, wide] -= _COARSE * coarse
    lifts = directions * (weights[-1] / weights)  # (d, r)
    rows = np.concatenate([coarse, whole], axis=1).astype(np.int8)
    projection = np.concatenate([_COARSE * lifts[:, wide], lifts], axis=1).astype(np.float16)
    return rows, np.full(len(rows), _STEP / weights[-1], dtype=np.float32), projection


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


def int8_rows(
    matrix: F32,
) -> tuple[I8, F32]:
    """Finite rows (m, d) -> int8 rows and their scales (m,): row i is about rows[i] * scales[i]."""
    peak = np.abs(matrix).max(axis=1, initial=0.0)
    # Rows too small for a float32 scale are zero to every use of them.
    scales = np.where(peak > 1e-35, peak / 127.0, 1.0).astype(np.float32)
    return np.rint(matrix / scales[:, None]).clip(-127, 127).astype(np.int8), scales


def encoded_length(query: Query) -> int:
    """Coordinates of an answer as it travels: a dense one is padded for its rotation."""
    return padded_length(query.length) if query.dense else query.length


def integer_plan(query: Query, noise: Noise) -> IntegerPlan | DensePlan:
    """The integer encoding of a query's answers. Raises ValueError on numbers that fit none."""
    plan = DensePlan if query.dense else IntegerPlan
    return plan(
        bound=query.bound,
        sensitivity=noise.sensitivity,
        scale=noise.scale or noise.sensitivity / query.bound,
        bits=noise.bits,
        length=query.length,
    )


def total_variation(query: Query, noise: Noise) -> float:
    """How far, at most, the nodes' noise on one sum is from rounded Gaussian noise.

    0 where the aggregator adds it. Raises TooCoarse, a ValueError, on integers too coarse to say.
    """
    if noise.source == "aggregator":
        return 0.0
    numbers = (noise.multiplier, noise.sensitivity, noise.min_weight)
    return release_distance(encoded_length(query), *numbers)


def encoded_bound(query: Query, noise: Noise) -> float:
    """L2 norm of one user's vector in a decoded sum: the bound, and what rounding adds to it.

    The unit of the noise multiplier: noise of multiplier z has standard deviation z times this.
    """
    return noise.sensitivity / noise.scale if noise.scale else query.bound


def decode_sum(residues: U64, query: Query, noise: Noise) -> F64:
    """A sum modulo 2^bits in units of the vectors: (encoded_length,) -> (length,) float64.

    PRIVATE as long as the residues are: with noise of the aggregator's, none is on it yet.
    """
    plan = integer_plan(query, noise)
    if isinstance(plan, DensePlan):
        return decode_dense(residues, plan, query.rotation)
    return decode(residues, plan)


def check_range(query: Query, noise: Noise, weight: float) -> None:
    """Raise WrapAround unless the modulus holds a sum of `weight` users, with the nodes' noise."""
    plan = integer_plan(query, noise)
    multiplier = noise.multiplier if noise.source == "nodes" else 0.0
    if isinstance(plan, DensePlan):
        check_dense(plan, multiplier, weight, noise.min_weight, noise.sampling_rate)
    else:
        check_plan(plan, multiplier, weight, noise.min_weight)
