"""Rows in whole numbers: their inverse, and norms against every participation pattern."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.privacy.correlated import Participation
from privsyn_flower.privacy.correlated.integer_matrix import (
    MOST_ROUNDS,
    MOST_UNIT,
    UNIT,
    IntegerMatrix,
)
from privsyn_flower.privacy.correlated.toeplitz import Toeplitz, buffered, square_root


@st.composite
def matrices(draw, most_rounds=10):
    """Any matrix of few rounds, with any participation."""
    rounds = draw(st.integers(1, most_rounds))
    unit = 1 << draw(st.integers(0, 7))
    rest = draw(st.lists(st.integers(0, unit), max_size=rounds - 1))
    users = Participation(rounds, draw(st.integers(1, rounds)), draw(st.integers(0, rounds)))
    return IntegerMatrix((unit, *sorted(rest, reverse=True)), users)


def square(matrix):
    """C / a_0, (rounds, rounds)."""
    c = np.zeros(matrix.rounds)
    c[: matrix.bands] = np.array(matrix.coefficients) / matrix.unit
    t = np.arange(matrix.rounds)
    return np.where(t[:, None] >= t, c[t[:, None] - t], 0.0)


def patterns(users):
    """All sets of rounds, from 0, that one user may take part in."""
    for count in range(users.most + 1):
        for rounds in itertools.combinations(range(users.rounds), count):
            if all(b - a >= users.min_separation for a, b in itertools.pairwise(rounds)):
                yield list(rounds)


# --- rows and their inverse -----------------------------------------------------------------


@given(matrices(), st.integers(0, 2**32))
def test_rows_are_those_of_the_matrix_and_decorrelate_undoes_them(matrix, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-1000, 1001, (matrix.rounds, 3))
    absent = rng.random(matrix.rounds) < 0.3  # their vectors are zeros
    x[absent] = 0
    rows, decoded = [], []
    for rnd in range(1, matrix.rounds + 1):
        row = matrix.row(rnd, lambda s: None if absent[s - 1] else x[s - 1])
        rows.append(np.zeros(3, dtype=np.int64) if row is None else row)
        release = rows[-1] / matrix.unit
        decoded.append(matrix.decorrelate(rnd, release, lambda s: decoded[s - 1]))
    np.testing.assert_array_equal(rows, np.rint(matrix.unit * square(matrix) @ x))
    np.testing.assert_allclose(decoded, x, atol=1e-3)


def test_nothing_but_the_bands_is_read():
    matrix = IntegerMatrix((4, 2, 1), Participation(9))
    asked = []
    assert matrix.row(7, asked.append) is None
    assert asked == [7, 6, 5]
    assert matrix.row(2, asked.append) is None
    assert asked[3:] == [2, 1]


def test_a_row_leaves_the_vectors_and_the_release_as_they_are():
    matrix = IntegerMatrix((2, 1), Participation(2))
    x, release = np.array([3, -4]), np.array([1.0, 2.0])
    np.testing.assert_array_equal(matrix.row(2, lambda s: x), 3 * x)
    matrix.decorrelate(2, release, lambda s: release)
    np.testing.assert_array_equal(x, [3, -4])
    np.testing.assert_array_equal(release, [1.0, 2.0])


def test_rows_wrap_modulo_two_to_the_64():
    matrix = IntegerMatrix((4, 3), Participation(2))
    x = {1: np.array([2**62 - 1]), 2: np.array([2**62 + 5])}
    exact = 4 * (2**62 + 5) + 3 * (2**62 - 1)
    assert (int(matrix.row(2, x.get)[0]) - exact) % 2**64 == 0


def test_vectors_may_be_long_and_of_any_integers():
    """Residues as they lie on disk, in more pieces than one."""
    x = np.random.default_rng(0).integers(0, 2**32, (2, 70_000), dtype=np.uint32)
    row = IntegerMatrix((64, 63), Participation(2)).row(2, lambda s: x[s - 1])
    np.testing.assert_array_equal(row, 64 * x[1].astype(np.int64) + 63 * x[0].astype(np.int64))


# --- norms ----------------------------------------------------------------------------------


@given(matrices())
def test_norms_are_those_of_the_worst_pattern(matrix):
    users, c = matrix.participation, square(matrix)
    norms, largest_row = np.zeros(users.most + 1), 0.0
    for rounds in patterns(users):
        own = c[:, rounds].sum(axis=1)  # all vectors point the same way: entries are not negative
        count = len(rounds)
        norms[count] = max(norms[count], float(np.linalg.norm(own)))
        largest_row = max(largest_row, float(own.max(initial=0.0)))
    assert matrix.sensitivity() == pytest.approx(norms.max())
    assert matrix.row_norm == pytest.approx(largest_row)
    assert matrix.sensitivity(3) ** 2 == pytest.approx(norms.max() ** 2 + 3 * largest_row**2)
    worst = max(norms[j] ** 2 / j for j in range(1, users.most + 1))
    assert matrix.participation_multiplier(1.7) == pytest.approx(1.7 / math.sqrt(worst))
    assert matrix.repeat_multiplier(1.7) == pytest.approx(1.7 / largest_row)


@given(matrices(most_rounds=7), st.integers(0, 2**32))
def test_nothing_that_is_left_out_raises_a_norm(matrix, seed):
    """Rows without the node, vectors that are gone, vectors in any direction: never more."""
    rng = np.random.default_rng(seed)
    c = square(matrix) * (rng.random((matrix.rounds, matrix.rounds)) < 0.7)
    c *= (rng.random(matrix.rounds) < 0.7)[:, None]
    for rounds in patterns(matrix.participation):
        x = rng.normal(size=(len(rounds), 2))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        released = c[:, rounds] @ x
        assert np.linalg.norm(released) <= matrix.sensitivity() * (1 + 1e-12)
        again = int(rng.integers(matrix.rounds))
        both = math.hypot(np.linalg.norm(released), np.linalg.norm(released[again]))
        assert both <= matrix.sensitivity(1) * (1 + 1e-12)


@given(matrices())
def test_participations_pay_at_least_for_what_they_release(matrix):
    """j participations at `participation_multiplier` cost what j of them release, or more."""
    each = 1 / matrix.participation_multiplier(1.0) ** 2
    for rounds in patterns(matrix.participation):
        released = np.linalg.norm(square(matrix)[:, rounds].sum(axis=1))
        assert released**2 <= len(rounds) * each * (1 + 1e-12)


# --- the nearest matrix ---------------------------------------------------------------------


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda c: max(c) > 1e-3),
    st.integers(0, 12),
    st.sampled_from([1, 8, 64, 1024]),
)
def test_nearest(real, bands, unit):
    real = sorted(real, reverse=True)
    matrix = IntegerMatrix.nearest(real, Participation(12), bands=bands, unit=unit)
    kept = real[: bands or len(real)]
    whole = np.zeros(len(kept))
    whole[: matrix.bands] = matrix.coefficients
    assert matrix.unit == unit
    assert np.abs(whole - unit * np.array(kept) / kept[0]).max() <= 0.5 + 1e-9
    assert matrix.coefficients[-1] > 0  # zeros at the end are no bands


@pytest.mark.parametrize(
    "coefficients",
    [square_root(50), square_root(8), buffered(400, ((0.3, 0.95), (0.2, 0.6)))],
    ids=["banded", "narrow", "buffered"],
)
def test_whole_numbers_cost_little_error(coefficients):
    users = Participation(400, 50, 8)
    real = Toeplitz("real", 400, coefficients[:50])
    nearest = IntegerMatrix.nearest(coefficients, users, bands=50)
    assert nearest.unit == UNIT

    def error(matrix):
        return matrix.sensitivity(users) * math.sqrt(float((matrix.prefix_std() ** 2).mean()))

    assert error(nearest.toeplitz) <= 1.0015 * error(real)


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [(4, 2.0), (True,), (4, "2"), (4.0,), ()])
def test_only_whole_numbers(bad):
    with pytest.raises(ValueError, match="whole numbers"):
        IntegerMatrix(bad, Participation(5))


@pytest.mark.parametrize("bad", [(0,), (-4,), (3, 1), (2 * MOST_UNIT, 1), (0, 0)])
def test_the_unit_is_a_power_of_two(bad):
    with pytest.raises(ValueError, match=f"a_0 = {bad[0]} must be a power of two"):
        IntegerMatrix(bad, Participation(5))


@pytest.mark.parametrize("bad", [(4, 5), (4, 2, 3), (4, 2, -1)])
def test_coefficients_do_not_increase(bad):
    with pytest.raises(ValueError, match="not increase"):
        IntegerMatrix(bad, Participation(5))


def test_more_bands_than_rounds_or_too_many_rounds():
    with pytest.raises(ValueError, match=r"bands = 3 .*ftrl\.bands"):
        IntegerMatrix((4, 2, 1), Participation(2))
    with pytest.raises(ValueError, match="rounds at most"):
        IntegerMatrix((4, 2), Participation(MOST_ROUNDS + 1))
