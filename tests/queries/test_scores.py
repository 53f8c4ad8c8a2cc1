"""Scores: the reference code's numbers, the per-user loop, sensitivity by brute force."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.queries import scores as module
from privsyn_flower.queries import shard_scores, similarity_scores
from privsyn_flower.queries.products import max_norm_before_rounding, round_within

GOLDEN = Path(__file__).parents[1] / "golden"
SCORES = ("standardised", "centred", "mean-cosine")


def golden(name):
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


def clipped(vector, bound=1.0):
    return vector / max(1.0, np.linalg.norm(vector) / bound)


# --- the paper's reference code -------------------------------------------------------------


def test_golden_text_embeddings():
    texts, expected = golden("minilm_embeddings"), golden("popri_scores")
    each = [texts["private"][texts["client"] == user] for user in range(10)]
    sums = [similarity_scores(own, texts["synthetic"], standardize=False) for own in each]
    np.testing.assert_allclose(np.mean(sums, axis=0), expected["noclip_noise0"], atol=1e-6)
    for own, vector in zip(each, expected["per_client_clipped"], strict=True):
        scores = clipped(similarity_scores(own, texts["synthetic"]))
        np.testing.assert_allclose(scores, vector, atol=1e-6)
        one = shard_scores(
            own, np.zeros(len(own), int), texts["synthetic"], bound=1.0, samples_cap=8
        )
        np.testing.assert_allclose(one, vector, atol=1e-3)
    total = shard_scores(
        texts["private"], texts["client"], texts["synthetic"], bound=1.0, samples_cap=8
    )
    np.testing.assert_allclose(total / 10, expected["clip_noise0"], atol=5e-4)


def test_golden_random_and_degenerate():
    case = golden("popri_scores")
    each = [case[f"rand_client{i}"] for i in range(5)]
    users = np.repeat(np.arange(5), [len(own) for own in each])
    clip = [clipped(similarity_scores(own, case["rand_syn"])) for own in each]
    np.testing.assert_allclose(np.mean(clip, axis=0), case["rand_clip_noise0"], atol=1e-6)
    total = shard_scores(np.concatenate(each), users, case["rand_syn"], bound=1.0, samples_cap=8)
    np.testing.assert_allclose(total / 5, case["rand_clip_noise0"], atol=5e-4)
    # One candidate: the reference's NaN, zeros here.
    assert np.isnan(case["degenerate_single_output"]).all()
    assert similarity_scores(each[0], case["rand_syn"][:1]).tolist() == [0.0]


# --- the shard is the sum of its users ------------------------------------------------------


def user_vector(rows, candidates, score, bound, cap, groups, classes, labels, cosines=True):
    """One user, as the paper describes it, in float64."""
    rows, labels = rows[:cap].astype(float), labels[:cap]
    usable = np.isfinite(rows).all(axis=1) & (np.abs(rows).sum(axis=1) > 0)
    rows, labels = rows[usable], labels[usable]
    lengths = np.linalg.norm(candidates, axis=1, keepdims=True) if cosines else 1.0
    units = candidates / np.where(lengths == 0, 1, lengths)
    vector = np.zeros(len(candidates))
    prompts = np.repeat(np.arange(len(groups)), groups)
    for name in np.unique(classes):
        own, block = rows[labels == name], classes == name
        if not len(own):
            continue
        found = units[block] @ (own / np.linalg.norm(own, axis=1, keepdims=True)).mean(axis=0)
        if score == "standardised":
            found = (found - found.mean()) / found.std()
        elif score == "centred":
            means = {p: found[prompts[block] == p].mean() for p in np.unique(prompts[block])}
            found = found - np.array([means[p] for p in prompts[block]])
        vector[block] = found
    norm = np.linalg.norm(vector)
    if score == "centred" and norm:
        return vector * bound / norm
    return vector * min(1.0, bound / norm) if norm else vector


def population(seed=5, users=60, rows=500, dimension=24):
    rng = np.random.default_rng(seed)
    embeddings = rng.standard_normal((rows, dimension)).astype(np.float32)
    embeddings[::50, 3], embeddings[7::90, 0], embeddings[11] = np.nan, np.inf, 0
    groups = np.array([3, 7, 2, 9, 4, 5, 6])
    candidates = rng.standard_normal((36, dimension)).astype(np.float32)
    candidates[20:22] = candidates[12]
    owners = rng.integers(-3, users, rows) * 10**12  # any integers, any order, uneven counts
    return embeddings, owners, candidates, groups, rng


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("bound", [0.7, 4.0])
@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize("cosines", [True, False])
def test_shard_equals_per_user_loop(score, bound, kinds, cosines, monkeypatch):
    rows, users, candidates, groups, rng = population()
    labels = rng.integers(-1 if kinds > 1 else 0, kinds, len(rows))
    classes = np.repeat(np.arange(len(groups)) % kinds, groups)
    monkeypatch.setattr(module, "BLOCK_BYTES", 4 * 36 * 20)  # several blocks of users
    options = (score, bound, 6, groups, classes)
    loop = sum(
        user_vector(rows[users == u], candidates, *options, labels[users == u], cosines)
        for u in np.unique(users)
    )
    arguments = {"score": score, "bound": bound, "samples_cap": 6, "groups": groups}
    arguments["cosines"] = cosines
    if kinds > 1:
        arguments |= {"classes": classes * 5, "sample_classes": labels * 5}
    got = shard_scores(rows, users, candidates, **arguments)
    # Within the whole-number products' error, 57 users together.
    np.testing.assert_allclose(got, loop, atol=0.004 * bound, rtol=0)
    plan = IntegerPlan(bound, 4096.0, 4096.0 / bound, 32, 36)
    integers = shard_scores(rows, users, candidates, plan=plan, **arguments)
    assert integers.dtype == np.int64
    np.testing.assert_allclose(integers / plan.scale, loop, atol=0.014 * bound, rtol=0)


def test_the_norm_is_the_bound():
    """Nobody's vector is shorter than it may be, by more than the room for rounding."""
    rows, _, candidates, groups, _ = population()
    rows = rows[np.isfinite(rows).all(axis=1) & rows.any(axis=1)]
    for score in ("standardised", "centred"):
        for row in rows[:40]:
            options = {"score": score, "bound": 2.0, "samples_cap": 8, "groups": groups}
            vector = shard_scores(row[None], [0], candidates, **options)
            assert np.linalg.norm(vector) == pytest.approx(2.0, rel=1e-5)
            plan = IntegerPlan(2.0, 4096.0, 2048.0, 32, 36)
            vector = shard_scores(row[None], [0], candidates, plan=plan, **options)
            assert 4092 < math.isqrt(int(vector @ vector)) <= 4096
    # Standardised by the paper: a bound beyond the root of m clips nothing.
    vector = shard_scores(rows[:1], [0], candidates, bound=50.0, samples_cap=8)
    assert np.linalg.norm(vector) == pytest.approx(6.0, rel=1e-5)


