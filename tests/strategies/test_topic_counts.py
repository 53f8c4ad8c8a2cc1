"""The histogram of topics: its question and answer, shares, whole numbers of texts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.protocol.question import Query
from privsyn_flower.queries import shard_votes
from privsyn_flower.strategies.synthesis.topic_counts import (
    NoTopicLeft,
    largest_remainder,
    proportions,
    resampled,
    topic_question,
)
from privsyn_flower.text.encoders import unit
from privsyn_flower.text.topics import TopicModel

GOLDEN = Path(__file__).parents[1] / "golden" / "ctcl_generation.json"
COUNTS = arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6))


def topics(size: int = 12, dimension: int = 24) -> TopicModel:
    rows = np.random.default_rng(5).normal(size=(size, dimension))
    return TopicModel(unit(rows), (("word",),) * size, "e" * 64)


def answer(query: Query, rows: F32, users: Any) -> F64:
    """What a node sums, as `client_apps/votes.py` asks for it."""
    options = {key.replace("-", "_"): value for key, value in query.options.items()}
    votes: F64 = shard_votes(rows, users, query.question(), bound=query.bound, **options)
    return votes


# --- the question -----------------------------------------------------------------------------


def test_the_histogram_without_noise_is_the_count_of_nearest_topics() -> None:
    model = topics()
    rows = np.random.default_rng(0).normal(size=(500, 24)).astype(np.float32)
    query = topic_question(model, 1.0, "worst-case", samples_cap=1)
    assert (query.kind, query.length, query.model) == ("votes", 12, model.embedder)
    # Topics travel as int8; a node that counts and a node that writes conditions read the same.
    sent = TopicModel(unit(query.question()), model.keywords, model.embedder)
    likeness = rows.astype(np.float64) @ query.question().astype(np.float64).T
    likeness /= np.linalg.norm(query.question().astype(np.float64), axis=1)
    expected = np.bincount(likeness.argmax(axis=1), minlength=12)
    assert np.array_equal(answer(query, rows, np.arange(500)), expected)
    assert np.array_equal(np.bincount(sent.assign(rows), minlength=12), expected)
    # Rounding to int8 moves next to no text.
    assert np.mean(sent.assign(rows) != model.assign(rows)) < 0.02


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 999),
    st.integers(0, 9),
    st.sampled_from(["normalised", "worst-case", "sqrt-count"]),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_one_user_changes_the_answer_by_at_most_the_bound(
    seed: int, own: int, clip: str, bound: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(30, 24)).astype(np.float32)
    users = rng.integers(1, 6, size=30)
    query = topic_question(topics(), bound, clip)
    more = rng.normal(size=(own, 24)).astype(np.float32)
    without = answer(query, rows, users)
    together = answer(query, np.concatenate([more, rows]), np.append(np.zeros(own, int), users))
    change = np.linalg.norm(together - without)
    assert change <= bound * (1 + 1e-9)
    if clip == "normalised":
        assert change == pytest.approx(bound if own else 0.0)


def test_no_texts_and_no_topics_are_zeros() -> None:
    query = topic_question(topics(), 1.0)
    assert not answer(query, np.zeros((0, 24), np.float32), np.zeros(0, int)).any()
    assert not answer(query, np.full((3, 24), np.nan, np.float32), np.arange(3)).any()
    # A text whose topic cannot be computed takes nothing from its user's others.
    rows = np.stack([np.full(24, np.inf), topics().rows[4]]).astype(np.float32)
    assert answer(query, rows, np.zeros(2, int)).tolist() == [*[0.0] * 4, 1.0, *[0.0] * 7]


def test_ties_go_to_the_lowest_topic() -> None:
    rows = np.eye(3, dtype=np.float32)[[0, 1, 1]]
    query = topic_question(TopicModel(rows, (("word",),) * 3, "e" * 64), 1.0)
    votes = answer(query, np.array([[1, 1, 0], [0, 1, 0]], np.float32), np.arange(2))
    assert votes.tolist() == [1.0, 1.0, 0.0]


# --- shares -----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(COUNTS, st.floats(0, 100), st.floats(0, 3))
def test_shares_sum_to_one_and_keep_the_order(counts: F64, noise: float, threshold: float) -> None:
    if not (counts - threshold * noise > 0).any():
        with pytest.raises(NoTopicLeft):
            proportions(counts, noise, threshold)
        return
    shares = proportions(counts, noise, threshold)
    assert shares.shape == counts.shape and (shares >= 0).all()
    assert shares.sum() == pytest.approx(1.0)
    assert not shares[counts <= threshold * noise].any()
    order = np.argsort(counts)
    assert (np.diff(shares[order]) >= 0).all()


def test_shares_without_noise_are_the_histogram_s() -> None:
    assert proportions(np.array([5.0, 3, 0, 9, 0, 1]), 0.0) == pytest.approx(
        np.array([5, 3, 0, 9, 0, 1]) / 18
    )
    assert proportions(np.array([12.0, 7, 2, -4]), 2.0, 1.0).tolist() == [2 / 3, 1 / 3, 0, 0]
    huge = proportions(np.array([1.5e308, 1.5e308]), 0.0)
    assert huge.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("threshold", "expected"), [(0.0, 5190), (1.0, 1080), (2.0, 110)])
def test_what_noise_alone_invents(threshold: float, expected: float) -> None:
    """The docstring's figures: 1,300 empty topics under noise of 10, beside a large one."""
    empty = 10 * np.random.default_rng(0).standard_normal(400_000)
    large = 1e6 + threshold * 10
    shares = proportions(np.append(empty, large), 10.0, threshold)
    invented = shares[:-1].sum() / shares[-1] * 1e6  # counts
    assert invented * 1300 / 400_000 == pytest.approx(expected, rel=0.02)


