"""Dense encoding: norms in exact integers, unbiased sums, ranges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from privsyn_flower.privacy import clip_l2
from privsyn_flower.privacy.encoding import dense
from privsyn_flower.privacy.encoding.dense import (
    FLOAT32_ERROR,
    DensePlan,
    check_dense,
    decode_dense,
    dense_numbers,
    encode_dense,
    plan_dense,
    rotate,
    rounded_norm,
    unrotate,
)
from privsyn_flower.privacy.encoding.quantize import node_noise_integers, to_modulus
from privsyn_flower.privacy.encoding.sizing import WrapAround

NOISE = {"noise_multiplier": 1.0, "weight": 100.0, "min_weight": 80.0}


def coarse_plan(bound, length, scale):
    return DensePlan(bound, rounded_norm(scale * bound, length + 7), scale, 24, length)


@settings(deadline=None, max_examples=150)
@given(
    vector=arrays.arrays(np.float64, st.integers(1, 70), elements=st.floats(width=64)),
    bound=st.floats(1e-3, 1e3),
    norm=st.floats(0.5, 1e4),
    clipped=st.booleans(),
    tries=st.sampled_from([0, 1, 64]),
)
def test_the_integer_norm_never_exceeds_the_sensitivity(vector, bound, norm, clipped, tries):
    """Also for vectors that were not clipped, and when every rounding was rejected."""
    length = len(vector)
    scale = norm / bound
    sensitivity = rounded_norm(scale * bound * (1 + 1e-12), length)
    plan = DensePlan(bound, sensitivity, scale, 24, length)
    vector = clip_l2(vector, bound) if clipped else vector
    before, dense._TRIES = dense._TRIES, tries
    try:
        encoded = encode_dense(vector, plan, b"seed")
    finally:
        dense._TRIES = before
    assert encoded.dtype == np.int64 and encoded.shape == (plan.padded_length,)
    assert sum(int(value) ** 2 for value in encoded) <= sensitivity**2
    if clipped:  # each coordinate to a neighbour, so that sums stay in the planned range
        error = encoded - rotate(vector, b"seed") * scale
        assert (np.abs(error) <= 1 + FLOAT32_ERROR * norm).all()


def test_a_norm_that_is_too_long_is_rounded_again(monkeypatch):
    """64 coordinates of 2.5: all up is rejected (norm 24), all down is accepted (norm 16)."""
    plan = DensePlan(20.0, 20.5, 1.0, 24, 64)
    vector = unrotate(np.full(64, 2.5), b"s", 64)
    poisson_sample = [np.full(64, 0.99), np.full(64, 0.99), np.zeros(64)]
    monkeypatch.setattr(dense, "_uniform", lambda size: poisson_sample.pop(0))
    assert encode_dense(vector, plan, b"s").tolist() == [2] * 64 and not poisson_sample
    # Rejected every time: truncated.
    monkeypatch.setattr(dense, "_uniform", lambda size: np.full(size, 0.99))
    assert encode_dense(vector, plan, b"s").tolist() == [2] * 64


def test_rounding_is_unbiased_and_seldom_rejected():
    plan = plan_dense(1.0, 300, bits=16, **NOISE)
    vector = clip_l2(np.random.default_rng(1).standard_normal(300), 1.0)
    total = sum(encode_dense(vector, plan, b"s") for _ in range(2000))
    mean = decode_dense(to_modulus(total, 32), DensePlan(**vars(plan) | {"bits": 32}), b"s") / 2000
    # Each coordinate's rounding has a standard deviation of 1 / 2 at most.
    assert np.abs(mean - vector).max() < 6 * 0.5 / plan.scale / 2000**0.5


@settings(deadline=None, max_examples=100)
@given(norm=st.floats(0.1, 1e3), length=st.integers(1, 300))
def test_rounded_norm(norm, length):
    """At most BETA of the roundings are longer, and the norm never is more than + sqrt(d)."""
    rng = np.random.default_rng(length)
    vector = rng.standard_normal(length)
    vector *= norm / np.linalg.norm(vector)
    rounded = np.floor(vector + rng.random((200, length)))
    longer = np.linalg.norm(rounded, axis=1) > rounded_norm(norm, length)
    assert longer.mean() < dense.BETA + 0.2
    assert norm < rounded_norm(norm, length) <= norm + math.sqrt(length)


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 10**6),
    weight=st.integers(1, 10**4),
    z=st.floats(0.05, 3.0),
    bits=st.sampled_from([None, 16, 24, 32]),
)
def test_plans_hold_the_sum(length, weight, z, bits):
    noise = {"noise_multiplier": z, "weight": weight, "min_weight": 0.8 * weight}
    try:
        plan = plan_dense(0.5, length, bits=bits, **noise)
    except WrapAround:
        assert bits != 32
        return
    norm = plan.scale * 0.5
    assert plan.sensitivity >= rounded_norm(norm, plan.padded_length)
    std = z * plan.sensitivity / 0.8**0.5
    block = dense.smallest_block(length)
    reach = weight * (norm * min(1.0, 9.1 / block**0.5) + 1) + 9.1 * std
    assert reach < 2 ** (plan.bits - 1)
    if bits is None:
        assert plan.sensitivity <= 1.01 * norm


def test_rounding_is_uniform_and_every_chunk_has_its_own_bits(monkeypatch):
    poisson_sample = dense._uniform(100_000)
    assert (
        poisson_sample.dtype == np.float32
        and poisson_sample.min() >= 0
        and poisson_sample.max() <= 1
    )
    counts = np.bincount((poisson_sample * 20).astype(int).clip(0, 19), minlength=20)
    assert ((counts - 5000) ** 2).sum() / 5000 < 60  # chi-square of 19, 5e-6
    assert not np.array_equal(poisson_sample, dense._uniform(100_000))
    monkeypatch.setattr(dense, "_CHUNK", 50)
    vector = np.full(130, 0.5)
    drawn = [dense._rounded(vector) for _ in range(400)]
    mean = np.mean(drawn, axis=0)
    assert set(np.concatenate(drawn).tolist()) == {0, 1} and np.abs(mean - 0.5).max() < 0.15
    assert (drawn[0][:50] != drawn[0][50:100]).any()


@settings(deadline=None, max_examples=100)
@given(
    length=st.integers(1, 10**6),
    weight=st.integers(1, 10**5),
    z=st.sampled_from([0.0, 0.05, 1.0, 3.0]),
    bound=st.floats(1e-6, 1e6),
)
def test_numbers_of_a_run(length, weight, z, bound):
    """The least bits at which rounding costs 1 % at most, and the sensitivity is 4096 or more."""
    noise = (z, float(weight), max(1.0, 0.8 * weight))
    try:
        plan = dense_numbers(bound, length, *noise)
    except WrapAround as error:
        assert "at sensitivity 4096" in str(error) and weight > 5000
        return
    assert plan.sensitivity >= 4096 and plan.inflation <= 1.01
    check_dense(plan, *noise)
    with pytest.raises(WrapAround, match=f"bits = {plan.bits}"):  # the finest: no room for more
        check_dense(plan, z, weight * 1.01 + 1, noise[2])
    if plan.bits > 16:
        try:
            coarser = plan_dense(
                bound, length, noise_multiplier=z, weight=noise[1], min_weight=noise[2],
                bits=plan.bits - 8,
            )  # fmt: skip
        except WrapAround:
            return
        assert coarser.sensitivity < 4096 or coarser.inflation > 1.01


def test_a_sum_without_noise_has_more_room_for_itself():
    with_noise = dense_numbers(1.0, 10_000, 2.0, 10.0, 8.0)
    alone = dense_numbers(1.0, 10_000, 0.0, 10.0, 8.0)
    assert (alone.bits, with_noise.bits) == (16, 24)
    check_dense(alone, 0.0, 10.0, 8.0)
    with pytest.raises(WrapAround, match=r"noise_multiplier = 2\.0"):
        check_dense(alone, 2.0, 10.0, 8.0)


def test_a_whole_sum_through_the_modulus():
    """Users, noise, residues and back: the mean has the noise's error and nothing else."""
    length, users, seed = 5000, 20, b"round 3"
    noise = {"noise_multiplier": 0.5, "weight": float(users), "min_weight": float(users)}
    plan = plan_dense(1.0, length, **noise)
    rng = np.random.default_rng(4)
    vectors = [clip_l2(rng.standard_normal(length), 1.0) for _ in range(users)]
    total = np.zeros(plan.padded_length, dtype=np.uint64)
    for vector in vectors:
        share = node_noise_integers(
            plan.padded_length, 1.0, users, noise["noise_multiplier"], plan.sensitivity
        )
        total += to_modulus(encode_dense(vector, plan, seed) + share, plan.bits)
    error = decode_dense(total & np.uint64(2**plan.bits - 1), plan, seed) - np.sum(vectors, axis=0)
    assert error.std() == pytest.approx(0.5, rel=0.08)
    assert np.abs(error).max() < 0.5 * 6.5