def test_centred_spends_nothing_between_prompts():
    rows, users, candidates, groups, _ = population()
    options = {"bound": 1.0, "samples_cap": 8, "groups": groups}
    total = shard_scores(rows, users, candidates, score="centred", **options)
    means = np.add.reduceat(total, np.cumsum(groups) - groups) / groups
    assert np.abs(means).max() < 1e-3 < np.abs(total).max()


# --- sensitivity ----------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize(("bound", "sensitivity"), [(1.0, 4096.0), (0.3, 37.5), (5.0, 1e6)])
def test_removing_any_user_changes_the_integers_by_at_most_the_sensitivity(
    score, kinds, bound, sensitivity
):
    rows, users, candidates, groups, rng = population(users=15, rows=120)
    labels = rng.integers(-1, kinds, len(rows)) if kinds > 1 else np.zeros(len(rows), int)
    classes = np.repeat(np.arange(len(groups)) % kinds, groups)
    plan = IntegerPlan(bound, sensitivity, sensitivity / bound, 56, 36)
    options = {"score": score, "bound": bound, "samples_cap": 6, "groups": groups, "plan": plan}

    def summed(kept):
        own = {"classes": classes, "sample_classes": labels[kept]} if kinds > 1 else {}
        return shard_scores(rows[kept], users[kept], candidates, **options, **own)

    everybody = summed(np.ones(len(rows), bool))
    longest = 0
    for user in np.unique(users):
        alone, others = summed(users == user), summed(users != user)
        # Nobody else's integers moved, by as little as one.
        assert np.array_equal(everybody - others, alone)
        assert alone @ alone <= math.floor(sensitivity**2)
        longest = max(longest, math.isqrt(int(alone @ alone)))
    # Mean cosines are shorter than these bounds; entries of a norm of 37 lose much in rounding.
    assert longest > (0.9 * sensitivity if score != "mean-cosine" and sensitivity > 100 else 0)


