"""The noise of a run, round by round: from the key, and from what past rounds left.

A mechanism's recurrence makes the noise of a round from fresh normal numbers and from records of
earlier rounds. Coordinates do not meet, so it runs over chunks of them: nothing has the size of
rounds x rounds, or of rounds x length.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

import numpy as np

from privsyn_flower.arrays import F64
from privsyn_flower.privacy.correlated.gaussians import CHUNK, LONGEST, KeyedGaussians
from privsyn_flower.privacy.correlated.keys import NoiseKey
from privsyn_flower.privacy.correlated.records import (
    FileRecords,
    MemoryRecords,
    NoRecords,
    Records,
)

Keep = Literal["files", "memory", "nothing"]
Draw = Callable[[int, int], F64]  # (round, leaf) -> fresh standard normal numbers
ReadRecord = Callable[[int], F64]  # an earlier round -> its record, (rows, count)
Source = Callable[[int, int, int, int], F64]  # (round, leaf, start, count) -> (count,)


class Recurrence(Protocol):
    """How the noise of a round comes from the rounds before; the same for every coordinate."""

    rows: int  # of a record

    def live(self, rnd: int) -> Collection[int]:
        """Rounds before `rnd` whose records `rnd` or a later round may read; none for round 1."""

    def step(self, rnd: int, draw: Draw, record: ReadRecord) -> tuple[F64, F64]:
        """The noise of `rnd`, (count,), and its record, (rows, count)."""


class Mechanism(Protocol):
    """What a stream needs to know of a factorization."""

    @property
    def rounds(self) -> int: ...
    def describe(self) -> str: ...
    def recurrence(self) -> Any: ...


class Stream:
    """The noise of each round at standard deviation 1 of z. PRIVATE, as is all it keeps.

    A round's noise is a function of the key, the mechanism and the length, so the same round
    gives the same bits again, after a restart too. Records only save time: where the ones that a
    round needs are missing, the rounds before are drawn again. State is float64: rounding it
    shifts z by 1e-16 of itself, which moves no digit of epsilon; float32 would shift it by 1e-7
    in each of millions of coordinates.
    """

    def __init__(
        self, recurrence: Recurrence, rounds: int, length: int, source: Source, records: Records
    ) -> None:
        if not 1 <= length <= LONGEST:
            raise ValueError(f"length = {length} must be from 1 to {LONGEST}")
        self._recurrence, self._rounds, self.length = recurrence, rounds, length
        self._source, self._records = source, records

    def noise(self, rnd: int) -> F64:
        """The noise of round `rnd`, from 1: (length,) float64, PRIVATE.

        Rounds are meant to be asked for in order, each as often as needed; another one is right
        but may have to draw all rounds before it. Raises ValueError on rnd.
        """
        if not 1 <= rnd <= self._rounds:
            raise ValueError(f"round {rnd} is not from 1 to {self._rounds}, the rounds calibrated")
        there = self._records.rounds() if self._recurrence.rows else set()
        first = rnd
        while not there.issuperset(self._recurrence.live(first)):
            first -= 1
        needed = {*self._recurrence.live(rnd), *self._after(rnd)}
        kept = needed & there
        new = sorted(needed - there) if self._recurrence.rows else []
        noise = np.empty(self.length)
        for record in new:
            self._records.begin(record, kept)
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            starts = range(0, self.length, CHUNK)
            for _ in pool.map(lambda start: self._chunk(first, rnd, start, new, noise), starts):
                pass
        for record in new:
            self._records.end(record)
        return noise

    def _after(self, rnd: int) -> Collection[int]:
        return self._recurrence.live(rnd + 1) if rnd < self._rounds else ()

    def _chunk(self, first: int, last: int, start: int, new: list[int], noise: F64) -> None:
        """Rounds first, ..., last for the coordinates from `start` on."""
        count = min(CHUNK, self.length - start)
        made: dict[int, F64] = {}

        def draw(rnd: int, leaf: int) -> F64:
            return self._source(rnd, leaf, start, count)

        def record(rnd: int) -> F64:
            return made[rnd] if rnd in made else self._records.read(rnd, start, count)

        for rnd in range(first, last + 1):
            drawn, made[rnd] = self._recurrence.step(rnd, draw, record)
            if rnd in new:
                self._records.write(rnd, start, made[rnd])
            later = self._recurrence.live(rnd + 1)
            made = {past: kept for past, kept in made.items() if past in later}
        noise[start : start + count] = drawn


def open_stream(
    key: NoiseKey, mechanism: Mechanism, length: int, keep: Keep, promise: str
) -> Stream:
    """The stream of a run under its key; `keep` says where records are, and changes no bit.

    promise: what else the noise of the run was made for, such as its size; public.

    "files": beside the key, so that a restart goes on at once. "memory": in this process.
    "nothing": every round is drawn again from round 1, in time that grows with the round.
    Raises ValueError for another mechanism, length or promise than the key's first.
    """
    recurrence = mechanism.recurrence()
    records: Records
    if keep == "files":
        records = FileRecords(key.place, recurrence.rows, length)
    elif keep == "memory":
        records = MemoryRecords(recurrence.rows, length)
    elif keep == "nothing":
        records = NoRecords()
    else:
        raise ValueError(f"keep = {keep!r} must be 'files', 'memory' or 'nothing'")
    source = KeyedGaussians(
        key.subkey(f"{mechanism.describe()} length {length} {promise}".rstrip())
    )
    return Stream(recurrence, mechanism.rounds, length, source, records)
