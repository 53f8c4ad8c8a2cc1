"""Gaussian noise of the system: variance by chi-square, shape by Kolmogorov-Smirnov."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from privsyn_flower.privacy import system_gaussian
from privsyn_flower.privacy.noise import gaussian as noise

CHANCE = 1e-6  # of a false alarm, per test


def check_variance(draws: np.ndarray, std: float) -> None:
    low, high = stats.chi2.ppf([CHANCE / 2, 1 - CHANCE / 2], len(draws))
    assert low <= float((draws / std) @ (draws / std)) <= high


def test_system_noise_is_gaussian():
    draws = system_gaussian(200_001, 2.5)
    assert draws.shape == (200_001,)
    check_variance(draws, 2.5)
    assert stats.kstest(draws / 2.5, "norm").pvalue > CHANCE
    # Box-Muller makes pairs: they must not be correlated, nor their squares.
    half = len(draws) // 2
    for power in (1, 2):
        pairs = np.corrcoef(draws[:half] ** power, draws[half + 1 :] ** power)[0, 1]
        assert abs(pairs) * half**0.5 < 6


def test_system_noise_has_no_seed():
    np.random.seed(0)
    first = system_gaussian(8, 1.0)
    np.random.seed(0)
    assert not np.array_equal(first, system_gaussian(8, 1.0))


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_extreme_bytes_stay_finite(monkeypatch, byte):
    monkeypatch.setattr(noise.os, "urandom", lambda size: byte * size)
    draws = system_gaussian(5, 1.0)
    assert np.isfinite(draws).all() and np.abs(draws).max() < 9.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: system_gaussian(-1, 1.0), "size = -1"),
        (lambda: system_gaussian(1, float("nan")), "std = nan"),
    ],
)
def test_bad_values(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_empty():
    assert system_gaussian(0, 1.0).shape == (0,)
