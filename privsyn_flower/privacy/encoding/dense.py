"""Integer encoding of dense vectors (model updates): rotation and conditional rounding.

Kairouz, Liu, Steinke 2021 (arXiv 2102.06387), "The distributed discrete Gaussian mechanism for
federated learning with secure aggregation", Section 4: rotate by public signs and Hadamard, scale,
round every coordinate at random to a neighbouring integer, and accept the rounded vector only while
its norm is small, so that rounding hardly raises the sensitivity. Sums decode without bias but for
the conditioning. `IntegerPlan` is the encoding for sparse vectors, such as votes.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.common.arrays import F32, F64, I8, I64, U64
from privsyn_flower.privacy.encoding.quantize import (
    MAX_SENSITIVITY,
    SENSITIVITY,
    from_modulus,
    truncate,
)
from privsyn_flower.privacy.encoding.sizing import WrapAround, sum_tail
from privsyn_flower.privacy.noise.integer_noise import MAX_VARIANCE, check_positive, node_variance

BETA = math.exp(-0.5)  # chance of a rejected rounding, at most; the paper's choice
INFLATION = 1.01  # of the sensitivity by rounding, at most, when the bits are chosen here
ONE_ROUND = (1, 1.0)  # an answer is of one round alone: see `Rows`
_TRIES = 64
_CHUNK = 1 << 16  # coordinates rounded at a time: they stay in the processor's cache

# Of a matrix whose rows are summed (`correlated.IntegerMatrix`): a_0, and one user's norm in a row.
Rows = tuple[int, float]


@dataclass(frozen=True)
class DensePlan:
    """Public numbers of one dense query's integer encoding; made by `plan_dense`.

    bound: L2 norm of one user's clipped vector. sensitivity: L2 norm of its integers, rounding
    included. scale: integers per unit of the rotated vector. bits: the modulus is 2^bits, 8,
    16, 24 or 32. length: coordinates d of the vector. Raises ValueError on any other value.
    """

    bound: float
    sensitivity: float
    scale: float
    bits: int
    length: int

    def __post_init__(self) -> None:
        check_positive(bound=self.bound, sensitivity=self.sensitivity, scale=self.scale)
        if not self.scale * self.bound <= self.sensitivity <= MAX_SENSITIVITY:
            raise ValueError(
                f"sensitivity = {self.sensitivity} must be from scale * bound = "
                f"{self.scale * self.bound} to {MAX_SENSITIVITY:.0f}"
            )
        _check_bits(self.bits)
        padded_length(self.length)

    @property
    def padded_length(self) -> int:
        """Coordinates of the encoded vector."""
        return padded_length(self.length)

    @property
    def inflation(self) -> float:
        """What rounding does to a vector's norm, at most."""
        return self.sensitivity / (self.scale * self.bound)


def plan_dense(
    bound: float,
    length: int,
    *,
    noise_multiplier: float,
    weight: float,
    min_weight: float,
    bits: int | None = None,
    rate: float = 1.0,
    rows: Rows = ONE_ROUND,
) -> DensePlan:
    """The finest encoding of dense vectors of norm `bound` whose sum does not wrap around.

    weight: users that all nodes together stand for. min_weight: W_min. noise_multiplier: std of
    the guaranteed noise / sensitivity, 0 where the nodes add none. bits: 8, 16, 24 or 32; None for
    the least at which rounding raises the sensitivity by at most 1 %. rate: of Poisson sampling.
    rows: where sums are of a matrix's rows; the noise is then of their sensitivity.
    The sum with the noise of all nodes leaves the range with probability at most 2^-59, or 2^-58
    with sampling, over noise, sampling and rotation, for vectors
    that do not depend on the rotation's seed. Raises WrapAround when no scale, or 32 bits, suffice.
    """
    check_positive(bound=bound)
    node_variance(noise_multiplier or 1.0, weight, min_weight, 1.0)
    for choice in (8, 16, 24, 32) if bits is None else (bits,):
        _check_bits(choice)
        plan = _finest(bound, length, choice, (noise_multiplier, weight, min_weight), rate, rows)
        if plan and (bits or plan.inflation <= INFLATION):
            return plan
    raise WrapAround(
        f"bits = {bits or 32}: the modulus is too small for weight = {weight} users with "
        f"noise_multiplier = {noise_multiplier}, min_weight = {min_weight} and length = {length}: "
        "raise bits, or lower noise_multiplier, weight or length"
    )


