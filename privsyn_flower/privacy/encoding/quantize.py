"""Integer encoding of users' vectors, and their arithmetic modulo 2^bits.

A user's clipped vector becomes an integer vector whose L2 norm is at most `sensitivity`, checked
in exact integers, so that the noise multiplier is noise std / sensitivity and no rounding error
enters the guarantee. Sums are taken modulo 2^bits: a function of the noisy sum, so privacy does not
depend on its range. `sizing` chooses the bits so that no sum wraps around.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from privsyn_flower.common.arrays import F64, I64, U8, U64, Ints
from privsyn_flower.privacy.noise.integer_noise import (
    LEAST_NODE_STD,
    TooCoarse,
    check_positive,
    node_variance,
    seeded_discrete_gaussian,
    system_discrete_gaussian,
)

SENSITIVITY = 4096.0  # of an encoding, at least: then truncation is lost beside any useful noise
MAX_SENSITIVITY = 2.0**30  # its square, and sums of squares up to it, stay exact in int64


@dataclass(frozen=True)
class IntegerPlan:
    """Public numbers of one query's integer encoding.

    bound: L2 norm of one user's clipped vector. sensitivity: L2 norm of its integers.
    scale: integers per unit of the vector. bits: the modulus is 2^bits, a multiple of 8 from 8
    to 56. length: coordinates d of the vector. Raises ValueError on any other value.
    """

    bound: float
    sensitivity: float
    scale: float
    bits: int
    length: int

    def __post_init__(self) -> None:
        check_positive(bound=self.bound, sensitivity=self.sensitivity, scale=self.scale)
        if not 1 <= self.sensitivity <= MAX_SENSITIVITY:
            raise ValueError(
                f"sensitivity = {self.sensitivity} must be from 1 to {MAX_SENSITIVITY:.0f}"
            )
        if self.scale * self.bound > self.sensitivity * (1 + 1e-9):
            raise ValueError(
                f"scale * bound = {self.scale} * {self.bound} exceeds sensitivity = "
                f"{self.sensitivity}"
            )
        check_bits(self.bits)
        if self.length < 1:
            raise ValueError(f"length = {self.length} must be at least 1")

    def encode_users(self, values: F64, users: Ints) -> I64:
        """Integers of many users' entries, each user encoded by itself: (n,) -> (n,), PRIVATE.

        values: (n,) entries of the clipped vectors, entries of 0 left out or not. users: (n,)
        the user of each entry, counted from 0. Entries are multiplied by `scale` and truncated
        towards zero; a user whose integers are longer than `sensitivity`, by rounding or for
        lack of clipping, is moved towards zero. A user with NaN or infinity becomes zeros.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # infinity becomes zeros
            scaled = values * self.scale
        return truncate(scaled, users, self.sensitivity)


def decode(residues: U64, plan: IntegerPlan) -> F64:
    """A sum modulo 2^bits back in units of the vectors: (d,) residues -> (d,) float64."""
    return from_modulus(residues, plan.bits) / plan.scale


def node_noise_integers(
    length: int,
    weight: float,
    min_weight: float,
    noise_multiplier: float,
    sensitivity: float,
    rng: np.random.Generator | None = None,
) -> I64:
    """One node's share of the noise on a sum of integers, as one draw: (length,), PRIVATE.

    Discrete Gaussian of variance weight / min_weight * ((noise_multiplier * sensitivity)^2 + 1/12):
    the noise of `weight` users, so that honest survivors of weight >= min_weight together carry
    the guaranteed noise_multiplier * sensitivity. rng: None for operating-system randomness.
    Raises ValueError unless every number is finite and positive, on too large a variance, and on
    a standard deviation below LEAST_NODE_STD.
    """
    variance = node_variance(noise_multiplier, weight, min_weight, sensitivity)
    if variance < LEAST_NODE_STD**2:
        raise TooCoarse(
            f"noise of standard deviation {math.sqrt(variance):.3g} in integers is below "
            f"{LEAST_NODE_STD:g}: raise sensitivity"
        )
    if rng is None:
        return system_discrete_gaussian(length, variance)
    return seeded_discrete_gaussian(length, variance, rng)


