"""Hockey-stick divergences of the joint law of all released rows, at 60 digits, against the plan.

Nodes multiply their users' integers by a matrix and add fresh discrete Gaussian noise to each row
(docs/correlated-noise.md). Four nodes, of which one colludes; one user's vectors are zeros in the
other world. At s = 8 in integers every probability can be summed, over all that may happen: rounds
that the user takes part in, survivors of each row, and one row that is asked twice. The claim is
epsilon at delta = delta' + 5.5 eta, with the sensitivity of all rows and of the spare one.
"""

from __future__ import annotations

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from privsyn_flower.privacy.accounting import composed_epsilon
from privsyn_flower.privacy.correlated import Participation
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.noise import integer_noise
from privsyn_flower.privacy.noise.integer_noise import (
    gaussian_delta,
    node_variance,
    release_distance,
)
from tests.privacy.lattice import discrete_gaussian, distance, noise_array, of_sum, reach_of

S, Z, UNIT = 2, 2.0, 2  # one round's norm in integers; noise per S and a_0; a_0
STD = Z * S * UNIT
HONEST, MIN_WEIGHT = (1, 1, 2), 3  # a fourth node, of weight 1, takes its own noise off
DELTAS = (1e-2, 1e-3)
ONE = 1 << 240  # probabilities are whole numbers of 1 / ONE

# A row in the user's eyes: the honest survivors' weight, or None without the user's node.
NODE = 0  # which one of HONEST; any of weight 1 has the same rows
SURVIVORS = [
    sum(HONEST[i] for i in nodes) if NODE in nodes else None
    for count in range(1, 4)
    for nodes in itertools.combinations(range(3), count)
    if sum(HONEST[i] for i in nodes) >= MIN_WEIGHT
]

# What one user moves in a run: (weight of the row's survivors, integers of one coordinate).
Moves = tuple[tuple[int, int], ...]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(integer_noise, "LEAST_STD", STD)


def variance(weight, std=STD):
    """Of the sum of survivors of this weight: rounding adds 1/12."""
    return weight * (mpf(std) ** 2 + mpf(1) / 12) / MIN_WEIGHT


# --- exact divergences ----------------------------------------------------------------------


@functools.cache
def weighted_sum(weight, shifts, std):
    """Law of sum shift * n over independent n ~ N_Z(0, v weight / W_min): (2 reach + 1,)."""
    if not shifts:
        return np.array([ONE], dtype=object)
    before, shift = weighted_sum(weight, shifts[1:], std), shifts[0]
    masses = line(weight, std)
    total = np.zeros(len(before) + shift * (len(masses) - 1), dtype=object)
    for place, mass in enumerate(masses):
        total[shift * place : shift * place + len(before)] += mass * before
    return total >> 240


@functools.cache
def line(weight, std):
    v = variance(weight, std)
    return [int(mass * ONE) for mass in discrete_gaussian(v, reach_of(float(v)))]


@functools.cache
def cumulative(weight, shifts, std):
    return np.cumsum(weighted_sum(weight, shifts, std))


