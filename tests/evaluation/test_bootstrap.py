"""The paired bootstrap: coverage, pairing, and that more users mean shorter intervals."""

import numpy as np
import pytest

from privsyn_flower.evaluation import paired_bootstrap


def users(rng, count, accuracy, spread=0.1):
    tokens = rng.integers(50, 500, count).astype(float)
    rates = np.clip(accuracy + spread * rng.normal(size=count), 0, 1)
    return np.stack([tokens * rates, tokens], axis=1)


def test_point_values_are_micro():
    sums = np.array([[1.0, 1.0], [0.0, 9.0]])
    found = paired_bootstrap({"a": sums}, [], np.random.default_rng(0), resamples=10)
    assert found["value"]["a"].value == pytest.approx(0.1)


def test_pairing_removes_the_users_own_difficulty():
    rng = np.random.default_rng(1)
    base = users(rng, 80, 0.3)
    better = base.copy()
    better[:, 0] += 0.01 * base[:, 1]  # one point for every user, far below the users' spread
    found = paired_bootstrap({"a": base, "b": better}, [("b", "a")], rng)
    difference = found["difference"]["b-a"]
    assert difference.value == pytest.approx(0.01)
    assert difference.low == pytest.approx(0.01) and difference.high == pytest.approx(0.01)
    single = found["value"]["a"]
    assert single.high - single.low > 0.02


def test_coverage_of_a_null_difference():
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(60):
        a, b = users(rng, 60, 0.3), users(rng, 60, 0.3)
        b[:, 1] = a[:, 1]
        found = paired_bootstrap({"a": a, "b": b}, [("b", "a")], rng, resamples=300)
        inside += found["difference"]["b-a"].low <= 0 <= found["difference"]["b-a"].high
    assert inside >= 48  # 95 % nominal; below 80 % something is wrong


def test_users_are_resampled_not_tokens():
    rng = np.random.default_rng(3)
    few, many = users(rng, 20, 0.3), users(rng, 500, 0.3)
    width = [
        (i := paired_bootstrap({"a": sums}, [], rng)["value"]["a"]).high - i.low
        for sums in (few, many)
    ]
    assert width[0] > 2.5 * width[1]


@pytest.mark.parametrize(
    "methods",
    [{}, {"a": np.ones((3, 3))}, {"a": np.ones((3, 2)), "b": np.ones((4, 2))}],
)
def test_unequal_users_are_refused(methods):
    with pytest.raises(ValueError, match="every method needs"):
        paired_bootstrap(methods, [], np.random.default_rng(0))


def test_no_tokens_are_refused():
    with pytest.raises(ValueError, match="no held-out user"):
        paired_bootstrap({"a": np.zeros((3, 2))}, [], np.random.default_rng(0))
