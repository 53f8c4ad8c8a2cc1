"""Intervals over users and seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.common.randomness import seeded
from privsyn_flower.evaluation.intervals import (
    FILE,
    load_user_sums,
    over_seeds,
    over_users,
    paired_bootstrap,
    save_user_sums,
)


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


def sums(rng: np.random.Generator, users: int, share: float) -> np.ndarray:
    tokens = rng.integers(20, 200, size=users).astype(float)
    return np.stack([rng.binomial(tokens.astype(int), share), tokens], axis=1)


def test_students_interval() -> None:
    assert over_seeds([0.3]) is None and over_seeds([]) is None
    found = over_seeds([1.0, 2.0, 3.0])
    assert found is not None
    # t of 2 degrees of freedom at .975 is 4.302653; the standard error 1 / sqrt 3
    assert (found.value, found.low, found.high) == pytest.approx((2.0, -0.484138, 4.484138))
    with pytest.raises(ValueError, match="confidence"):
        over_seeds([1.0, 2.0], 1.5)


def test_students_interval_covers() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        found = over_seeds(list(rng.normal(3.0, 2.0, size=3)))
        assert found is not None
        hits += found.low <= 3.0 <= found.high
    assert hits / 2000 == pytest.approx(0.95, abs=0.02)


def test_one_run_is_the_paired_bootstrap() -> None:
    rng = np.random.default_rng(2)
    one, two = sums(rng, 50, 0.3), sums(rng, 50, 0.2)
    two[:, 1] = one[:, 1]
    same = paired_bootstrap({"a": one, "b": two}, [("a", "b")], seeded(0, "x"))
    alone = over_users([one], rng=seeded(0, "x"))
    assert alone.as_list() == same["value"]["a"].as_list()
    gained = over_users([one], [two], rng=seeded(0, "x"))
    assert gained.as_list() == same["difference"]["a-b"].as_list()


def test_runs_on_the_same_users_narrow_nothing() -> None:
    """Three times the same run: more seeds are not more users."""
    own = sums(np.random.default_rng(3), 40, 0.4)
    one, three = (over_users([own] * n, rng=seeded(0, "x")) for n in (1, 3))
    assert three.as_list() == one.as_list()


def test_sums_that_do_not_fit_are_refused() -> None:
    own = sums(np.random.default_rng(4), 10, 0.4)
    for runs, others in (([], []), ([own], [own, own]), ([own, own[:5]], [])):
        with pytest.raises(ValueError, match="users > 0"):
            over_users(runs, others, rng=seeded(0, "x"))
    with pytest.raises(ValueError, match="token"):
        over_users([own * 0], rng=seeded(0, "x"))


def test_kept_sums_are_private_and_know_their_users(tmp_path: Path) -> None:
    own = sums(np.random.default_rng(5), 3, 0.4)
    assert load_user_sums(tmp_path, "accuracy", "synthetic") is None
    save_user_sums(tmp_path, ["a", "b", "c"], {"accuracy": {"synthetic": own}})
    assert ((tmp_path / FILE).stat().st_mode & 0o777) == 0o600
    assert ((tmp_path / FILE).parent.stat().st_mode & 0o777) == 0o700
    found = load_user_sums(tmp_path, "accuracy", "synthetic")
    assert found is not None and np.array_equal(found[1], own)
    assert load_user_sums(tmp_path, "loss", "synthetic") is None
    save_user_sums(tmp_path, ["a", "c", "b"], {"accuracy": {"synthetic": own}})
    other = load_user_sums(tmp_path, "accuracy", "synthetic")
    assert other is not None and other[0] != found[0]
