"""The neighbour graph: degrees against brute force and simulation, and who holds together."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.secagg import graph
from privsyn_flower.secagg.graph import COMPLETE_BELOW, Graph, fewest, neighbourhoods, plan, ring


@pytest.mark.parametrize(("population", "marked", "drawn"), [(9, 3, 4), (10, 6, 5), (8, 0, 3)])
def test_the_count_that_is_hardly_exceeded_by_brute_force(
    population: int, marked: int, drawn: int
) -> None:
    counts = [
        sum(i < marked for i in some) for some in itertools.combinations(range(population), drawn)
    ]
    for rare in (0.5, 0.2, 0.05, 1e-9):
        want = next(c for c in range(drawn + 1) if np.mean([n > c for n in counts]) <= rare)
        assert graph._most(population, marked, drawn, rare) == want


@pytest.mark.parametrize(("nodes", "colluders", "dropouts"), [(64, 6, 6), (100, 10, 10)])
def test_degrees_fail_as_rarely_as_they_say(
    nodes: int, colluders: int, dropouts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With probabilities that a simulation can see, and not far from them."""
    monkeypatch.setattr(graph, "PRIVACY_BITS", 3)
    monkeypatch.setattr(graph, "CORRECTNESS_BITS", 3)
    found = [graph._sufficient(nodes, colluders, dropouts, k) for k in range(4, nodes - 1, 2)]
    chosen = next(g for g in found if g is not None)
    rng = np.random.default_rng(0)
    bad = lost = apart = 0
    trials = 4000
    run = chosen.degree // 2
    for _ in range(trials):
        order = rng.permutation(nodes)  # the first are colluders, the next gone
        marks = np.zeros(nodes, dtype=int)
        marks[order[:colluders]] = 1
        marks[order[colluders : colluders + dropouts]] = 2
        around = np.concatenate([marks, marks, marks])
        rows = np.stack([around[nodes + s : 2 * nodes + s] for s in range(-run, run + 1) if s])
        with_colluders = (rows == 1).sum(axis=0)
        gone = (rows == 2).sum(axis=0)
        bad += bool((2 * chosen.threshold <= chosen.degree + with_colluders).any())
        stretch = fewest(range(nodes), list(marks != 2), run)
        lost += bool((chosen.degree - gone < chosen.threshold).any() or stretch < chosen.stretch)
        apart += fewest(range(nodes), list(marks == 0), run) < 1 and stretch >= chosen.stretch
    assert bad / trials <= 2**-3
    assert apart / trials <= 2**-3
    assert lost / trials <= 2**-3


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 120), st.floats(0, 0.3), st.floats(0, 0.3), st.data())
def test_thresholds_keep_both_kinds_apart(
    nodes: int, colluding: float, dropping: float, data: Any
) -> None:
    weights = data.draw(st.lists(st.integers(1, 9), min_size=nodes, max_size=nodes))
    total = sum(weights)
    colluders = graph._lightest(weights, total * colluding)
    if colluders >= nodes - 1:  # a node with nobody honest beside it
        with pytest.raises(ValueError, match="leave no threshold"):
            plan(weights, total * (1 - colluding - dropping) - 1e-6, total * colluding)
        return
    got = plan(weights, total * (1 - colluding - dropping) - 1e-6, total * colluding)
    assert got == plan(weights[::-1], total * (1 - colluding - dropping) - 1e-6, total * colluding)
    assert got.degree / 2 < got.threshold <= got.degree <= nodes - 1
    if nodes < COMPLETE_BELOW:
        assert (got.degree, got.stretch) == (nodes - 1, 0)
        assert 2 * got.threshold > got.degree + colluders
    if got.degree < nodes - 1:
        assert got.degree % 2 == 0
        assert 1 <= got.stretch <= got.degree // 2


def test_degrees_of_round_numbers() -> None:
    assert plan([1] * 100, 85, 0) == Graph(30, 16, 1)
    assert plan([1] * 1000, 850, 0).degree < 60
    sparse, colluding = plan([1] * 1000, 850, 0), plan([1] * 1000, 850, 50)
    assert colluding.degree > sparse.degree
    assert colluding.stretch > 1


@pytest.mark.parametrize(
    ("weights", "min_weight", "colluding", "said"),
    [
        ([1, 1], 1, 0, "at least 3"),
        ([1, 1, 1], 4, 0, "below W_min"),
        ([1, 1, 1], 2, 1.5, "below W_min"),
        ([1, 1, 1, 1], 1, 3, "colluding-weight"),
    ],
)
def test_what_cannot_be_is_refused(
    weights: list[int], min_weight: float, colluding: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        plan(weights, min_weight, colluding)


@settings(max_examples=60, deadline=None)
@given(st.integers(5, 60), st.binary(min_size=32, max_size=32), st.data())
def test_the_ring_is_regular_and_mutual(nodes: int, digest: bytes, data: Any) -> None:
    degree = 2 * data.draw(st.integers(1, (nodes - 1) // 2))
    ids = list(range(7, 7 + nodes))
    around = neighbourhoods(ring(ids, digest), degree)
    assert sorted(ring(ids, digest)) == list(range(nodes))
    for i, peers in enumerate(around):
        assert peers == sorted(set(peers))
        assert len(peers) == min(degree, nodes - 1)
        assert i not in peers
        assert all(i in around[j] for j in peers)
    assert ring(ids, digest) != ring(ids, bytes(32)) or nodes < 8 or digest == bytes(32)


def connected(around: list[list[int]], alive: set[int]) -> bool:
    """By walking."""
    seen, todo = set(), [next(iter(alive))]
    while todo:
        i = todo.pop()
        if i not in seen:
            seen.add(i)
            todo += [j for j in around[i] if j in alive]
    return seen == alive


def test_who_keeps_every_stretch_stays_connected() -> None:
    """All 2^12 lists of a small ring: what `stretch` promises about colluders, by walking."""
    nodes, degree = 12, 6
    order = ring(list(range(nodes)), b"x" * 32)
    around = neighbourhoods(order, degree)
    refused = 0
    for mask in range(1, 2**nodes):
        alive = {i for i in range(nodes) if mask >> i & 1}
        here = [i in alive for i in range(nodes)]
        if fewest(order, here, degree // 2) >= 1:
            assert connected(around, alive)
        else:
            refused += not connected(around, alive)
    assert refused > 0  # lists that fall apart exist, and all of them are refused


@pytest.mark.parametrize("run", [1, 2, 5])
def test_the_fewest_of_a_stretch_by_brute_force(run: int) -> None:
    rng = np.random.default_rng(run)
    for _ in range(50):
        here = list(rng.random(9) < 0.6)
        order = list(rng.permutation(9))
        want = min(sum(here[order[(s + k) % 9]] for k in range(run)) for s in range(9))
        assert fewest(order, here, run) == want