@functools.cache
def divergence(moves: Moves, epsilon: float, std: float = STD):
    """max over sets A of P(A) - e^epsilon Q(A): the rows' noise, and the same moved by `moves`.

    Each coordinate's noise is N_Z(0, v_W) to 60 digits (tested below), so log P / Q is linear:
    (K / 2 - N) W_min / (v L) for the whole number N = sum of n shift L / W, which `moves` raise by
    K, and the best set is N < K / 2 - epsilon v L / W_min. By symmetry it is the same from Q to P.
    """
    unit = math.gcd(*(shift for _, shift in moves)) or 1
    weights = sorted({weight for weight, _ in moves}) or [MIN_WEIGHT]
    common = math.lcm(*weights)
    first, last = weights[0], weights[-1]
    of = {w: tuple(sorted(s // unit for weight, s in moves if weight == w)) for w in weights}
    law = weighted_sum(first, of[first], std)  # (2 reach + 1,)
    rest = cumulative(last, of[last] if last != first else (), std)
    step = common // last
    n = (np.arange(len(law)) - len(law) // 2) * (common // first)

    def below(limit):  # P(N < limit)
        places = (math.ceil(limit) - 1 - n) // step + len(rest) // 2
        inside = np.where(places >= 0, rest[np.clip(places, 0, len(rest) - 1)], 0)
        return mpf(int(law @ inside)) / ONE**2

    moved = sum(shift * shift * common // weight for weight, shift in moves)  # K
    limit = mpf(moved) / 2 - epsilon * variance(1, std) * common
    limit, moved = limit / unit, moved // unit
    return below(limit) - mpmath.exp(epsilon) * below(limit - moved)


def test_survivors_noise_is_one_discrete_gaussian():
    for weights in [(1, 2), (1, 1, 2)]:
        each = [mpf(node_variance(Z, w, MIN_WEIGHT, S * UNIT)) for w in weights]
        whole = sum(each)
        assert abs(whole - variance(sum(weights))) < 1e-13
        assert distance(of_sum(each), discrete_gaussian(whole, reach_of(float(whole)))) < 1e-58


def joint_divergence(moves, epsilon):
    """The same as `divergence`, with every point of the joint law of the nodes' own noises."""
    total = mpf(0)
    nodes = {3: (1, 2), 4: (1, 1, 2)}
    laws = [of_sum([variance(w) for w in nodes[weight]]) for weight, _ in moves]
    laws = [masses[len(masses) // 2 - 90 : len(masses) // 2 + 91] for masses in laws]
    grown = mpmath.exp(epsilon)
    pairs = [
        list(zip(masses[shift:], masses, strict=False))
        for masses, (_, shift) in zip(laws, moves, strict=True)
    ]
    for (p, q), (other_p, other_q) in itertools.product(*pairs):
        total += max(mpf(0), p * other_p - grown * q * other_q)
    return total


def test_no_other_set_is_better():
    moves = ((3, 4), (4, 6))
    assert abs(joint_divergence(moves, 1.0) - divergence(moves, 1.0)) < 1e-12


# --- what may happen ------------------------------------------------------------------------


def patterns(users, rounds):
    """Sets of rounds, from 0, that a user may take part in, before the run ends after `rounds`."""
    for count in range(users.most + 1):
        for taken in itertools.combinations(range(rounds), count):
            if all(b - a >= users.min_separation for a, b in itertools.pairwise(taken)):
                yield taken


def vectors(taken, length):
    """The user's integers in these rounds: in one direction, or in any of three."""
    choices = [(S,)] if length == 1 else [(S, 0), (0, S), (-S, 0)]
    return itertools.product(choices, repeat=len(taken))


def user_rows(matrix, rounds, taken, said):
    """What the user adds to each row: (rounds, length)."""
    vector = dict(zip(taken, said, strict=True))
    x = np.array([vector.get(t, (0,) * len(said[0])) for t in range(rounds)])
    rows = [matrix.row(t + 1, lambda s: x[s - 1]) for t in range(rounds)]
    return np.array(rows)


def all_moves(matrix, taken, *, length=1, spare=0, rounds=0, survivors=SURVIVORS):
    """Everything that the rows of a user with these rounds may move."""
    rounds, found = rounds or matrix.rounds, set()
    for said in vectors(taken, length):
        rows = user_rows(matrix, rounds, taken, said) if taken else np.zeros((rounds, 1), int)
        for again in itertools.combinations_with_replacement(range(rounds), spare):
            asked = [row for row in [*rows, *rows[list(again)]] if row.any()]
            for weights in itertools.product(sorted(set(survivors), key=str), repeat=len(asked)):
                kept = [
                    (w, abs(int(i)))
                    for w, row in zip(weights, asked, strict=True)
                    if w
                    for i in row
                    if i
                ]
                found.add(tuple(sorted(kept)))
    return found


def largest(matrix, epsilon, *, std=STD, **what):
    """The largest divergence of all rounds that a user may take."""
    rounds = what.get("rounds") or matrix.rounds
    moves = set().union(
        *(all_moves(matrix, t, **what) for t in patterns(matrix.participation, rounds))
    )
    return max(divergence(move, epsilon, std) for move in moves)


def matrix_of(coefficients, rounds, apart=1, most=0):
    return IntegerMatrix(coefficients, Participation(rounds, apart, most))


def claimed(sensitivity, delta, *, length=1, rows):
    """(epsilon, delta) of the plan, where the integers' part of delta is what it has to be."""
    epsilon = composed_epsilon({(Z / sensitivity, 1.0): 1}, gaussian_delta(delta))
    eta = rows * release_distance(length, Z, S * UNIT, MIN_WEIGHT)
    return epsilon, gaussian_delta(delta) + integer_noise.PRICE * eta


# --- the plan's claim -----------------------------------------------------------------------

CASES = {
    "every round": (matrix_of((2, 1), 3), 1, 1),
    "every other round": (matrix_of((2, 1), 4, 2), 1, 1),
    "two rounds in four, three bands": (matrix_of((2, 1, 1), 4, 1, 2), 1, 0),
    "two coordinates": (matrix_of((2, 1), 3, 2), 2, 1),
}


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("case", CASES)
def test_the_claim_holds_for_all_survivors_and_patterns(case, delta):
    matrix, length, spare = CASES[case]
    rows = matrix.rounds + spare
    epsilon, allowed = claimed(matrix.sensitivity(spare), delta, length=length, rows=rows)
    worst = largest(matrix, epsilon, length=length, spare=spare)
    assert worst <= allowed
    assert worst > 0.9 * allowed  # nothing is given away
    assert largest(matrix, 0.98 * epsilon, length=length, spare=spare) > allowed


@pytest.mark.parametrize("apart", [1, 2, 3])
def test_six_rounds_whose_survivors_have_the_least_weight(apart):
    matrix = matrix_of((2, 1, 1), 6, apart, 2)
    epsilon, allowed = claimed(matrix.sensitivity(1), 1e-3, rows=7)
    assert largest(matrix, epsilon, spare=1, survivors=[MIN_WEIGHT, None]) <= allowed
    assert largest(matrix, 0.98 * epsilon, spare=1, survivors=[MIN_WEIGHT]) > allowed


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_run_that_ends_early_has_paid_for_its_rows(rounds):
    matrix = matrix_of((2, 1), 4, 2)
    paid = float(matrix.toeplitz.cumulative_sensitivity(matrix.participation)[rounds - 1])
    epsilon, allowed = claimed(paid, 1e-3, rows=rounds)
    assert largest(matrix, epsilon, rounds=rounds) <= allowed


def test_a_node_charges_enough_for_each_participation_and_repeat():
    matrix = matrix_of((2, 1), 4, 2)
    each = 1 / matrix.participation_multiplier(Z) ** 2
    again = 1 / matrix.repeat_multiplier(Z) ** 2
    for taken in patterns(matrix.participation, 4):
        for spare in (0, 1):
            mu = math.sqrt(len(taken) * each + spare * again)
            if not mu:
                continue
            epsilon, allowed = claimed(Z * mu, 1e-3, rows=4 + spare)
            moves = all_moves(matrix, taken, spare=spare)
            assert max(divergence(move, epsilon) for move in moves) <= allowed


def test_vectors_that_are_lost_in_some_rows_cost_no_more():
    """A row that overtakes the vector's maker, a damaged file, vectors that were given up."""
    matrix = matrix_of((2, 1), 3)
    epsilon, allowed = claimed(matrix.sensitivity(), 1e-3, rows=3)
    first, second = (a * S for a in matrix.coefficients)
    ways = itertools.product([0, first], *[[0, first, second, first + second]] * 2)
    moves = {tuple((MIN_WEIGHT, row) for row in rows if row) for rows in ways}
    assert max(divergence(one, epsilon) for one in moves) <= allowed


# --- claims that are wrong are found --------------------------------------------------------


def test_a_row_asked_twice_is_not_free():
    matrix = matrix_of((2, 1), 4, 2)
    epsilon, allowed = claimed(matrix.sensitivity(), 1e-3, rows=5)
    assert largest(matrix, epsilon) <= allowed
    assert largest(matrix, epsilon, spare=1) > allowed


def test_noise_of_a_run_is_not_that_of_a_participation():
    matrix = matrix_of((2, 1), 4, 2)  # two participations at z each would be less than a run costs
    epsilon, allowed = claimed(math.sqrt(matrix.participation.most), 1e-3, rows=4)
    assert largest(matrix, epsilon) > allowed


def test_noise_of_one_round_is_not_that_of_a_row():
    matrix = matrix_of((2, 1), 4, 2)
    epsilon, allowed = claimed(matrix.sensitivity(), 1e-3, rows=4)
    assert largest(matrix, epsilon, std=Z * S) > 10 * allowed  # a_0 forgotten


def test_survivors_below_the_least_weight_are_not_covered():
    matrix = matrix_of((2, 1), 3)
    epsilon, allowed = claimed(matrix.sensitivity(), 1e-3, rows=3)
    assert largest(matrix, epsilon, survivors=[MIN_WEIGHT - 1]) > allowed


# --- later rounds that depend on earlier releases -------------------------------------------


def adaptive_divergence(say, survive, epsilon, reach=110):
    """Of two rows of (2, 1), the second of which may be asked again; in float64.

    say(rows): the user's integers in the next round, for the rows that are out; survive(rows): the
    weight of the next row's survivors, 0 where there is none. Every point of the first two rows is
    looked at, and the best half-line of the third.
    """
    n = np.arange(-reach, reach + 1)
    laws = {w: noise_array([float(variance(w))], 2 * reach) for w in (3, 4)}

    def masses(weight, moved):
        return laws[weight][n - moved + 2 * reach]

    start, moved, total = survive(()), 2 * say(()), 0.0
    for place, a in enumerate(n.tolist()):
        p, q = (masses(start, by)[place] for by in (0, moved))
        weight, row = survive((a,)), 2 * say((a,)) + say(())
        one, other = p * masses(weight, 0), q * masses(weight, row)
        lasts = np.array([survive((a, b)) for b in n.tolist()])
        total += np.maximum(one - math.exp(epsilon) * other, 0.0)[lasts == 0].sum()
        for last in set(lasts.tolist()) - {0}:
            both = [
                np.multiply.outer(part[lasts == last], masses(last, by))
                for part, by in ((one, 0), (other, row))
            ]
            total += np.maximum(both[0] - math.exp(epsilon) * both[1], 0.0).sum()
    return total


def against_the_first(rows):
    return S if not rows or rows[0] <= 0 else -S


def no_third(rows):
    return 3 if len(rows) < 2 else 0


ADAPTIVE = {  # what the user says, who survives, and how often a row may be asked again
    "nothing": (lambda rows: S, no_third, 0),
    "the user": (against_the_first, no_third, 0),
    "survivors": (lambda rows: S, lambda rows: no_third(rows) and 3 + (rows[:1] > (0,)), 0),
    "a repeat": (lambda rows: S, lambda rows: 3 if len(rows) < 2 or rows[1] > 3 else 0, 1),
    "all": (against_the_first, lambda rows: 4 if rows[:1] > (5,) else 3, 1),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_what_is_said_and_who_survives_may_depend_on_earlier_rows(name):
    say, survive, spare = ADAPTIVE[name]
    matrix = matrix_of((2, 1), 2)
    epsilon, allowed = claimed(matrix.sensitivity(spare), 1e-3, rows=2 + spare)
    exact = adaptive_divergence(say, survive, epsilon)
    assert exact <= allowed
    if name == "nothing":
        assert exact == pytest.approx(float(largest(matrix, epsilon)), rel=1e-9)
