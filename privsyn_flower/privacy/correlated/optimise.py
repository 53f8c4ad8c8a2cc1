"""Coefficients with the least error: banded Toeplitz and buffered (BLT) strategy matrices.

The error is the root mean square, over rounds, of the standard deviation of a prefix sum's noise,
times the sensitivity: what it is at the noise that a given epsilon needs. Its logarithm is
minimised by L-BFGS with the exact gradient; both problems are small (at most one number a band,
two a buffer) and take well under a second for 2,000 rounds.
Sources: Choquette-Choo et al. 2024 (arXiv 2306.08153) for banded matrices, McMahan, Xu, Zhang 2024
(arXiv 2408.08868) for BLTs under multiple participation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.privacy.correlated.toeplitz import square_root

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
