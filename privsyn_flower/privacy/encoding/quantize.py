"""Integer encoding of users' vectors, and their arithmetic modulo 2^bits.

A user's clipped vector becomes an integer vector whose L2 norm is at most `sensitivity`, checked
in exact integers, so that the noise multiplier is noise std / sensitivity and no rounding error
enters the guarantee. Sums are taken modulo 2^bits. A sum that leaves the range wraps around
without a sign: `plan_histogram` chooses the bits so that it does not (but for 2^-60 of the
noise), and `check_plan` refuses those that do not suffice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from privsyn_flower.arrays import F64, I64, U8, U64, Ints
from privsyn_flower.privacy.noise.discrete_gaussian import (
    seeded_discrete_gaussian,
    system_discrete_gaussian,
)
from privsyn_flower.privacy.noise.integer_noise import (
    LEAST_NODE_STD,
    TooCoarse,
    check_positive,
    node_variance,
)

SENSITIVITY = 4096.0  # of an encoding, at least: then truncation is lost beside any useful noise
MAX_SENSITIVITY = 2.0**30  # its square, and sums of squares up to it, stay exact in int64
_LOG_WRAP = 60 * math.log(2.0)  # noise leaves the range with probability 2^-60 at most


class WrapAround(ValueError):
    """A sum would leave the range of its modulus."""


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
        _check_bits(self.bits)
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


def plan_histogram(
    bound: float,
    length: int,
    *,
    noise_multiplier: float,
    weight: float,
    min_weight: float,
    sensitivity: float = SENSITIVITY,
) -> IntegerPlan:
    """The encoding of a query of `length` coordinates whose clipped vectors have norm `bound`.

    weight: users that all nodes together stand for. min_weight: W_min. noise_multiplier: std of
    the guaranteed noise / sensitivity, 0 where the nodes add none. The least bits are chosen that
    hold the sum with the noise of all nodes. Raises WrapAround when 56 bits do not, ValueError on
    other values.
    """
    check_positive(bound=bound)
    if length < 1:
        raise ValueError(f"length = {length} must be at least 1")
    needed = _needed(length, noise_multiplier, weight, min_weight, sensitivity)
    bits = next((b for b in range(8, 57, 8) if needed < 2 ** (b - 1)), 56)
    plan = IntegerPlan(bound, sensitivity, sensitivity / bound, bits, length)
    check_plan(plan, noise_multiplier, weight, min_weight)
    return plan


def check_plan(
    plan: IntegerPlan, noise_multiplier: float, weight: float, min_weight: float
) -> None:
    """Raise WrapAround unless the plan's modulus holds the sum with the noise of all nodes.

    noise_multiplier: as in `plan_histogram`.
    """
    needed = _needed(plan.length, noise_multiplier, weight, min_weight, plan.sensitivity)
    if needed >= 2 ** (plan.bits - 1):
        raise WrapAround(
            f"bits = {plan.bits}: the modulus 2^{plan.bits} holds sums up to "
            f"{2 ** (plan.bits - 1) - 1}, but weight = {weight} users of sensitivity "
            f"{plan.sensitivity} and their noise (noise_multiplier = {noise_multiplier}, "
            f"min_weight = {min_weight}) reach {needed}: raise bits, or lower sensitivity, "
            "noise_multiplier or weight"
        )


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


# --- arithmetic modulo 2^bits ---------------------------------------------------------------


def to_modulus(values: I64, bits: int) -> U64:
    """Residues of integers modulo 2^bits: (d,) int64 -> (d,) uint64 in [0, 2^bits)."""
    _check_bits(bits)
    # int64 to uint64 is taken modulo 2^64, which 2^bits divides.
    return np.asarray(values, dtype=np.int64).astype(np.uint64) & np.uint64(2**bits - 1)


def from_modulus(residues: U64, bits: int) -> I64:
    """The integers in [-2^(bits-1), 2^(bits-1)) with these residues modulo 2^bits: (d,) int64.

    Takes any uint64, as sums of residues modulo 2^64 are residues too.
    """
    _check_bits(bits)
    top = np.asarray(residues, dtype=np.uint64) << np.uint64(64 - bits)  # (d,)
    return top.view(np.int64) >> np.int64(64 - bits)


def pack(residues: U64, bits: int) -> U8:
    """Residues as bytes, little endian, bits / 8 bytes a coordinate: (d,) -> (d * bits / 8,).

    Raises ValueError on a residue of 2^bits or more.
    """
    _check_bits(bits)
    values = np.ascontiguousarray(residues, dtype="<u8")
    if values.size and int(values.max()) >> bits:
        raise ValueError(f"residue {int(values.max())} does not fit bits = {bits}")
    kept = values.view(np.uint8).reshape(-1, 8)[:, : bits // 8]  # (d, bits / 8)
    return np.ascontiguousarray(kept).reshape(-1)


def unpack(data: bytes | bytearray | memoryview | U8, bits: int, length: int) -> U64:
    """The `length` residues that `pack` wrote: (length,) uint64.

    Raises ValueError unless there are exactly length * bits / 8 bytes.
    """
    _check_bits(bits)
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


def _check_bits(bits: int) -> None:
    if bits not in range(8, 57, 8):
        raise ValueError(f"bits = {bits} must be a multiple of 8 from 8 to 56")


def _needed(
    length: int, noise_multiplier: float, weight: float, min_weight: float, sensitivity: float
) -> int:
    """Least magnitude that no coordinate exceeds, but with probability 2^-60 of the noise."""
    noise = (noise_multiplier, weight, min_weight)
    return math.ceil(weight * sensitivity + sum_tail(*noise, sensitivity, length))


def sum_tail(
    noise_multiplier: float, weight: float, min_weight: float, sensitivity: float, length: int
) -> float:
    """`noise_tail` of the noise of all nodes; 0 where noise_multiplier is 0: they add none."""
    variance = node_variance(noise_multiplier or 1.0, weight, min_weight, sensitivity)
    return noise_tail(variance, length) if noise_multiplier else 0.0


def noise_tail(variance: float, length: int) -> float:
    """Magnitude that the noise passes in none of `length` draws, but for 2^-60.

    variance: of a discrete Gaussian or the sum of those of a sum, which is subgaussian as a
    Gaussian is (Canonne, Kamath, Steinke 2020, Lemma 10): P(X >= t) <= exp(-t^2 / (2 variance)),
    with the union over coordinates and signs.
    """
    return math.sqrt(2 * (math.log(2.0 * length) + _LOG_WRAP) * variance)


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
