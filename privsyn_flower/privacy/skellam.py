"""Skellam noise for sums of integers, from the operating system's generator.

Skellam(v) is the difference of two Poisson(v/2): mean 0, variance v, and the sum of independent
ones is Skellam of the summed variance, so nodes can share the noise of a sum (Agarwal, Kairouz,
Liu 2021, "The Skellam mechanism for differentially private federated learning").

Draws are exact. A Poisson comes by rejection from an integer envelope that random bits sample
without arithmetic; floating point decides an acceptance only when the uniform lies further from
the computed probability than `_MARGIN`, many times its error. The rest is decided by
decimal arithmetic with a stated error and with more random bits, until it is certain. So no
trace of the computer's numbers is left in the noise (Mironov 2012, "On significance of the least
significant bits for differential privacy"), in the tails neither.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, getcontext, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

EXACT_UP_TO = 1 << 16  # coordinates; above, the random bits are ChaCha20's
MIN_VARIANCE = 1e-9
MAX_VARIANCE = 2.0**50  # every value stays far below 2^53, where float64 counts exactly

Words = Callable[[int], NDArray[np.uint64]]  # that many independent uniform 64-bit words
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_CHUNK = 1 << 14  # proposals computed side by side: they stay in the processor's cache
_MARGIN = 1e-11  # acceptances within it are decided exactly; float64 is off by less than 1e-12
_LN2 = math.log(2.0)
_STIRLING_FROM = 16
_LOG_FACTORIALS = [math.log(math.factorial(n)) for n in range(_STIRLING_FROM)]
_SMALL = np.array([f - n * math.log(max(n, 1)) + n for n, f in enumerate(_LOG_FACTORIALS)])


def system_skellam(size: int, variance: float) -> Integers:
    """`size` independent draws of Skellam(variance), mean 0, exact in distribution: (size,).

    The bits come from `os.urandom`, for more than EXACT_UP_TO draws from ChaCha20 keyed by 32
    bytes of it. variance: 0 (zeros), or MIN_VARIANCE to MAX_VARIANCE. Raises ValueError on a
    negative size and on any other variance.
    """
    _check(size, variance)
    if size == 0 or variance == 0:
        return np.zeros(size, dtype=np.int64)
    words = _system_words if size <= EXACT_UP_TO else _stream()
    draws = _poisson(2 * size, _envelope(variance / 2), words)
    return draws[:size] - draws[size:]


def seeded_skellam(size: int, variance: float, rng: np.random.Generator) -> Integers:
    """`size` draws of Skellam(variance) from a given generator: simulation and tests only.

    Raises ValueError as `system_skellam` does.
    """
    _check(size, variance)
    return rng.poisson(variance / 2, size) - rng.poisson(variance / 2, size)


def total_variation(size: int, variance: float) -> float:
    """Distance of `system_skellam(size, variance)` to the exact distribution: 0.0, to add to delta.

    It counts the arithmetic, which is exact at every size. That ChaCha20 under a random key
    passes for random bits above EXACT_UP_TO is a computational assumption, which no total
    variation states. Raises ValueError as `system_skellam` does.
    """
    _check(size, variance)
    return 0.0


def _check(size: int, variance: float) -> None:
    if size < 0:
        raise ValueError(f"size = {size} must be at least 0")
    if variance != 0 and not MIN_VARIANCE <= variance <= MAX_VARIANCE:
        raise ValueError(
            f"variance = {variance} must be 0 or from {MIN_VARIANCE} to {MAX_VARIANCE:.4g}: "
            "change the noise multiplier or the sensitivity in integers"
        )


def _system_words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * count), dtype="<u8").astype(np.uint64, copy=False)


def _stream() -> Words:
    """Words of a ChaCha20 key stream whose key nobody keeps (RFC 8439)."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    encryptor = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()

    def words(count: int) -> NDArray[np.uint64]:
        stream = encryptor.update(bytes(8 * count))
        return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)

    return words


# --- Poisson by rejection -------------------------------------------------------------------


