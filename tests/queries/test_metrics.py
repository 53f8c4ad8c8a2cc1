"""Evaluation vectors: their bound by brute force, their caps, and intervals that cover."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.privacy.encoding.sizing import plan_histogram
from privsyn_flower.privacy.noise.integer_noise import seeded_discrete_gaussian
from privsyn_flower.queries.metrics import (
    Reading,
    TooNoisyError,
    metrics_bound,
    noisy_ratio,
    shard_metrics,
)

CAPS: dict[str, Any] = {"max_tokens": 100, "max_loss": 8.0}
Z = NormalDist().inv_cdf(0.975)


def population(users: int, models: int, seed: int) -> tuple[Any, Any, Any]:
    """Tokens (u,), correct (u, R), loss (u, R); some users are at their caps, some have nothing."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 101, users).astype(float)
    tokens[:3] = 100
    correct = rng.binomial(tokens.astype(int)[:, None], rng.uniform(0.1, 0.6, (users, models)))
    loss = tokens[:, None] * rng.uniform(1.0, 8.0, (users, models))
    correct, loss = correct.astype(float), loss
    correct[0], loss[0] = 100, 800  # the corner of the cube: the longest vector that there is
    return tokens, correct, loss


def integer_plan(models: int, bound: float, sensitivity: float = 4096.0) -> IntegerPlan:
    return plan_histogram(
        bound, 1 + 2 * models, noise_multiplier=1.0, weight=50, min_weight=50,
        sensitivity=sensitivity,
    )  # fmt: skip


@pytest.mark.parametrize("models", [1, 2, 3])
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("sensitivity", [4096.0, 3.0])
@pytest.mark.parametrize("gap", [0.0, 0.2])
def test_one_user_changes_the_integers_by_at_most_the_sensitivity(
    models: int, share: float, sensitivity: float, gap: float
) -> None:
    bound = share * metrics_bound(models)
    plan = integer_plan(models, bound, sensitivity)
    tokens, correct, loss = population(30, models, seed=models)
    if gap:  # the corner: the others as far from the first as they can be
        correct[0, 1:], loss[0, 1:] = 0, 0
    kwargs: dict[str, Any] = {**CAPS, "bound": bound, "gap": gap, "plan": plan}
    whole = shard_metrics(tokens, correct, loss, **kwargs)
    assert whole.dtype == np.int64 and whole.shape == (1 + 2 * models,)
    norms = []
    for gone in range(len(tokens)):
        kept = np.arange(len(tokens)) != gone
        rest = shard_metrics(tokens[kept], correct[kept], loss[kept], **kwargs)
        change = (whole - rest).astype(object)
        assert sum(change * change) <= plan.sensitivity**2
        norms.append(math.sqrt(sum(change * change)))
    assert max(norms) > 0.98 * plan.sensitivity or sensitivity < 100  # and the bound is reached


def test_without_a_plan_the_sums_divided_by_their_caps() -> None:
    got = shard_metrics(
        [40, 60], [[10, 20], [30, 0]], [[80, 40], [120, 60]], **CAPS, bound=metrics_bound(2)
    )
    assert got == pytest.approx([1.0, 0.4, 200 / 800, 0.2, 100 / 800])


@pytest.mark.parametrize("models", [1, 3])
def test_a_user_of_any_size_moves_the_sum_no_more_than_the_bound(models: int) -> None:
    huge = shard_metrics(
        [10_000], [[9_000] * models], [[1e9] * models], **CAPS, bound=metrics_bound(models)
    )
    full = shard_metrics(
        [100], [[100] * models], [[800] * models], **CAPS, bound=metrics_bound(models)
    )
    assert np.array_equal(huge, full)
    assert np.linalg.norm(full) == pytest.approx(metrics_bound(models))
    over = shard_metrics([10], [[50] * models], [[1e9] * models], **CAPS, bound=99.0)
    assert over == pytest.approx([0.1] * (1 + 2 * models))  # no more right, or nats, than tokens


def test_the_joint_clip_keeps_a_users_own_ratios() -> None:
    wide = shard_metrics([100], [[40, 50]], [[300, 200]], **CAPS, bound=metrics_bound(2))
    narrow = shard_metrics([100], [[40, 50]], [[300, 200]], **CAPS, bound=0.5)
    assert np.linalg.norm(narrow) == pytest.approx(0.5)
    assert narrow / narrow[0] == pytest.approx(wide / wide[0])


@pytest.mark.parametrize(
    ("tokens", "correct", "loss"),
    [
        (math.nan, 1.0, 1.0),
        (math.inf, 1.0, 1.0),
        (5.0, math.nan, 1.0),
        (5.0, 1.0, math.inf),
        (0.0, 3.0, 3.0),
        (-4.0, 3.0, 3.0),
    ],
)
def test_degenerate_users_are_zeros_and_change_nobody(
    tokens: float, correct: float, loss: float
) -> None:
    plan = integer_plan(1, metrics_bound(1))
    kwargs: dict[str, Any] = {**CAPS, "bound": metrics_bound(1), "plan": plan}
    both = shard_metrics([tokens, 50], [[correct], [20]], [[loss], [150]], **kwargs)
    assert np.array_equal(both, shard_metrics([50], [[20]], [[150]], **kwargs))
    assert not shard_metrics([tokens], [[correct]], [[loss]], **kwargs).any()
    assert shard_metrics([], np.zeros((0, 1)), np.zeros((0, 1)), **kwargs).tolist() == [0, 0, 0]


