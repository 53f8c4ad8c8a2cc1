"""Skellam noise: distribution by chi-square, domination, the exact decision, its bits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special, stats

from privsyn_flower.privacy import skellam
from privsyn_flower.privacy.skellam import seeded_skellam, system_skellam, total_variation

CHANCE = 1e-6  # of a false alarm, per test
VARIANCES = (1e-3, 0.5, 7.0, 300.0, 1e4, 1e7, 1e14)
means = st.floats(-8, 48).map(lambda exponent: 2.0**exponent)


def seeded_words(seed):
    rng = np.random.default_rng(seed)
    return lambda count: rng.integers(0, 2**64, count, dtype=np.uint64)


def check_fit(draws, variance):
    """Chi-square against the exact probabilities, exp(-v) I_|k|(v), in bins of 20 and more.

    From 1e6 on the normal law stands in for them: they differ by less than 1 / variance.
    """
    std = math.sqrt(variance)
    edges = np.unique(np.round(np.linspace(-4.5, 4.5, 60) * std)) + 0.5
    if variance < 1e6:
        reach = int(12 * std + 40)
        k = np.arange(-reach, reach + 1)
        total = np.cumsum(special.ive(np.abs(k), variance))
        below = total[(edges - 0.5).astype(int) + reach]
    else:
        below = stats.norm.cdf(edges / std)
    chances = np.diff(np.concatenate([[0.0], below, [1.0]]))
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(chances))
    full = chances * len(draws) >= 20
    expected = np.append(chances[full], chances[~full].sum()) * len(draws)
    observed = np.append(counts[full], counts[~full].sum())
    if expected[-1] < 5:
        expected, observed = expected[:-1], observed[:-1]
        expected = expected * (observed.sum() / expected.sum())
    assert stats.chisquare(observed, expected).pvalue > CHANCE


def check_moments(draws, variance):
    n, std = len(draws), math.sqrt(variance)
    assert abs(draws.mean()) < 6 * std / n**0.5
    assert (
        abs((draws.astype(float) ** 2).mean() / variance - 1) < 6 * ((2 + 1 / variance) / n) ** 0.5
    )


@pytest.mark.parametrize("variance", VARIANCES)
def test_distribution(variance):
    draws = np.concatenate([system_skellam(50_000, variance) for _ in range(4)])
    assert draws.dtype == np.int64
    check_fit(draws, variance)
    check_moments(draws, variance)


@pytest.mark.parametrize("variance", [0.5, 1e7])
def test_distribution_of_long_vectors(variance, monkeypatch):
    keys = []
    real = skellam.os.urandom
    monkeypatch.setattr(skellam.os, "urandom", lambda size: keys.append(size) or real(size))
    draws = system_skellam(400_000, variance)
    assert keys == [32]  # the key is all that is taken from the system
    check_fit(draws, variance)
    check_moments(draws, variance)
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) * 400_000**0.5 < 6


@pytest.mark.parametrize("variance", [30.0, 1e9])
def test_tails(variance):
    """As many draws beyond four standard deviations as there should be."""
    edge = math.ceil(4 * math.sqrt(variance))
    draws = system_skellam(1_000_000, variance)
    if variance < 1e6:
        expected = 1e6 * special.ive(np.arange(edge, edge + 500), variance).sum()
    else:
        expected = 1e6 * stats.norm.sf(edge / math.sqrt(variance))
    for beyond in ((draws >= edge).sum(), (draws <= -edge).sum()):
        assert stats.poisson.cdf(beyond, expected) > CHANCE
        assert stats.poisson.sf(beyond - 1, expected) > CHANCE


@settings(deadline=None, max_examples=25)
@given(mean=means, data=st.data())
def test_envelope_dominates_everywhere(mean, data):
    """In exact arithmetic: at the starts of the first blocks and far out, and inside them."""
    envelope = skellam._envelope(mean)
    width = 1 << envelope.shift
    assert envelope.proposals < 4.1
    blocks = [*range(20), *data.draw(st.lists(st.integers(20, 10**4), max_size=5))]
    offset = data.draw(st.integers(0, width - 1))
    with localcontext(prec=60):
        height = Decimal(envelope.log_height)
        for block in blocks:
            right, left = envelope.mode + block * width, envelope.mode - 1 - block * width
            for n in (right, right + offset, left, left - offset):
                if n >= 0:
                    chance = skellam._exact_log_pmf(n, mean) + block * Decimal(2).ln()
                    assert chance < height


@settings(deadline=None, max_examples=100)
@given(mean=means, block=st.integers(0, 60), right=st.booleans(), data=st.data())
def test_float_error_is_far_inside_the_margin(mean, block, right, data):
    envelope = skellam._envelope(mean)
    distance = (block << envelope.shift) + data.draw(st.integers(0, (1 << envelope.shift) - 1))
    n = envelope.mode + distance if right else envelope.mode - 1 - distance
    assume(n >= 0)
    with localcontext(prec=60):
        exact = skellam._exact_log_pmf(n, mean)
        computed = float(skellam._log_pmf(np.array([float(n)]), mean)[0])
        assert abs(Decimal(computed) - exact) < Decimal("1e-14") * (1 + abs(exact))
        scale = block * Decimal(2).ln() - Decimal(envelope.log_height)
        chance = (exact + scale).exp()
        floating = math.exp(computed + block * math.log(2) - envelope.log_height)
        assert abs(chance - Decimal(floating)) < Decimal(skellam._MARGIN / 50)


def test_exact_logarithms():
    with localcontext(prec=80):
        for n in (1000, 1001, 1500, 4000):
            exact = Decimal(math.factorial(n)).ln()
            assert abs(skellam._log_factorial(n) - exact) < Decimal(10) ** -72
        # A ratio without factorials, far beyond them.
        n, ratio = 10**13, Fraction(1)
        for k in range(1, 6):
            ratio *= n + k
        difference = skellam._log_factorial(n + 5) - skellam._log_factorial(n)
        assert abs(difference - Decimal(ratio.numerator).ln()) < Decimal(10) ** -60
    assert skellam._bernoulli(12) == Fraction(-691, 2730)


@pytest.mark.parametrize("variance", [0.5, 40.0, 3e4, 1e14])
def test_the_exact_decision_agrees(variance, monkeypatch):
    """The same bits give the same draws when every acceptance is decided exactly."""
    envelope = skellam._envelope(variance / 2)
    floating = skellam._poisson(300, envelope, seeded_words(1))
    monkeypatch.setattr(skellam, "_MARGIN", 2.0)
    assert np.array_equal(skellam._poisson(300, envelope, seeded_words(1)), floating)


def test_the_exact_decision_has_the_distribution(monkeypatch):
    monkeypatch.setattr(skellam, "_MARGIN", 2.0)
    draws = system_skellam(3_000, 2.0)
    check_fit(draws, 2.0)
    check_moments(draws, 2.0)


def test_the_exact_decision_asks_for_more_bits():
    """A uniform that agrees with the chance in its first 128 digits is decided by the next 64."""
    envelope, n = skellam._envelope(1000.0), 1010
    with localcontext(prec=120):
        chance = (skellam._exact_log_pmf(n, 1000.0) - Decimal(envelope.log_height)).exp()
        digits = int(chance * 2**192)
    words = [(digits >> shift) & (2**64 - 1) for shift in (128, 64, 0)]
    for last, accepted in ((words[2] - 1, True), (words[2] + 1, False)):
        rest = [words[1], last]
        answer = skellam._accept(words[0], n, 0, envelope, lambda count: np.array([rest.pop(0)]))  # noqa: B023
        assert answer is accepted and not rest


def test_blocks_count_zero_bits():
    rest = [0, 8]
    bits = np.array([1, 0, 12, 2**40], dtype=np.uint64)
    zeros = skellam._zeros_before_one(bits, 50, lambda count: np.array([rest.pop(0)]))
    assert zeros.tolist() == [0, 50 + 64 + 3, 2, 40] and not rest


def test_no_seed():
    for size in (64, skellam.EXACT_UP_TO + 1):
        np.random.seed(0)
        first = system_skellam(size, 1e6)
        np.random.seed(0)
        assert not np.array_equal(first, system_skellam(size, 1e6))


def test_short_vectors_use_the_system_alone(monkeypatch):
    rng = np.random.default_rng(2)
    monkeypatch.setattr(skellam.os, "urandom", rng.bytes)
    monkeypatch.setattr(skellam, "_stream", None)
    first = system_skellam(8, 1e6)
    rng.bit_generator.state = np.random.default_rng(2).bit_generator.state
    assert np.array_equal(system_skellam(8, 1e6), first)


def test_seeded_noise_repeats():
    first = seeded_skellam(50_000, 9.0, np.random.default_rng(7))
    assert np.array_equal(first, seeded_skellam(50_000, 9.0, np.random.default_rng(7)))
    check_fit(first, 9.0)


def test_zero_and_empty():
    for draw in (system_skellam, lambda *a: seeded_skellam(*a, np.random.default_rng(0))):
        assert draw(4, 0.0).tolist() == [0, 0, 0, 0] and draw(4, 0.0).dtype == np.int64
        assert draw(0, 5.0).shape == (0,)


@pytest.mark.parametrize(
    "draw",
    [system_skellam, total_variation, lambda *a: seeded_skellam(*a, np.random.default_rng(0))],
)
@pytest.mark.parametrize("variance", [-1.0, math.nan, math.inf, 1e-10, 1.2e15])
def test_bad_variances(draw, variance):
    with pytest.raises(ValueError, match=f"variance = {variance}".replace("+", r"\+")):
        draw(3, variance)
    with pytest.raises(ValueError, match="size = -1"):
        draw(-1, 1.0)


def test_every_size_is_exact():
    assert total_variation(10, 5.0) == total_variation(10**6, 5.0) == 0.0
