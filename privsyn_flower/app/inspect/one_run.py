"""A lower bound on epsilon from the guesses about one run: who took part, and who did not.

Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), theorem 5.2: of m independent fair draws,
each of which changes what a mechanism is given, one that is (epsilon, delta)-DP in each lets nobody
guess r of them, v of these correctly, more often than `p_value` says. Which are guessed may depend
on the mechanism's output, and on the draws through that alone.

- Canaries: a draw each decides whether one user is there, so epsilon and delta are the run's.
- People: one who was asked and one who was not are paired at random, and the draw is which of both
  was asked. That exchanges two users, so a run's (epsilon, delta) allows
  (2 epsilon, (1 + e^epsilon) delta). It holds where the people were asked at random, and is the
  test of Amin et al. 2026 (arXiv 2606.16952), of true against phantom disclosures, for a guarantee
  of add-or-remove.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from privsyn_flower.common.arrays import F64, Bools

SHARES = (8, 4, 2)  # the surest eighth, quarter and half of all are guessed; and all
MOST = 60.0  # an epsilon beyond which no test of so few guesses goes


@dataclass(frozen=True)
class Guesses:
    """memberships: how many there are to guess. number: how many were guessed, the surest. correct:
    of these."""

    memberships: int
    number: int
    correct: int

    def __add__(self, other: Guesses) -> Guesses:
        """Of two runs, whose draws are independent, by the same rule."""
        return Guesses(
            self.memberships + other.memberships,
            self.number + other.number,
            self.correct + other.correct,
        )


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """The most that chance gives to so many correct guesses of an (epsilon, delta)-DP run.

    Theorem 5.2: the tail of a binomial of e^epsilon / (1 + e^epsilon), and for delta
    2 m delta max over i of P[v - i <= binomial < v] / i.
    """
    from scipy.stats import binom

    number, correct = guesses.number, guesses.correct
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, number, rate))
    if not delta:
        return tail
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), number, rate))  # i = 1 .. v
    worst = float((below / np.arange(1, correct + 1)).max(initial=0.0))
    return min(1.0, tail + 2 * guesses.memberships * delta * worst)


def epsilon_bound(guesses: Guesses, delta: float, level: float, *, users: int = 1) -> float:
    """Epsilon is more than this, or something happened whose probability is `level` at most.

    users: how many one draw exchanges, 1 (canaries) or 2 (pairs). Rounded down to 1e-4; 0: nothing
    is shown.
    """

    def shown(epsilon: float) -> bool:
        lost = delta if users == 1 else delta * (1 + math.exp(epsilon))
        return p_value(guesses, users * epsilon, min(1.0, lost)) <= level

    if not shown(0.0):
        return 0.0
    low, high = 0.0, MOST
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if shown(middle) else (low, middle)
    return math.floor(low * 1e4) / 1e4


def best_bound(tries: Sequence[Guesses], delta: float, level: float, *, users: int = 1) -> float:
    """The largest bound of several ways to guess, at a share of the level each (Bonferroni)."""
    bounds = (epsilon_bound(one, delta, level / len(tries), users=users) for one in tries)
    return max(bounds, default=0.0)


def pooled(runs: Iterable[Sequence[Guesses]]) -> list[Guesses]:
    """The guesses of independent runs together, by the ways to guess."""
    return [sum(same[1:], start=same[0]) for same in zip(*runs, strict=True)]


def canary_guesses(scores: F64, members: Bools, rng: np.random.Generator) -> list[Guesses]:
    """Of canaries by their scores (n,), larger where one was there: the highest eighth, quarter and
    half are guessed there; and once the upper half there, the lower one not. members (n,): the
    truth. Their order must not depend on it: equal scores are ranked by rng's permutation."""
    order = _descending(scores, rng)
    count, half = len(scores), len(scores) // 2
    tops = [count // share for share in SHARES]
    found = [Guesses(count, top, int(members[order[:top]].sum())) for top in tops if top]
    both = int(members[order[:half]].sum() + (~members[order[count - half :]]).sum())
    return [*found, Guesses(count, 2 * half, both)] if half else found


def pair_guesses(members: F64, others: F64, rng: np.random.Generator) -> list[Guesses]:
    """Of pairs of a person who was asked and one who was not, at random: in those that differ most
    the one with the higher score is guessed. Equal ones are left out."""
    size = min(len(members), len(others))
    mine, theirs = (rng.choice(side, size, replace=False) for side in (members, others))
    apart = mine - theirs
    known: Bools = apart != 0
    order = _descending(np.abs(apart[known]), rng)
    right = (apart[known] > 0)[order]
    tops = [len(right) // share for share in (*SHARES, 1)]
    return [Guesses(size, top, int(right[:top].sum())) for top in tops]


def _descending(scores: F64, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The order of scores from the highest; equal ones at random."""
    mixed = rng.permutation(len(scores))
    return mixed[np.argsort(-scores[mixed], kind="stable")]
