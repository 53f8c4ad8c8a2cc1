"""Named parameter arrays as one flat vector: which coordinates belong to which array. PUBLIC."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.arrays import F64

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
