"""Exact distributions on the integers, for the tests of the noise: 60 digits, or float64."""

from __future__ import annotations

import functools
import math

import mpmath
import numpy as np
from mpmath import mp, mpf

mp.dps = 60
TWELFTH = mpf(1) / 12  # what rounding adds to a variance
Masses = list[mpf]  # of -reach .. reach


def reach_of(variance: float) -> int:
    """Beyond it a Gaussian of this variance has less than 1e-60."""
    return math.ceil(17 * math.sqrt(variance)) + 2


def discrete_gaussian(variance: mpf, reach: int) -> Masses:
    """N_Z(0, variance)."""
    half = [mpmath.exp(-mpf(n * n) / (2 * mpf(variance))) for n in range(reach + 1)]
    total = half[0] + 2 * sum(half[1:])
    half = [mass / total for mass in half]
    return half[:0:-1] + half


def rounded_gaussian(variance: mpf, reach: int) -> Masses:
    """N(0, variance), rounded to the nearest integer."""
    width = mpmath.sqrt(2 * mpf(variance))
    above = [mpmath.erfc((n + mpf(1) / 2) / width) / 2 for n in range(reach + 1)]
    half = [1 - 2 * above[0]] + [above[n - 1] - above[n] for n in range(1, reach + 1)]
    return half[:0:-1] + half


def distance(p: Masses, q: Masses) -> mpf:
    """Total variation of two distributions around 0."""
    wide = max(len(p), len(q)) // 2
    p, q = ([mpf(0)] * (wide - len(m) // 2) + m + [mpf(0)] * (wide - len(m) // 2) for m in (p, q))
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def convolved(p: Masses, q: Masses) -> Masses:
    """The sum of two independent draws, in fixed point of 240 bits."""
    left, right = ([int(mass * 2**240) for mass in m] for m in (p, q))
    total = [0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            total[i + j] += a * b
    return [mpf(mass) / 2**480 for mass in total]


def of_sum(variances: list[mpf]) -> Masses:
    """The sum of independent N_Z(0, v)."""
    return functools.reduce(convolved, [discrete_gaussian(v, reach_of(v)) for v in variances])


def noise_array(variances: list[float], reach: int) -> np.ndarray:
    """The sum of independent N_Z(0, v) in float64: (2 reach + 1,)."""
    n = np.arange(-reach, reach + 1)
    total = np.ones(1)
    for variance in variances:
        mass = np.exp(-(n.astype(float) ** 2) / (2 * variance))
        total = np.convolve(total, mass / mass.sum())
    middle = len(total) // 2
    return total[middle - reach : middle + reach + 1]
