"""Correlated noise: matrices recovered from streams, sensitivities by brute force, the tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.correlated import (
    NAMES,
    Participation,
    calibrate_correlated,
    epsilon_correlated,
    factorization,
)
from privsyn_flower.privacy.correlated import trees as search
from privsyn_flower.privacy.correlated.factorization import (
    log_error,
    optimise_banded,
    optimise_buffers,
)
from privsyn_flower.privacy.correlated.stream import MemoryRecords, NoRecords, Stream
from privsyn_flower.privacy.correlated.toeplitz import Toeplitz, buffered, square_root
from privsyn_flower.privacy.correlated.trees import Tree
from tests.privacy.published import kairouz_restart_epsilon, zcdp, zcdp_conversion

LARGE = Participation(2000, 100, 20)


def decoded(mechanism, records=None):
    """The matrix from z to the noise of the releases, through a stream whose z are indicators.

    Returns it, (rounds, draws), and the draws: (round, leaf) of each column.
    """
    draws: dict[tuple[int, int], int] = {}
    length = 4 * mechanism.rounds

    def source(rnd, leaf, start, count):
        one = np.zeros(length)
        one[draws.setdefault((rnd, leaf), len(draws))] = 1.0
        return one[start : start + count]

    recurrence = mechanism.recurrence()
    records = records or MemoryRecords(recurrence.rows, length)
    stream = Stream(recurrence, mechanism.rounds, length, source, records)
    matrix = np.array([stream.noise(rnd) for rnd in range(1, mechanism.rounds + 1)])
    return matrix[:, : len(draws)], list(draws)


def tree_rows(mechanism, draws):
    """The matrix C of a tree, (draws, rounds): the rounds below each node."""
    below = np.zeros((len(draws), mechanism.rounds))
    for row, (rnd, leaf) in enumerate(draws):
        start = (rnd - 1) // mechanism.every * mechanism.every
        first = start + ((rnd - 1 - start) >> leaf << leaf)
        below[row, first:rnd] = 1.0
    return below


def toeplitz_matrix(mechanism):
    c = np.zeros(mechanism.rounds)
    c[: mechanism.bands] = mechanism.coefficients
    rows = np.subtract.outer(np.arange(mechanism.rounds), np.arange(mechanism.rounds))
    return np.where(rows >= 0, c[rows], 0.0)


def all_nodes(mechanism):
    """(round, height) of the nodes that each round gives away, in order."""
    for rnd in range(1, mechanism.rounds + 1):
        place = (rnd - 1) % mechanism.every + 1
        whole = [height for height in range(place.bit_length()) if place % (1 << height) == 0]
        if rnd in mechanism.completed():
            whole = range((place - 1).bit_length() + 1)
        yield from ((rnd, height) for height in whole)


def brute_force(rows, participation, released=None):
    """Largest norm of rows @ u over all allowed rounds and signs: one number."""
    rows = rows if released is None else rows[released]
    gram = rows.T @ rows
    best = 0.0
    for size in range(1, participation.most + 1):
        for taken in itertools.combinations(range(participation.rounds), size):
            if size > 1 and min(np.diff(taken)) < participation.min_separation:
                continue
            part = gram[np.ix_(taken, taken)]
            assert part.min() >= 0  # so that signs could only make it smaller
            best = max(best, part.sum())
    return best**0.5


SMALL = [
    factorization("independent", 11),
    factorization("tree", 11),
    factorization("tree-honaker", 12),
    factorization("tree-restart", 11, restart_every=3, completion=True),
    factorization("tree-restart", 12, restart_every=5, completion=True, complete_last=True),
    factorization("tree-restart", 12, restart_every=7),
    Tree("plain restarts", 11, False, 6, True, True),
    factorization("banded", 11, bands=4),
    factorization("banded", 9),
    factorization("banded-optimised", 12, participation=Participation(12, 3)),
    factorization("blt", 11, participation=Participation(11, 4), buffers=2),
]


@pytest.mark.parametrize("mechanism", SMALL, ids=lambda m: f"{m.name}-{m.rounds}")
def test_variances_are_those_of_the_stream(mechanism):
    matrix, _ = decoded(mechanism)
    np.testing.assert_allclose(mechanism.release_std(), np.linalg.norm(matrix, axis=1), rtol=1e-12)
    prefixes = np.cumsum(matrix, axis=0)
    np.testing.assert_allclose(mechanism.prefix_std(), np.linalg.norm(prefixes, axis=1), rtol=1e-12)


@pytest.mark.parametrize("mechanism", SMALL, ids=lambda m: f"{m.name}-{m.rounds}")
def test_nothing_but_c_x_plus_z_is_told(mechanism):
    """The noise of the prefix sums is B z with B C = A: releases are a function of C x + z."""
    matrix, draws = decoded(mechanism)
    c = (
        toeplitz_matrix(mechanism)
        if isinstance(mechanism, Toeplitz)
        else tree_rows(mechanism, draws)
    )
    np.testing.assert_allclose(matrix @ c, np.eye(mechanism.rounds), atol=1e-12)
    # And no draw is used before its round: a prefix depends on the rows released until then.
    for column, (rnd, _) in enumerate(draws):
        assert not matrix[: rnd - 1, column].any()


@pytest.mark.parametrize("mechanism", SMALL, ids=lambda m: f"{m.name}-{m.rounds}")
def test_records_change_nothing(mechanism):
    stored, draws = decoded(mechanism)
    drawn_again, again = decoded(mechanism, NoRecords())
    order = [again.index(draw) for draw in draws]
    np.testing.assert_array_equal(drawn_again[:, order], stored)


def honaker_estimate(nodes, target):
    """Least variance of an unbiased estimate of `target` @ x from nodes @ x + z."""
    return target @ np.linalg.pinv(nodes.T @ nodes) @ target


def test_honaker_is_the_best_estimate_of_a_complete_node():
    mechanism = factorization("tree-honaker", 8)
    nodes = tree_rows(mechanism, list(all_nodes(mechanism)))
    for rounds in (1, 2, 4, 8):
        below = nodes[[row for row in range(len(nodes)) if not nodes[row, rounds:].any()]]
        best = honaker_estimate(below[:, :rounds], np.ones(rounds))
        assert mechanism.prefix_std()[rounds - 1] ** 2 == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("every", [3, 5, 6])
def test_completion_is_the_best_estimate_of_the_filled_tree(every):
    mechanism = Tree("", every, True, every, complete_last=True)
    nodes = tree_rows(mechanism, list(all_nodes(mechanism)))
    best = honaker_estimate(nodes, np.ones(every))
    assert mechanism.prefix_std()[-1] ** 2 == pytest.approx(best, rel=1e-12)


trees = st.builds(
    lambda rounds, every, completion, last: Tree("", rounds, True, every, completion, last),
    st.integers(1, 12),
    st.integers(0, 12),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(mechanism=trees, apart=st.integers(1, 13), most=st.integers(0, 12))
def test_tree_sensitivity_is_that_of_all_patterns(mechanism, apart, most):
    participation = Participation(mechanism.rounds, apart, most)
    draws = list(all_nodes(mechanism))
    rows = tree_rows(mechanism, draws)
    prefixes = mechanism.cumulative_sensitivity(participation)
    for rnd in {1, mechanism.rounds // 2 or 1, mechanism.rounds}:
        released = [row for row, (given, _) in enumerate(draws) if given <= rnd]
        expected = brute_force(rows, participation, released)
        assert prefixes[rnd - 1] == pytest.approx(expected, rel=1e-12)
    assert (np.diff(prefixes) >= 0).all()
    assert mechanism.sensitivity(participation) == prefixes[-1]


@settings(deadline=None, max_examples=60)
@given(
    rounds=st.integers(1, 12),
    falls=st.lists(st.floats(0, 1), min_size=0, max_size=11),
    apart=st.integers(1, 13),
    most=st.integers(0, 12),
)
def test_toeplitz_sensitivity_is_that_of_all_patterns(rounds, falls, apart, most):
    coefficients = tuple(np.cumprod([1.5, *falls])[:rounds].tolist())
    mechanism = Toeplitz("", rounds, coefficients)
    participation = Participation(rounds, apart, most)
    c = toeplitz_matrix(mechanism)
    prefixes = mechanism.cumulative_sensitivity(participation)
    for rnd in {1, rounds // 2 or 1, rounds}:
        assert prefixes[rnd - 1] == pytest.approx(brute_force(c[:rnd], participation), rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(
    mechanism=trees | st.integers(1, 13).map(lambda r: factorization("banded", r, bands=r)),
    apart=st.integers(1, 13),
    most=st.integers(0, 12),
)
def test_sensitivity_by_count_is_that_of_each_count(mechanism, apart, most):
    rounds = mechanism.rounds
    participation = Participation(rounds, apart, most)
    found = mechanism.sensitivity_by_count(participation)
    counts = range(1, participation.most + 1)
    wanted = [mechanism.sensitivity(Participation(rounds, apart, j)) for j in counts]
    assert found == pytest.approx(wanted, rel=1e-12)


@settings(deadline=None, max_examples=30)
@given(rounds=st.integers(1, 5), apart=st.integers(1, 3), name=st.sampled_from(NAMES))
def test_signs_and_directions_gain_nothing(rounds, apart, name):
    mechanism = factorization(name, rounds, restart_every=2, completion=True)
    if isinstance(mechanism, Toeplitz):
        c = toeplitz_matrix(mechanism)
    else:
        c = tree_rows(mechanism, list(all_nodes(mechanism)))
    rng = np.random.default_rng(rounds)
    sensitivity = mechanism.sensitivity(Participation(rounds, apart))
    for taken in itertools.product([0, 1], repeat=rounds):
        if min(np.diff(np.flatnonzero(taken)), default=apart) < apart:
            continue
        for signs in itertools.product([1, -1], repeat=rounds):
            assert np.linalg.norm(c @ np.multiply(taken, signs)) <= sensitivity * (1 + 1e-12)
        vectors = rng.standard_normal((rounds, 3))
        vectors *= np.array(taken)[:, None] / np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.linalg.norm(c @ vectors) <= sensitivity * (1 + 1e-12)


@pytest.mark.parametrize(("rounds", "apart", "most"), [(40, 9, 0), (61, 12, 3), (33, 1, 7)])
def test_wide_separations_are_bounded_from_above(monkeypatch, rounds, apart, most):
    participation = Participation(rounds, apart, most)
    mechanism = Tree("", rounds)
    exact = mechanism.cumulative_sensitivity(participation)
    monkeypatch.setattr(search, "WIDEST", 2)
    bound = mechanism.cumulative_sensitivity(participation)
    assert (bound >= exact).all()
    shorter = Participation(rounds, max(1, apart // 2), most)
    assert (bound <= mechanism.cumulative_sensitivity(shorter) + 1e-9).all()


def error(mechanism, participation):
    sensitivity, std = mechanism.sensitivity(participation), mechanism.prefix_std()
    return sensitivity * float((std**2).mean()) ** 0.5, sensitivity * float(std.max())


@pytest.mark.parametrize(
    ("name", "options", "expected", "largest"),
    [
        ("independent", {}, 141.5, 200.0),
        ("tree", {}, 48.1, 65.2),
        ("tree-honaker", {}, 36.4, 49.7),
        (
            "tree-restart",
            {"restart_every": 500, "completion": True, "complete_last": True},
            32.9,
            45.0,
        ),
        ("tree-restart", {"restart_every": 500, "completion": True}, 31.3, 42.8),
        ("banded", {}, 22.2, 29.8),
        ("blt", {}, 21.4, 27.4),
        ("banded-optimised", {}, 20.2, 26.0),
    ],
)
def test_error_table(name, options, expected, largest):
    mechanism = factorization(name, 2000, participation=LARGE, **options)
    assert error(mechanism, LARGE) == (
        pytest.approx(expected, abs=0.05),
        pytest.approx(largest, abs=0.05),
    )


@pytest.mark.parametrize(
    ("epochs", "z", "completion", "theirs", "exact"),
    [
        ([20] * 5, 46.3, True, 6.9222, 6.4275),
        ([1] * 5, 4.0, False, 7.4629, 6.9337),
        ([1] * 5, 4.0, True, 7.9575, 7.3979),
        ([5], 4.0, False, 9.2350, 8.5959),
    ],
)
def test_tree_restarts_of_kairouz(epochs, z, completion, theirs, exact):
    found = kairouz_restart_epsilon(100, epochs, z, 1e-5, completion=completion)
    assert found == (pytest.approx(theirs, abs=5e-5), pytest.approx(exact, abs=5e-5))
    rounds = 100 * sum(epochs)
    if rounds > 1000:
        return
    # Users who may move by what their separation leaves can only cost more.
    mechanism = factorization(
        "tree-restart", rounds, restart_every=100 * epochs[0], completion=completion
    )
    assert epsilon_correlated(z, 1e-5, mechanism, Participation(rounds, 100)) >= found[1] - 1e-9


def test_zcdp_of_gboard():
    assert zcdp(0.42, 1e-10) == pytest.approx(5.952, abs=5e-4)
    assert zcdp(0.5, 1e-10) == pytest.approx(6.548, abs=5e-4)
    assert zcdp_conversion(0.42, 1e-10) == pytest.approx(6.640, abs=5e-4)
    assert zcdp_conversion(0.5, 1e-10) == pytest.approx(7.286, abs=5e-4)
    tree, users = factorization("tree", 1200), Participation(1200, 300)
    z = (tree.sensitivity(users) ** 2 / (2 * 0.42)) ** 0.5
    assert epsilon_correlated(z, 1e-10, tree, users) == pytest.approx(zcdp(0.42, 1e-10), rel=1e-9)


@pytest.mark.parametrize("name", ["tree-honaker", "banded", "blt"])
def test_calibration_is_the_inverse_of_epsilon(name):
    users = Participation(32, 4)
    mechanism = factorization(name, 32, participation=users)
    z = calibrate_correlated(2.0, 1e-6, mechanism, users)
    assert epsilon_correlated(z, 1e-6, mechanism, users) <= 2.0
    assert epsilon_correlated(z * (1 - 1e-6), 1e-6, mechanism, users) > 2.0


# --- optimised coefficients -----------------------------------------------------------------


@pytest.mark.parametrize(("name", "sizes"), [("banded", "bands"), ("blt", "buffers")])
def test_shipped_coefficients_have_the_error_they_claim(name, sizes):
    import json
    from importlib import resources

    folder = resources.files("privsyn_flower.privacy") / "coefficients"
    content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert set(content["errors"]) == set(content["shapes"])
    mechanisms = {"banded": "banded-optimised", "blt": "blt"}
    for shape, claimed in content["errors"].items():
        rounds, apart, most, size = map(int, shape.split())
        users = Participation(rounds, apart, most)
        mechanism = factorization(mechanisms[name], rounds, participation=users, **{sizes: size})
        numbers = mechanism.coefficients if name == "banded" else mechanism.buffers
        assert [*np.ravel(numbers)] == [*np.ravel(content["shapes"][shape])]
        found, _ = error(mechanism, users)
        assert found == pytest.approx(claimed, abs=1e-5)
        # Better than the closed form of the same bands, and than no correlation at all.
        closed = Toeplitz("", rounds, square_root(size if name == "banded" else 1))
        assert found <= error(closed, users)[0] * (1 + 1e-9)


@pytest.mark.parametrize("users", [Participation(24, 24), Participation(30, 7, 3)])
def test_optimised_coefficients_beat_their_neighbours(users):
    found = optimise_banded(users, 6)
    assert (np.diff(found) <= 0).all() and found[-1] > 0
    least, _ = log_error(np.array(found), users)
    rng = np.random.default_rng(0)
    for _ in range(20):
        moved = np.array(found) * (1 + 0.01 * rng.standard_normal(6))
        assert log_error(moved, users)[0] >= least - 1e-9
    for j in (1, 3, 5):  # the gradient is the slope
        step = np.zeros(6)
        step[j] = 1e-6
        start = np.array(square_root(6))
        rise = log_error(start + step, users)[0] - log_error(start - step, users)[0]
        assert log_error(start, users)[1][j] == pytest.approx(rise / 2e-6, rel=1e-4)


def test_buffers_come_close_to_the_best_coefficients():
    users = Participation(30, 30)
    best = error(Toeplitz("", 30, optimise_banded(users, 30)), users)[0]
    pairs = optimise_buffers(users, 4)
    assert len(pairs) == 4 and sum(scale for scale, _ in pairs) <= 1
    assert optimise_buffers(users, 4) == pairs
    assert error(Toeplitz("", 30, buffered(30, pairs), pairs), users)[0] <= 1.001 * best
    # A single buffer cannot do that, so the others are used.
    one = optimise_buffers(users, 1)
    assert error(Toeplitz("", 30, buffered(30, one), one), users)[0] >= 1.004 * best


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: factorization("trees", 8), "ftrl.mechanism"),
        (lambda: factorization("tree-restart", 8), "restart-every"),
        (lambda: factorization("banded", 8, bands=9), "ftrl.bands"),
        (lambda: factorization("blt", 8, buffers=11), "ftrl.buffers"),
        (lambda: factorization("tree", 8, participation=Participation(9)), "rounds = 9"),
        (lambda: factorization("tree", 8).sensitivity(Participation(9)), "rounds = 9"),
        (lambda: Toeplitz("x", 3, (1.0, 0.5, 0.6)), "not increase"),
        (lambda: Toeplitz("x", 3, (1.0, -0.5)), "not be negative"),
        (lambda: Participation(5, 0), "min-separation = 0"),
        (lambda: Participation(0), "rounds = 0"),
        (lambda: Participation(5, 1, -1), "max-participations = -1"),
    ],
)
def test_errors_name_the_key(call, message):
    with pytest.raises(ValueError, match=message):
        call()