def dense_numbers(
    bound: float,
    length: int,
    noise_multiplier: float,
    weight: float,
    min_weight: float,
    sensitivity: float = SENSITIVITY,
    rate: float = 1.0,
    rows: Rows = ONE_ROUND,
) -> DensePlan:
    """The encoding of a run's dense queries: the least of 16, 24 and 32 bits that costs nothing.

    Rounding raises the sensitivity by at most 1 %, and the sensitivity is at least `sensitivity`.
    rate: of Poisson sampling; only those who are drawn are summed (see `drawn`). sensitivity: of
    rows in units of a_0. Other arguments and errors: as in `plan_dense`.
    """
    for bits in (16, 24, 32):
        try:
            plan = plan_dense(
                bound,
                length,
                noise_multiplier=noise_multiplier,
                weight=weight,
                min_weight=min_weight,
                bits=bits,
                rate=rate,
                rows=rows,
            )
        except WrapAround:
            continue
        if plan.sensitivity >= sensitivity and plan.inflation <= INFLATION:
            return plan
    raise WrapAround(
        f"32 bits are too few for weight = {weight} users with noise_multiplier = "
        f"{noise_multiplier}, min_weight = {min_weight} and length = {length} at sensitivity "
        f"{sensitivity:.0f}: lower noise_multiplier, weight or length"
    )


def check_dense(
    plan: DensePlan,
    noise_multiplier: float,
    weight: float,
    min_weight: float,
    rate: float = 1.0,
    rows: Rows = ONE_ROUND,
) -> None:
    """Raise WrapAround unless the plan's modulus holds the sum with the noise of all nodes.

    noise_multiplier, rate, rows: as in `plan_dense`, and so is the probability.
    """
    norm = plan.scale * plan.bound
    noise = noise_multiplier, weight, min_weight
    needed = _needed(norm, plan.sensitivity, plan.length, noise, rate, rows)
    if needed >= 2 ** (plan.bits - 1):
        raise WrapAround(
            f"bits = {plan.bits}: sums of weight = {weight} users of sensitivity "
            f"{plan.sensitivity} and their noise (noise_multiplier = {noise_multiplier}, "
            f"min_weight = {min_weight}) reach {needed:.0f}: raise bits, or lower sensitivity, "
            "noise_multiplier or weight"
        )


def encode_dense(vector: ArrayLike, plan: DensePlan, seed: bytes) -> I64:
    """One user's clipped vector as integers of L2 norm at most `plan.sensitivity`, PRIVATE.

    vector: (plan.length,), of norm at most `plan.bound`; returns (plan.padded_length,). A
    longer one is shortened, one with NaN or infinity becomes zeros. seed: the round's, public.
    Rotated in float32, as exact as the models that updates are of; the norm of what leaves is
    compared in exact integers. After 64 rejected roundings (e^-32 at most, by the choice of
    `sensitivity`) coordinates are truncated towards zero. Raises ValueError on another shape.
    """
    values = np.asarray(vector, dtype=np.float64)
    if values.shape != (plan.length,):
        raise ValueError(f"vector has shape {values.shape}, expected length = ({plan.length},)")
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(values))
    if not norm < math.inf:
        return np.zeros(plan.padded_length, dtype=np.int64)
    scale = plan.scale * min(1.0, plan.bound / norm if norm > 0 else 1.0)
    scaled = rotate(values, seed, scale=scale, single=True)  # (padded_length,) float32
    limit = math.floor(plan.sensitivity**2 * (1 - 1e-15))
    for _ in range(_TRIES):
        rounded = _rounded(scaled)  # (padded_length,) int64
        if int(rounded @ rounded) <= limit:  # below 2^62: each is within 1 of the scaled
            return rounded
    places = np.zeros(len(scaled), dtype=np.intp)
    return truncate(scaled.astype(np.float64), places, plan.sensitivity)


def decode_dense(residues: U64, plan: DensePlan, seed: bytes) -> F64:
    """A sum modulo 2^bits back in units of the vectors: (padded_length,) -> (length,)."""
    return unrotate(from_modulus(residues, plan.bits) / plan.scale, seed, plan.length)


def rounded_norm(norm: float, length: int) -> float:
    """Norm that a randomly rounded vector exceeds with probability at most BETA.

    norm: of the vector before rounding, in integers; length: its coordinates. Proposition 22
    of the paper, with the bound norm + sqrt(length) that no rounding exceeds.
    """
    spread = math.sqrt(2 * math.log(1 / BETA)) * (norm + math.sqrt(length) / 2)
    return min(math.sqrt(norm * norm + length / 4 + spread), norm + math.sqrt(length))


