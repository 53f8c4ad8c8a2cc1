"""The mechanisms of correlated noise by name, and what they cost: one Gaussian release a run.

What is released is a function of C x + z, z with standard deviation `z` per unit of clip norm, so
its privacy is that of one Gaussian of multiplier z / sensitivity(C), adaptively chosen users'
vectors included (Denisov et al. 2022, arXiv 2202.08312, Theorem 2.1; for trees, whose nodes have
noise of their own, Kairouz et al. 2021). A run that is stopped has paid for a prefix: the same
with `cumulative_sensitivity`. Adjacency is zero-out.

`optimise_banded` and `optimise_buffers` find coefficients with the least error: the root mean
square, over rounds, of the standard deviation of a prefix sum's noise, times the sensitivity, which
is what it is at the noise that a given epsilon needs. Its logarithm is minimised by L-BFGS with the
exact gradient; both problems are small and take well under a second for 2,000 rounds. Sources:
Choquette-Choo et al. 2024 (arXiv 2306.08153) for banded matrices, McMahan, Xu, Zhang 2024 (arXiv
2408.08868) for BLTs under multiple participation.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from importlib import resources
from typing import Any, Protocol

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.privacy.accounting.calibration import calibrate
from privsyn_flower.privacy.accounting.composition import gaussian_epsilon
from privsyn_flower.privacy.correlated.keys import NoiseKey
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.privacy.correlated.stream import Keep, Stream
from privsyn_flower.privacy.correlated.toeplitz import Toeplitz, buffered, square_root
from privsyn_flower.privacy.correlated.trees import Tree

NAMES = (
    "independent",
    "tree",
    "tree-honaker",
    "tree-restart",
    "banded",
    "banded-optimised",
    "blt",
)


class Factorization(Protocol):
    """A factorization A = B C of the matrix of prefix sums A; the noise of the sums is B z.

    z is standard normal; the noise of release t is (C^-1 z)_t, or for trees, whose C has more rows
    than columns, the difference of the noise of two prefix sums.
    """

    @property
    def name(self) -> str: ...
    @property
    def rounds(self) -> int: ...
    def sensitivity(self, participation: Participation) -> float:
        """L2 norm of C x, for users of norm 1 a round, at the worst pattern of rounds."""

    def cumulative_sensitivity(self, participation: Participation) -> F64:
        """The same of the first 1, 2, ... rounds: (rounds,), not decreasing."""

    def sensitivity_by_count(self, participation: Participation) -> F64:
        """That of all rounds, for users with at most 1, 2, ... of them: (participation.most,)."""

    def release_std(self) -> F64:
        """Standard deviation of each release's noise: (rounds,)."""

    def prefix_std(self) -> F64:
        """Standard deviation of the noise of the sum of the first 1, 2, ... releases: (rounds,)."""

    def describe(self) -> str:
        """Everything that the noise depends on, as text; public."""

    def stream(
        self, key: NoiseKey, length: int, *, keep: Keep = "files", binding: str = ""
    ) -> Stream:
        """The noise of a run, round by round; see `open_stream`."""


def factorization(
    name: str,
    rounds: int,
    *,
    participation: Participation | None = None,
    restart_every: int = 0,
    completion: bool = False,
    complete_last: bool = False,
    bands: int = 0,
    buffers: int = 4,
) -> Factorization:
    """A mechanism for `rounds` releases.

    independent; tree (Kairouz et al. 2021), tree-honaker (its estimate from below), tree-restart
    (the same with a new tree every `restart_every` rounds; completion, complete_last: see Tree);
    banded (square root cut to `bands`), banded-optimised, blt (`buffers` buffers). participation:
    what the last two are optimal for; by default one round a user. bands = 0: the separation of
    `participation`, or all rounds where a user takes part once. An option that a mechanism does
    not have changes nothing. Raises ValueError on the name and on options.
    """
    users = participation or Participation(rounds, rounds)
    users.check(rounds)
    once = users.most == 1
    bands = bands or (rounds if once else min(users.min_separation, rounds))
    if name == "independent":
        return Toeplitz(name, rounds, (1.0,))
    if name == "tree":
        return Tree(name, rounds)
    if name == "tree-honaker":
        return Tree(name, rounds, honaker=True)
    if name == "tree-restart":
        if restart_every < 1:
            raise ValueError(
                "restart-every = 0: tree-restart needs ftrl.restart-every of 1 or more"
            )
        return Tree(name, rounds, True, restart_every, completion, complete_last)
    if name == "banded":
        return Toeplitz(name, rounds, square_root(bands))
    if name == "banded-optimised":
        return Toeplitz(name, rounds, banded_coefficients(users, bands))
    if name == "blt":
        pairs = blt_buffers(users, buffers)
        return Toeplitz(name, rounds, buffered(rounds, pairs), pairs)
    raise ValueError(
        f"mechanism = {name!r} must be one of {', '.join(NAMES)}: change ftrl.mechanism"
    )


