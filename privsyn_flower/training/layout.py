"""Named parameter arrays as one flat vector, and how a user's texts are trained on. PUBLIC.

The numbers of `LocalTraining` travel with the question and are checked by the node.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.common.arrays import F64
from privsyn_flower.text.models.batches import SpecialTokens

TRAINED = "training.trained"  # the option that names the arrays that are trained


@dataclass(frozen=True)
class Layout:
    """The order and shapes of the arrays behind a flat vector. Raises ValueError when empty.

    names are sorted and distinct; the coordinates of an array are in C order.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if list(self.names) != sorted(set(self.names)) or len(self.names) != len(self.shapes):
            raise ValueError(f"names must be sorted and distinct, one for each shape: {self.names}")
        if self.length < 1:
            raise ValueError("there is no array of floating-point numbers to train")

    @classmethod
    def of(cls, arrays: Mapping[str, ArrayLike], trained: str = "*") -> Layout:
        """The layout of the arrays of floating-point numbers whose names match `trained`.

        trained: glob patterns with commas between. Other arrays, such as counters of integers,
        are not trained: they stay what they are. Raises ValueError where nothing is left, and on a
        type that NumPy lacks, as bfloat16: its numbers would pass for bytes that nobody trains.
        """
        for name, array in arrays.items():
            found = np.asarray(array).dtype
            if found.kind == "V":
                raise ValueError(
                    f"array {name!r} has type {found}, as bfloat16 has in NumPy, which cannot "
                    "count with it: give all arrays in float32 (tensor.float() in a state dict)"
                )
        kept = sorted(
            name
            for name, array in arrays.items()
            if np.issubdtype(np.asarray(array).dtype, np.floating) and matches(name, trained)
        )
        return cls(tuple(kept), tuple(np.shape(arrays[name]) for name in kept))

    @property
    def length(self) -> int:
        """Coordinates d of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def flatten(self, arrays: Mapping[str, ArrayLike]) -> F64:
        """The arrays as one vector (d,) float64; others in the mapping are passed over.

        Raises ValueError for an array that is missing or has another shape.
        """
        vector = np.empty(self.length)
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            found = np.shape(arrays[name]) if name in arrays else None
            if found != shape:
                raise ValueError(f"array {name!r} has shape {found}, expected {shape}")
            size = math.prod(shape)
            vector[start : start + size] = np.asarray(arrays[name]).reshape(-1)
            start += size
        return vector

    def unflatten(
        self, vector: ArrayLike, like: Mapping[str, NDArray[Any]] | None = None
    ) -> dict[str, NDArray[Any]]:
        """A vector (d,) as named arrays, copies: each in its type in `like`, float32 without.

        What is too large for its type is infinite there. Raises ValueError on another shape.
        """
        values = np.asarray(vector)
        if values.shape != (self.length,):
            raise ValueError(f"vector has shape {values.shape}, expected ({self.length},)")
        arrays: dict[str, NDArray[Any]] = {}
        start = 0
        with np.errstate(over="ignore"):
            for name, shape in zip(self.names, self.shapes, strict=True):
                size = math.prod(shape)
                dtype = np.float32 if like is None else like[name].dtype
                arrays[name] = values[start : start + size].astype(dtype).reshape(shape)
                start += size
        return arrays

    def digest(self) -> str:
        """Hex SHA-256 of names and shapes: two sides with one digest mean the same vector."""
        return hashlib.sha256(json.dumps([self.names, self.shapes]).encode()).hexdigest()


def trained_layout(arrays: Mapping[str, ArrayLike], options: Mapping[str, Any]) -> Layout:
    """The layout of what a query's local training changes (its option `training.trained`)."""
    return Layout.of(arrays, str(options.get(TRAINED, "*")))


def matches(name: str, patterns: str) -> bool:
    """Whether a name matches one of several glob patterns with commas between; case counts."""
    return any(fnmatchcase(name, part.strip()) for part in patterns.split(",") if part.strip())


Optimizer = Literal["sgd", "adamw"]
Value = str | int | float

_PREFIX = "training."
_WHOLE = {  # lowest and highest value
    "epochs": (1, 1000),
    "batch_size": (1, 1 << 16),
    "max_steps": (1, 1 << 20),
    "sequence_length": (2, 2048),
    "seed": (0, (1 << 63) - 1),
}


@dataclass(frozen=True)
class LocalTraining:
    """One user's local training; PUBLIC. Raises ValueError for a value out of bounds.

    What the configuration's `[training]` has a default for has none here.

    momentum: of SGD; AdamW has its usual (0.9, 0.999) and 1e-8. weight_decay: decoupled under
    adamw, added to the gradient under sgd. epochs: passes over a user's texts, each in an order
    of its own. batch_size: texts of one step. max_steps: no more steps than this; without a limit
    a node's time would tell how much a user wrote. sequence_length: tokens of a text, the rest is
    cut. special_tokens: around a text that is learned by itself, (`text.models.batches.encode`).
    seed: of the order. trained: glob patterns with commas between, of the names of the arrays
    that are trained; the others that travel are laid over the base and stay as they are.
    """

    optimizer: Optimizer
    learning_rate: float
    momentum: float
    weight_decay: float
    epochs: int
    batch_size: int
    max_steps: int
    sequence_length: int
    seed: int = 0
    trained: str = "*"
    special_tokens: SpecialTokens = "tokenizer"

    def __post_init__(self) -> None:
        for key, named, known in (
            ("optimizer", self.optimizer, get_args(Optimizer)),
            ("special-tokens", self.special_tokens, get_args(SpecialTokens)),
        ):
            if named not in known:
                raise ValueError(f"training.{key} = {named!r} must be one of {known}")
        for name, (low, high) in _WHOLE.items():
            value = getattr(self, name)
            # A boolean is an int to Python, and no number to us.
            if type(value) is not int or not low <= value <= high:
                raise ValueError(
                    f"{_key(name)} = {value!r} must be a whole number from {low} to {high}"
                )
        for name, most in (("learning_rate", 1e6), ("weight_decay", 1e6), ("momentum", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{_key(name)} = {value!r} is not a number")
            if not 0 <= value < most or not math.isfinite(value):
                raise ValueError(f"{_key(name)} = {value} must be at least 0 and below {most:g}")
        if self.learning_rate == 0:
            raise ValueError("training.learning-rate = 0 must be above 0")
        if self.optimizer == "adamw" and self.momentum:
            raise ValueError(
                f"training.momentum = {self.momentum} has no use under training.optimizer = "
                '"adamw": set it to 0'
            )
        if not isinstance(self.trained, str) or not self.trained.strip(" ,"):
            raise ValueError(f"training.trained = {self.trained!r} must name the trained arrays")

    def to_options(self) -> dict[str, Value]:
        """The fields as a query's options, `training.learning-rate` and so on."""
        return {_key(field.name): getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_options(cls, options: Mapping[str, Value]) -> LocalTraining:
        """The fields among a query's options. Raises ValueError: missing, unknown, out of bounds.

        Every field must be there, so that no two sides differ in a default.
        """
        known = {_key(field.name): field.name for field in fields(cls)}
        given = {key: value for key, value in options.items() if key.startswith(_PREFIX)}
        odd = sorted(set(known) ^ set(given))
        if odd:
            raise ValueError(f"options {odd} are missing or not known; known: {sorted(known)}")
        return cls(**{known[key]: value for key, value in given.items()})  # type: ignore[arg-type]


def _key(name: str) -> str:
    return _PREFIX + name.replace("_", "-")