@pytest.mark.parametrize("dimension", [3, 384, 768])
def test_a_users_integers_do_not_depend_on_who_is_beside_it(dimension, monkeypatch):
    """Not on the block, nor on the place in it: products are exact."""
    rng = np.random.default_rng(dimension)
    candidates = rng.standard_normal((257, dimension)).astype(np.float32)
    rows = rng.standard_normal((90, dimension)).astype(np.float32)
    users = np.repeat(np.arange(30), 3)
    plan = IntegerPlan(1.0, 4096.0, 4096.0, 32, 257)
    options = {"bound": 1.0, "samples_cap": 3, "plan": plan}
    alone = [shard_scores(rows[users == u], users[users == u], candidates, **options)
             for u in range(30)]  # fmt: skip
    for size in (1 << 24, 4 * 257 * 7, 1):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
        for first in (0, 1, 4):
            kept = users >= first
            total = shard_scores(rows[kept], users[kept], candidates, **options)
            assert np.array_equal(total, np.sum(alone[first:], axis=0))
    order = rng.permutation(30)  # users in another order, and under other names
    place = np.concatenate([np.flatnonzero(users == u) for u in order])
    named = np.repeat(rng.permutation(10**6)[:30], 3)
    assert np.array_equal(
        shard_scores(rows[place], named, candidates, **options), np.sum(alone, axis=0)
    )


nasty = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 3e38, -3e38, 1e-40, np.nan, np.inf, -np.inf])
calm = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 1e15, 1e-40])


@st.composite
def populations(draw):
    dimension, size = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    row = st.lists(nasty, min_size=dimension, max_size=dimension)
    rows = draw(st.lists(row, max_size=12))
    users = draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    row = st.lists(calm, min_size=dimension, max_size=dimension)
    candidates = draw(st.lists(row, min_size=size, max_size=size))
    cut = draw(st.integers(0, size - 1))
    groups = [cut, size - cut] if cut else [size]
    kinds = draw(st.integers(1, 2))
    labels = draw(st.lists(st.integers(-1, 2), min_size=len(rows), max_size=len(rows)))
    rows = np.array(rows, dtype=np.float32).reshape(len(rows), dimension)
    classes = np.repeat(np.arange(len(groups)) % kinds, groups)
    return rows, np.array(users, int), np.array(candidates, np.float32), groups, classes, labels


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(
    population=populations(),
    score=st.sampled_from(SCORES),
    bound=st.sampled_from([0.1, 1.0, 8.0]),
    sensitivity=st.sampled_from([1.0, 5.0, 4096.0, 2.0**30]),
    cap=st.integers(1, 5),
    cosines=st.booleans(),
)
def test_whatever_the_rows_one_user_stays_within_the_bound(
    population, score, bound, sensitivity, cap, cosines
):
    rows, users, candidates, groups, classes, labels = population
    labels = np.array(labels, dtype=int)
    plan = IntegerPlan(bound, sensitivity, sensitivity / bound, 56, len(candidates))
    options = {"score": score, "bound": bound, "samples_cap": cap, "groups": groups}
    options |= {"classes": classes, "cosines": cosines}

    def summed(kept, plan):
        own = labels[kept]
        return shard_scores(
            rows[kept], users[kept], candidates, sample_classes=own, plan=plan, **options
        )

    whole = np.ones(len(rows), bool)
    vector, integers = summed(whole, None), summed(whole, plan)
    assert np.isfinite(vector).all()
    for user in np.unique(users):
        change = integers - summed(users != user, plan)
        assert sum(int(v) ** 2 for v in change) <= math.floor(sensitivity**2)
        assert np.linalg.norm(vector - summed(users != user, None)) <= bound * (1 + 1e-6)
        assert np.array_equal(change, summed(users == user, plan))


