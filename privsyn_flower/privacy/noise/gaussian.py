"""Gaussian noise for sums, from the operating system's generator.

Real noise is a Box-Muller transform of bytes from `os.urandom`: no seed exists that could be
stored, guessed or forked with a process. The radius takes 64 random bits, so the tail reaches
9.4 standard deviations; what is cut beyond has probability 2^-64 per draw. A seeded generator
is a separate function, for simulation behind `simulation-seeded-noise = true` only.

What this module does not do: floating-point Gaussian noise leaves traces in the low bits
(Mironov 2012, "On significance of the least significant bits for differential privacy"). The
sum over many nodes blurs them, but only integer noise removes them.
"""

from __future__ import annotations

import math
import os

import numpy as np

from privsyn_flower.arrays import F64


def system_gaussian(size: int, std: float) -> F64:
    """`size` independent draws of N(0, std^2) from operating-system randomness: (size,).

    Raises ValueError on a negative size or a standard deviation that is not finite and >= 0.
    """
    _check(size, std)
    pairs = (size + 1) // 2
    words = np.frombuffer(os.urandom(16 * pairs), dtype="<u8").reshape(2, pairs)  # (2, pairs)
    # (word + 1) / 2^64 lies in (0, 1]: the logarithm is finite.
    uniform = (words[0].astype(np.float64) + 1.0) * 2.0**-64
    angle = words[1].astype(np.float64) * (2.0 * math.pi * 2.0**-64)
    radius = np.sqrt(-2.0 * np.log(np.minimum(uniform, 1.0)))  # (pairs,)
    draws = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])  # (2 pairs,)
    noise: F64 = draws[:size] * std
    return noise


def gaussian(size: int, std: float, rng: np.random.Generator) -> F64:
    """`size` draws of N(0, std^2) from a given generator: simulation and tests only."""
    _check(size, std)
    return rng.standard_normal(size) * std


def node_noise(
    length: int,
    weight: float,
    std: float,
    min_weight: float,
    rng: np.random.Generator | None,
) -> F64:
    """One node's share of the noise on a sum: one draw of N(0, weight * std^2 / min_weight).

    length: of the sum. weight: users that the node stands for (public, fixed for the run).
    std: the guaranteed standard deviation of the released noise. min_weight: W_min, the
    honest weight below which no sum is released. So any honest survivors of weight >= W_min
    together carry at least std. rng: None for operating-system randomness.
    Raises ValueError unless weight, std and min_weight are finite and positive.
    """
    for name, value in (("weight", weight), ("std", std), ("min_weight", min_weight)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value} must be finite and above 0")
    share = std * math.sqrt(weight / min_weight)
    return system_gaussian(length, share) if rng is None else gaussian(length, share, rng)


def _check(size: int, std: float) -> None:
    if size < 0:
        raise ValueError(f"size = {size} must be at least 0")
    if not 0 <= std < math.inf:
        raise ValueError(f"std = {std} must be finite and at least 0")
