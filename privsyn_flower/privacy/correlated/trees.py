"""Tree aggregation: the noise of a prefix sum is that of the few nodes that cover it.

Kairouz et al. 2021 (arXiv 2103.00039), sections 3.1 and 5, appendix D. The leaves of a binary
tree are rounds; each node has noise of its own, (round in which its last leaf comes, height).
Each round gives away the nodes that its leaf completes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.privacy.correlated.keys import NoiseKey
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.privacy.correlated.stream import Draw, Keep, ReadRecord, Stream, open_stream


@dataclass(frozen=True)
class Tree:
    """Binary tree aggregation over `rounds` rounds.

    honaker: a node's sum is estimated from its own noisy value and from the nodes below it, each
    with its best weight (Honaker 2015, the estimate from below; Kairouz et al. call it "full");
    otherwise from its own value alone. restart_every: rounds of one tree, 0 for one tree; what
    the finished trees add stays. completion: at a restart the tree is filled up with rounds known
    to be zero, so that the sum that stays has the noise of one estimate (appendix D.3).
    complete_last: the same at the end of the run. Raises ValueError on restart_every.
    """

    name: str
    rounds: int
    honaker: bool = False
    restart_every: int = 0
    completion: bool = False
    complete_last: bool = False

    def __post_init__(self) -> None:
        if self.restart_every != int(self.restart_every) or self.restart_every < 0:
            raise ValueError(
                f"restart-every = {self.restart_every} must be a whole number, at least 1, "
                "or 0 for one tree: change ftrl.restart-every"
            )

    @property
    def every(self) -> int:
        """Rounds of one tree."""
        return self.restart_every or self.rounds

    def completed(self) -> frozenset[int]:
        """Rounds after which their tree is completed."""
        restarts = set(range(self.every, self.rounds, self.every)) if self.completion else set()
        return frozenset(restarts | ({self.rounds} if self.complete_last else set()))

    def sensitivity(self, participation: Participation) -> float:
        """L2 norm of all nodes for one user of norm 1 a round, at the worst rounds."""
        return float(self.cumulative_sensitivity(participation)[-1])

    def cumulative_sensitivity(self, participation: Participation) -> F64:
        """The sensitivity of the first 1, 2, ... rounds: (rounds,); see `cumulative_squares`."""
        participation.check(self.rounds)
        squares = cumulative_squares(
            self.rounds, self.every, participation, completed=self.completed()
        )
        return np.sqrt(squares)

    def sensitivity_by_count(self, participation: Participation) -> F64:
        """The sensitivity to users with at most 1, 2, ... rounds: (participation.most,)."""
        participation.check(self.rounds)
        squares = squares_by_count(
            self.rounds, self.every, participation, completed=self.completed()
        )
        return np.sqrt(squares)

    def release_std(self) -> F64:
        """Standard deviation of each release's noise when a node's has 1: (rounds,)."""
        return np.sqrt([self._weights.release_variance(r) for r in range(1, self.rounds + 1)])

    def prefix_std(self) -> F64:
        """Standard deviation of the noise of the sum of the first 1, 2, ... releases: (rounds,)."""
        finished, variances = 0.0, []
        for rnd in range(1, self.rounds + 1):
            variances.append(finished + self._weights.prefix_variance(rnd))
            if self._weights.local(rnd) == self.every:
                finished = variances[-1]
        return np.sqrt(variances)

    def describe(self) -> str:
        """Everything that the noise depends on, as text; public."""
        names = ("name", "rounds", "honaker", "restart_every", "completion", "complete_last")
        return json.dumps({name: getattr(self, name) for name in names})

    def recurrence(self) -> _Nodes:
        return self._weights

    def stream(
        self, key: NoiseKey, length: int, *, keep: Keep = "files", binding: str = ""
    ) -> Stream:
        """The noise of a run: see `open_stream`."""
        return open_stream(key, self, length, keep, binding)

    @cached_property
    def _weights(self) -> _Nodes:
        return _Nodes(self.every, self.completed(), self.honaker)


class _Nodes:
    """Estimates of nodes, from the leaf of a round upwards.

    The estimate that a round ends with is that of the highest node its leaf completes, made of
    the node's own value and of its two halves: the left one, estimated when it was complete, and
    the right one, this round's. A release is that estimate less the left halves it is made of.
    The record of a round is its estimate (honaker only: else a node's own noise is drawn again);
    that of a completed tree is never read.
    """

    def __init__(self, every: int, completed: frozenset[int], honaker: bool) -> None:
        self.every, self.completed, self.honaker = every, completed, honaker
        self.rows = 1 if honaker else 0

    def local(self, rnd: int) -> int:
        """Place of a round in its tree, from 1."""
        return (rnd - 1) % self.every + 1

    def height(self, rnd: int) -> int:
        """Height of the highest node whose last leaf is this round's."""
        place = self.local(rnd)
        return (place & -place).bit_length() - 1

    def left_half(self, rnd: int, height: int) -> int:
        """The round that ended the left half beside this round's node at `height`, or 0.

        0: the node is a left half itself. Its right half is then empty and its sum known.
        """
        place = self.local(rnd)
        index = (place - 1) >> height
        return rnd - place + (index << height) if index % 2 else 0

    def top(self, rnd: int) -> int:
        """Height of the node that this round's release is made of."""
        place = self.local(rnd)
        return (place - 1).bit_length() if rnd in self.completed else self.height(rnd)

    def path(self, rnd: int, top: int) -> list[tuple[int, float]]:
        """From the leaf up to `top`: the round of the left half or 0, and the own value's weight.

        The weights make the variance least: own value 1, the two halves together v, so the own
        value counts v / (1 + v). The weight of a tree that is not honaker's is 1.
        """
        steps, variance = [], 1.0
        for height in range(top):
            left = self.left_half(rnd, height)
            halves = variance + (_complete(height, self.honaker) if left else 0.0)
            own = halves / (1 + halves) if self.honaker else 1.0
            steps.append((left, own))
            variance = own**2 + (1 - own) ** 2 * halves
        return steps

    def prefix_variance(self, rnd: int) -> float:
        """Variance of the sum of the estimates that cover this tree's rounds so far."""
        if rnd in self.completed:
            return _variance(self.path(rnd, self.top(rnd)), self.honaker)
        place = self.local(rnd)
        heights = [h for h in range(place.bit_length()) if place >> h & 1]
        return sum(_complete(height, self.honaker) for height in heights)

    def release_variance(self, rnd: int) -> float:
        """Variance of this round's estimate less its left halves."""
        steps = self.path(rnd, self.top(rnd))
        total, kept = 0.0, 1.0  # kept: weight of what is below in the estimate
        for height, (left, own) in reversed(list(enumerate(steps))):
            total += (kept * own) ** 2
            kept *= 1 - own
            if left:
                total += (kept - 1) ** 2 * _complete(height, self.honaker)
        return total + kept**2

    def live(self, rnd: int) -> list[int]:
        """Rounds before this one whose estimates it or a later round may need."""
        if not self.honaker:
            return []
        place = self.local(rnd)
        start, before = rnd - place, place - 1
        heights = [h for h in range(before.bit_length()) if before >> h & 1]
        return sorted(start + (before >> h << h) for h in heights)

    def step(self, rnd: int, draw: Draw, record: ReadRecord) -> tuple[F64, F64]:
        top = self.top(rnd)
        if not self.honaker:
            noise = draw(rnd, top)
            for height in range(top):
                if left := self.left_half(rnd, height):
                    noise -= draw(left, height)
            return noise, noise[:0][None]
        estimate = draw(rnd, 0)
        lefts = np.zeros_like(estimate)
        for height, (left, own) in enumerate(self.path(rnd, top), start=1):
            if left:
                half = record(left)[0]
                lefts += half
                estimate = estimate + half
            estimate = own * draw(rnd, height) + (1 - own) * estimate
        return estimate - lefts, estimate[None]


def _complete(height: int, honaker: bool) -> float:
    """Variance of the estimate of a complete node at this height."""
    return 1 / (2 * (1 - 2.0 ** -(height + 1))) if honaker else 1.0


def _variance(steps: list[tuple[int, float]], honaker: bool) -> float:
    """Variance of the estimate at the end of a path."""
    variance = 1.0
    for height, (left, own) in enumerate(steps):
        halves = variance + (_complete(height, honaker) if left else 0.0)
        variance = own**2 + (1 - own) ** 2 * halves
    return variance


# --- sensitivity to one user, exactly, by dynamic programming -----------------------------------
#
# A tree releases the noisy sum of each of its nodes. One user of norm 1 a round moves a node by at
# most the number c of their rounds below it, all vectors pointing the same way, so the squared
# sensitivity is the largest sum of c^2 over nodes, over the sets of rounds that the participation
# allows (no entry of C^T C is negative: Choquette-Choo et al. 2023, arXiv 2211.06530, section 3).
#
# The states of a subtree of s blocks are best[c, a, e]: the largest sum over its nodes with c
# rounds taken, none in the first a and none in the last e blocks. Two subtrees side by side may
# each have rounds where the gap between them, e + a, is at least the separation less 1.


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
            self._full.append(_with_parent(self._merge(half, half, size, size)))
        return self._full[height]

    def partial(self, blocks: int) -> tuple[F64, int]:
        """The first `blocks` leaves of the smallest tree that holds them, and its height."""
        height = (blocks - 1).bit_length()
        if blocks == 1 << height:
            return self.full(height), height
        half = 1 << (height - 1)
        right, below = self.partial(blocks - half)
        for _ in range(below, height - 1):
            right = _with_parent(right)  # nodes whose other half has no rounds
        merged = self._merge(self.full(height - 1), right, half, blocks - half)
        return _with_parent(merged), height

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


def _with_parent(states: F64) -> F64:
    """The states with the node above them."""
    above: F64 = states + (np.arange(len(states)) ** 2.0)[:, None, None]
    return above