def banded_coefficients(participation: Participation, bands: int) -> tuple[float, ...]:
    """The shipped coefficients for this shape, or new ones: the same on every call."""
    shipped = _shipped("banded").get(shape(participation, bands))
    return tuple(shipped) if shipped else optimise_banded(participation, bands)


def blt_buffers(participation: Participation, buffers: int) -> tuple[tuple[float, float], ...]:
    """The shipped (scale, decay) pairs for this shape, or new ones: the same on every call."""
    shipped = _shipped("blt").get(shape(participation, buffers))
    if shipped is None:
        return optimise_buffers(participation, buffers)
    return tuple((scale, decay) for scale, decay in shipped)


def shape(participation: Participation, size: int) -> str:
    """The name of a shape in the shipped files: rounds, separation, participations, size."""
    # A separation of users who take part once separates nothing.
    apart = participation.min_separation if participation.most > 1 else participation.rounds
    return f"{participation.rounds} {apart} {participation.most} {size}"


@functools.cache
def _shipped(name: str) -> dict[str, list[Any]]:
    folder = resources.files("privsyn_flower.privacy") / "coefficients"
    path = folder / f"{name}.json"
    found: dict[str, list[Any]] = json.loads(path.read_text(encoding="utf-8"))["shapes"]
    return found


def calibrate_correlated(
    epsilon: float, delta: float, factorization: Factorization, participation: Participation
) -> float:
    """The standard deviation of z, per unit of clip norm, whose run costs at most `epsilon`.

    Within 1e-9 of the smallest and never below it. Raises ValueError as `calibrate` does.
    """
    return factorization.sensitivity(participation) * calibrate(epsilon, 1, delta)


def epsilon_correlated(
    z: float, delta: float, factorization: Factorization, participation: Participation
) -> float:
    """Exact epsilon of a whole run. z: standard deviation of z per unit of clip norm."""
    return gaussian_epsilon(z / factorization.sensitivity(participation), delta)


DIGITS = 12  # of what is found: the noise depends on every bit of it
_LEAST = 1e-9  # decays and what they lack to 1 stay above it


def optimise_banded(participation: Participation, bands: int) -> tuple[float, ...]:
    """Coefficients 1 = c_0 >= c_1 >= ... > 0 with the least error: (bands,).

    c_j = c_{j-1} / (1 + exp(-x_j)), so no constraint is left. Raises ValueError on bands.
    """
    if not 1 <= bands <= participation.rounds:
        raise ValueError(
            f"bands = {bands} must be from 1 to rounds = {participation.rounds}: change ftrl.bands"
        )
    if bands == 1:
        return (1.0,)
    start = np.array(square_root(bands))

    def coefficients(x: F64) -> F64:
        return np.append(1.0, np.exp(-np.cumsum(np.logaddexp(0.0, -x))))

    def objective(x: F64) -> tuple[float, F64]:
        c = coefficients(x)
        value, slope = log_error(c, participation)
        through = np.cumsum((slope * c)[:0:-1])[::-1]
        return value, through / (1 + np.exp(x))

    ratio = start[1:] / start[:-1]
    found = coefficients(_minimum(objective, np.log(ratio / (1 - ratio))))
    return _rounded(found)