def test_degenerate_users_answer_zeros():
    candidates, groups = np.eye(4, dtype=np.float32)[:3], [2, 1]
    rows = np.array(
        [[0, 0, 0, 1], [1, 1, 1, 0], [np.nan, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [-1, 0, 0, 0]],
        dtype=np.float32,
    )
    users = [0, 1, 2, 3, 4, 4]  # orthogonal, equal to all, NaN, no direction, two that cancel
    for score in SCORES:
        for user in range(5):
            kept = [i for i, u in enumerate(users) if u == user]
            total = shard_scores(
                rows[kept], [0] * len(kept), candidates, score=score, bound=1.0, samples_cap=8,
                groups=groups,
            )  # fmt: skip
            constant_scores_have_a_mean = score == "mean-cosine" and user == 1
            assert total.any() == constant_scores_have_a_mean
    for rows in (np.zeros((0, 4)), np.full((2, 4), np.inf)):
        total = shard_scores(rows, np.zeros(len(rows), int), candidates, bound=1.0, samples_cap=8)
        assert total.tolist() == [0.0, 0.0, 0.0]
        assert similarity_scores(rows, candidates).tolist() == [0.0, 0.0, 0.0]
    same = np.tile(np.float32([0.6, 0.64, 0.48]), (9, 1))  # candidates that are all one text
    own = np.random.default_rng(0).standard_normal((5, 3))
    assert not similarity_scores(own, same).any()
    for score in ("standardised", "centred"):
        vector = shard_scores(
            own, np.zeros(5, int), same, score=score, bound=1.0, samples_cap=8, groups=[9]
        )
        assert not vector.any()


def test_only_the_first_samples_count():
    candidates = np.eye(3, dtype=np.float32)
    rows = candidates[[0, 1, 1, 2, 2, 2]]
    options = {"score": "mean-cosine", "bound": 9.0, "samples_cap": 3}
    vector = shard_scores(rows, np.zeros(6, int), candidates, **options)
    np.testing.assert_allclose(vector, [1 / 3, 2 / 3, 0], atol=1e-3)
    rows[1] = np.nan  # it still uses up its place
    vector = shard_scores(rows, np.zeros(6, int), candidates, **options)
    np.testing.assert_allclose(vector, [1 / 2, 1 / 2, 0], atol=1e-3)
    labels = [7, 7, 9, 7, 7, 7]  # as does one of a class that nobody asked for
    own = {"classes": [7, 7, 7], "sample_classes": labels}
    vector = shard_scores(rows, np.zeros(6, int), candidates, **options, **own)
    np.testing.assert_allclose(vector, [1, 0, 0], atol=1e-3)


# --- integers -------------------------------------------------------------------------------


def test_rounding_has_no_shrink_where_truncation_has():
    """18,000 entries of about 30: what decides the choice of the encoding."""
    rng = np.random.default_rng(0)
    vector = rng.standard_normal((4, 18_000))
    vector *= max_norm_before_rounding(4096.0, 18_000) / np.linalg.norm(
        vector, axis=1, keepdims=True
    )
    scaled, out = vector.astype(np.float32), np.empty((4, 18_000), np.float32)
    round_within(scaled, 4096.0, out)
    shrink = (out * vector).sum(axis=1) / (vector**2).sum(axis=1)
    assert np.abs(shrink - 1).max() < 3e-4
    assert max_norm_before_rounding(4096.0, 18_000) > 0.9994 * 4096
    truncated = (np.trunc(vector) * vector).sum(axis=1) / (vector**2).sum(axis=1)
    assert truncated.max() < 0.99


@pytest.mark.parametrize(
    ("kind", "sensitivity"), [(np.float32, 4096.0), (np.float32, 3000.5), (np.float64, 2.0**30)]
)
def test_rounding_never_passes_the_sensitivity(kind, sensitivity):
    rng = np.random.default_rng(1)
    scaled = rng.uniform(0.5, 0.9, (50, 2000)).astype(kind)  # all of it rounds up
    scaled[::2] *= (sensitivity / np.linalg.norm(scaled[::2], axis=1, keepdims=True)).astype(kind)
    scaled[1::2, 0] = math.sqrt(sensitivity**2 - (scaled[1::2, 1:] ** 2).sum(axis=1).max())
    out = np.empty_like(scaled)
    round_within(scaled, sensitivity, out)
    for row in out:
        assert sum(int(v) ** 2 for v in row) <= sensitivity**2
    whole = math.floor(sensitivity)
    edge = np.array([[whole, math.sqrt(sensitivity**2 - whole**2) + 1]], kind)
    round_within(edge, sensitivity, out[:1, :2])  # 2^24 + 1 is no float32
    assert sum(int(v) ** 2 for v in out[0, :2]) <= sensitivity**2
    far = np.full((1, 3), sensitivity, kind)  # longer by far than its bound: nothing is left
    round_within(far, sensitivity, out[:1, :3])
    assert not out[0, :3].any()


# --- size -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("users", "size", "dimension"), [(6000, 6000, 16), (24_000, 8, 384), (9000, 1024, 384)]
)
def test_memory_is_never_users_times_candidates(users: int, size: int, dimension: int):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((users, dimension)).astype(np.float32)
    candidates = rng.standard_normal((size, dimension)).astype(np.float32)
    plan = IntegerPlan(1.0, 4096.0, 4096.0, 32, size)
    tracemalloc.start()
    shard_scores(rows, np.arange(users), candidates, bound=1.0, samples_cap=1, plan=plan)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80e6 + candidates.nbytes + 64 * users
    assert size < 6000 or peak < 4 * users * size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"score": "nearest"}, "score = 'nearest'"),
        ({"bound": 0.0}, "bound = 0.0"),
        ({"bound": math.nan}, "bound = nan"),
        ({"samples_cap": 0}, "samples_cap = 0"),
        ({"score": "centred"}, "needs groups"),
        ({"groups": [1, 2]}, "sum to the 2 candidates"),
        ({"groups": [0, 2]}, "sum to the 2 candidates"),
        ({"groups": [1.0, 1.0]}, "sum to the 2 candidates"),
        ({"groups": [[2]]}, "sum to the 2 candidates"),
        ({"classes": [0, 1]}, "belong together"),
        ({"sample_classes": [0, 1, 2]}, "belong together"),
        ({"classes": [0, -1], "sample_classes": [0, 1, 2]}, "0 or more"),
        ({"classes": [0, 1], "sample_classes": [0, 1, 2], "groups": [2]}, "of a prompt"),
        ({"classes": [0, 1], "sample_classes": [0, 1]}, "sample_classes has shape"),
        ({"users": [0.0, 1.0, 2.0]}, "float64"),
        ({"embeddings": np.eye(3)[0]}, "embeddings have shape"),
        ({"candidates": np.eye(2)}, "dimension 3, candidates 2"),
        ({"candidates": np.full((2, 3), np.inf)}, "finite"),
        ({"candidates": np.full((2, 3), np.nan)}, "finite"),
        ({"candidates": np.full((2, 3), 1e16)}, "within"),
        ({"candidates": np.zeros((0, 3))}, "at least one"),
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
        shard_scores(**arguments)
