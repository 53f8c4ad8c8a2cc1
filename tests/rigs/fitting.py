"""What several tests share about fitting."""

from __future__ import annotations

import numpy as np

WORDS = "small teams river bank tea senior engineer quick brown fox array axis mean".split()


def texts(seed: int = 0, count: int = 20) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=int(rng.integers(2, 12)))) for _ in range(count)]
