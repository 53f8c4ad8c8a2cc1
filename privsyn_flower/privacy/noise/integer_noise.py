"""The nodes' integer noise at the price of Gaussian noise, what that takes of delta, and its draws.

Let f be the sum of the users' integer vectors (L2 norm of each at most S), P the distribution of
one coordinate of the honest nodes' summed noise, and Q that of N(0, s^2) rounded to the nearest
integer. As f is a vector of integers, f + round(N(0, s^2 I)) = round(f + N(0, s^2 I)): with Q it is
the Gaussian mechanism of multiplier s / S, post-processed, whoever was sampled into f and however
rounds follow from one another. With P every release lies within d tau of that in total variation,
tau = `coordinate_distance`, and no vector is more likely with Q than with P by a factor above
e^(4.4 d tau). So all of them, chosen adaptively, are (epsilon, delta' + 5.5 eta)-DP with
eta = sum of d tau, where the Gaussians are (epsilon, delta')-DP. (With the total variation alone,
1 + e^epsilon would stand for 5.5.)

A node of w users draws N_Z(0, v w / W_min), a discrete Gaussian, where v = s^2 + 1/12: rounding
adds 1/12. Of the honest survivors take a least set that weighs W_min or more: all but one of it
weigh less, so there are fewer than W_min + 1. What the others add is post-processing. Their sum is
within a hair of N_Z(0, v') with v' >= v, and that within 5e-4 / s^4 of the rounded Gaussian:
`coordinate_distance`.
Proofs: docs/integer-noise.md.

Draws are exact, by rejection as in Canonne, Kamath, Steinke 2020 (arXiv 2004.00010, "The discrete
Gaussian for differential privacy"), Section 5: N_Z(0, v) has probabilities in proportion to
exp(-n^2 / (2 v)) on the integers. In the place of their discrete Laplace stands a staircase that
halves every 2^shift integers, which random bits sample without arithmetic. Floating point decides
an acceptance only when the uniform lies further from the computed probability than `_MARGIN`, many
times its error; the rest is decided by decimal arithmetic with a stated error and more random bits,
until it is certain. So not even the noise's tails have a trace of floating point (Mironov 2012).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

import numpy as np

from privsyn_flower.common.arrays import I64, U64

SHARE_OF_DELTA = 1e-3  # of every delta: kept for the integers, 5.5 eta at most
PRICE = 5.5  # eta + e^(4.4 eta) - 1 is at most this times eta, for eta up to 1e-3
LEAST_STD = 64.0  # of the summed noise, in integers: from here on 5e-4 / s^4 holds
LEAST_NODE_STD = 2.0  # of the noise of the lightest node there can be: one user's

EXACT_UP_TO = 1 << 16  # coordinates; above, the random bits are ChaCha20's
MIN_VARIANCE = 1e-9
MAX_VARIANCE = 2.0**104  # beyond what a modulus of 2^56 holds: whatever fits can be drawn

Words = Callable[[int], U64]  # that many independent uniform 64-bit words

_CHUNK = 1 << 14  # proposals computed side by side: they stay in the processor's cache
_MARGIN = 1e-11  # acceptances within it are decided exactly; float64 is off by less than 1e-12
_LN2 = math.log(2.0)


class TooCoarse(ValueError):
    """Integers so coarse that the nodes' noise is not the Gaussian noise it is charged as."""


def check_positive(**numbers: float) -> None:
    """Raise ValueError, with its name, for one that is not finite and above 0."""
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value} must be finite and above 0")


def gaussian_delta(delta: float) -> float:
    """delta': what of delta is left for the Gaussians; every run is calibrated for it."""
    return delta * (1 - SHARE_OF_DELTA)


def allowed_distance(delta: float) -> float:
    """eta: total variation that all releases under delta may have together, at any epsilon."""
    return SHARE_OF_DELTA * delta / PRICE


def node_variance(
    noise_multiplier: float, weight: float, min_weight: float, sensitivity: float
) -> float:
    """v w / W_min: the parameter of the noise of `weight` users, in integers.

    noise_multiplier: s / sensitivity, of the guaranteed noise. Raises ValueError unless every
    number is finite and positive.
    """
    check_positive(
        noise_multiplier=noise_multiplier,
        weight=weight,
        min_weight=min_weight,
        sensitivity=sensitivity,
    )
    s = noise_multiplier * sensitivity
    variance = weight / min_weight * (s * s + 1 / 12)  # a product that overflows is inf
    if not variance < math.inf:
        raise ValueError(f"noise_multiplier * sensitivity = {s} is beyond all bounds")
    return variance


