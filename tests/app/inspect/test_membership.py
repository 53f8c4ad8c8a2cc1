"""Who took part: AUC over users, and when nothing can be told; the bound of one run's guesses, with
the theorem's numbers, its coverage and its power."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, mannwhitneyu, norm

from privsyn_flower.app.inspect.attacks import NotMeasured
from privsyn_flower.app.inspect.membership import (
    Guesses,
    Sample,
    _drawn,
    _scores,
    auc,
    auc_interval,
    best_bound,
    canary_guesses,
    contradiction,
    described,
    epsilon_bound,
    measure,
    p_value,
    pair_guesses,
    pooled,
    smallest_auc,
)
from privsyn_flower.data.canaries import Canary
from tests.app.inspect.rigs import people, sentence, texts


def test_auc_is_the_share_of_pairs_with_ties_by_half() -> None:
    rng = np.random.default_rng(0)
    asked, others = (rng.integers(6, size=n).astype(float) for n in (30, 17))
    pairs = (asked[:, None] > others).sum() + (asked[:, None] == others).sum() / 2
    assert auc(asked, others) == pytest.approx(pairs / (30 * 17))
    assert auc(asked, asked) == 0.5


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(20):
        found = auc_interval(rng.normal(0, 1, 60), rng.normal(0, 1, 60), rng, resamples=150)
        covered += found.low <= 0.5 <= found.high
    assert covered >= 16  # of 20 at 95 %: fewer once in 400


def test_smallest_auc_is_found_in_four_of_five_cases() -> None:
    rng, users = np.random.default_rng(6), 50
    shift = np.sqrt(2) * norm.ppf(smallest_auc(users, users))  # of two unit normals with that AUC
    hits = sum(
        mannwhitneyu(
            rng.normal(shift, 1, users), rng.normal(0, 1, users), alternative="greater"
        ).pvalue
        < 0.05
        for _ in range(200)
    )
    assert 0.7 < hits / 200 < 0.9
    assert smallest_auc(4, 4) > 1 > smallest_auc(6, 6) and smallest_auc(0, 9) == np.inf


def test_too_few_users_are_said_and_no_model_is_loaded() -> None:
    rng = np.random.default_rng(7)
    found = measure(texts([sentence(rng)], people("p", 4, rng), people("h", 4, rng)))
    assert (
        "attacks" not in found and "4 private and 4 held-out users are too few" in found["missing"]
    )
    none = measure(texts([sentence(rng)], people("p", 4, rng)))
    assert none["missing"].startswith("no held-out users") and "attacks" not in none
    assert any("not measured" in line for line in described(none))


def test_texts_that_several_people_have_are_left_out() -> None:
    rng = np.random.default_rng(8)
    private, held_out = people("p", 12, rng), people("h", 12, rng)
    for own in (*private.values(), *held_out.values()):
        own.append("thank you")
    found = measure(
        texts([sentence(rng) for _ in range(9)], private, held_out | {"x": ["thank you"]})
    )
    assert found["texts_of_several_left_out"] == 1
    assert found["users"] == {"private": 12, "held_out": 12}
    assert any("1 texts of several people are left out" in line for line in described(found))


@pytest.mark.slow
def test_copied_text_is_told_by_each_attack_of_texts_and_contradicts_a_claim() -> None:
    rng = np.random.default_rng(9)
    private, held_out = people("p", 60, rng), people("h", 60, rng)
    for side in (private, held_out):
        for number, own in enumerate(side.values()):
            own.append(f"call me at {1000 + number + 7000 * (side is held_out)} or so")
    copied = texts([own[-1] for own in private.values()] + [o[0] for o in private.values()],
                   private, held_out)  # fmt: skip
    found = measure(replace(copied, claim=(1.0, 1e-6)))
    files = measure(replace(copied, claim=(1.0, 1e-6), no_bound="nobody knows"))
    assert files["epsilon_at_least"] == {} and contradiction(files) == ""
    assert any("people bound no epsilon: nobody knows" in line for line in described(files))
    for name in ("nearness", "spans", "values"):
        assert found["attacks"][name]["auc"][1] > 0.9, name
    assert found["attacks"]["values"]["disclosed"] == {"private": 60, "held_out": 0}
    assert found["attacks"]["votes"]["missing"] == "the run published no seeds with votes"
    # 60 pairs, all right, at a quarter of a third of 5 %, and two users a pair.
    assert 1.0 < found["epsilon_at_least"]["people"] < 2.5
    assert "by guessing people" in contradiction(found) and "1 is claimed" in contradiction(found)
    assert any("THE CLAIM IS CONTRADICTED" in line for line in described(found))
    assert contradiction(measure(replace(copied, claim=(9.0, 1e-6)))) == ""
    assert contradiction(measure(copied)) == ""  # nothing is claimed


@pytest.mark.slow
def test_honest_text_tells_nothing() -> None:
    rng, rings = np.random.default_rng(10), 0
    for _ in range(10):
        made = texts([sentence(rng) for _ in range(60)], people("p", 40, rng), people("h", 40, rng))
        found = measure(replace(made, claim=(0.5, 1e-6)))
        rings += bool(contradiction(found))
    assert rings <= 2  # each at 5 % at most: more once in 80


@pytest.mark.slow
def test_a_text_of_two_people_does_not_tell_the_larger_side() -> None:
    """Each text is two people's: where both are on one side it would be left there alone."""
    rng, rings = np.random.default_rng(13), 0
    pool = [sentence(rng) for _ in range(60)]
    for seed in range(6):
        draw = np.random.default_rng(seed).permutation(120)
        people_of = {f"u{i}": [pool[i // 2], sentence(rng)] for i in range(120)}
        names = list(people_of)
        private = {names[i]: people_of[names[i]] for i in draw[:96]}
        held_out = {names[i]: people_of[names[i]] for i in draw[96:]}
        found = measure(replace(texts(pool, private, held_out), claim=(0.1, 0.0)))
        rings += bool(contradiction(found))
    assert rings <= 1


def canaries_of(rng: np.random.Generator, count: int) -> list[Canary]:
    return [Canary(f"c{i}", i, sentence(rng), bool(rng.integers(2))) for i in range(count)]


def test_votes_of_the_nearest_seed_tell_canaries() -> None:
    rng = np.random.default_rng(11)
    made = canaries_of(rng, 80)
    seeds = [*[(one.text, 5.0) for one in made if one.present], (sentence(rng), 50.0)]
    public = [one.text for one in made if not one.present]  # candidates that nobody voted for
    shown = replace(texts(["x y z"], {}, public=public), seeds=seeds, canaries=made)
    found = measure(shown)
    own = found["attacks"]["votes"]["canaries"]
    assert own["auc"] == 1.0 and own["guesses"][0]["correct"] == own["guesses"][0]["number"] == 10
    assert found["epsilon_at_least"]["canaries"] > 1.5
    assert "people" not in found["epsilon_at_least"]
    assert any("votes, canaries: AUC 1.000" in line for line in described(found))


def test_canaries_of_one_side_and_scores_that_tell_nothing_are_said() -> None:
    rng = np.random.default_rng(14)
    made = [replace(one, present=True) for one in canaries_of(rng, 6)]
    found = measure(replace(texts(["x"], {}), canaries=made))
    assert "on one side" in found["missing_canaries"] and "attacks" not in found
    assert any("canaries not measured" in line for line in described(found))
    found = measure(replace(texts([sentence(rng)], {}), canaries=canaries_of(rng, 20)))
    assert found["attacks"]["values"]["missing"] == "all have the same score"
    with pytest.raises(NotMeasured, match="no number"):
        _scores(lambda users: np.full(len(users), np.nan), Sample({"a": ["b"]}, np.array([True])))


def test_a_slow_attack_is_on_a_draw_of_the_people() -> None:
    rng = np.random.default_rng(12)
    sample = Sample(people("p", 30, rng), np.arange(30) < 22)
    drawn = _drawn(sample, 7)
    assert len(drawn) == 14 and drawn.members.sum() == 7
    assert list(drawn.users) == list(_drawn(sample, 7).users)
    for user, member in zip(drawn.users, drawn.members, strict=True):
        assert drawn.users[user] == sample.users[user] and member == (int(user[1:]) < 22)
    assert len(_drawn(sample, None)) == 30 and len(_drawn(sample, 25)) == 30


# --- the bound of one run -------------------------------------------------------------------


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
