"""Shamir's secret sharing of 256-bit secrets over a prime field, in Python integers.

Source: Shamir 1979, "How to share a secret". Any `threshold` shares give the secret back, fewer
say nothing about it: the other coefficients are uniform in the field.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297  # the smallest prime above 2^256, so every 32-byte secret is an element
SHARE_BYTES = 33


def split(secret: int, threshold: int, points: Sequence[int]) -> dict[int, int]:
    """Shares of a secret in [0, PRIME) at distinct points in [1, PRIME): point -> share (SECRET).

    Coefficients come from the operating system's randomness. Raises ValueError when the secret,
    the points or the threshold (1..number of points) are out of range.
    """
    if not 0 <= secret < PRIME:
        raise ValueError("the secret is outside the field")
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError(
            f"points = {list(points)[:8]}... must be distinct, above 0 and below PRIME"
        )
    if not 1 <= threshold <= len(points):
        raise ValueError(f"threshold = {threshold} must be between 1 and {len(points)} points")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares = {}
    for point in points:
        value = 0
        for coefficient in coefficients:  # Horner, highest power first
            value = (value + coefficient) * point % PRIME
        shares[point] = (value + secret) % PRIME
    return shares


def combine(shares: Mapping[int, int]) -> int:
    """The secret behind shares (point -> share), by interpolation at 0.

    Give exactly the threshold's number of shares; more are fine, fewer give a random element.
    """
    points = tuple(sorted(shares))
    weights = _at_zero(points)
    total = sum(weight * shares[point] for weight, point in zip(weights, points, strict=True))
    return total % PRIME


@lru_cache(maxsize=4096)
def _at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange coefficients at 0; neighbourhoods repeat, so they are kept."""
    weights = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
