"""Votes within classes: brute force, one user's bound, one comparison for every label."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.queries import shard_votes
from privsyn_flower.queries import votes as votes_module
from tests.rigs.queries_votes import calm, nasty

CLIPS = ("normalised", "worst-case", "sqrt-count")
METRICS = ("l2", "cosine", "ip")


def distances(rows, candidates, metric):
    rows, candidates = rows.astype(np.float64), candidates.astype(np.float64)
    if metric == "l2":
        return ((rows[:, None] - candidates[None]) ** 2).sum(axis=2)
    if metric == "cosine":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        candidates = candidates / np.linalg.norm(candidates, axis=1, keepdims=True)
    return -(rows[:, None] * candidates[None]).sum(axis=2)  # equal candidates, equal numbers


def by_hand(rows, users, candidates, own, named, *, clip, bound, samples_cap, neighbors, metric):
    """Every user by itself, every sample by itself, every class by itself."""
    total = np.zeros(len(candidates))
    for user in np.unique(users):
        counts = np.zeros(len(candidates))
        for i in np.flatnonzero(users == user)[:samples_cap]:
            places = np.flatnonzero(named == own[i])
            if np.isfinite(rows[i]).all() and len(places):
                far = distances(rows[i : i + 1], candidates[places], metric)[0]
                counts[places[np.argsort(far, kind="stable")[:neighbors]]] += 1
        vector = np.sqrt(counts) if clip == "sqrt-count" else counts
        norm = np.linalg.norm(vector)
        limit = bound if clip == "normalised" else min(bound, norm)
        total += vector * limit / norm if norm else vector
    return total


def population(size=700, classes=4):
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((size, 16)).astype(np.float32)
    rows[::50, 3], rows[7::90, 0] = np.nan, np.inf
    candidates = rng.standard_normal((37, 16)).astype(np.float32)
    named = rng.integers(0, classes, 37)
    named[named == 2] = 3  # a class without candidates
    candidates[20:25] = candidates[3]  # ties, in the class and beyond it
    named[[20, 22]] = named[3]
    own = rng.integers(-1, classes, size)
    return rows, rng.integers(-3, 60, size) * 10**12, candidates, own, named


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("neighbors", [1, 3])
def test_votes_are_the_nearest_within_the_class(clip, metric, neighbors, monkeypatch):
    rows, users, candidates, own, named = population()
    monkeypatch.setattr(votes_module, "BLOCK_BYTES", 4 * 37 * 64)  # several blocks
    options = {"clip": clip, "bound": 2.5, "samples_cap": 9, "neighbors": neighbors}
    options["metric"] = metric
    votes = shard_votes(
        rows, users, candidates, sample_classes=own, candidate_classes=named, **options
    )
    expected = by_hand(rows, users, candidates, own, named, **options)
    np.testing.assert_allclose(votes, expected, rtol=1e-12, atol=1e-12)
    assert votes.any()


def test_the_sum_over_classes_is_each_class_alone():
    """Where no user is clipped: what a class gets is what its texts give its candidates."""
    rows, users, candidates, own, named = population()
    options = {"clip": "worst-case", "bound": 1e6, "samples_cap": 9}
    votes = shard_votes(
        rows, users, candidates, sample_classes=own, candidate_classes=named, **options
    )
    for name in (0, 1, 3):
        places = named == name
        only = np.where(own == name, 0, -1)  # the cap counts a user's other texts, too
        alone = shard_votes(rows, users, candidates[places], sample_classes=only, **options)
        assert np.array_equal(votes[places], alone) and alone.any()
    voting = [
        i
        for user in np.unique(users)
        for i in np.flatnonzero(users == user)[:9]
        if np.isfinite(rows[i]).all() and own[i] in (0, 1, 3)
    ]
    assert votes.sum() == len(voting)


def test_one_class_for_all_is_votes_without_classes():
    rows, users, candidates, _, _ = population()
    options = {"bound": 1.0, "samples_cap": 9, "neighbors": 2}
    alike = {"sample_classes": np.zeros(len(rows), int), "candidate_classes": np.zeros(37, int)}
    plain = shard_votes(rows, users, candidates, **options)
    assert np.array_equal(shard_votes(rows, users, candidates, **options, **alike), plain)


def test_texts_of_no_class_and_of_one_without_candidates_give_zeros():
    rows, users, candidates, _, named = population()
    plan = IntegerPlan(1.0, 4096.0, 4096.0, 32, 37)
    for unknown in (-1, 2, 7):
        votes = shard_votes(
            rows, users, candidates, bound=1.0, samples_cap=9, plan=plan,
            sample_classes=np.full(len(rows), unknown), candidate_classes=named,
        )  # fmt: skip
        assert votes.shape == (37,) and votes.dtype == np.int64 and not votes.any()


def test_classes_may_be_numbers_of_any_kind():
    rows, users, candidates, own, named = population()
    own = np.maximum(own, 0)
    options = {"bound": 1.0, "samples_cap": 9}
    votes = [
        shard_votes(
            rows, users, candidates, **options,
            sample_classes=own.astype(kind), candidate_classes=named.astype(kind),
        )
        for kind in (np.int64, np.uint16, np.int8)
    ]  # fmt: skip
    assert votes[0].any() and all(np.array_equal(one, votes[0]) for one in votes)


def test_near_ties_within_a_class_are_decided_exactly_and_alone():
    """All candidates are within float32's error of each other, those of other classes too."""
    rng = np.random.default_rng(3)
    base = rng.standard_normal(17)
    candidates = (base + 1e-7 * rng.standard_normal((50, 17))).astype(np.float32)
    rows = rng.standard_normal((200, 17)).astype(np.float32)
    named, own = np.arange(50) % 3, rng.integers(0, 3, 200)
    options = {"bound": 1.0, "samples_cap": 1, "clip": "worst-case"}
    votes = shard_votes(
        rows, np.arange(200), candidates, sample_classes=own, candidate_classes=named, **options
    )
    far = np.where(named == own[:, None], distances(rows, candidates, "l2"), np.inf)
    assert np.abs(np.bincount(far.argmin(axis=1), minlength=50) - votes).sum() <= 2
    part = shard_votes(
        rows[3:], np.arange(197), candidates,
        sample_classes=own[3:], candidate_classes=named, **options,
    )  # fmt: skip
    first = shard_votes(
        rows[:3], np.arange(3), candidates,
        sample_classes=own[:3], candidate_classes=named, **options,
    )  # fmt: skip
    assert np.array_equal(part + first, votes)


