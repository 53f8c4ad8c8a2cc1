"""Noise: variance by chi-square, shape by Kolmogorov-Smirnov, shares by weight."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from privsyn_flower.privacy import gaussian, node_noise, system_gaussian
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


def test_seeded_noise_repeats():
    first = gaussian(50_000, 3.0, np.random.default_rng(7))
    assert np.array_equal(first, gaussian(50_000, 3.0, np.random.default_rng(7)))
    check_variance(first, 3.0)


@pytest.mark.parametrize("seeded", [False, True])
def test_surviving_nodes_carry_the_guaranteed_noise(seeded):
    """Nodes of unequal weight; the sum of those of weight W_min has variance std^2."""
    std, weights, min_weight = 4.0, [100, 30, 5, 15], 150
    rng = np.random.default_rng(1) if seeded else None
    shares = [node_noise(100_000, w, std, min_weight, rng) for w in weights]
    check_variance(np.sum(shares, axis=0), std)
    check_variance(shares[1], std * (30 / 150) ** 0.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: system_gaussian(-1, 1.0), "size = -1"),
        (lambda: system_gaussian(1, float("nan")), "std = nan"),
        (lambda: node_noise(1, 0, 1.0, 1, None), "weight = 0"),
        (lambda: node_noise(1, 1, 0.0, 1, None), "std = 0.0"),
        (lambda: node_noise(1, 1, 1.0, 0, None), "min_weight = 0"),
    ],
)
def test_bad_values(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_empty():
    assert system_gaussian(0, 1.0).shape == (0,)