def _check_bits(bits: int) -> None:
    if bits not in (8, 16, 24, 32):
        raise ValueError(f"bits = {bits} must be 8, 16, 24 or 32")


def _finest(
    bound: float,
    length: int,
    bits: int,
    noise: tuple[float, float, float],
    rate: float,
    rows: Rows,
) -> DensePlan | None:
    """The largest scale, to 1e-6, that does not wrap around; None where there is none."""
    padded = padded_length(length)

    def fits(log_norm: float) -> bool:
        norm = math.exp(log_norm)
        sensitivity = rounded_norm(norm, padded)
        variance = node_variance(*noise, sensitivity * rows[0]) if noise[0] else 0.0
        in_range = sensitivity <= MAX_SENSITIVITY and variance <= MAX_VARIANCE
        return in_range and _needed(norm, sensitivity, length, noise, rate, rows) < 2 ** (bits - 1)

    low, high = math.log(0.5), math.log(MAX_SENSITIVITY)
    if not fits(low):
        return None
    while high - low > 1e-6:  # the reach grows with the norm
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    # The scale is rounded first, so that the sensitivity belongs to the scale that is used.
    scale = math.exp(low) / bound
    sensitivity = rounded_norm(scale * bound * (1 + 1e-12), padded)
    return DensePlan(bound, sensitivity, scale, bits, length)


def _needed(
    norm: float,
    sensitivity: float,
    length: int,
    noise: tuple[float, float, float],
    rate: float,
    rows: Rows,
) -> float:
    """Magnitude that no coordinate of the encoded sum exceeds, but for 2^-58 at most."""
    unit, reach = rows
    tail = sum_tail(*noise, sensitivity * unit, padded_length(length))
    return unit * reach * _sum_reach(norm, length, drawn(noise[1], rate)) + tail + 1


def drawn(weight: float, rate: float) -> float:
    """Users, of this many, whom sampling at this rate draws at most, but for 2^-60.

    Bernstein's inequality: with mean m, they are m + t or more with probability
    exp(-t^2 / (2 m + 2 t / 3)) at most.
    """
    mean, nats = weight * rate, 60 * math.log(2.0)
    return min(weight, mean + nats / 3 + math.sqrt(nats * nats / 9 + 2 * mean * nats))


def _sum_reach(norm: float, length: int, weight: float) -> float:
    """Magnitude of any coordinate of the encoded sum without noise, but for 2^-60.

    The sum of the rotated vectors is the rotation of their sum, as all users share the signs,
    and that sum has norm weight * norm at most. A coordinate is sum_i s_i x_i / sqrt(B) over a
    block of B independent signs: by Hoeffding 1963, Theorem 2, it passes t norm(x) / sqrt(B)
    with probability 2 exp(-t^2 / 2) at most, here summed over coordinates; and never norm(x).
    Rounding adds at most 1 for each user, arithmetic in float32 its error.
    """
    t = math.sqrt(2 * (math.log(2.0 * padded_length(length)) + 60 * math.log(2.0)))
    share = min(1.0, t / math.sqrt(smallest_block(length)))
    return weight * (norm * (share + FLOAT32_ERROR) + 1)


def _rounded(scaled: NDArray[np.floating[Any]]) -> I64:
    """Each coordinate to one of its two neighbours, to the upper one as often as it is close."""
    rounded = np.empty(len(scaled), dtype=np.int64)
    for start in range(0, len(scaled), _CHUNK):
        part = scaled[start : start + _CHUNK]
        moved = _uniform(len(part))
        moved += part
        rounded[start : start + _CHUNK] = np.floor(moved, out=moved)
    return rounded


def _uniform(size: int) -> F32:
    """Numbers in [0, 1] to round by: ChaCha20's under a key of the operating system (RFC 8439).

    For unbiased sums only: the norm of the result is bounded whatever they are.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None)
    words = np.frombuffer(cipher.encryptor().update(bytes(4 * size)), dtype="<u4")
    uniform: F32 = words.astype(np.float32)
    uniform *= np.float32(2.0**-32)  # exact, as every power of two
    return uniform


# --- rotation: random signs from a public seed, then Walsh-Hadamard in blocks --------------------
#
# It spreads a vector evenly over its coordinates, so that sums of many users stay in a small range
# and rounding costs little. Blocks of 2^12 spread almost as well as one block over a whole model,
# stay in the processor's cache and pad little. A block is transformed by two products of matrices,
# since H of size 64 * 64 is the Kronecker product of two of size 64: more arithmetic than the
# butterflies of the fast transform, but all of it where processors are fastest (on one core 3 times
# as fast).


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