@st.composite
def populations(draw):
    dimension, size = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(nasty, min_size=dimension, max_size=dimension), max_size=10))
    users = draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    own = draw(st.lists(st.integers(-1, 3), min_size=len(rows), max_size=len(rows)))
    candidates = draw(
        st.lists(
            st.lists(calm, min_size=dimension, max_size=dimension), min_size=size, max_size=size
        )
    )
    named = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    rows = np.array(rows, dtype=np.float32).reshape(len(rows), dimension)
    return (
        rows,
        np.array(users, dtype=int),
        np.array(candidates, dtype=np.float32),
        np.array(own, dtype=int),
        np.array(named, dtype=int),
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    population=populations(),
    clip=st.sampled_from(CLIPS),
    metric=st.sampled_from(METRICS),
    bound=st.sampled_from([0.1, 1.0, 8.0]),
    cap=st.integers(1, 5),
)
def test_one_user_is_bounded_over_all_classes_together(population, clip, metric, bound, cap):
    rows, users, candidates, own, named = population
    fewest = np.unique(named, return_counts=True)[1].min()
    options = {"clip": clip, "bound": bound, "samples_cap": cap, "metric": metric}
    options |= {"neighbors": int(fewest), "candidate_classes": named}
    votes = shard_votes(rows, users, candidates, sample_classes=own, **options)
    assert votes.shape == (len(candidates),) and np.isfinite(votes).all() and (votes >= 0).all()
    for user in range(4):
        others = users != user
        without = shard_votes(
            rows[others], users[others], candidates, sample_classes=own[others], **options
        )
        assert np.linalg.norm(votes - without) <= bound * (1 + 1e-12)
        known = np.isin(own, named)[~others][:cap]
        finite = np.isfinite(rows[~others][:cap]).all(axis=1)
        if clip == "normalised" and (known & finite).any():
            assert np.linalg.norm(votes - without) == pytest.approx(bound)
        classes = set(own[~others][:cap][known & finite].tolist())
        assert set(named[np.abs(votes - without) > 1e-9].tolist()) <= classes


def calls(work):
    """How often each function of this package is called, with the shapes of its arrays."""
    found = Counter()

    def note(frame, event, _):
        if event == "call" and "privsyn_flower" in frame.f_code.co_filename:
            shapes = [(k, v.shape) for k, v in frame.f_locals.items() if isinstance(v, np.ndarray)]
            found[frame.f_code.co_qualname, *shapes] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_the_first_comparison_is_with_all_candidates_for_every_label():
    """Whatever a text's class is, and whether it votes. No near ties, which are decided again."""
    rng = np.random.default_rng(1)
    rows, candidates = rng.standard_normal((60, 8)), rng.standard_normal((30, 8))
    users, named = np.repeat(np.arange(20), 3), np.repeat([0, 1, 2], [25, 4, 1])
    seen = []
    for own in ([0, 1, 2], [0, 0, 0], [2, 2, 2], [-1, -1, -1], [1, -1, 5]):
        labels = np.tile(own, 20)
        found = calls(
            lambda labels=labels: shard_votes(
                rows, users, candidates, bound=1.0, samples_cap=3,
                sample_classes=labels, candidate_classes=named,
            )
        )  # fmt: skip
        seen.append(
            {key: n for key, n in found.items() if "nearest" in key[0] or "least" in key[0]}
        )
    assert seen[0] and all(one == seen[0] for one in seen)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"candidate_classes": [0, 1]}, "classes of shape"),
        ({"sample_classes": [0, 1]}, "sample_classes has shape"),
        ({"sample_classes": None}, "sample_classes has shape"),
        ({"neighbors": 2}, "at least neighbors = 2"),
    ],
)
def test_classes_that_do_not_belong_to_the_rows(change, words):
    options = {"bound": 1.0, "samples_cap": 1, "sample_classes": [0, 0, 1, 1]}
    options |= {"candidate_classes": [0, 0, 1], **change}
    with pytest.raises(ValueError, match=words):
        shard_votes(np.eye(4, 3), np.arange(4), np.eye(3), **options)
