"""What a server asks: a query, its ticket, and the noise its sum must carry. All PUBLIC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privsyn_flower.privacy.quantize import IntegerPlan

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
OptionValue = str | int | float


@dataclass(frozen=True)
class Ticket:
    """What every message, charge and release is bound to."""

    run: str
    query: str
    round: int
    attempt: int


@dataclass(frozen=True)
class Noise:
    """What the nodes of one query add, and what its sum must carry (ARCHITECTURE, rule 6).

    Users' vectors become integers of L2 norm at most `sensitivity`, summed mod 2^bits. A node
    that stands for w users adds Skellam noise of variance (multiplier * sensitivity)^2 * w /
    min_weight to every coordinate: survivors of honest weight W_min = min_weight carry the
    guaranteed noise, `colluding` weight on top of that is assumed to take its own noise off.
    """

    multiplier: float
    sensitivity: float
    bits: int
    min_weight: float
    colluding: float = 0.0
    sampling_rate: float = 1.0


@dataclass(frozen=True)
class Query:
    """One public question to every node; each user answers with a vector of L2 norm <= bound.

    rows (m, d) int8 and scales (m,) float32: row i of the question is rows[i] * scales[i].
    Quantising costs no privacy because the question is public, and the quantised question is
    the one that is stored, sent and answered, so that all sides see the same numbers.
    extra: further public arrays of a kind's question, by name ([a-z-]+).
    """

    kind: str
    rows: np.ndarray[Any, np.dtype[np.int8]]
    scales: np.ndarray[Any, np.dtype[np.float32]]
    length: int
    bound: float
    model: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    extra: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """All arrays of the question, in the order in which they travel and are hashed."""
        return [self.rows, self.scales, *(self.extra[name] for name in sorted(self.extra))]

    @classmethod
    def votes(
        cls,
        candidates: Floats,
        *,
        bound: float,
        model: str,
        clip: str = "normalised",
        samples_cap: int = 8,
        neighbors: int = 1,
        metric: str = "l2",
    ) -> Query:
        """Candidates (m, d), public: which are nearest to your texts? Answer: votes (m,).

        model is the embedder's fingerprint; a node with another embedder refuses.
        Raises ValueError when candidates are not a finite matrix or fewer than neighbors.
        """
        matrix = np.asarray(candidates, dtype=np.float32)
        if matrix.ndim != 2 or not np.isfinite(matrix).all() or len(matrix) < max(1, neighbors):
            raise ValueError(
                f"candidates of shape {matrix.shape} must be a finite (m, d) matrix with "
                f"m >= neighbors = {neighbors}"
            )
        rows, scales = int8_rows(matrix)
        options: dict[str, OptionValue] = {
            "clip": clip,
            "samples-cap": samples_cap,
            "neighbors": neighbors,
            "metric": metric,
        }
        return cls("votes", rows, scales, len(rows), float(bound), model, options)

    def question(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The decoded question (m, d) float32, public."""
        return self.rows.astype(np.float32) * self.scales[:, None]


def int8_rows(
    matrix: np.ndarray[Any, np.dtype[np.float32]],
) -> tuple[np.ndarray[Any, np.dtype[np.int8]], np.ndarray[Any, np.dtype[np.float32]]]:
    """Finite rows (m, d) -> int8 rows and their scales (m,): row i is about rows[i] * scales[i]."""
    peak = np.abs(matrix).max(axis=1, initial=0.0)
    # Rows too small for a float32 scale are zero to every use of them.
    scales = np.where(peak > 1e-35, peak / 127.0, 1.0).astype(np.float32)
    return np.rint(matrix / scales[:, None]).clip(-127, 127).astype(np.int8), scales


def integer_plan(query: Query, noise: Noise) -> IntegerPlan:
    """The integer encoding of a query's answers."""
    return IntegerPlan(
        bound=query.bound,
        sensitivity=noise.sensitivity,
        scale=noise.sensitivity / query.bound,
        bits=noise.bits,
        length=query.length,
    )
