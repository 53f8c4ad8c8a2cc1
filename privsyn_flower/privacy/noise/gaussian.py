"""Gaussian noise in floating point: from the operating system's generator, or from a key.

For a trusted aggregator and for comparisons. Unlike the nodes' integer noise, the privacy of its
last bits is not proved (Mironov 2012, "On significance of the least significant bits for
differential privacy"): who adds it should round the sum to a grid. Both are Box-Muller transforms
of 64 random bits (Box and Muller 1958), so no number is above sqrt(130 ln 2) = 9.5, and a radius
that should lie beyond has a probability of 2^-64 a pair: less than 1e-8 for 82 million coordinates
in 2,000 rounds. Logarithm, sine and cosine are numpy's, right to a few units in the last place of
float64 and the same at every call on one machine, not on every machine.

Of a key, a round and a leaf, coordinate i is always the same number, so noise can be drawn again
instead of being stored, in pieces of CHUNK coordinates and on several threads. The words are the
ChaCha20 key stream (RFC 8439) under the key, a nonce of round (8 bytes) and leaf (4 bytes) and a
block counter that is the coordinate's place. A pair of words gives a pair of numbers: a radius from
the first, an angle from the second.
"""

from __future__ import annotations

import math
import os
import threading

import numpy as np

from privsyn_flower.common.arrays import F64

CHUNK = 1 << 15  # coordinates drawn together; words, numbers and scratch stay in the cache
LONGEST = 1 << 35  # coordinates: the block counter has 32 bits, a block 8 words
_ZEROS = bytes(8 * CHUNK)


def system_gaussian(size: int, std: float) -> F64:
    """`size` independent draws of N(0, std^2) from operating-system randomness: (size,).

    Raises ValueError on a negative size or a standard deviation that is not finite and >= 0.
    """
    if size < 0:
        raise ValueError(f"size = {size} must be at least 0")
    if not 0 <= std < math.inf:
        raise ValueError(f"std = {std} must be finite and at least 0")
    pairs = (size + 1) // 2
    words = np.frombuffer(os.urandom(16 * pairs), dtype="<u8").reshape(2, pairs)  # (2, pairs)
    # (word + 1) / 2^64 lies in (0, 1]: the logarithm is finite.
    uniform = (words[0].astype(np.float64) + 1.0) * 2.0**-64
    angle = words[1].astype(np.float64) * (2.0 * math.pi * 2.0**-64)
    radius = np.sqrt(-2.0 * np.log(np.minimum(uniform, 1.0)))  # (pairs,)
    draws = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])  # (2 pairs,)
    noise: F64 = draws[:size] * std
    return noise


class KeyedGaussians:
    """Draws from one 32-byte key. The key is PRIVATE."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError(f"a key of {len(key)} bytes must have 32")
        self._key = key
        self._scratch = threading.local()

    def __repr__(self) -> str:
        return "KeyedGaussians(...)"

    def __call__(self, rnd: int, leaf: int, start: int, count: int) -> F64:
        """Coordinates start, ..., start + count - 1 of (rnd, leaf): (count,), PRIVATE.

        start: a multiple of CHUNK; count: at most CHUNK. The last, odd coordinate of a vector
        is the first of a pair whose second nobody sees.
        """
        if start % CHUNK or not 0 <= start < LONGEST or not 0 < count <= CHUNK:
            raise ValueError(f"start = {start}, count = {count}: not within a chunk of {CHUNK}")
        half = (count + 1) // 2
        uniform = self._uniform(rnd, leaf, start, 2 * half)
        radius, angle = uniform[:half], uniform[half:]
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        angle *= 2.0 * np.pi
        drawn = np.empty(2 * half)
        np.cos(angle, out=drawn[:half])
        np.sin(angle, out=drawn[half:])
        drawn[:half] *= radius
        drawn[half:] *= radius
        return drawn[:count]

    def _uniform(self, rnd: int, leaf: int, start: int, count: int) -> F64:
        """The middles of 2^64 cells of (0, 1), in this thread's scratch: (count,)."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        if not hasattr(self._scratch, "words"):
            self._scratch.words = bytearray(8 * CHUNK)
            self._scratch.uniform = np.empty(CHUNK)
        counter = (start // 8).to_bytes(4, "little")
        nonce = counter + rnd.to_bytes(8, "little") + leaf.to_bytes(4, "little")
        encryptor = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()
        encryptor.update_into(memoryview(_ZEROS)[: 8 * count], self._scratch.words)
        words = np.frombuffer(self._scratch.words, dtype="<u8", count=count)
        uniform: F64 = self._scratch.uniform[:count]
        np.multiply(words, 2.0**-64, out=uniform)
        uniform += 2.0**-65
        return uniform
