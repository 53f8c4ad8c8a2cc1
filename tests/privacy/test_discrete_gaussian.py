"""Discrete Gaussian noise: distribution by chi-square, domination, the exact decision, its bits."""

from __future__ import annotations

import itertools
import math
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privsyn_flower.privacy.noise import integer_noise as sampler
from privsyn_flower.privacy.noise.integer_noise import (
    seeded_discrete_gaussian,
    system_discrete_gaussian,
)

CHANCE = 1e-6  # of a false alarm, per test
VARIANCES = (1e-9, 1e-3, 0.07, 0.5, 2.0, 7.0, 300.0, 1e4, 1e7, 1e14, 2.0**50, sampler.MAX_VARIANCE)
# Around powers of two, and halfway between their logarithms: there the staircase changes.
SCALES = sorted(
    {2.0**k * near for k in (1, 2, 7, 16) for near in (1 - 1e-9, 1.0, 1 + 1e-9)}
    | {2.0 ** (k + 0.5) * near for k in (1, 8, 15) for near in (1 - 1e-9, 1 + 1e-9)}
    | {math.e, math.pi, math.sqrt(7), 100 * math.sqrt(3), 1000 * math.pi, 65_535.5}
)
variances = st.floats(-29, 104).map(lambda exponent: 2.0**exponent)


def seeded_words(seed):
    rng = np.random.default_rng(seed)
    return lambda count: rng.integers(0, 2**64, count, dtype=np.uint64)


def probabilities(variance):
    """The integers in reach and the probability of each."""
    reach = int(12 * math.sqrt(variance) + 10)
    n = np.arange(-reach, reach + 1)
    mass = np.exp(-(n.astype(float) ** 2) / (2 * variance))
    return n, mass / mass.sum()


def check_counts(observed, expected):
    """Chi-square; bins in which fewer than 20 are expected are taken together."""
    full = expected >= 20
    expected = np.append(expected[full], expected[~full].sum())
    observed = np.append(observed[full], observed[~full].sum())
    if expected[-1] < 5:
        # Beyond all bins: next to nothing may be there.
        assert stats.poisson.sf(observed[-1] - 1, expected[-1]) > CHANCE
        expected, observed = expected[:-1], observed[:-1]
        expected = expected * (observed.sum() / expected.sum())
    if len(expected) > 1:
        assert stats.chisquare(observed, expected).pvalue > CHANCE


def check_fit(draws, variance):
    """Against the exact probabilities, integer by integer while there are fewer than 90 in reach.

    From 1e8 on the normal law stands in for them: they differ by less than 1 / variance.
    """
    std = math.sqrt(variance)
    edges = np.unique(np.round(np.linspace(-4.5, 4.5, 91) * max(std, 1.0))) + 0.5
    if variance < 1e8:
        n, mass = probabilities(variance)
        below = np.cumsum(mass)[np.searchsorted(n, edges - 0.5)]
    else:
        below = stats.norm.cdf(edges / std)
    chances = np.diff(np.concatenate([[0.0], below, [1.0]]))
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(chances))
    check_counts(counts, chances * len(draws))


def check_last_bits(draws, std):
    """Residues modulo 16 are equally likely on each side, once it is nearly flat over 16."""
    if std > 1000:
        for side in (draws[draws >= 0], draws[draws < 0]):
            check_counts(np.bincount(side % 16, minlength=16), np.full(16, len(side) / 16))


def check_moments(draws, variance):
    """Mean and variance of N_Z(0, variance), which is below its parameter when that is small."""
    if variance < 1e8:
        n, mass = probabilities(variance)
        variance, fourth = float(n.astype(float) ** 2 @ mass), float(n.astype(float) ** 4 @ mass)
    else:
        fourth = 3 * variance**2
    values = draws.astype(float)
    slack = 6 / math.sqrt(len(draws))
    assert abs(values.mean()) <= slack * math.sqrt(variance)
    spread = math.sqrt(max(0.0, fourth - variance**2))
    assert abs((values**2).mean() - variance) <= slack * spread + 1e-300


@pytest.mark.parametrize("variance", VARIANCES)
def test_distribution(variance):
    draws = np.concatenate([system_discrete_gaussian(50_000, variance) for _ in range(4)])
    assert draws.dtype == np.int64
    check_fit(draws, variance)
    check_last_bits(draws, math.sqrt(variance))
    check_moments(draws, variance)


@pytest.mark.parametrize("std", SCALES)
def test_distribution_at_adversarial_scales(std):
    draws = system_discrete_gaussian(150_000, std**2)
    check_fit(draws, std**2)
    check_last_bits(draws, std)
    check_moments(draws, std**2)


