"""What several tests share about caches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

USERS = {"a": ["one", "two"], "b": [], "c": ["three", "one"], "ü": ["vier"]}


class Embedder:
    """Text -> a row that depends on the text alone; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> npt.NDArray[np.float32]:
        self.asked += texts
        rows = [np.frombuffer(t.encode().ljust(16, b".")[:16], dtype=np.uint8) for t in texts]
        return np.asarray(rows, dtype=np.float32)
