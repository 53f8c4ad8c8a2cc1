"""Seeded choices: one explicit generator per purpose, never a global seed and never noise."""

from __future__ import annotations

import numpy as np


def seeded(seed: int, *purpose: int | str) -> np.random.Generator:
    """A generator for one purpose, for example seeded(seed, 3, "survivors")."""
    words = [int.from_bytes(str(part).encode(), "big") for part in purpose]
    return np.random.default_rng([seed, *words])
