"""Texts drawn to the shares of their clusters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.strategies.synthesis.topic_counts import (
    NoTopicLeft,
    largest_remainder,
    resampled,
)


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
