"""The bound of one run's guesses: the theorem's numbers, its coverage, and its power."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from privsyn_flower.app.inspect.membership import (
    Guesses,
    best_bound,
    canary_guesses,
    epsilon_bound,
    p_value,
    pair_guesses,
    pooled,
)


def by_hand(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 term by term."""
    rate = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = sum(binom.pmf(k, r, rate) for k in range(v, r + 1))
    worst = max(
        (sum(binom.pmf(k, r, rate) for k in range(max(0, v - i), v)) / i for i in range(1, m + 1)),
        default=0.0,
    )
    return float(min(1.0, tail + 2 * m * delta * worst))


@settings(max_examples=40)
@given(
    st.integers(1, 40), st.integers(0, 40), st.integers(0, 40), st.floats(0, 5), st.floats(0, 0.01)
)
def test_the_theorem(m: int, r: int, v: int, epsilon: float, delta: float) -> None:
    r = min(r, m)
    v = min(v, r)
    found = p_value(Guesses(m, r, v), epsilon, delta)
    assert found == pytest.approx(by_hand(m, r, v, epsilon, delta), abs=1e-12)


@given(st.integers(1, 200), st.data())
def test_a_larger_epsilon_or_fewer_right_explain_more(r: int, data: st.DataObject) -> None:
    v = data.draw(st.integers(1, r))
    last = 0.0
    for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0):
        found = p_value(Guesses(r, r, v), epsilon, 0.0)
        assert found >= last - 1e-12
        assert p_value(Guesses(r, r, v - 1), epsilon, 0.0) >= found - 1e-12
        last = found


def test_the_bound_is_where_the_p_value_meets_the_level() -> None:
    guesses = Guesses(200, 100, 95)
    found = epsilon_bound(guesses, 1e-5, 0.05)
    assert p_value(guesses, found, 1e-5) <= 0.05 < p_value(guesses, found + 2e-4, 1e-5)
    halved = epsilon_bound(guesses, 0.0, 0.05, users=2)
    assert halved == pytest.approx(epsilon_bound(guesses, 0.0, 0.05) / 2, abs=2e-4)
    assert epsilon_bound(guesses, 1e-5, 0.05, users=2) < halved
    assert epsilon_bound(Guesses(200, 100, 50), 0.0, 0.05) == 0.0
    assert epsilon_bound(Guesses(200, 0, 0), 0.0, 0.05) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_randomised_responses_bound_covers_its_epsilon(epsilon: float) -> None:
    """The mechanism of the worst case: it tells each coin, and with some chance the wrong one."""
    rng, above, best = np.random.default_rng(8), 0, []
    rate = 1 / (1 + math.exp(-epsilon))
    for _ in range(100):
        coins = rng.random(200) < 0.5
        told = np.where(rng.random(200) < rate, coins, ~coins) + rng.random(200) / 2
        bound = best_bound(canary_guesses(told, coins, rng), 0.0, 0.05)
        above += bound > epsilon
        best.append(bound)
    assert above <= 12  # of 100 at 5 % at most: more twice in 1,000
    assert np.median(best) >= 0.6 * epsilon


@pytest.mark.slow
def test_pairs_cover_a_run_that_draws_a_fixed_number() -> None:
    """Each person's epsilon is 1: of a pair, one was asked, so 2 tell them apart."""
    rng, above = np.random.default_rng(9), 0
    rate = 1 / (1 + math.exp(-1.0))
    for _ in range(100):
        asked = (rng.random(150) < rate) + 0.0
        others = (rng.random(60) < 1 - rate) + 0.0
        above += best_bound(pair_guesses(asked, others, rng), 1e-6, 0.05, users=2) > 1.0
    assert above <= 12


def test_guesses_of_coins_and_of_pairs() -> None:
    rng = np.random.default_rng(1)
    present, absent = np.arange(8) + 10.0, np.arange(8) + 0.0
    scores, members = np.concatenate([present, absent]), np.arange(16) < 8
    assert canary_guesses(scores, members, rng) == [
        Guesses(16, 2, 2), Guesses(16, 4, 4), Guesses(16, 8, 8), Guesses(16, 16, 16),
    ]  # fmt: skip
    assert canary_guesses(scores, ~members, rng)[-1] == Guesses(16, 16, 0)
    pairs = pair_guesses(present, np.zeros(16), rng)
    assert pairs == [Guesses(8, 1, 1), Guesses(8, 2, 2), Guesses(8, 4, 4), Guesses(8, 8, 8)]
    assert pair_guesses(np.ones(5), np.ones(4), rng)[-1] == Guesses(4, 0, 0)
    assert canary_guesses(np.ones(1), np.ones(1, np.bool_), rng) == []


def test_equal_scores_are_no_knowledge() -> None:
    """Whatever the truth: equal scores are ranked alike in each run, and the draws are not."""
    truth = np.random.default_rng(2)
    found = pooled(
        [
            canary_guesses(np.ones(100), truth.random(100) < 0.5, np.random.default_rng(7))
            for _ in range(60)
        ]
    )
    assert all(abs(one.correct / one.number - 0.5) < 0.08 for one in found)
    assert best_bound(found, 0.0, 0.05) == 0.0


def test_pooled_runs_add_up() -> None:
    one = [Guesses(10, 2, 1), Guesses(10, 5, 4)]
    assert pooled([one, one, one]) == [Guesses(30, 6, 3), Guesses(30, 15, 12)]
