"""Votes: the reference code's histograms, the per-user loop, sensitivity by brute force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.queries import shard_votes, vote_histogram, vote_sensitivity
from privsyn_flower.queries import votes as votes_module
from tests.rigs.queries_votes import calm, nasty

GOLDEN = Path(__file__).parents[1] / "golden"
CLIPS = ("normalised", "worst-case", "sqrt-count")
METRICS = ("l2", "cosine", "ip")


def golden(name):
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


# --- the papers' reference code -------------------------------------------------------------


def test_golden_pretext():
    texts, expected = golden("minilm_embeddings"), golden("pretext_histogram")["hist_sigma0_H0"]
    assert np.array_equal(vote_histogram(texts["private"], texts["synthetic"]), expected)
    assert expected[23] == 0  # a copy of candidate 0, which is earlier and takes the votes
    one_user_a_row = np.arange(len(texts["private"]))
    options = {"bound": 1.0, "samples_cap": 1, "clip": "worst-case"}
    votes = shard_votes(texts["private"], one_user_a_row, texts["synthetic"], **options)
    assert np.array_equal(votes, expected)


@pytest.mark.parametrize("neighbors", [1, 2, 5])
@pytest.mark.parametrize(("metric", "name"), [("l2", "L2"), ("cosine", "cos_sim"), ("ip", "IP")])
def test_golden_augpe(metric, name, neighbors):
    case = golden("augpe_histogram")
    votes = vote_histogram(case["priv"], case["syn"], neighbors=neighbors, metric=metric)
    assert np.array_equal(votes, case[f"{name}_k{neighbors}_clean"])


@pytest.mark.parametrize("neighbors", [1, 2, 5])
@pytest.mark.parametrize(("metric", "name"), [("l2", "l2"), ("cosine", "cos_sim"), ("ip", "ip")])
def test_golden_dpsda_normalised(metric, name, neighbors):
    """Normalised per sample (each row a user) and per client, at norm 1."""
    case = golden("dpsda_histogram")
    options = {"bound": 1.0, "samples_cap": 60, "neighbors": neighbors, "metric": metric}
    for unit, users in (("sample", np.arange(60)), ("client", case["client"])):
        votes = shard_votes(case["priv"], users, case["syn"], **options)
        expected = case[f"faiss_{name}_k{neighbors}_{unit}"]
        np.testing.assert_allclose(votes, expected, rtol=1e-5, atol=1e-6)


def test_golden_dpsda_text_embeddings():
    texts, case = golden("minilm_embeddings"), golden("dpsda_histogram")
    votes = shard_votes(
        texts["private"], texts["client"], texts["synthetic"], bound=1.0, samples_cap=8
    )
    np.testing.assert_allclose(votes, case["minilm_l2_k1_client"], rtol=1e-5, atol=1e-6)


# --- the shard is the sum of its users ------------------------------------------------------


def user_votes(rows, candidates, clip, bound, cap, neighbors, metric):
    """One user at a time, as the papers describe it."""
    rows = rows[:cap]
    rows = rows[np.isfinite(rows).all(axis=1)]
    counts = vote_histogram(rows, candidates, neighbors=neighbors, metric=metric)
    if clip == "sqrt-count":
        counts = np.sqrt(counts)
    norm = np.linalg.norm(counts)
    if norm == 0:
        return counts
    return counts * (bound / norm if clip == "normalised" else min(1.0, bound / norm))


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("neighbors", [1, 3])
def test_shard_equals_per_user_loop(clip, metric, neighbors, monkeypatch):
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((700, 16)).astype(np.float32)
    rows[::50, 3], rows[7::90, 0] = np.nan, np.inf
    candidates = rng.standard_normal((37, 16)).astype(np.float32)
    candidates[20:25] = candidates[3]
    users = rng.integers(-3, 60, 700) * 10**12  # any integers, any order, uneven counts
    monkeypatch.setattr(votes_module, "BLOCK_BYTES", 4 * 37 * 64)  # several blocks
    options = (clip, 2.5, 9, neighbors, metric)
    loop = sum(user_votes(rows[users == u], candidates, *options) for u in np.unique(users))
    names = ("clip", "bound", "samples_cap", "neighbors", "metric")
    votes = shard_votes(rows, users, candidates, **dict(zip(names, options, strict=True)))
    np.testing.assert_allclose(votes, loop, rtol=1e-12, atol=1e-12)


def test_the_paper_bound_never_clips():
    """worst-case with bound = samples_cap = B is PrE-Text's plain count."""
    rng = np.random.default_rng(0)
    rows, candidates = rng.standard_normal((80, 4)), rng.standard_normal((5, 4))
    votes = shard_votes(
        rows, np.repeat(np.arange(10), 8), candidates, clip="worst-case", bound=8.0, samples_cap=8
    )
    assert np.array_equal(votes, vote_histogram(rows, candidates))


