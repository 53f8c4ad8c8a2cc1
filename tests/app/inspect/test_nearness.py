"""AUC of membership over users, and when it cannot be told."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm

from privsyn_flower.app.inspect.nearness import auc, auc_interval, described, measure, smallest_auc
from tests.app.inspect.rigs import people, sentence, texts


def test_auc_is_the_share_of_pairs_with_ties_by_half() -> None:
    rng = np.random.default_rng(0)
    near, far = (rng.integers(6, size=n).astype(float) for n in (30, 17))
    pairs = (near[:, None] < far).sum() + (near[:, None] == far).sum() / 2
    assert auc(near, far) == pytest.approx(pairs / (30 * 17))
    assert auc(near, far) == pytest.approx(1 - mannwhitneyu(near, far).statistic / (30 * 17))
    assert auc(near, near) == 0.5


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
            rng.normal(0, 1, users), rng.normal(shift, 1, users), alternative="less"
        ).pvalue
        < 0.05
        for _ in range(200)
    )
    assert 0.7 < hits / 200 < 0.9
    assert smallest_auc(4, 4) > 1 > smallest_auc(6, 6) and smallest_auc(0, 9) == np.inf


def test_too_few_users_are_said_and_no_model_is_loaded() -> None:
    rng = np.random.default_rng(7)
    found = measure(texts([sentence(rng)], people("p", 4, rng), people("h", 4, rng)))
    assert "auc" not in found and "4 private and 4 held-out users are too few" in found["missing"]


def test_texts_that_both_sides_have_are_left_out_of_both() -> None:
    rng = np.random.default_rng(8)
    private, held_out = people("p", 12, rng), people("h", 12, rng)
    for own in (*private.values(), *held_out.values()):
        own.append("thank you")
    found = measure(
        texts([sentence(rng) for _ in range(9)], private, held_out | {"x": ["thank you"]})
    )
    assert found["texts_of_both_left_out"] == 1 and found["users"] == {
        "private": 12,
        "held_out": 12,
    }
    assert any("1 texts that both sides have" in line for line in described(found))


def test_texts_that_are_all_alike_give_half() -> None:
    same = {f"p{i}": ["a b c"] for i in range(9)}
    found = measure(texts(["x y z"], same, {f"h{i}": ["a b  c"] for i in range(9)}))
    assert found["auc"] == [0.5, 0.5, 0.5] and 0.05 < found["p_value"] <= 1


def test_private_users_who_are_farther_are_told() -> None:
    rng = np.random.default_rng(9)
    held_out = people("h", 12, rng)
    found = measure(texts([own[0] for own in held_out.values()], people("p", 12, rng), held_out))
    assert found["auc"][2] < 0.5 and "same population" in described(found)[-1]