def optimise_buffers(participation: Participation, buffers: int) -> tuple[tuple[float, float], ...]:
    """Pairs (scale, decay) of a BLT with the least error: (buffers,), decays falling.

    Scales are positive and their sum is at most 1, so that the coefficients do not increase.
    Several starts, the best end. Raises ValueError unless 1 <= buffers <= 10.
    """
    if not 1 <= buffers <= 10:
        raise ValueError(f"buffers = {buffers} must be from 1 to 10: change ftrl.buffers")
    powers = np.arange(max(participation.rounds - 1, 1))

    def unpack(x: F64) -> tuple[F64, F64]:
        weight = np.exp(x[:buffers] - x[:buffers].max())
        weight /= weight.sum()
        decay = _LEAST + (1 - 2 * _LEAST) / (1 + np.exp(-x[buffers : 2 * buffers]))
        return weight / (1 + np.exp(-x[-1])), decay

    def objective(x: F64) -> tuple[float, F64]:
        scale, decay = unpack(x)
        powered = decay[:, None] ** powers
        c = np.append(1.0, scale @ powered)[: participation.rounds]
        value, slope = log_error(c, participation)
        slope = np.append(slope[1:], np.zeros(len(powers) - len(c) + 1))
        to_scale = powered @ slope
        to_decay = scale * ((powered * powers) @ slope) / decay
        total = float(scale.sum())
        to_weight = scale * (to_scale - (scale @ to_scale) / total)
        to_total = (scale @ to_scale) * (1 - total)
        inner = (decay - _LEAST) / (1 - 2 * _LEAST)
        to_logit = to_decay * (1 - 2 * _LEAST) * inner * (1 - inner)
        return value, np.concatenate([to_weight, to_logit, [to_total]])

    ends = []
    for longest in (0.3, 1.0, 3.0):
        memory = np.geomspace(max(longest * participation.rounds, 3.0), 1.5, buffers)
        scale = memory**-0.5
        start = np.concatenate([np.log(scale), np.log(memory - 1), [0.0]])
        end = _minimum(objective, start)
        ends.append((objective(end)[0], end))
    scale, decay = unpack(min(ends, key=lambda pair: pair[0])[1])
    order = np.argsort(-decay)
    # Rounding must not lift the sum of the scales above 1.
    shrunk = scale[order] * (1 - 10.0 ** (1 - DIGITS))
    return tuple(zip(_rounded(shrunk), _rounded(decay[order]), strict=True))


def log_error(c: F64, participation: Participation) -> tuple[float, F64]:
    """Logarithm of the error of coefficients c, and its gradient: (len(c),) both."""
    from scipy.signal import fftconvolve, lfilter

    rounds = participation.rounds
    impulse = np.zeros(rounds)
    impulse[0] = 1.0
    inverse = lfilter([1.0], c, impulse)
    prefix = np.cumsum(inverse)
    share = (rounds - np.arange(rounds)) / rounds  # of the rounds, how many have this term
    mean_square = float(share @ prefix**2)
    to_prefix = share * prefix / mean_square
    to_inverse = np.cumsum(to_prefix[::-1])[::-1]
    # d inverse = -inverse * dc * inverse, * a convolution.
    square = fftconvolve(inverse, inverse)[:rounds]
    slope = -fftconvolve(to_inverse, square[::-1])[rounds - 1 : rounds - 1 + len(c)]

    starts = np.zeros(rounds)
    starts[:: participation.min_separation][: participation.most] = 1.0
    user = fftconvolve(starts, c)[:rounds]
    squared = float(user @ user)
    slope += fftconvolve(user, starts[::-1])[rounds - 1 : rounds - 1 + len(c)] / squared
    return 0.5 * np.log(mean_square * squared), slope


def _minimum(objective: Callable[[F64], tuple[float, F64]], start: F64) -> F64:
    from scipy.optimize import minimize

    options = {"maxiter": 3000, "maxfun": 6000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    end: F64 = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    return end


def _rounded(values: F64) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