def test_only_the_first_samples_count_and_normalised_is_exact():
    candidates = np.eye(3, dtype=np.float32)
    rows = candidates[[0, 1, 1, 2, 2, 2]]
    options = {"bound": 3.0, "samples_cap": 3}
    votes = shard_votes(rows, np.zeros(6, int), candidates, **options)
    assert votes == pytest.approx(3 * np.array([1, 2, 0]) / 5**0.5)
    votes = shard_votes(rows, np.zeros(6, int), candidates, clip="sqrt-count", **options)
    assert votes == pytest.approx([1, 2**0.5, 0])
    # A row that is not finite still uses up its place: which rows count never depends on others.
    rows[0] = np.nan
    votes = shard_votes(rows, np.zeros(6, int), candidates, **options)
    assert votes.tolist() == [0.0, 3.0, 0.0]


# --- integers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize(("bound", "sensitivity"), [(1.0, 4096.0), (0.3, 4096.0), (8.0, 37.0)])
def test_integers_are_the_sum_of_each_user_encoded_alone(clip, bound, sensitivity):
    rng = np.random.default_rng(8)
    rows, candidates = rng.standard_normal((300, 6)), rng.standard_normal((21, 6))
    users = rng.integers(0, 40, 300) * 10**9
    plan = IntegerPlan(bound, sensitivity, sensitivity / bound, 32, 21)
    options = {"clip": clip, "bound": bound, "samples_cap": 6, "neighbors": 2}
    expected = np.zeros(21, dtype=np.int64)
    for user in np.unique(users):
        own = users == user
        vector = shard_votes(rows[own], users[own], candidates, **options)
        encoded = plan.encode_users(vector, np.zeros(21, np.intp))
        assert (encoded**2).sum() <= sensitivity**2
        expected += encoded
    votes = shard_votes(rows, users, candidates, plan=plan, **options)
    assert votes.dtype == np.int64 and np.array_equal(votes, expected) and votes.any()
    # Truncated user by user: not the sum truncated once.
    summed = shard_votes(rows, users, candidates, **options)
    assert not np.array_equal(votes, np.trunc(summed * plan.scale))


def test_integers_of_nobody():
    plan = IntegerPlan(1.0, 4096.0, 4096.0, 24, 3)
    votes = shard_votes(
        np.full((2, 3), np.nan), [0, 1], np.eye(3), bound=1.0, samples_cap=1, plan=plan
    )
    assert votes.dtype == np.int64 and votes.tolist() == [0, 0, 0]


# --- sensitivity ----------------------------------------------------------------------------


@st.composite
def populations(draw):
    dimension, size = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    rows = draw(st.lists(st.lists(nasty, min_size=dimension, max_size=dimension), max_size=12))
    users = draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    candidates = draw(
        st.lists(
            st.lists(calm, min_size=dimension, max_size=dimension), min_size=size, max_size=size
        )
    )
    rows = np.array(rows, dtype=np.float32).reshape(len(rows), dimension)
    return rows, np.array(users, dtype=int), np.array(candidates, dtype=np.float32)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    population=populations(),
    clip=st.sampled_from(CLIPS),
    metric=st.sampled_from(METRICS),
    bound=st.sampled_from([0.1, 1.0, 8.0]),
    cap=st.integers(1, 5),
    data=st.data(),
)
def test_one_user_changes_the_sum_by_at_most_the_bound(population, clip, metric, bound, cap, data):
    rows, users, candidates = population
    options = {"clip": clip, "bound": bound, "samples_cap": cap, "metric": metric}
    options["neighbors"] = data.draw(st.integers(1, len(candidates)))
    votes = shard_votes(rows, users, candidates, **options)
    assert votes.shape == (len(candidates),) and np.isfinite(votes).all() and (votes >= 0).all()
    for user in range(4):
        others = users != user
        without = shard_votes(rows[others], users[others], candidates, **options)
        change = np.linalg.norm(votes - without)
        assert change <= vote_sensitivity(clip, bound) * (1 + 1e-12)
        if clip == "normalised" and np.isfinite(rows[~others][:cap]).all(axis=1).any():
            assert change == pytest.approx(bound)


