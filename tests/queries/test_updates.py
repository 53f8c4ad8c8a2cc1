"""Model updates: joint clipping, and sums in which no user counts for more than the bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privsyn_flower.privacy.clipping import clip_l2
from privsyn_flower.privacy.encoding.dense import DensePlan, encode_dense, plan_dense
from privsyn_flower.queries.updates import shard_updates, update_bound, user_update

ROTATION = bytes(range(32))
ANY = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(width=64))
NORMS = st.floats(1e-6, 1e6)
INDICATORS = st.sampled_from([0.0, 0.05, 1.0])


@settings(max_examples=120, deadline=None)
@given(ANY, NORMS, INDICATORS)
@example(np.array([1e300, 1e300]), 1.0, 0.0)  # squares overflow
@example(np.array([1.7e308] * 9), 1.0, 0.5)  # the norm does
@example(np.array([5e-324]), 1.0, 0.5)
@example(np.array([np.nan, 0.0]), 1.0, 0.5)
@example(np.array([np.inf, 0.0]), 1.0, 0.5)
def test_any_delta_is_bounded(delta: Any, clip_norm: float, indicator: float) -> None:
    vector = user_update(delta, clip_norm=clip_norm, indicator=indicator)
    if not np.isfinite(delta).all():
        assert vector is None
        return
    if vector is None:  # only for a norm beyond float64
        assert np.abs(delta).max() > 1e300
        return
    body = vector[: len(delta)]
    assert len(vector) == len(delta) + (indicator > 0)
    assert np.linalg.norm(body) <= clip_norm
    assert np.linalg.norm(vector) <= update_bound(clip_norm, indicator) * (1 + 1e-15)
    assert np.allclose(body, clip_l2(delta, clip_norm), rtol=1e-11, atol=1e-300)
    within = math.hypot(*delta) <= clip_norm
    if within:
        assert np.array_equal(body, delta)  # not touched
    if indicator and abs(math.hypot(*delta) / clip_norm - 1) > 1e-9:
        assert vector[-1] == (1 if within else -1) * indicator * clip_norm


def test_the_argument_is_left_alone_and_the_direction_kept() -> None:
    delta = np.array([3.0, 4.0], dtype=np.float32)
    vector = user_update(delta, clip_norm=1.0, indicator=0.0)
    assert delta.tolist() == [3.0, 4.0]
    assert vector is not None and vector.dtype == np.float64
    assert vector == pytest.approx([0.6, 0.8], rel=1e-11)


def test_layers_are_clipped_together() -> None:
    """Norms of 3 and 4 in two layers make 5: clipping each by itself would leave sqrt 2."""
    vector = user_update(np.array([3.0, 0.0, 0.0, 4.0]), clip_norm=1.0, indicator=0.0)
    assert vector == pytest.approx([0.6, 0, 0, 0.8], rel=1e-11)


def test_a_zero_delta_counts_as_within_the_clip_norm() -> None:
    assert user_update(np.zeros(3), clip_norm=2.0, indicator=0.0) == pytest.approx([0, 0, 0])
    vector = user_update(np.zeros(3), clip_norm=2.0, indicator=0.1)
    assert vector == pytest.approx([0, 0, 0, 0.2])


def test_the_last_coordinate_says_who_was_clipped() -> None:
    deltas = [np.full(4, 0.1), np.full(4, 9.0), np.zeros(4), None, np.full(4, np.nan)]
    total = shard_updates(deltas, length=5, clip_norm=1.0, indicator=0.25)
    assert total[-1] == 0.25 * (1 - 1 + 1)
    assert total[:4] == pytest.approx(np.full(4, 0.1 + 0.5), rel=1e-11)


def test_whole_numbers_are_numbers_and_other_things_are_not() -> None:
    assert user_update(np.array([0, 2]), clip_norm=1.0, indicator=0.0) == pytest.approx([0, 1])
    for odd in (np.array([True]), np.ones((2, 2)), np.array(["a"]), np.array([1j])):
        with pytest.raises(ValueError, match="expected numbers"):
            user_update(odd, clip_norm=1.0, indicator=0.0)
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(4,\)"):
        shard_updates([np.ones(3)], length=4, clip_norm=1.0, indicator=0.0)


@pytest.mark.parametrize("bad", [{"clip_norm": 0.0}, {"clip_norm": math.inf}, {"clip_norm": -1.0},
                                 {"indicator": -0.1}, {"indicator": math.nan}])  # fmt: skip
def test_parameters_out_of_bounds_are_refused(bad: dict[str, float]) -> None:
    given = {"clip_norm": 1.0, "indicator": 0.0} | bad
    with pytest.raises(ValueError, match=f"{next(iter(bad))} = "):
        shard_updates([None], length=3, **given)
    with pytest.raises(ValueError, match=f"{next(iter(bad))} = "):
        user_update(np.ones(3), **given)


def plan(length: int, bound: float) -> DensePlan:
    return plan_dense(bound, length, noise_multiplier=1.0, weight=20, min_weight=16, bits=24)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(hnp.arrays(np.float64, 9, elements=st.floats(-1e6, 1e6)), min_size=1, max_size=6),
    st.data(),
)
def test_removing_any_user_moves_the_sum_by_no_more_than_the_sensitivity(
    deltas: list[Any], data: Any
) -> None:
    """Brute force over neighbours, with the integers that travel."""
    clip_norm, indicator = 0.5, data.draw(INDICATORS)
    length = 9 + (indicator > 0)
    encoding = plan(length, update_bound(clip_norm, indicator))
    made: dict[bytes, Any] = {}

    def encode(vector: Any) -> Any:
        """The same integers for the same user in every sum, although rounding draws coins."""
        if vector.tobytes() not in made:
            made[vector.tobytes()] = encode_dense(vector, encoding, ROTATION)
        return made[vector.tobytes()]

    def total(kept: list[Any]) -> Any:
        return shard_updates(
            kept, length=length, clip_norm=clip_norm, indicator=indicator, encode=encode
        )

    whole = total(deltas)
    assert whole.dtype == np.int64 and whole.shape == (encoding.padded_length,)
    for user in range(len(deltas)):
        difference = whole - total(deltas[:user] + deltas[user + 1 :])
        assert int(difference @ difference) <= encoding.sensitivity**2
        zeroed = total([*deltas[:user], None, *deltas[user + 1 :]])
        assert np.array_equal(whole - zeroed, difference)


def test_users_come_one_at_a_time() -> None:
    """Never users x d in memory: a delta may be reused by the next user's."""
    buffer, alive = np.zeros(4), []

    def deltas() -> Any:
        for value in (1.0, 2.0, 4.0):
            buffer[:] = value
            alive.append(value)
            yield buffer

    total = shard_updates(
        deltas(),
        length=4,
        clip_norm=100.0,
        indicator=0.0,
        encode=lambda vector: np.rint(vector).astype(np.int64),
    )
    assert total.tolist() == [7, 7, 7, 7] and alive == [1.0, 2.0, 4.0]
    assert shard_updates([], length=4, clip_norm=1.0, indicator=0.0).tolist() == [0.0] * 4


def test_long_deltas_are_clipped_as_short_ones() -> None:
    """The norm is summed in parts: every one counts."""
    delta = np.random.default_rng(0).standard_normal(30_000)
    norm = float(np.linalg.norm(delta))
    for share in (0.5, 1 - 1e-9, 1 + 1e-9):
        vector = user_update(delta, clip_norm=share * norm, indicator=0.1)
        assert vector is not None
        assert np.allclose(vector[:-1], min(share, 1.0) * delta, rtol=1e-11, atol=0)
        assert vector[-1] == pytest.approx(math.copysign(0.1 * share * norm, share - 1))
