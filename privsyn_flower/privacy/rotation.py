"""Random rotation of dense vectors: random signs, then Walsh-Hadamard in blocks. PUBLIC seed.

It spreads a vector evenly over its coordinates, so that sums of many users stay in a small
range and rounding costs little (Kairouz, Liu, Steinke 2021, "The distributed discrete Gaussian
mechanism for federated learning with secure aggregation", Section 4). Blocks of 2^12 spread
almost as well as one block over a whole model, stay in the processor's cache and pad little.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK = 1 << 12
_TOGETHER = 64  # blocks transformed side by side: 2 MB
_INNER = 64

Floats = NDArray[np.float64]


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


def rotate(vector: ArrayLike, seed: bytes) -> Floats:
    """The rotated vector, of the same L2 norm up to rounding: (d,) -> (padded_length(d),).

    seed: public, fresh for each round and the same for all its users. Raises ValueError on
    another shape.
    """
    values = np.asarray(vector, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"vector has shape {values.shape}, expected one dimension")
    rotated = np.zeros(padded_length(len(values)))
    rotated[: len(values)] = values
    rotated *= _signs(len(rotated), seed)
    _hadamard(rotated)
    return rotated


def unrotate(rotated: ArrayLike, seed: bytes, length: int) -> Floats:
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


def _signs(size: int, seed: bytes) -> NDArray[np.int8]:
    """Independent signs from the seed by SHAKE-256 (FIPS 202): the same on every machine."""
    stream = hashlib.shake_256(b"privsyn rotation" + seed).digest((size + 7) // 8)
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8), count=size)
    return 1 - 2 * bits.astype(np.int8)


def _hadamard(values: Floats) -> None:
    """The orthonormal Walsh-Hadamard transform of every block, in place."""
    whole = len(values) // BLOCK * BLOCK
    for start in range(0, whole, _TOGETHER * BLOCK):
        part = values[start : min(start + _TOGETHER * BLOCK, whole)]
        _butterflies(part.reshape(-1, BLOCK))
    if whole < len(values):
        _butterflies(values[whole:].reshape(1, -1))


def _butterflies(blocks: Floats) -> None:
    """(blocks, size), size a power of two; a view, changed in place."""
    size = blocks.shape[1]
    half = min(size, _INNER)
    # The first steps mix neighbours, which strided additions are slow at: one product of matrices.
    blocks[:] = (blocks.reshape(-1, half) @ _matrix(half)).reshape(blocks.shape)
    while half < size:
        pairs = blocks.reshape(len(blocks), -1, 2, half)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        low += high  # a + b
        high *= -2.0
        high += low  # a + b - 2 b
        half *= 2
    blocks *= size**-0.5


@functools.cache
def _matrix(size: int) -> Floats:
    """Sylvester's Hadamard matrix (size, size) of +1 and -1, symmetric."""
    if size == 1:
        return np.ones((1, 1))
    half = _matrix(size // 2)
    return np.block([[half, half], [half, -half]])
