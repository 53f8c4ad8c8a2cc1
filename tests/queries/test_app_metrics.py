"""Vectors of an app's own metrics: their bound by brute force, their weights, their means."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.privacy.encoding.sizing import plan_histogram
from privsyn_flower.privacy.noise.integer_noise import seeded_discrete_gaussian
from privsyn_flower.queries.metrics import (
    TooNoisyError,
    app_metrics_bound,
    check_bounds,
    read_app_metrics,
    shard_app_metrics,
    user_app_metrics,
)

BOUNDS = [(0.0, 1.0), (-2.0, 6.0), (0.0, 0.5)]
Z = NormalDist().inv_cdf(0.975)


def integer_plan(metrics: int, sensitivity: float = 4096.0, users: int = 50) -> IntegerPlan:
    return plan_histogram(
        app_metrics_bound(metrics),
        1 + metrics,
        noise_multiplier=1.0,
        weight=users,
        min_weight=users,
        sensitivity=sensitivity,
    )


def population(users: int, metrics: int, seed: int) -> tuple[Any, Any]:
    """Examples (u,) and values (u, k); some are far out of bounds, some are no numbers."""
    rng = np.random.default_rng(seed)
    examples = rng.integers(1, 200, users).astype(float)
    values = rng.normal(0, 5, (users, metrics))
    values[0], values[1], examples[0] = 1e300, -1e300, 10_000  # corners of the cube
    values[2, 0], examples[3] = math.nan, 0
    return examples, values


@pytest.mark.parametrize("metrics", [1, 3])
@pytest.mark.parametrize("max_examples", [0, 50])
@pytest.mark.parametrize("sensitivity", [4096.0, 3.0])
def test_one_user_changes_the_integers_by_at_most_the_sensitivity(
    metrics: int, max_examples: int, sensitivity: float
) -> None:
    plan = integer_plan(metrics, sensitivity)
    examples, values = population(30, metrics, seed=metrics)
    kwargs: dict[str, Any] = {"bounds": BOUNDS[:metrics], "max_examples": max_examples}
    whole = shard_app_metrics(examples, values, **kwargs, plan=plan)
    assert whole.dtype == np.int64 and whole.shape == (1 + metrics,)
    norms = []
    for gone in range(len(examples)):
        kept = np.arange(len(examples)) != gone
        rest = shard_app_metrics(examples[kept], values[kept], **kwargs, plan=plan)
        change = (whole - rest).astype(object)
        assert sum(change * change) <= plan.sensitivity**2
        norms.append(math.sqrt(sum(change * change)))
    assert max(norms) > 0.98 * plan.sensitivity or sensitivity < 100  # and the bound is reached


any_number = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=200, deadline=None)
@given(
    any_number,
    st.lists(any_number, min_size=3, max_size=3),
    st.sampled_from([0, 1, 7, 2**53]),
)
def test_no_reply_is_longer_than_the_bound(
    examples: float, values: list[float], max_examples: int
) -> None:
    (vector,) = user_app_metrics([examples], [values], bounds=BOUNDS, max_examples=max_examples)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) <= app_metrics_bound(3) * (1 + 1e-12)
    assert 0 <= vector[0] <= 1 and (np.abs(vector[1:]) <= vector[0]).all()
    if not (math.isfinite(examples) and examples > 0 and np.isfinite(values).all()):
        assert not vector.any()


def test_the_middle_of_the_bounds_is_zero() -> None:
    (vector,) = user_app_metrics([5], [[0.5, 6.0, -3.0]], bounds=BOUNDS, max_examples=0)
    assert vector.tolist() == [1.0, 0.0, 1.0, -1.0]
    (half,) = user_app_metrics([5], [[0.5, 6.0, -3.0]], bounds=BOUNDS, max_examples=10)
    assert half.tolist() == [0.5, 0.0, 0.5, -0.5]


def test_a_user_with_many_examples_weighs_no_more_than_the_cap() -> None:
    kwargs: dict[str, Any] = {"bounds": [(0.0, 1.0)], "max_examples": 20}
    many = shard_app_metrics([10_000], [[0.75]], **kwargs)
    assert np.array_equal(many, shard_app_metrics([20], [[0.75]], **kwargs))
    assert shard_app_metrics([5], [[0.75]], **kwargs) == pytest.approx(many / 4)


@pytest.mark.parametrize("max_examples", [0, 10])
@pytest.mark.parametrize(
    ("examples", "value"),
    [(math.nan, 0.5), (math.inf, 0.5), (0, 0.5), (-4, 0.5), (5, math.nan), (5, -math.inf)],
)
def test_degenerate_users_are_zeros_and_change_nobody(
    examples: float, value: float, max_examples: int
) -> None:
    kwargs: dict[str, Any] = {"bounds": [(0.0, 1.0)], "max_examples": max_examples}
    kwargs["plan"] = integer_plan(1)
    both = shard_app_metrics([examples, 5], [[value], [0.25]], **kwargs)
    assert np.array_equal(both, shard_app_metrics([5], [[0.25]], **kwargs))
    assert not shard_app_metrics([examples], [[value]], **kwargs).any()
    assert shard_app_metrics([], np.zeros((0, 1)), **kwargs).tolist() == [0, 0]


@pytest.mark.parametrize("max_examples", [0, 100])
def test_the_mean_is_that_of_flowers_fedavg(max_examples: int) -> None:
    """Weighted by the examples up to the cap; by nothing without one."""
    rng = np.random.default_rng(3)
    examples = rng.integers(1, 100, 40)
    values = np.stack([rng.uniform(low, high, 40) for low, high in BOUNDS], axis=1)
    weights = examples if max_examples else np.ones(40)
    total = shard_app_metrics(examples, values, bounds=BOUNDS, max_examples=max_examples)
    for metric, ratio in enumerate(read_app_metrics(total, 1e-12, bounds=BOUNDS, z=Z)):
        assert ratio.value == pytest.approx(np.average(values[:, metric], weights=weights))
        assert ratio.low == pytest.approx(ratio.high, abs=1e-9)


def test_the_interval_covers_at_its_nominal_rate() -> None:
    """A population, its integers, the nodes' noise, 4000 times: 95 of 100 intervals cover."""
    users, repetitions = 200, 4000
    rng = np.random.default_rng(1)
    examples = rng.integers(1, 60, users)
    values = np.stack([rng.uniform(low, high, users) for low, high in BOUNDS], axis=1)
    plan = integer_plan(3, users=users)
    kwargs: dict[str, Any] = {"bounds": BOUNDS, "max_examples": 40}
    sums = shard_app_metrics(examples, values, **kwargs, plan=plan)
    noise = seeded_discrete_gaussian(4 * repetitions, (4.0 * plan.sensitivity) ** 2, rng)
    released = (sums + noise.reshape(repetitions, 4)) / plan.scale
    truth = np.average(values, axis=0, weights=np.minimum(examples, 40))
    covered = []
    for row in released:
        means = read_app_metrics(row, 4.0 * plan.bound, bounds=BOUNDS, z=Z)
        covered.append([m.low <= t <= m.high for m, t in zip(means, truth, strict=True)])
        assert all(lo <= m.low <= m.high <= hi for m, (lo, hi) in zip(means, BOUNDS, strict=True))
    # 4000 repetitions: three standard errors are 0.0103
    assert np.mean(covered, axis=0) == pytest.approx(0.95, abs=0.0104)