@dataclass(frozen=True)
class _Envelope:
    """exp(log_height) / 2^block over blocks of 2^shift integers, on both sides of the mode.

    Block b >= 0 covers mode + b 2^shift + (0 .. 2^shift - 1) on the right side, and
    mode - 1 - b 2^shift - (0 .. 2^shift - 1) on the left. A side is one bit, a block the number
    of zero bits before the first one, an offset `shift` bits. log_height is exact as it stands:
    the envelope is defined by the float, whatever rounding made it.
    """

    mean: float
    mode: int
    shift: int
    log_height: float

    @property
    def proposals(self) -> float:
        """Expected proposals for one draw: the sum of the envelope."""
        return 4.0 * math.exp(self.log_height + self.shift * _LN2)


def _envelope(mean: float) -> _Envelope:
    """The envelope of Poisson(mean) with the fewest rejections."""
    middle = max(0, round(math.log2(math.sqrt(mean))))
    shifts = range(max(0, middle - 1), middle + 2)
    choices = [_Envelope(mean, math.floor(mean), s, _log_height(mean, s)) for s in shifts]
    return min(choices, key=lambda choice: choice.proposals)


def _log_height(mean: float, shift: int) -> float:
    """Least height (up to 1e-9) at which the envelope lies nowhere under the probabilities.

    Poisson probabilities fall away from the mode, so a block's largest is at its start. They
    are log-concave, so along the starts of a side ln p + block ln 2 is concave: once it has
    fallen it falls for ever, and the largest value met before is the largest of all. Both
    comparisons leave 1e-9, far above the rounding of `_log_pmf`.
    """
    mode, largest = math.floor(mean), -math.inf
    for start, step in ((mode, 1 << shift), (mode - 1, -(1 << shift))):
        previous = -math.inf
        for block in itertools.count():
            n = start + block * step
            if n < 0:
                break
            height = float(_log_pmf(np.array([float(n)]), mean)[0]) + block * _LN2
            largest = max(largest, height)
            if height < previous - 1e-9:
                break
            previous = height
    return largest + 1e-9


def _poisson(size: int, envelope: _Envelope, words: Words) -> Integers:
    draws, filled = np.empty(size, dtype=np.int64), 0
    while filled < size:
        wanted = (size - filled) * envelope.proposals
        accepted = _accepted(min(_CHUNK, int(1.05 * wanted) + 32), envelope, words)
        accepted = accepted[: size - filled]
        draws[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return draws


def _accepted(count: int, envelope: _Envelope, words: Words) -> Integers:
    """`count` proposals from the envelope; those that were accepted, in order."""
    place, uniform = words(2 * count).reshape(2, count)
    shift = envelope.shift
    offset = (place & np.uint64((1 << shift) - 1)).astype(np.int64)
    right = (place >> np.uint64(shift)) & np.uint64(1) == 1
    block = _zeros_before_one(place >> np.uint64(shift + 1), 63 - shift, words)
    distance = (block << shift) + offset
    n = np.where(right, envelope.mode + distance, envelope.mode - 1 - distance)
    chance = _log_pmf(np.maximum(n, 0).astype(np.float64), envelope.mean)
    chance += block * _LN2 - envelope.log_height
    np.exp(chance, out=chance)
    # The logarithm is right to 1e-14 (1 + |ln p|), and where |ln p| is large beside the envelope
    # the chance is small: the chance is right to 1e-12 absolutely, the word's float64 to 2e-16.
    chance -= uniform.astype(np.float64) * 2.0**-64
    kept = chance > 0
    for unsure in np.flatnonzero((np.abs(chance) <= _MARGIN) & (n >= 0)).tolist():
        kept[unsure] = _accept(
            int(uniform[unsure]), int(n[unsure]), int(block[unsure]), envelope, words
        )
    accepted: Integers = n[kept & (n >= 0)]
    return accepted


def _zeros_before_one(bits: NDArray[np.uint64], width: int, words: Words) -> Integers:
    """Zeros before the first one in each row of `width` random bits, which goes on for ever."""
    lowest = bits & (~bits + np.uint64(1))
    zeros = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    for row in np.flatnonzero(bits == 0).tolist():
        zeros[row] = width
        while (word := int(words(1)[0])) == 0:
            zeros[row] += 64
        zeros[row] += (word & -word).bit_length() - 1
    return zeros


def _log_pmf(n: Floats, mean: float) -> Floats:
    """ln of Poisson(mean) at n = 0, 1, ..., right to 1e-14 (1 + |ln p|).

    Loader 2000, "Fast and accurate computation of binomial probabilities": the deviance
    n ln(n / mean) + mean - n by a series in v = (n - mean) / (n + mean), so that nothing
    cancels, and Stirling's series, cut after five terms (error below 2e-16 from n = 16 on).
    """
    difference = n - mean
    v = difference / (n + mean)
    square = v * v
    series = np.full_like(n, 1 / 19)
    for odd in (17, 15, 13, 11, 9, 7, 5, 3):
        series *= square
        series += 1 / odd
    deviance = v * (difference + 2.0 * n * square * series)
    far = np.flatnonzero(square > 0.01)
    if len(far):
        m = n[far]
        deviance[far] = m * np.log(np.maximum(m, 1.0) / mean) + (mean - m)
    rest = 1.0 / np.maximum(n, 1.0)
    square = rest * rest
    tail = 1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))
    tail *= rest
    tail += 0.5 * np.log(2.0 * math.pi * np.maximum(n, 1.0))
    small = np.flatnonzero(n < _STIRLING_FROM)
    if len(small):
        tail[small] = _SMALL[n[small].astype(np.int64)]
    log: Floats = -(deviance + tail)
    return log


