"""A strategy matrix in whole numbers, which nodes multiply their users' vectors of all rounds by.

Correlated noise C^-1 Z need not be made by anybody: X + C^-1 Z = C^-1 (C X + Z). Each node sends
the rows of C X for its own users with fresh noise, as in any other secure sum, and C^-1 is applied
to what was released (Denisov et al. 2022, arXiv 2202.08312, Section 2: the matrix mechanism and its
post-processing). Whole numbers keep a user's rows integers, so that their noise is accounted as
that of any other integers (docs/integer-noise.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.common.arrays import F64, I64
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.privacy.correlated.toeplitz import Toeplitz

UNIT = 64  # of the coefficients made here: errors are within 0.2 % of those of the real numbers
MOST_UNIT = 1 << 10
_CHUNK = 1 << 16  # coordinates multiplied at a time: they stay in the processor's cache
MOST_ROUNDS = 1 << 14  # with as many participations a sensitivity still takes less than a second

Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class IntegerMatrix:
    """C of constant diagonals a_0 >= a_1 >= ... >= 0, whole numbers, in units of a_0.

    coefficients: a_0, a_1, ...; those left out are 0. participation: the rounds of one user, which
    the nodes enforce. Sensitivities and norms are per unit of one user's bound in one round, with
    C's diagonal taken as 1. name: of the mechanism that it is near to. Raises ValueError on other
    coefficients, on an a_0 that is no power of two up to 1024, and on more bands than rounds.
    """

    coefficients: tuple[int, ...]
    participation: Participation
    name: str = field(default="nodes", compare=False)

    def __post_init__(self) -> None:
        whole = all(type(a) is int for a in self.coefficients)
        if not (whole and 1 <= len(self.coefficients) <= self.rounds <= MOST_ROUNDS):
            raise ValueError(
                f"bands = {len(self.coefficients)} whole numbers must be from 1 to rounds = "
                f"{self.rounds}, and rounds at most {MOST_ROUNDS}: change ftrl.bands or rounds"
            )
        unit = self.unit
        if not 1 <= unit <= MOST_UNIT or unit & (unit - 1):
            raise ValueError(f"a_0 = {unit} must be a power of two up to {MOST_UNIT}")
        self.toeplitz  # noqa: B018 - checks that they are not negative and do not increase

    @classmethod
    def nearest(
        cls,
        coefficients: Sequence[float],
        participation: Participation,
        *,
        bands: int = 0,
        unit: int = UNIT,
        name: str = "nodes",
    ) -> IntegerMatrix:
        """The matrix nearest to c_0 >= c_1 >= ... >= 0, cut to `bands`; 0: as many as there are."""
        real = np.array(coefficients[: bands or len(coefficients)], dtype=np.float64)
        whole = np.rint(unit * real / real[0]).astype(np.int64)
        kept = len(np.trim_zeros(whole, "b"))
        return cls(tuple(whole[:kept].tolist()), participation, name)

    @property
    def rounds(self) -> int:
        """T: rounds of the run."""
        return self.participation.rounds

    @property
    def unit(self) -> int:
        """a_0."""
        return self.coefficients[0]

    @property
    def bands(self) -> int:
        """Rounds whose vectors are in one row."""
        return len(self.coefficients)

    @cached_property
    def toeplitz(self) -> Toeplitz:
        """C / a_0: exact, as a_0 is a power of two."""
        return Toeplitz(self.name, self.rounds, tuple(a / self.unit for a in self.coefficients))

    @cached_property
    def row_norm(self) -> float:
        """Norm of one user's part in one row, at most: its rounds within the bands add up."""
        apart = self.participation.min_separation
        return sum(self.coefficients[::apart][: self.participation.most]) / self.unit

    def sensitivity(self, spare: int = 0) -> float:
        """Norm of all that is released of one user, with `spare` rows that are asked once more.

        Whoever survives: rows without the user's node leave out coordinates.
        """
        own = self.toeplitz.sensitivity(self.participation)
        return math.hypot(own, math.sqrt(spare) * self.row_norm)

    def participation_multiplier(self, z: float) -> float:
        """Of independent noise that costs users of any count at least as much for each
        participation; z: noise std per unit of the bound, before the rows are made.

        j of the k participations may cost more than j / k of the run.
        """
        squares = self.toeplitz.sensitivity_by_count(self.participation) ** 2
        return z / math.sqrt(float((squares / np.arange(1, len(squares) + 1)).max()))

    def repeat_multiplier(self, z: float) -> float:
        """Of the noise that one row costs when it is asked once more."""
        return z / self.row_norm

    def row(self, rnd: int, vector: Callable[[int], Integers | None]) -> I64 | None:
        """Row `rnd` of C X in integers, PRIVATE: sum of a_j x_{rnd-j}; None where there is nothing.

        vector(s): x_s (d,), what the node's users said in round s; None: zeros. Sums wrap modulo
        2^64, which every modulus of a sum divides. One vector is held at a time.
        """
        total: I64 | None = None
        for j, coefficient in enumerate(self.coefficients[:rnd]):
            past = vector(rnd - j)
            if past is None:
                continue
            if total is None:
                total = np.zeros(len(past), dtype=np.int64)
            for start in range(0, len(past), _CHUNK):
                part = np.multiply(past[start : start + _CHUNK], coefficient, dtype=np.int64)
                total[start : start + _CHUNK] += part
            del past  # before the next one is read
        return total

    def decorrelate(self, rnd: int, row: F64, earlier: Callable[[int], F64]) -> F64:
        """Release `rnd` of X + C^-1 Z from that of C X + Z, by substitution: post-processing.

        row: (d,), with C's diagonal taken as 1. earlier(s): what this returned for round s.
        """
        own = row.copy()
        for j, coefficient in enumerate(self.coefficients[1:rnd], start=1):
            if coefficient:
                own -= (coefficient / self.unit) * earlier(rnd - j)
        return own