@pytest.mark.parametrize("variance", [0.5, 1e7])
def test_distribution_of_long_vectors(variance, monkeypatch):
    keys = []
    real = sampler.os.urandom
    monkeypatch.setattr(sampler.os, "urandom", lambda size: keys.append(size) or real(size))
    draws = system_discrete_gaussian(400_000, variance)
    assert keys == [32]  # the key is all that is taken from the system
    check_fit(draws, variance)
    check_moments(draws, variance)
    for power in (1, 2):
        close = np.corrcoef(draws[1:] ** power, draws[:-1] ** power)[0, 1]
        assert abs(close) * 400_000**0.5 < 6


@pytest.mark.parametrize("variance", [0.5, 4.0, 30.0, 1e4, 1e9])
@pytest.mark.parametrize("stds", [3, 4])
def test_tails(variance, stds):
    """As many draws beyond so many standard deviations as there should be, on each side."""
    edge = math.ceil(stds * math.sqrt(variance))
    draws = system_discrete_gaussian(1_000_000, variance)
    if variance < 1e8:
        n, mass = probabilities(variance)
        expected = 1e6 * mass[n >= edge].sum()
    else:
        expected = 1e6 * stats.norm.sf((edge - 0.5) / math.sqrt(variance))
    for beyond in ((draws >= edge).sum(), (draws <= -edge).sum()):
        assert stats.poisson.cdf(beyond, expected) > CHANCE
        assert stats.poisson.sf(beyond - 1, expected) > CHANCE


# --- rejection ------------------------------------------------------------------------------


def log_chance(n, block, stairs):
    """Of the acceptance of n, which the staircase proposed in this block: in 80 digits."""
    with localcontext(Context(prec=80)):
        value = -Decimal(n) * Decimal(n) / 2 / Decimal(stairs.variance)
        return value + block * Decimal(2).ln() - Decimal(stairs.log_height)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(variance=st.one_of(variances, st.sampled_from(SCALES).map(lambda std: std**2)))
def test_the_staircase_dominates_everywhere(variance):
    """In exact arithmetic, and it touches but for 1e-9 of its height.

    A block's largest value is at its first integer on the right, and the starts' logarithms are a
    parabola: from its vertex on, far below the last block that is looked at, it falls.
    """
    stairs = sampler._staircase(variance)
    width = 1 << stairs.shift
    vertex = math.log(2) * variance / width**2
    assert vertex < 30
    starts = [log_chance(block * width, block, stairs) for block in range(40)]
    assert Decimal("-1.001e-9") < max(starts) < 0
    for block, start in itertools.product((0, 1, 2, 7), (0, 1)):
        inside = [block * width + width - 1, -1 - block * width, -(block + 1) * width]
        assert all(log_chance(n, block, stairs) <= starts[block] for n in inside[start:])


@given(variance=variances)
def test_few_proposals_are_rejected(variance):
    """At most half from a standard deviation of 2 on, which the nodes' noise has; else 3 of 4."""
    most = 2.0 if variance >= 4 else 4.0 + 1e-8
    assert 1 < sampler._staircase(variance).proposals <= most


@settings(deadline=None, max_examples=20)
@given(variance=variances.filter(lambda variance: variance < 1e6))
def test_the_expected_proposals(variance):
    """The staircase's area over the sum of exp(-n^2 / (2 v)), and that many are made."""
    stairs = sampler._staircase(variance)
    n, _ = probabilities(variance)
    under = np.exp(-(n.astype(float) ** 2) / (2 * variance)).sum()
    area = 4 * 2.0**stairs.shift * math.exp(stairs.log_height)
    assert area / under <= stairs.proposals * (1 + 1e-12) < 1.3 * area / under
    kept = len(sampler._accepted(20_000, stairs, seeded_words(5)))
    chance = under / area
    assert abs(kept - 20_000 * chance) < 6 * math.sqrt(20_000 * chance * (1 - chance))


def test_every_value_of_a_chunk_is_within_its_block(monkeypatch):
    """Place and side of a proposal, bit by bit."""
    stairs = sampler._Staircase(1e4, 3, 100.0)  # so high that the chance is next to nothing
    offset, right, block = np.meshgrid(range(8), (0, 1), (0, 1, 5), indexing="ij")
    place = offset | right << 3 | (1 << block) << 4
    words = np.append(place.ravel(), np.zeros(place.size)).astype(np.uint64)
    seen = []
    monkeypatch.setattr(
        sampler, "_accept", lambda uniform, n, block, stairs, words: seen.append((n, block)) or True
    )
    kept = sampler._accepted(place.size, stairs, lambda count: words)
    distance = block * 8 + offset
    n = np.where(right == 1, distance, -1 - distance).ravel()
    assert kept.tolist() == n.tolist() and len(set(kept.tolist())) == place.size
    assert seen == list(zip(n.tolist(), block.ravel().tolist(), strict=True))


