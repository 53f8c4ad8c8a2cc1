"""clip_l2: the norm never exceeds the bound, for any input that a user's data can make."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privsyn_flower.privacy import clip_l2

any_float = st.floats(allow_nan=True, allow_infinity=True, width=64)
bounds = st.floats(min_value=5e-324, max_value=1.7e308, exclude_min=False)


def exact_square(values: np.ndarray) -> Fraction:
    return sum((Fraction(float(v)) ** 2 for v in values), Fraction(0))


@given(vector=arrays(np.float64, st.integers(0, 40), elements=any_float), bound=bounds)
@example(vector=np.array([1e300, 1e300]), bound=1e10)
@example(vector=np.array([5e-324, 5e-324]), bound=5e-324)
@example(vector=np.full(33, 0.1), bound=0.1)
@example(vector=np.array([1.7e308, -1.7e308]), bound=1.7e308)
def test_norm_never_exceeds_the_bound(vector, bound):
    before = vector.copy()
    clipped = clip_l2(vector, bound)
    assert clipped.shape == vector.shape and clipped.dtype == np.float64
    assert np.array_equal(vector, before, equal_nan=True) and clipped is not vector
    # One rounding of the root of a correctly rounded sum: below the accounting's 1e-12.
    assert exact_square(clipped) <= Fraction(bound) ** 2 * (1 + Fraction(1, 10**15))
    with np.errstate(over="ignore"):
        measured = np.linalg.norm(clipped)
    if 1e-145 < bound < 1e150:  # where numpy's own norm neither overflows nor underflows
        assert measured <= bound
    if not np.isfinite(vector).all():
        assert not clipped.any()
    elif exact_square(vector) < Fraction(bound) ** 2 * (1 - Fraction(1, 10**15)):
        assert np.array_equal(clipped, vector)
    elif bound > 1e-290 and vector.any():
        assert exact_square(clipped) >= Fraction(bound) ** 2 * (1 - Fraction(1, 10**13))
    assert np.array_equal(clip_l2(clipped, bound), clipped)


def test_direction_and_exact_values():
    assert clip_l2([3.0, 4.0], 10.0).tolist() == [3.0, 4.0]
    assert clip_l2([8, 0], 8).tolist() == [8.0, 0.0]
    assert clip_l2(np.array([3, 4]), 1.0) == pytest.approx([0.6, 0.8])
    assert clip_l2([], 1.0).shape == (0,)
    assert clip_l2(np.float32([1e38, 1e38]), 1.0) == pytest.approx([0.5**0.5] * 2)


def test_long_vectors():
    vector = np.random.default_rng(0).standard_normal(300_000)
    assert 1 - 1e-12 < np.linalg.norm(clip_l2(vector, 1.0)) <= 1.0


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_bound(bound):
    with pytest.raises(ValueError, match="bound = "):
        clip_l2([1.0], bound)


def test_bad_shape():
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        clip_l2(np.eye(2), 1.0)