def release_distance(
    length: int, noise_multiplier: float, sensitivity: float, min_weight: float
) -> float:
    """d TV(P, Q): how far, at most, one release's noise is from rounded Gaussian noise.

    length: d, coordinates of a vector. min_weight: W_min, in users. Raises TooCoarse when the
    summed noise, or that of a node of one user, is too small in integers for the bound to hold.
    """
    s = noise_multiplier * sensitivity
    lightest = math.sqrt(node_variance(noise_multiplier, 1.0, min_weight, sensitivity))
    if s < LEAST_STD or lightest < LEAST_NODE_STD:
        raise TooCoarse(
            f"noise_multiplier = {noise_multiplier:g} at sensitivity = {sensitivity:g} is noise "
            f"of standard deviation {s:.4g} in integers (at least {LEAST_STD:g}), {lightest:.4g} "
            f"for a node of one user where W_min = {min_weight:g} (at least {LEAST_NODE_STD:g}): "
            "raise sensitivity, that is, count in smaller units"
        )
    return length * coordinate_distance(s, lightest, min_weight)


def coordinate_distance(s: float, lightest: float, nodes: float) -> float:
    """TV(P, Q) of one coordinate, at most. s >= LEAST_STD, lightest >= LEAST_NODE_STD.

    lightest: least standard deviation of one of the `nodes` summands. The first term is the
    distance of N_Z(0, s^2 + 1/12) to Q (measured with 60 digits: 4.863e-4 / s^4), the second that
    of the sum to N_Z. log(Q / P) is nowhere above 4.4 times this (measured: 2.083e-3 / s^4).
    """
    return 5e-4 / (s * s) / (s * s) + 2.1 * nodes * math.exp(-((math.pi * lightest) ** 2))


# --- exact draws --------------------------------------------------------------------------------


def system_discrete_gaussian(size: int, variance: float) -> I64:
    """`size` independent draws of N_Z(0, variance), exact in distribution: (size,).

    The bits come from `os.urandom`, for more than EXACT_UP_TO draws from ChaCha20 keyed by 32
    bytes of it: then "exact" assumes that its stream passes for random bits. variance: 0 (zeros),
    or MIN_VARIANCE to MAX_VARIANCE. Raises ValueError on a negative size and any other variance.
    """
    return _draws(size, variance, _system_words if size <= EXACT_UP_TO else _stream())


def seeded_discrete_gaussian(size: int, variance: float, rng: np.random.Generator) -> I64:
    """`size` draws of N_Z(0, variance) from a given generator: simulation and tests only.

    Raises ValueError as `system_discrete_gaussian` does.
    """
    return _draws(size, variance, lambda count: rng.integers(0, 2**64, count, dtype=np.uint64))