def test_known_plan():
    plan = plan_dense(1.0, 2_600_000, noise_multiplier=1.0, weight=1000.0, min_weight=850.0)
    assert plan.bits == 24 and plan.sensitivity < 1.01 * plan.scale
    finer = plan_dense(1.0, 4096, noise_multiplier=1.0, weight=100.0, min_weight=85.0, bits=32)
    assert finer.sensitivity < 1.0001 * finer.scale


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plan_dense(1.0, 10**6, bits=8, **NOISE), "bits = 8.*weight = 100.0"),
        (lambda: plan_dense(1.0, 8, bits=12, **NOISE), "bits = 12"),
        (lambda: plan_dense(0.0, 8, **NOISE), "bound = 0.0"),
        (lambda: plan_dense(1.0, 0, **NOISE), "length = 0"),
        (lambda: plan_dense(1.0, 8, **NOISE | {"min_weight": 0.0}), "min_weight = 0.0"),
        (lambda: DensePlan(1.0, 39.0, 40.0, 24, 8), "sensitivity = 39.0"),
        (lambda: DensePlan(1.0, math.nan, 40.0, 24, 8), "sensitivity = nan"),
        (lambda: encode_dense(np.zeros(3), coarse_plan(1.0, 8, 40.0), b""), "length = "),
    ],
)
def test_bad_values(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_not_finite_becomes_zeros():
    plan = coarse_plan(1.0, 8, 40.0)
    for bad in (math.nan, math.inf, 1e300):
        assert not encode_dense(np.full(8, bad), plan, b"s").any()


@pytest.mark.parametrize(("weight", "rate"), [(8, 0.5), (1000, 0.01), (75_316, 0.05438)])
def test_no_more_users_are_drawn_than_the_modulus_holds(weight: int, rate: float) -> None:
    """Against the binomial's exact tail."""
    from scipy.stats import binom

    most = dense.drawn(weight, rate)
    assert weight * rate < most <= weight
    assert most == weight or binom.sf(most - 1e-9, weight, rate) <= 2.0**-60
    assert dense.drawn(weight, 1.0) == weight


def test_sampling_leaves_room_for_more_users_in_the_same_bits() -> None:
    numbers = (1.0, 1 << 20, 1.0, 1_939_290, 1_939_290)
    with pytest.raises(WrapAround):
        dense.dense_numbers(*numbers, 54_000)
    plan = dense.dense_numbers(*numbers, 54_000, 4096 / 1_939_290)
    assert plan.bits <= 32 and plan.sensitivity > 54_000
    dense.check_dense(plan, *numbers[2:], 4096 / 1_939_290)
    with pytest.raises(WrapAround, match="weight = 1939290"):
        dense.check_dense(plan, *numbers[2:])
