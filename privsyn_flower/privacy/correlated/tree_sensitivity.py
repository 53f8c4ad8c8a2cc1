"""The sensitivity of tree aggregation to one user, exactly, by dynamic programming.

A tree releases the noisy sum of each of its nodes. One user of norm 1 a round moves a node by at
most the number c of their rounds below it, all vectors pointing the same way, so the squared
sensitivity is the largest sum of c^2 over nodes, over the sets of rounds that the participation
allows (no entry of C^T C is negative: Choquette-Choo et al. 2023, arXiv 2211.06530, section 3).

The states of a subtree of s blocks are best[c, a, e]: the largest sum over its nodes with c
rounds taken, none in the first a and none in the last e blocks. Two subtrees side by side may
each have rounds where the gap between them, e + a, is at least the separation less 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from privsyn_flower.arrays import F64
from privsyn_flower.privacy.correlated.participation import Participation

WIDEST = 512  # blocks of separation; above it blocks are made larger and the result is a bound


def cumulative_squares(
    rounds: int, every: int, participation: Participation, *, completed: frozenset[int]
) -> F64:
    """Squared sensitivity of the nodes released in the first 1, 2, ... rounds: (rounds,).

    every: rounds of one tree. completed: rounds after which the tree of that round is completed,
    which releases all nodes above them. Exact, but when the separation is above WIDEST and does
    not halve often enough: then an upper bound, the exact value for a separation less than
    1 in WIDEST shorter.
    """
    return np.array([best.max() for best in _by_round(rounds, every, participation, completed)])


def squares_by_count(
    rounds: int, every: int, participation: Participation, *, completed: frozenset[int]
) -> F64:
    """Squared sensitivity of all nodes to users with at most 1, 2, ... rounds: (most,).

    Arguments and exactness: as for `cumulative_squares`.
    """
    *_, best = _by_round(rounds, every, participation, completed)
    found = np.full(participation.most, -np.inf)
    found[: len(best) - 1] = best[1:]
    return np.maximum.accumulate(found)


def _by_round(
    rounds: int, every: int, participation: Participation, completed: frozenset[int]
) -> Iterator[F64]:
    """After each round: the largest sums of squares for 0, 1, ... rounds taken."""
    search = _Search(participation, every, rounds, completed)
    size = search.block
    before = finished = search.nothing()
    for start in range(0, rounds, every):
        boundaries = [(0, finished)]
        for done in range(1, min(every, rounds - start) + 1):
            blocks, tail = divmod(done, size)
            if tail:
                # Everybody takes the first round of a block: the deepest in the unfinished one.
                last = before[: search.most, 0, -1] + tail.bit_length()
                best = np.full(max(len(before), len(last) + 1), -np.inf)
                best[: len(before)] = before[:, 0, 0]
                best[1 : len(last) + 1] = np.maximum(best[1 : len(last) + 1], last)
                yield best
                continue
            lowest = blocks & -blocks
            while boundaries[-1][0] > blocks - lowest:
                boundaries.pop()
            before = search.beside(boundaries[-1][1], search.full(lowest.bit_length() - 1), lowest)
            boundaries.append((blocks, before))
            if start + done in completed:
                tree, _ = search.partial(blocks)
                before = search.beside(finished, tree, blocks)
            yield before[:, 0, 0]
        finished = before


class _Search:
    """States of subtrees under one participation pattern; `block` rounds are one leaf here."""

    def __init__(
        self, participation: Participation, every: int, rounds: int, completed: frozenset[int]
    ) -> None:
        self.most = participation.most
        # With one round a user there is nothing to keep apart.
        apart = participation.min_separation if self.most > 1 else 1
        # Trees begin, and completed ones end, at the border of a block; 0: anywhere.
        aligned = every if every < rounds else 0
        aligned = math.gcd(aligned, rounds) if rounds in completed else aligned
        # Users' rounds can all have the same place in their blocks of 2^m where 2^m divides the
        # separation: blocks are then as far apart as the rounds are, divided by 2^m.
        self.block = math.gcd(apart, aligned)
        self.block &= -self.block
        while apart // self.block > WIDEST and aligned % (2 * self.block) == 0:
            self.block *= 2
        self.apart = max(1, apart // self.block)
        leaf = np.full((2, self.apart, self.apart), -np.inf)
        leaf[0] = 0.0
        leaf[1, 0, 0] = self.block.bit_length()  # nodes within a block above any of its rounds
        self._full = [leaf]

    def nothing(self) -> F64:
        """The state of no rounds at all."""
        return np.zeros((1, 1, self.apart))

    def full(self, height: int) -> F64:
        """A complete subtree of 2^height blocks."""
        while len(self._full) <= height:
            half, size = self._full[-1], 1 << (len(self._full) - 1)
            self._full.append(_counted(self._merge(half, half, size, size)))
        return self._full[height]

    def partial(self, blocks: int) -> tuple[F64, int]:
        """The first `blocks` leaves of the smallest tree that holds them, and its height."""
        height = (blocks - 1).bit_length()
        if blocks == 1 << height:
            return self.full(height), height
        half = 1 << (height - 1)
        right, below = self.partial(blocks - half)
        for _ in range(below, height - 1):
            right = _counted(right)  # nodes whose other half has no rounds
        merged = self._merge(self.full(height - 1), right, half, blocks - half)
        return _counted(merged), height

    def beside(self, left: F64, right: F64, right_size: int) -> F64:
        """Rounds taken so far and a subtree of `right_size` blocks after them."""
        return self._merge(left, right, 0, right_size)

    def _merge(self, left: F64, right: F64, left_size: int, right_size: int) -> F64:
        """Two neighbours; left_size is looked at only where `left` has more than one row."""
        starts, ends = np.arange(left.shape[1]), np.arange(self.apart)
        most = min(self.most, len(left) + len(right) - 2)
        merged = np.full((most + 1, len(starts), self.apart), -np.inf)
        only_left = left[: most + 1][:, :, np.maximum(ends - right_size, 0)]
        merged[: len(only_left)] = only_left
        only_right = right[: most + 1][:, np.maximum(starts - left_size, 0)]
        np.maximum(merged[: len(only_right)], only_right, out=merged[: len(only_right)])
        for gap in range(self.apart):
            after = right[1:, self.apart - 1 - gap]  # (c, e)
            ahead = left[1:, :, gap]  # (c, a)
            if len(after) <= len(ahead):
                for c, row in enumerate(after, start=2):
                    into = merged[c : c + len(ahead)]
                    np.maximum(into, ahead[: len(into), :, None] + row, out=into)
            else:
                for c, row in enumerate(ahead, start=2):
                    into = merged[c : c + len(after)]
                    np.maximum(into, row[:, None] + after[: len(into), None], out=into)
        # More rounds than fit.
        while len(merged) > 1 and np.isneginf(merged[-1]).all():
            merged = merged[:-1]
        return merged


def _counted(states: F64) -> F64:
    """The states with the node above them."""
    above: F64 = states + (np.arange(len(states)) ** 2.0)[:, None, None]
    return above