def test_a_block_goes_on_beyond_its_word(monkeypatch):
    monkeypatch.setattr(sampler, "_accept", lambda *_: True)
    stairs, rest = sampler._Staircase(1e4, 3, 100.0), [np.array([8 + 5, 0]), np.array([4])]
    kept = sampler._accepted(1, stairs, lambda count: rest.pop(0).astype(np.uint64))
    assert kept.tolist() == [(60 + 2) * 8 + 5] and not rest


# --- the decision ---------------------------------------------------------------------------


def proposed(n, stairs, uniform):
    """The words from which `_accepted` makes this proposal and this uniform."""
    distance = n if n >= 0 else -1 - n
    block, offset = divmod(distance, 1 << stairs.shift)
    place = offset | (n >= 0) << stairs.shift | (1 << block) << (stairs.shift + 1)
    words = np.array([place, uniform], dtype=np.uint64)
    return block, lambda count: words


@settings(deadline=None, max_examples=400)
@given(variance=variances, block=st.integers(0, 60), right=st.booleans(), data=st.data())
def test_float_error_is_far_inside_the_margin(variance, block, right, data):
    """Floats alone decide rightly when the uniform is a fiftieth of the margin off the chance."""
    stairs = sampler._staircase(variance)
    offset = data.draw(st.integers(0, (1 << stairs.shift) - 1))
    distance = (min(block, 62 - stairs.shift) << stairs.shift) + offset
    n = distance if right else -1 - distance
    block, _ = proposed(n, stairs, 0)
    exact = int(log_chance(n, block, stairs).exp() * 2**64)
    apart = int(sampler._MARGIN / 50 * 2**64)
    margin, sampler._MARGIN = sampler._MARGIN, -1.0
    try:
        for uniform, kept in ((exact - apart, [n]), (exact + apart, [])):
            if 0 <= uniform < 2**64:
                assert (
                    sampler._accepted(1, stairs, proposed(n, stairs, uniform)[1]).tolist() == kept
                )
    finally:
        sampler._MARGIN = margin


@pytest.mark.parametrize("variance", [1e-9, 0.5, 4.0, 3e4, 2.0**50, sampler.MAX_VARIANCE])
def test_the_exact_decision_agrees(variance, monkeypatch):
    """The same bits give the same draws when every acceptance is decided exactly."""
    stairs = sampler._staircase(variance)
    floating = sampler._accepted(1000, stairs, seeded_words(1))
    monkeypatch.setattr(sampler, "_MARGIN", 2.0)
    assert np.array_equal(sampler._accepted(1000, stairs, seeded_words(1)), floating)


@pytest.mark.slow
@pytest.mark.parametrize("variance", [2.0, 1e5])
def test_the_exact_decision_has_the_distribution(variance, monkeypatch):
    monkeypatch.setattr(sampler, "_MARGIN", 2.0)
    draws = system_discrete_gaussian(4_000, variance)
    check_fit(draws, variance)
    check_moments(draws, variance)


def test_what_floats_cannot_tell_is_decided_exactly():
    """A uniform one unit of the 64th bit beside the chance: float64 does not see the difference."""
    stairs, n = sampler._staircase(1e4), 130
    block, _ = proposed(n, stairs, 0)
    digits = int(log_chance(n, block, stairs).exp() * 2**64)
    for uniform, kept in ((digits - 1, [n]), (digits + 1, [])):
        assert sampler._accepted(1, stairs, proposed(n, stairs, uniform)[1]).tolist() == kept
    assert float(digits - 1) == float(digits + 1)


@pytest.mark.parametrize("variance", [0.9, 1000.0, 2.0**50 + 1])
def test_the_exact_decision_asks_for_more_bits(variance):
    """A uniform that agrees with the chance in its first 128 digits is decided by the next 64."""
    stairs = sampler._staircase(variance)
    n = int(1.2 * math.sqrt(variance)) | 1
    block = n >> stairs.shift
    with localcontext(Context(prec=120)):
        chance = -Decimal(n * n) / (2 * Decimal(variance)) - Decimal(stairs.log_height)
        digits = int((chance + block * Decimal(2).ln()).exp() * 2**192)
    words = [(digits >> shift) & (2**64 - 1) for shift in (128, 64, 0)]
    for last, accepted in ((words[2] - 1, True), (words[2] + 1, False)):
        rest = [words[1], last]
        answer = sampler._accept(
            words[0], n, block, stairs, lambda count, rest=rest: np.array([rest.pop(0)])
        )
        assert answer is accepted and not rest


