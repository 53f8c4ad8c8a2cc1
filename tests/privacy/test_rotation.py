"""Rotation: against the matrix, its inverse, its norm, its spread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from privsyn_flower.privacy.encoding import dense
from privsyn_flower.privacy.encoding.dense import (
    FLOAT32_ERROR,
    padded_length,
    rotate,
    smallest_block,
    unrotate,
)


@settings(deadline=None, max_examples=40)
@given(length=st.integers(1, 9000), seed=st.binary(max_size=40))
def test_round_trip_and_norm(length, seed):
    vector = np.random.default_rng(length).standard_normal(length)
    rotated = rotate(vector, seed)
    assert rotated.shape == (padded_length(length),)
    assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(vector), rel=1e-12)
    np.testing.assert_allclose(unrotate(rotated, seed, length), vector, atol=1e-12)


@pytest.mark.parametrize(
    ("length", "padded", "smallest"),
    [
        (1, 1, 1),
        (5, 8, 8),
        (4096, 4096, 4096),
        (4097, 4097, 1),
        (4099, 4100, 4),
        (9000, 9216, 1024),
    ],
)
def test_padding(length, padded, smallest):
    assert (padded_length(length), smallest_block(length)) == (padded, smallest)


def test_blocks_are_signed_hadamard_matrices(monkeypatch):
    monkeypatch.setattr(dense, "BLOCK", 512)
    monkeypatch.setattr(dense, "_TOGETHER", 2)  # several groups of blocks
    vector = np.random.default_rng(3).standard_normal(3 * 512 + 5)
    padded = np.zeros(3 * 512 + 8)
    padded[: len(vector)] = vector
    signed = padded * dense._signs(len(padded), b"a")
    whole = signed[:-8].reshape(3, 512) @ hadamard(512) / 512**0.5
    expected = np.append(whole, hadamard(8) @ signed[-8:] / 8**0.5)
    np.testing.assert_allclose(rotate(vector, b"a"), expected, atol=1e-11)


def test_signs_come_from_the_seed():
    signs = dense._signs(100_000, b"round 1")
    assert set(signs.tolist()) == {-1, 1}
    assert abs(int(signs.sum(dtype=int))) < 6 * 100_000**0.5
    assert np.array_equal(signs, dense._signs(100_000, b"round 1"))
    other = dense._signs(100_000, b"round 2")
    assert abs(int((signs * other).sum(dtype=int))) < 6 * 100_000**0.5
    assert dense._signs(12, b"round 1").tolist() == signs[:12].tolist()


@settings(deadline=None, max_examples=40)
@given(
    length=st.integers(1, 9000),
    kind=st.sampled_from(["normal", "spike", "alternating"]),
    scale=st.sampled_from([1e-30, 1.0, 3e20]),
)
def test_float32_is_close_enough(length, kind, scale):
    vector = np.random.default_rng(length).standard_normal(length)
    if kind == "spike":
        vector[: length // 2] = 0
        vector[-1] = 1e6
    elif kind == "alternating":
        vector = (-1.0) ** np.arange(length) * 1 / 3
    given_ = vector / scale
    rotated = rotate(given_, b"s", scale=scale, single=True)
    assert rotated.dtype == np.float32
    error = np.abs(rotated - rotate(vector, b"s")).max()
    assert error <= FLOAT32_ERROR / 4 * np.linalg.norm(vector)
    exact = rotate(given_, b"s", scale=scale)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, rotate(vector, b"s"), rtol=1e-9, atol=1e-9)


def test_a_spike_is_spread():
    vector = np.zeros(4096)
    vector[17] = 1.0
    assert np.abs(rotate(vector, b"x")) == pytest.approx(np.full(4096, 1 / 64))


def test_the_vector_is_left_alone():
    vector = np.ones(8)
    rotated = rotate(vector, b"x")
    kept = rotated.copy()
    unrotate(rotated, b"x", 8)
    assert vector.tolist() == [1.0] * 8 and np.array_equal(rotated, kept)


def test_bad_shapes():
    with pytest.raises(ValueError, match="length = 0"):
        padded_length(0)
    with pytest.raises(ValueError, match=r"\(2, 2\), expected one dimension"):
        rotate(np.eye(2), b"x")
    with pytest.raises(ValueError, match=r"length = 5 is rotated to \(8,\)"):
        unrotate(np.zeros(5), b"x", 5)
