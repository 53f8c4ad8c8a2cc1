"""Strategy matrices C with constant diagonals: independent, banded and buffered (BLT) noise.

C is lower triangular, C[t, s] = c_{t-s}, with c_0 >= c_1 >= ... >= 0. What is released is x + N
with C N = z for standard normal z, so a release tells no more than C x + z does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.privacy.correlated.keys import NoiseKey
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.privacy.correlated.stream import Draw, Keep, ReadRecord, Stream, open_stream


@dataclass(frozen=True)
class Toeplitz:
    """A banded or buffered Toeplitz strategy matrix.

    coefficients: c_0, c_1, ...; those left out are 0. buffers: pairs (scale, decay) with
    c_j = sum of scale * decay^(j-1) for j >= 1 and c_0 = 1, from which `coefficients` were made;
    empty for a banded matrix, whose noise is made from past noise. Raises ValueError unless the
    coefficients are positive and not increasing: only for these is the sensitivity known.
    """

    name: str
    rounds: int
    coefficients: tuple[float, ...]
    buffers: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        c = np.array(self.coefficients)
        if not 1 <= len(c) <= self.rounds:
            raise ValueError(
                f"bands = {len(c)} must be from 1 to rounds = {self.rounds}: change ftrl.bands"
            )
        if not (np.isfinite(c).all() and c[0] > 0 and c.min() >= 0 and (np.diff(c) <= 0).all()):
            raise ValueError(
                f"coefficients of {self.name} must not be negative and not increase: "
                f"{c[:4].tolist()}..."
            )

    @property
    def bands(self) -> int:
        return len(self.coefficients)

    def sensitivity(self, participation: Participation) -> float:
        """L2 norm of C x for one user of norm 1 a round, at the worst rounds: exact."""
        return float(self.cumulative_sensitivity(participation)[-1])

    def cumulative_sensitivity(self, participation: Participation) -> F64:
        """The sensitivity of the first 1, 2, ... rounds: (rounds,), exact.

        With coefficients that are not negative and do not increase, the worst rounds are the
        first ones, min_separation apart (Kalinin and Lampert 2024, arXiv 2405.13763, Theorem 2),
        whatever the prefix; all users' vectors then point the same way.
        """
        participation.check(self.rounds)
        return np.sqrt(np.cumsum(self.worst_user(participation) ** 2))

    def sensitivity_by_count(self, participation: Participation) -> F64:
        """The sensitivity to users with at most 1, 2, ... rounds: (participation.most,), exact."""
        participation.check(self.rounds)
        column = np.zeros(self.rounds)
        column[: self.bands] = self.coefficients
        moved, norms = np.zeros(self.rounds), []
        for taken in range(participation.most):  # the first rounds, as above
            start = taken * participation.min_separation
            moved[start:] += column[: self.rounds - start]
            norms.append(np.linalg.norm(moved))
        return np.array(norms)

    def worst_user(self, participation: Participation) -> F64:
        """C x of the worst user: the sum of columns 0, b, 2b, ...: (rounds,)."""
        starts = np.zeros(self.rounds)
        starts[:: participation.min_separation][: participation.most] = 1.0
        return np.convolve(starts, self.coefficients)[: self.rounds]

    def inverse(self) -> F64:
        """The first column of C^-1: N_t = sum_s inverse[s] z_{t-s}: (rounds,)."""
        from scipy.signal import lfilter

        impulse = np.zeros(self.rounds)
        impulse[0] = 1.0
        found: F64 = lfilter([1.0], np.array(self.coefficients), impulse)
        return found

    def release_std(self) -> F64:
        """Standard deviation of each release's noise when z has 1: (rounds,)."""
        return np.sqrt(np.cumsum(self.inverse() ** 2))

    def prefix_std(self) -> F64:
        """Standard deviation of the noise of the sum of the first 1, 2, ... releases: (rounds,)."""
        return np.sqrt(np.cumsum(np.cumsum(self.inverse()) ** 2))

    def describe(self) -> str:
        """Everything that the noise depends on, as text; public."""
        numbers = self.buffers or self.coefficients
        return json.dumps({"name": self.name, "rounds": self.rounds, "numbers": numbers})

    def recurrence(self) -> _Buffered | _Banded:
        if self.buffers:
            return _Buffered(np.array(self.buffers))
        return _Banded(np.array(self.coefficients))

    def stream(
        self, key: NoiseKey, length: int, *, keep: Keep = "files", binding: str = ""
    ) -> Stream:
        """The noise of a run: see `open_stream`."""
        return open_stream(key, self, length, keep, binding)


def square_root(bands: int) -> tuple[float, ...]:
    """Coefficients of the square root of the matrix of ones, cut to `bands`: binom(2j, j) / 4^j.

    Source: Fichtenberger, Henzinger, Upadhyay 2022 (arXiv 2202.11205); cut to bands by Kalinin
    and Lampert 2024.
    """
    j = np.arange(1, bands)
    return (1.0, *np.cumprod((2 * j - 1) / (2 * j)).tolist())


def buffered(rounds: int, buffers: tuple[tuple[float, float], ...]) -> tuple[float, ...]:
    """Coefficients 1, sum scale, sum scale decay, sum scale decay^2, ... of a BLT.

    Source: McMahan, Xu, Zhang 2024 (arXiv 2408.08868), section 3.
    """
    scale, decay = np.array(buffers).T
    powers = decay[:, None] ** np.arange(rounds - 1)
    return (1.0, *(scale @ powers).tolist())


class _Banded:
    """N_t = (z_t - c_1 N_{t-1} - ... - c_{b-1} N_{t-b+1}) / c_0; the record of t is N_t."""

    def __init__(self, coefficients: F64) -> None:
        self.first, self.rest = float(coefficients[0]), coefficients[1:]
        self.rows = 1 if len(self.rest) else 0

    def live(self, rnd: int) -> range:
        return range(max(1, rnd - len(self.rest)), rnd)

    def step(self, rnd: int, draw: Draw, record: ReadRecord) -> tuple[F64, F64]:
        noise = draw(rnd, 0)
        for past in self.live(rnd):
            noise -= self.rest[rnd - past - 1] * record(past)[0]
        noise /= self.first
        return noise, noise[None]


class _Buffered:
    """N_t = z_t - scale . S_t, then S_{t+1} = decay S_t + N_t; the record of t is S_{t+1}."""

    def __init__(self, buffers: F64) -> None:
        self.scale, self.decay = buffers.T
        self.rows = len(self.scale)

    def live(self, rnd: int) -> range:
        return range(max(1, rnd - 1), rnd)

    def step(self, rnd: int, draw: Draw, record: ReadRecord) -> tuple[F64, F64]:
        noise = draw(rnd, 0)
        state = record(rnd - 1) if rnd > 1 else np.zeros((self.rows, len(noise)))
        for scale, row in zip(self.scale, state, strict=True):
            noise -= scale * row
        state = self.decay[:, None] * state
        state += noise
        return noise, state
