"""PrE-Text's own logic, with a character embedder and a toy variation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privsyn_flower.config import PreTextConfig
from privsyn_flower.strategies import NothingSurvived, PrEText
from privsyn_flower.text import load_embedder
from tests.conftest import sentences
from tests.rigs.pretext import Swap, strategy


def test_candidates_are_means_of_lookahead_variations() -> None:
    method = strategy(lookahead=3)
    query = method.ask(1)
    rng_texts = Swap().vary(
        [t for t in method.population for _ in range(3)], _rng(method.seed, 1, "lookahead")
    )
    rows = load_embedder("ngram-64").embed(rng_texts).reshape(16, 3, -1).mean(axis=1)
    scale = np.abs(rows).max(axis=1, keepdims=True) / 127
    assert np.abs(query.question() - rows).max() <= scale.max() / 2 + 1e-7
    assert query.model == load_embedder("ngram-64").fingerprint
    assert query.options["samples-cap"] == 8


def _rng(*purpose: Any) -> np.random.Generator:
    from privsyn_flower.common.randomness import seeded

    return seeded(*purpose)


def test_survivors_come_from_what_exceeds_the_threshold() -> None:
    method = strategy(threshold=2.0, threshold_unit="noise-std")
    first = list(method.population)
    votes = np.full(16, 5.9)
    votes[[3, 7]] = [8.0, 12.0]
    facts = method.learn(1, votes, noise_std=3.0)  # H = 6
    assert set(method.seeds) <= {first[3], first[7]}
    assert facts["candidates_alive"] == 2
    assert facts["threshold_votes"] == 6.0
    assert len(method.population) == 16
    assert not set(method.population) & set(first)


def test_threshold_in_votes_as_in_the_paper() -> None:
    assert strategy(threshold=17.43, threshold_unit="votes").threshold(99.0) == 17.43
    assert strategy(threshold=2.0, threshold_unit="noise-std").threshold(4.0) == 8.0


def test_drawing_follows_the_votes() -> None:
    method = PrEText(
        sentences(4000, 1),
        embedder=load_embedder("ngram-64"),
        variation=Swap(),
        rounds=1,
        config=PreTextConfig(population=4000, threshold=0.0, lookahead=1),
    )
    votes = np.zeros(4000)
    votes[0], votes[1] = 30.0, 10.0
    method.learn(1, votes, 1.0)
    assert set(method.seeds) == set(method.population[:2])


def test_all_zero_histogram_names_the_key() -> None:
    with pytest.raises(NothingSurvived, match=r"pretext\.threshold"):
        strategy().learn(1, np.full(16, -1.0), 1.0)


def test_seeds_are_the_union_of_all_rounds_survivors() -> None:
    method = strategy(threshold=0.0)
    seen: set[str] = set()
    for rnd in (1, 2, 3):
        before = list(method.population)
        votes = np.zeros(16)
        votes[rnd] = 5.0
        method.learn(rnd, votes, 1.0)
        seen.add(before[rnd])
    assert set(method.seeds) == seen
    assert len(method.seeds) == len(seen) == 3


def test_same_seed_same_run_and_restore() -> None:
    votes = np.random.default_rng(0).normal(3, 2, size=(3, 16))
    one, two = strategy(), strategy()
    for rnd in (1, 2):
        one.learn(rnd, votes[rnd], 1.0)
    resumed = strategy()
    two.learn(1, votes[1], 1.0)
    resumed.restore(two.state())
    resumed.learn(2, votes[2], 1.0)
    assert one.state() == resumed.state()
    assert strategy(seed=1).population != strategy(seed=0).population


def test_too_small_a_pool_names_both_keys() -> None:
    with pytest.raises(ValueError, match=r"pretext\.population.*data\.public-pool"):
        PrEText(
            ["a", "b", "b"],
            embedder=load_embedder("ngram-64"),
            variation=Swap(),
            rounds=1,
            config=PreTextConfig(population=3),
        )