# --- the exact decision ---------------------------------------------------------------------


def _accept(uniform: int, n: int, block: int, envelope: _Envelope, words: Words) -> bool:
    """Whether U < p(n) 2^block / height, for U = 0.uniform... in binary, of endless digits.

    Every term is below 10^18 and there are fewer than 10^4 operations, each rounded to
    `precision` digits: 10^(30 - precision) is above the error of the sum.
    """
    bits = 64
    for precision in itertools.count(60, 30):
        with localcontext(Context(prec=precision)):
            slack = Decimal(10) ** (30 - precision)
            chance = _exact_log_pmf(n, envelope.mean) - Decimal(envelope.log_height)
            chance += (block + bits) * Decimal(2).ln()  # against the digits as an integer
            if Decimal(uniform + 1).ln() < chance - slack:
                return True
            if uniform and Decimal(uniform).ln() > chance + slack:
                return False
        uniform, bits = (uniform << 64) | int(words(1)[0]), bits + 64
    raise AssertionError  # itertools.count does not end


def _exact_log_pmf(n: int, mean: float) -> Decimal:
    """ln of Poisson(mean) at n to the context's precision; mean is taken as exact."""
    return n * Decimal(mean).ln() - Decimal(mean) - _log_factorial(n)


def _log_factorial(n: int) -> Decimal:
    """ln n! to the context's precision; the constant of Stirling's formula is 1000!'s."""
    if n <= 1000:
        return Decimal(math.factorial(n)).ln()
    return Decimal(math.factorial(1000)).ln() + _stirling(n) - _stirling(1000)


def _stirling(n: int) -> Decimal:
    """ln n! - ln(2 pi) / 2 for n >= 1000, to the precision of the current context.

    What is left out is smaller than the first term left out (DLMF, 5.11(ii)); from n = 1000 on
    the terms fall below 10^-2000 before they grow.
    """
    precision = getcontext().prec
    total = n * Decimal(n).ln() - n + Decimal(n).ln() / 2
    for j in itertools.count(1):
        number = _bernoulli(2 * j) / (2 * j * (2 * j - 1))
        term = Decimal(number.numerator) / number.denominator / Decimal(n) ** (2 * j - 1)
        if abs(term) < Decimal(10) ** -precision:
            break
        total += term
    return total


@functools.cache
def _bernoulli(index: int) -> Fraction:
    """Bernoulli's number B_index, by its recurrence."""
    if index == 0:
        return Fraction(1)
    terms = (math.comb(index + 1, k) * _bernoulli(k) for k in range(index))
    return -sum(terms, Fraction(0)) / (index + 1)