def test_integers_are_the_nearest_ones() -> None:
    """Truncated users would lose half an integer each, more than the noise in a large sum."""
    users = 4000
    rng = np.random.default_rng(5)
    tokens = rng.uniform(5, 60, users)
    correct, loss = tokens[:, None] * 0.3, tokens[:, None] * 3.0
    plan = integer_plan(1, metrics_bound(1))
    kwargs: dict[str, Any] = {**CAPS, "bound": metrics_bound(1)}
    exact = shard_metrics(tokens, correct, loss, **kwargs) * plan.scale
    rounded = shard_metrics(tokens, correct, loss, **kwargs, plan=plan)
    assert np.abs(rounded - exact).max() < 5 * math.sqrt(users / 12)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_loss": math.nan}, "max_loss"),
        ({"bound": 0.0}, "bound"),
        ({"gap": 1.5}, "gap"),
    ],
)
def test_parameters_out_of_range(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        shard_metrics([1], [[1]], [[1]], **{**CAPS, "bound": 1.0, **wrong})


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="expected"):
        shard_metrics([1, 2], [[1]], [[1]], **CAPS, bound=1.0)
    with pytest.raises(ValueError, match="models = 0"):
        metrics_bound(0)


# --- reading the noisy sum -------------------------------------------------------------------


def reading(*released: float, gap: float = 0.0) -> Reading:
    return Reading(released, 3.0, 8.0, gap, Z)


@pytest.mark.parametrize("gap", [0.0, 0.5])
def test_the_interval_covers_at_its_nominal_rate(gap: float) -> None:
    """A population, its integers, the nodes' noise, 4000 times: 95 of 100 intervals cover."""
    models, bound, repetitions = 2, metrics_bound(2), 4000
    tokens, correct, loss = population(300, models, seed=1)
    if gap:  # two models that are so close that nobody's difference is cut
        correct[:, 1], loss[:, 1] = correct[:, 0] * 0.8, loss[:, 0] * 0.9
    plan = plan_histogram(bound, 5, noise_multiplier=4.0, weight=300, min_weight=300)
    sums = shard_metrics(tokens, correct, loss, **CAPS, bound=bound, gap=gap, plan=plan)
    variance = (4.0 * plan.sensitivity) ** 2
    noise = seeded_discrete_gaussian(5 * repetitions, variance, np.random.default_rng(3))
    released = (sums + noise.reshape(repetitions, 5)) / plan.scale
    right, nats = correct.sum(0) / tokens.sum(), loss.sum(0) / tokens.sum()
    covered = []
    for row in released:
        got = Reading(tuple(row), 4.0 * bound, 8.0, gap, Z)
        pairs = [(got.accuracy(m), right[m]) for m in range(2)]
        pairs += [(got.loss(m), nats[m]) for m in range(2)]
        pairs += [(got.accuracy_gained(1, 0), right[1] - right[0])]
        pairs += [(got.loss_saved(1, 0), nats[0] - nats[1])]
        covered.append([found.low <= true <= found.high for found, true in pairs])
    # 4000 repetitions: three standard errors are 0.0103
    assert np.mean(covered, axis=0) == pytest.approx(0.95, abs=0.0104)


def test_differences_are_told_with_less_noise() -> None:
    """The same difference, 0.02 of the tokens, in both ways of telling it."""
    apart = reading(100.0, 30.0, 50.0, 32.0, 48.0).accuracy_gained(1, 0)
    close = reading(100.0, 30.0, 50.0, 20.0, -20.0, gap=0.1)
    gained = close.accuracy_gained(1, 0)
    assert gained.value == pytest.approx(apart.value) == pytest.approx(0.02)
    width, wide = gained.high - gained.low, apart.high - apart.low
    assert width == pytest.approx(0.1 / math.sqrt(2) * wide, rel=0.03)
    assert close.accuracy(1).value == pytest.approx(0.32)
    assert close.loss_saved(1, 0).value == pytest.approx(0.02 * 8)
    assert close.loss(1).value == pytest.approx(0.48 * 8)


def test_a_users_difference_is_cut_at_the_gap() -> None:
    sums = shard_metrics(
        [50], [[10, 50, 8]], [[200, 0, 210]], **CAPS, bound=metrics_bound(3), gap=0.2
    )
    # 0.8 of 50 tokens more is cut to 0.2; 2 of 50 less is 0.04 of them; likewise the nats
    assert sums * 100 == pytest.approx([50, 10, 25, 50, -50, -10, 50 / 8])


def test_fieller_is_the_set_of_ratios_that_the_noise_explains() -> None:
    found = noisy_ratio(30.0, 100.0, 4.0, 3.0, 2.0)
    for edge in (found.low, found.high):
        assert abs(30.0 - edge * 100.0) == pytest.approx(2.0 * math.hypot(4.0, edge * 3.0))
    assert found.low < found.value == 0.3 < found.high


@pytest.mark.parametrize("tokens", [-50.0, 0.0, 5.0])
def test_too_few_tokens_for_the_noise_give_no_number(tokens: float) -> None:
    with pytest.raises(TooNoisyError, match="max-tokens"):
        reading(tokens, 3.0, 2.0).accuracy(0)


def test_figures_stay_where_they_can_be() -> None:
    got = reading(100.0, -5.0, 120.0)
    low, high = got.accuracy(0), got.loss(0)
    assert (low.value, low.low) == (0.0, 0.0) and 0 < low.high < 0.1
    assert (high.value, high.low, high.high) == (8.0, 8.0, 8.0)
