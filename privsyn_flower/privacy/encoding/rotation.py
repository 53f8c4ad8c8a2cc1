"""Random rotation of dense vectors: random signs, then Walsh-Hadamard in blocks. PUBLIC seed.

It spreads a vector evenly over its coordinates, so that sums of many users stay in a small
range and rounding costs little (Kairouz, Liu, Steinke 2021, arXiv 2102.06387, "The distributed
discrete Gaussian mechanism for federated learning with secure aggregation", Section 4). Blocks of
2^12 spread almost as well as one block over a whole model, stay in the processor's cache and pad
little.

A block is transformed by two products of matrices, since H of size 64 * 64 is the Kronecker
product of two of size 64: more arithmetic than the butterflies of the fast transform, but all of
it where processors are fastest (on one core 3 times as fast).
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.arrays import F64, I8

BLOCK = 1 << 12
# Two products over 64 numbers each, |sum x_i s_i| <= sum |x_i| <= 64 norm(x) over a block: off by
# (64 + 64) 2^-24 norm at most (Higham 2002, "Accuracy and stability of numerical algorithms",
# Section 3.1); the rest is for the conversion and for scaling.
FLOAT32_ERROR = 2.0**-16
_TOGETHER = 16  # blocks transformed side by side: 256 KB in float32
_INNER = 64

Floats = NDArray[np.floating[Any]]


def padded_length(length: int) -> int:
    """Coordinates of a rotated vector: whole blocks, and a last one that is a power of two.

    Raises ValueError unless length >= 1.
    """
    if length < 1:
        raise ValueError(f"length = {length} must be at least 1")
    rest = length % BLOCK
    return length - rest + (1 << (rest - 1).bit_length() if rest else 0)


def smallest_block(length: int) -> int:
    """Size of the smallest block that `length` coordinates are rotated in."""
    return padded_length(length) % BLOCK or BLOCK


def rotate(vector: ArrayLike, seed: bytes, *, scale: float = 1.0, single: bool = False) -> Floats:
    """scale times the rotated vector, of the same L2 norm up to rounding: (d,) -> (padded,).

    seed: public, fresh for each round and the same for all its users. single: in float32, which
    is twice as fast; a coordinate is off by less than FLOAT32_ERROR times the vector's norm.
    Raises ValueError on another shape.
    """
    values = np.asarray(vector, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"vector has shape {values.shape}, expected one dimension")
    dtype = np.dtype(np.float32 if single else np.float64)
    rotated: Floats = np.zeros(padded_length(len(values)), dtype=dtype)  # (padded,)
    np.multiply(values, scale, out=rotated[: len(values)], casting="same_kind")
    rotated *= _signs(len(rotated), seed)
    _hadamard(rotated)
    return rotated


def unrotate(rotated: ArrayLike, seed: bytes, length: int) -> F64:
    """What `rotate` was given, of `length` coordinates: (padded_length(length),) -> (length,).

    Raises ValueError on another shape.
    """
    values = np.array(rotated, dtype=np.float64)
    if values.shape != (padded_length(length),):
        raise ValueError(
            f"rotated has shape {values.shape}, but length = {length} is rotated to "
            f"({padded_length(length)},)"
        )
    _hadamard(values)  # its own inverse
    values *= _signs(len(values), seed)
    return values[:length]


@functools.lru_cache(maxsize=1)  # a round's users share them
def _signs(size: int, seed: bytes) -> I8:
    """Independent signs from the seed by SHAKE-256 (FIPS 202): the same on every machine."""
    stream = hashlib.shake_256(b"privsyn rotation" + seed).digest((size + 7) // 8)
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8), count=size)  # (size,)
    signs = 1 - 2 * bits.astype(np.int8)
    signs.flags.writeable = False
    return signs


def _hadamard(values: Floats) -> None:
    """The orthonormal Walsh-Hadamard transform of every block, in place."""
    whole = len(values) // BLOCK * BLOCK
    for start in range(0, whole, _TOGETHER * BLOCK):
        part = values[start : min(start + _TOGETHER * BLOCK, whole)]
        _transform(part.reshape(-1, BLOCK))
    if whole < len(values):
        _transform(values[whole:].reshape(1, -1))


def _transform(blocks: Floats) -> None:
    """(blocks, size), size a power of two; a view, changed in place."""
    count, size = blocks.shape
    inner = min(size, _INNER)
    grid = blocks.reshape(count, size // inner, inner)  # (blocks, outer, inner)
    rows = blocks.reshape(-1, inner) @ _matrix(inner, blocks.dtype)  # (blocks outer, inner)
    np.matmul(_matrix(size // inner, blocks.dtype), rows.reshape(grid.shape), out=grid)


@functools.cache
def _matrix(size: int, dtype: np.dtype[Any]) -> Floats:
    """Sylvester's Hadamard matrix (size, size), symmetric and orthonormal."""
    whole = np.ones((1, 1))
    while len(whole) < size:
        whole = np.block([[whole, whole], [whole, -whole]])
    scaled: Floats = (whole * size**-0.5).astype(dtype)
    return scaled