def test_zero_digits_are_not_yet_a_yes():
    """The uniform is 0.000...: whether it is below a chance of 2^-100 shows later."""
    stairs = sampler._Staircase(1e4, 7, 0.0)
    n = 1177  # exp(-n^2 / 2e4) is 2^-99.93
    assert -100 < float(log_chance(n, 0, stairs)) / math.log(2) < -99
    for word, accepted in ((1 << 27, True), (1 << 29, False), (2**64 - 1, False)):
        rest = [word]
        answer = sampler._accept(0, n, 0, stairs, lambda count, rest=rest: np.array([rest.pop(0)]))
        assert answer is accepted and not rest


def test_blocks_count_zero_bits():
    rest = [0, 8]
    bits = np.array([1, 0, 12, 2**40, 2**49 + 2**48], dtype=np.uint64)
    zeros = sampler._zeros_before_one(bits, 50, lambda count: np.array([rest.pop(0)]))
    assert zeros.tolist() == [0, 50 + 64 + 3, 2, 40, 48] and not rest
    assert sampler._zeros_before_one(np.array([2**63], dtype=np.uint64), 64, rest).tolist() == [63]


# --- randomness, sizes, values --------------------------------------------------------------


def test_no_seed():
    for size in (64, sampler.EXACT_UP_TO + 1):
        np.random.seed(0)
        first = system_discrete_gaussian(size, 1e6)
        np.random.seed(0)
        assert not np.array_equal(first, system_discrete_gaussian(size, 1e6))


def test_short_vectors_use_the_system_alone(monkeypatch):
    rng = np.random.default_rng(2)
    monkeypatch.setattr(sampler.os, "urandom", rng.bytes)
    monkeypatch.setattr(sampler, "_stream", None)
    for size in (8, sampler.EXACT_UP_TO):
        rng.bit_generator.state = np.random.default_rng(2).bit_generator.state
        first = system_discrete_gaussian(size, 1e6)
        rng.bit_generator.state = np.random.default_rng(2).bit_generator.state
        assert np.array_equal(system_discrete_gaussian(size, 1e6), first)


def test_long_vectors_take_a_32_byte_key_for_each_draw(monkeypatch):
    asked = []
    monkeypatch.setattr(sampler.os, "urandom", lambda size: asked.append(size) or bytes(size))
    size = sampler.EXACT_UP_TO + 1
    first = system_discrete_gaussian(size, 1e6)
    assert np.array_equal(first, system_discrete_gaussian(size, 1e6)) and asked == [32, 32]
    check_fit(first, 1e6)  # the stream of this key, in which nothing is used twice
    monkeypatch.setattr(sampler.os, "urandom", lambda size: b"\x01" * size)
    assert not np.array_equal(first, system_discrete_gaussian(size, 1e6))


def test_seeded_noise_repeats():
    first = seeded_discrete_gaussian(50_000, 9.0, np.random.default_rng(7))
    again = seeded_discrete_gaussian(50_000, 9.0, np.random.default_rng(7))
    assert np.array_equal(first, again)
    check_fit(first, 9.0)


@pytest.mark.parametrize("size", [1, 2, sampler._CHUNK, 3 * sampler._CHUNK + 1])
def test_sizes(size):
    assert system_discrete_gaussian(size, 1e6).shape == (size,)
    # The first draw of a vector is a draw like any other: no bias by where a vector ends.
    if size <= 2:
        drawn = [seeded_discrete_gaussian(size, 2.0, np.random.default_rng(i)) for i in range(4000)]
        check_fit(np.concatenate(drawn), 2.0)


def test_zero_and_empty():
    for draw in (
        system_discrete_gaussian,
        lambda *a: seeded_discrete_gaussian(*a, np.random.default_rng(0)),
    ):
        assert draw(4, 0.0).tolist() == [0, 0, 0, 0] and draw(4, 0.0).dtype == np.int64
        assert draw(0, 5.0).shape == (0,)


@pytest.mark.parametrize(
    "draw",
    [
        system_discrete_gaussian,
        lambda *a: seeded_discrete_gaussian(*a, np.random.default_rng(0)),
    ],
)
@pytest.mark.parametrize("variance", [-1.0, math.nan, math.inf, 1e-10, 1e32])
def test_bad_variances(draw, variance):
    with pytest.raises(ValueError, match=f"variance = {variance}".replace("+", r"\+")):
        draw(3, variance)
    with pytest.raises(ValueError, match="size = -1"):
        draw(-1, 1.0)