def test_pure_noise_says_what_to_change() -> None:
    with pytest.raises(
        NoTopicLeft, match=r"none of 3 topics has more than 2 .* largest has 19"
    ) as e:
        proportions(np.array([19.0, -3, 4]), 10.0, 2.0)
    for key in ("topic-threshold", "topic-count", "histogram-share"):
        assert f"ctcl.{key}" in str(e.value)
    with pytest.raises(NoTopicLeft):
        proportions(np.zeros(3), 0.0, 0.0)


@pytest.mark.parametrize(
    ("counts", "noise", "threshold"),
    [
        ([1.0, math.nan], 1.0, 1.0),
        ([1.0, math.inf], 1.0, 1.0),
        ([], 1.0, 1.0),
        ([[1.0]], 1.0, 1.0),
        ([1.0], -1.0, 1.0),
        ([1.0], math.nan, 1.0),
        ([1.0], 1.0, -0.5),
        ([1.0], 1.0, math.inf),
    ],
)
def test_counts_and_thresholds_that_are_wrong(counts: Any, noise: float, threshold: float) -> None:
    with pytest.raises(ValueError, match="finite") as error:
        proportions(np.array(counts), noise, threshold)
    assert not isinstance(error.value, NoTopicLeft)


# --- whole numbers ----------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.float64, st.integers(1, 80), elements=st.floats(0, 1e6)).filter(
        lambda w: w.sum() > 0
    ),
    st.integers(0, 10**9),
)
def test_whole_numbers_sum_up_and_are_within_one_of_their_shares(weights: F64, total: int) -> None:
    shares = weights / weights.sum()
    counts = largest_remainder(shares, total)
    assert counts.sum() == total and (counts >= 0).all() and counts.dtype == np.int64
    assert (np.abs(counts - shares * total) < 1 + 1e-9 * total).all()
    assert not counts[shares == 0].any()


def test_ties_of_remainders_go_to_the_lowest_index() -> None:
    assert largest_remainder(np.full(4, 0.25), 6).tolist() == [2, 2, 1, 1]
    assert largest_remainder(np.array([1.0]), 7).tolist() == [7]
    assert largest_remainder(np.array([0.1] * 10), 10).tolist() == [1] * 10
    assert largest_remainder(np.array([0.0, 1.0]), 0).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (6, [2, 1, 0, 3, 0, 0]),
        (10, [3, 2, 0, 5, 0, 0]),
        (18, [5, 3, 0, 9, 0, 1]),
        (40, [11, 7, 0, 20, 0, 2]),
    ],
)
def test_the_plan_is_not_the_published_code_s_cut_list(number: int, expected: list[int]) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))
    counts = np.zeros(golden["topics"])
    for topic, count in golden["train_topic_counts"].items():
        counts[int(topic)] = count
    plan = largest_remainder(proportions(counts, 0.0, 0.0), number)
    assert plan.tolist() == expected
    published = np.bincount(golden["gen_topic_sequence"][f"noise0_n{number}"], minlength=6)
    exact = counts / counts.sum() * number
    assert (np.abs(plan - exact) < 1).all()
    # Theirs agrees where the list needs no cut; elsewhere it drops texts of the last topics.
    if number in (10, 40):
        assert (np.abs(published - exact) > 1).any() and plan.tolist() != published.tolist()
    else:
        assert published.tolist() == expected


@pytest.mark.parametrize(
    ("shares", "total"),
    [
        ([0.5, 0.4], 10),
        ([1.5, -0.5], 10),
        ([math.nan, 1.0], 10),
        ([1.0], -1),
        ([[1.0]], 3),
        ([], 3),
    ],
)
def test_shares_that_are_none(shares: Any, total: int) -> None:
    with pytest.raises(ValueError, match="must be at least 0 and sum to 1"):
        largest_remainder(np.array(shares), total)


@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=40),
    st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda own: sum(own) > 1e-3),
    st.integers(0, 60),
)
def test_clusters_have_their_shares_and_texts_repeat_evenly(
    clusters: list[int], weights: list[float], samples: int
) -> None:
    own, shares = np.array(clusters), np.array(weights) / sum(weights)
    there = np.isin(np.arange(4), own)
    if not shares[there].any():
        with pytest.raises(NoTopicLeft, match="resample-pool"):
            resampled(own, shares, samples, np.random.default_rng(0))
        return
    places = resampled(own, shares, samples, np.random.default_rng(0))
    left = np.where(there, shares, 0.0)
    counts = np.bincount(own[places], minlength=4) if samples else np.zeros(4)
    assert counts.tolist() == largest_remainder(left / left.sum(), samples).tolist()
    for cluster in range(4):
        drawn = np.bincount(places, minlength=len(own))[own == cluster]
        assert not len(drawn) or drawn.max() - drawn.min() <= 1
    again = resampled(own, shares, samples, np.random.default_rng(0))
    assert np.array_equal(places, again)


def test_the_order_is_random_and_another_seed_draws_others() -> None:
    clusters = np.repeat([0, 1], 500)
    places = resampled(clusters, np.array([0.25, 0.75]), 400, np.random.default_rng(1))
    assert len(set(places.tolist())) == 400, "each text once, while there are enough"
    assert np.bincount(clusters[places]).tolist() == [100, 300]
    assert 10 < np.bincount(clusters[places[:100]])[0] < 40, "no cluster comes first"
    other = resampled(clusters, np.array([0.25, 0.75]), 400, np.random.default_rng(2))
    assert set(other.tolist()) != set(places.tolist())