def test_centred_metrics_have_half_of_the_noise() -> None:
    """With the metric itself in the vector this interval would be more than twice as wide."""
    total = shard_app_metrics([1] * 1000, [[0.5]] * 1000, bounds=[(0.0, 1.0)], max_examples=0)
    (mean,) = read_app_metrics(total, 5.0, bounds=[(0.0, 1.0)], z=Z)
    assert mean.high - mean.low == pytest.approx(2 * Z * 5.0 / 1000 / 2, rel=1e-3)


def test_noise_above_the_weights_gives_an_error_and_no_number() -> None:
    with pytest.raises(TooNoisyError, match=r"users' weights is 3.*more users or fewer metrics"):
        read_app_metrics([3.0, 1.0], 2.0, bounds=[(0.0, 1.0)], z=Z)


@pytest.mark.parametrize(
    ("bounds", "max_examples", "named"),
    [
        ([(0.0, 0.0)], 0, "bounds"),
        ([(0.0, math.nan)], 0, "bounds"),
        ([(0.0, math.inf)], 0, "bounds"),
        ([(-1e308, 1e308)], 0, "bounds"),
        ([(0.0, 1.0)], -1, "max_examples = -1"),
        ([], 0, "0 metrics"),
        ([(0.0, 1.0)] * 17, 0, "17 metrics"),
        ([(0.0, 1.0)] * 2, 0, "expected"),
    ],
)
def test_parameters_out_of_range(bounds: Any, max_examples: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        user_app_metrics([1], [[0.5]], bounds=bounds, max_examples=max_examples)


def test_bounds_of_any_finite_width_will_do() -> None:
    check_bounds([(-1e307, 1e307), (0.0, 5e-324)])
    vectors = user_app_metrics([1, 1], [[0.0], [1.0]], bounds=[(0.0, 5e-324)], max_examples=0)
    assert vectors.tolist() == [[1, -1], [1, 1]]
