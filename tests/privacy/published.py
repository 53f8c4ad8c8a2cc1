"""Epsilon as papers account for it, to compare the figures that they print with ours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privsyn_flower.privacy.accounting import gaussian_epsilon


def zcdp(rho: float, delta: float) -> float:
    """Exact epsilon of a Gaussian release, or of several, that is rho-zCDP.

    For Gaussians alone: rho = sensitivity^2 / (2 z^2) says all of their privacy. For other
    mechanisms of the same rho only `zcdp_conversion` holds.
    """
    return gaussian_epsilon(1 / math.sqrt(2 * rho), delta)


def zcdp_conversion(rho: float, delta: float) -> float:
    """Epsilon of any rho-zCDP mechanism (Bun and Steinke 2016, Proposition 1.3)."""
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def kairouz_restart_epsilon(
    batches: int, epochs: Sequence[int], z: float, delta: float, *, completion: bool
) -> tuple[float, float]:
    """Epsilon of DP-FTRL-TreeRestart as Kairouz et al. 2021 account for it, and its exact value.

    batches: rounds of an epoch, in the same order in each. epochs: of each tree. A user takes
    part once an epoch, at the same place (their appendix D.2.1), so this says less than
    `Tree.sensitivity`, which lets users move. Theirs is Renyi DP at orders 1.1, 1.2, ..., 199.9.
    """
    squared = 0.0
    for index, count in enumerate(epochs):
        leaves = count * batches
        height = (leaves - 1).bit_length()
        full = completion and index < len(epochs) - 1
        places = np.arange(batches)[:, None] + batches * np.arange(count)
        by_place = np.zeros(batches)
        for level in range(height + 1):
            node = places >> level
            released = np.full(node.shape, True) if full else (node + 1) << level <= leaves
            same = (node[:, :, None] == node[:, None, :]) & released[:, None, :]
            by_place += same.sum(axis=(1, 2))  # a node with c rounds is counted c^2 times
        squared += by_place.max()
    multiplier = z / math.sqrt(squared)
    order = np.arange(11, 2000) / 10
    renyi = order / (2 * multiplier**2)
    theirs = renyi - (np.log(delta * (order - 1)) - order * np.log1p(-1 / order)) / (order - 1)
    return float(theirs.min()), gaussian_epsilon(multiplier, delta)