def _draws(size: int, variance: float, words: Words) -> I64:
    if size < 0:
        raise ValueError(f"size = {size} must be at least 0")
    if variance != 0 and not MIN_VARIANCE <= variance <= MAX_VARIANCE:
        raise ValueError(
            f"variance = {variance} must be 0 or from {MIN_VARIANCE} to {MAX_VARIANCE:.4g}: "
            "change the noise multiplier or the sensitivity in integers"
        )
    draws, filled = np.zeros(size, dtype=np.int64), size if variance == 0 else 0
    stairs = _staircase(variance) if filled < size else None
    while stairs and filled < size:
        wanted = (size - filled) * stairs.proposals
        accepted = _accepted(min(_CHUNK, int(1.05 * wanted) + 32), stairs, words)
        accepted = accepted[: size - filled]
        draws[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return draws


def _system_words(count: int) -> U64:
    return np.frombuffer(os.urandom(8 * count), dtype="<u8").astype(np.uint64, copy=False)


def _stream() -> Words:
    """Words of a ChaCha20 key stream whose key nobody keeps (RFC 8439)."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    encryptor = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()

    def words(count: int) -> U64:
        stream = encryptor.update(bytes(8 * count))
        return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)

    return words


@dataclass(frozen=True)
class _Staircase:
    """exp(log_height) / 2^block over blocks of 2^shift integers, on both sides of zero.

    Block b >= 0 covers b 2^shift + (0 .. 2^shift - 1) on the right side, and -1 minus these on the
    left. A side is one bit, a block the number of zero bits before the first one, an offset `shift`
    bits; beyond 2^63 a distance would wrap around, below a chance of 2^-500 for every variance.
    log_height is exact as it stands: the staircase is defined by the float, whatever rounding
    made it.
    """

    variance: float
    shift: int
    log_height: float

    @property
    def proposals(self) -> float:
        """Expected proposals for one draw: the staircase's sum over exp(-n^2 / (2 v))'s."""
        under = max(1.0, math.sqrt(2.0 * math.pi * self.variance))
        return 4.0 * math.exp(self.log_height + self.shift * _LN2) / under


def _staircase(variance: float) -> _Staircase:
    """The staircase with the fewest rejections."""
    middle = max(0, round(math.log2(math.sqrt(variance))))
    shifts = range(max(0, middle - 1), middle + 2)
    choices = [_Staircase(variance, shift, _log_height(variance, shift)) for shift in shifts]
    return min(choices, key=lambda choice: choice.proposals)


def _log_height(variance: float, shift: int) -> float:
    """Height at which the staircase lies nowhere under exp(-n^2 / (2 v)), less than 1e-9 above it.

    A block's largest value is at its start, on the right side. Along the starts the logarithm
    b ln 2 - (b 2^shift)^2 / (2 v) is a parabola: it falls for ever from its integer maximum on.
    """
    curve = 4.0**shift / (2.0 * variance)
    top = math.floor(_LN2 / (2.0 * curve))
    return max(b * _LN2 - b * b * curve for b in (top, top + 1)) + 1e-9


def _accepted(count: int, stairs: _Staircase, words: Words) -> I64:
    """`count` proposals from the staircase; those that were accepted, in order."""
    place, uniform = words(2 * count).reshape(2, count)  # (count,), as all below
    shift = stairs.shift
    offset = (place & np.uint64((1 << shift) - 1)).astype(np.int64)
    right = (place >> np.uint64(shift)) & np.uint64(1) == 1
    block = _zeros_before_one(place >> np.uint64(shift + 1), 63 - shift, words)
    distance = (block << shift) + offset
    n = np.where(right, distance, ~distance)  # ~d is -1 - d
    chance = n.astype(np.float64)
    chance *= chance
    chance *= -0.5 / stairs.variance
    chance += block * _LN2 - stairs.log_height
    np.exp(chance, out=chance)
    # The logarithm is right to 1e-15 of its largest term, and where a term is large beside 1 the
    # chance is small: the chance is right to 1e-12 absolutely, the word's float64 to 2e-16.
    chance -= uniform.astype(np.float64) * 2.0**-64
    kept = chance > 0
    for unsure in np.flatnonzero(np.abs(chance) <= _MARGIN).tolist():
        drawn = [int(array[unsure]) for array in (uniform, n, block)]
        kept[unsure] = _accept(drawn[0], drawn[1], drawn[2], stairs, words)
    accepted: I64 = n[kept]
    return accepted


def _zeros_before_one(bits: U64, width: int, words: Words) -> I64:
    """Zeros before the first one in each row of `width` random bits, which goes on for ever."""
    lowest = bits & (~bits + np.uint64(1))  # (rows,)
    zeros = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    for row in np.flatnonzero(bits == 0).tolist():
        zeros[row] = width
        while (word := int(words(1)[0])) == 0:
            zeros[row] += 64
        zeros[row] += (word & -word).bit_length() - 1
    return zeros


def _accept(uniform: int, n: int, block: int, stairs: _Staircase, words: Words) -> bool:
    """Whether U < exp(-n^2 / (2 v)) 2^block / height, for U = 0.uniform... of endless digits.

    Every term is below 10^18 and there are fewer than 100 operations, each rounded to
    `precision` digits: 10^(30 - precision) is above the error of the sum.
    """
    bits = 64
    for precision in itertools.count(60, 30):
        with localcontext(Context(prec=precision)):
            slack = Decimal(10) ** (30 - precision)
            chance = -Decimal(n * n) / (2 * Decimal(stairs.variance)) - Decimal(stairs.log_height)
            chance += (block + bits) * Decimal(2).ln()  # against the digits as an integer
            if Decimal(uniform + 1).ln() < chance - slack:
                return True
            if uniform and Decimal(uniform).ln() > chance + slack:
                return False
        uniform, bits = (uniform << 64) | int(words(1)[0]), bits + 64
    raise AssertionError  # itertools.count does not end