def to_modulus(values: I64, bits: int) -> U64:
    """Residues of integers modulo 2^bits: (d,) int64 -> (d,) uint64 in [0, 2^bits)."""
    check_bits(bits)
    # int64 to uint64 is taken modulo 2^64, which 2^bits divides.
    return np.asarray(values, dtype=np.int64).astype(np.uint64) & np.uint64(2**bits - 1)


def from_modulus(residues: U64, bits: int) -> I64:
    """The integers in [-2^(bits-1), 2^(bits-1)) with these residues modulo 2^bits: (d,) int64.

    Takes any uint64, as sums of residues modulo 2^64 are residues too.
    """
    check_bits(bits)
    top = np.asarray(residues, dtype=np.uint64) << np.uint64(64 - bits)  # (d,)
    return top.view(np.int64) >> np.int64(64 - bits)


def pack(residues: U64, bits: int) -> U8:
    """Residues as bytes, little endian, bits / 8 bytes a coordinate: (d,) -> (d * bits / 8,).

    Raises ValueError on a residue of 2^bits or more.
    """
    check_bits(bits)
    values = np.ascontiguousarray(residues, dtype="<u8")
    if values.size and int(values.max()) >> bits:
        raise ValueError(f"residue {int(values.max())} does not fit bits = {bits}")
    kept = values.view(np.uint8).reshape(-1, 8)[:, : bits // 8]  # (d, bits / 8)
    return np.ascontiguousarray(kept).reshape(-1)


def unpack(data: bytes | bytearray | memoryview | U8, bits: int, length: int) -> U64:
    """The `length` residues that `pack` wrote: (length,) uint64.

    Raises ValueError unless there are exactly length * bits / 8 bytes.
    """
    check_bits(bits)
    packed = np.frombuffer(data, dtype=np.uint8)
    if packed.size != length * (bits // 8):
        raise ValueError(
            f"{packed.size} bytes are not length = {length} coordinates of bits = {bits}, "
            f"{length * (bits // 8)} bytes"
        )
    words = np.zeros((length, 8), dtype=np.uint8)
    words[:, : bits // 8] = packed.reshape(length, bits // 8)
    return words.view("<u8").reshape(-1).astype(np.uint64, copy=False)


# --- the parts ------------------------------------------------------------------------------


def check_bits(bits: int) -> None:
    """Raises ValueError on a modulus that nothing here computes with."""
    if bits not in range(8, 57, 8):
        raise ValueError(f"bits = {bits} must be a multiple of 8 from 8 to 56")


def truncate(scaled: F64, users: Ints, sensitivity: float) -> I64:
    """Integers towards zero, of L2 norm at most `sensitivity` for every user: (n,), PRIVATE.

    scaled: (n,) entries in integers. users: (n,) the user of each, counted from 0. A user's norm
    is compared in exact integers; one with NaN or infinity becomes zeros.
    """
    if not len(scaled):
        return np.zeros(0, dtype=np.int64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        norms = np.sqrt(np.bincount(users, weights=scaled * scaled))  # (u,)
        # Not clipped: shortened first, so that no sum of squares below passes 2^63.
        factor = np.where(norms > sensitivity * (1 + 1e-6), sensitivity / norms, 1.0)
        scaled = np.where(np.isfinite(norms)[users], scaled * factor[users], 0.0)
    limit = math.floor(Fraction(sensitivity) ** 2)
    integers = scaled.astype(np.int64)  # (n,)
    # Too long after truncation is a rounding error (1e-6 at most): shrink; the last is proof.
    for factor_again in (1 - 4e-6, 0.0):
        squares = np.zeros(len(norms), dtype=np.int64)
        np.add.at(squares, users, integers * integers)
        long = (squares > limit)[users]  # (n,)
        if not long.any():
            return integers
        integers = np.where(long, (scaled * factor_again).astype(np.int64), integers)
    return integers