@pytest.mark.parametrize("dimension", [3, 17, 384])
def test_a_row_votes_alone(dimension):
    """Near-ties are not decided by where a row lies in the block: all rows but one stay."""
    rng = np.random.default_rng(dimension)
    base = rng.standard_normal(dimension)
    candidates = base + 1e-7 * rng.standard_normal((50, dimension))  # all within float32's error
    candidates = candidates.astype(np.float32)
    rows = rng.standard_normal((200, dimension)).astype(np.float32)
    for metric in METRICS:
        whole = np.stack([vote_histogram(row[None], candidates, metric=metric) for row in rows])
        assert np.array_equal(vote_histogram(rows, candidates, metric=metric), whole.sum(axis=0))
        for start in (1, 3, 8):
            part = vote_histogram(rows[start:], candidates, metric=metric)
            assert np.array_equal(part, whole[start:].sum(axis=0))
    exact = ((rows[:, None].astype(float) - candidates[None].astype(float)) ** 2).sum(axis=2)
    votes = vote_histogram(rows, candidates)
    assert np.abs(np.bincount(exact.argmin(axis=1), minlength=50) - votes).sum() <= 2


def test_ties_go_to_the_lowest_index():
    candidates = np.array([[5.0, 5.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert vote_histogram([[0.0, 0.0]], candidates).tolist() == [0, 1, 0, 0]
    assert vote_histogram([[0.0, 0.0]], candidates, neighbors=2).tolist() == [0, 1, 1, 0]
    assert vote_histogram([[0.0, 0.0]], candidates, metric="cosine").tolist() == [1, 0, 0, 0]
    assert vote_histogram([[0.0, 0.0]], candidates, neighbors=4).tolist() == [1, 1, 1, 1]


def test_huge_values_vote_and_unrepresentable_ones_do_not():
    candidates = [[1.0, 0.0], [0.0, 1.0]]
    rows = [[3e38, 1e38], [1e38, 3e38], [1e39, 0.0], [1e-44, 0.0]]
    assert vote_histogram(rows, candidates).tolist() == [2, 1]
    assert vote_histogram(rows, candidates, metric="cosine").tolist() == [2, 1]
    assert vote_histogram(rows, candidates, neighbors=2).tolist() == [3, 3]


def test_nobody_votes():
    candidates = np.eye(3)
    for rows in (np.zeros((0, 3)), np.full((2, 3), np.nan)):
        users = np.zeros(len(rows), int)
        votes = shard_votes(rows, users, candidates, bound=1.0, samples_cap=8)
        assert votes.tolist() == [0.0, 0.0, 0.0]
        assert vote_histogram(rows, candidates).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clip": "none"}, "clip = 'none'"),
        ({"bound": 0.0}, "bound = 0.0"),
        ({"bound": float("nan")}, "bound = nan"),
        ({"samples_cap": 0}, "samples_cap = 0"),
        ({"neighbors": 3}, "neighbors = 3 .* 2"),
        ({"neighbors": 0}, "neighbors = 0"),
        ({"metric": "l1"}, "metric = 'l1'"),
        ({"users": [0]}, "users has shape"),
        ({"users": [0.0, 1.0, 2.0]}, "float64"),
        ({"embeddings": np.eye(3)[0]}, "embeddings has shape"),
        ({"candidates": np.eye(2)}, "dimension 3, candidates 2"),
        ({"candidates": np.full((2, 3), np.inf)}, "not finite"),
        ({"candidates": np.zeros((0, 3)), "neighbors": 1}, "number of candidates, 0"),
    ],
)
def test_bad_values(change, words):
    arguments = {
        "embeddings": np.eye(3),
        "users": [0, 1, 2],
        "candidates": np.eye(3)[:2],
        "bound": 1.0,
        "samples_cap": 2,
    } | change
    with pytest.raises(ValueError, match=words):
        shard_votes(**arguments)
