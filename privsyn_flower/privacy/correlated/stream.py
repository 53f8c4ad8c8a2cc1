"""The noise of a run, round by round: from the key, and from records that past rounds left.

A mechanism's recurrence makes the noise of a round from fresh normal numbers and from records of
earlier rounds. Coordinates do not meet, so it runs over chunks of them: nothing has the size of
rounds x rounds, or of rounds x length. A record is (rows, length) float64, in files beside the key,
in memory, or not kept. Records are noise, so they are as PRIVATE as the key.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.files import sync_folder
from privsyn_flower.privacy.correlated.keys import NoiseKey, shred
from privsyn_flower.privacy.noise.gaussian import CHUNK, LONGEST, KeyedGaussians

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
    key: NoiseKey, mechanism: Mechanism, length: int, keep: Keep, binding: str
) -> Stream:
    """The stream of a run under its key; `keep` says where records are, and changes no bit.

    binding: what else the noise of the run was made for, such as its size; public.

    "files": beside the key, so that a restart goes on at once. "memory": in this process.
    "nothing": every round is drawn again from round 1, in time that grows with the round.
    Raises ValueError for another mechanism, length or binding than the key's first.
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
        key.subkey(f"{mechanism.describe()} length {length} {binding}".rstrip())
    )
    return Stream(recurrence, mechanism.rounds, length, source, records)


# --- records of past rounds ---------------------------------------------------------------------


class Records(Protocol):
    """Records by round. A round's record is there as a whole or not at all."""

    def rounds(self) -> set[int]: ...
    def read(self, rnd: int, start: int, count: int) -> F64: ...
    def begin(self, rnd: int, needed: Collection[int]) -> None:
        """A new record; those of rounds not in `needed` are not needed any more."""

    def write(self, rnd: int, start: int, chunk: F64) -> None: ...
    def end(self, rnd: int) -> None:
        """The record is whole: from here on it is found, after a kill or a power cut too."""


class NoRecords:
    """Nothing is kept: every round is drawn again from the first one on."""

    def rounds(self) -> set[int]:
        return set()

    def read(self, rnd: int, start: int, count: int) -> F64:
        raise KeyError(rnd)

    def begin(self, rnd: int, needed: Collection[int]) -> None: ...

    def write(self, rnd: int, start: int, chunk: F64) -> None: ...

    def end(self, rnd: int) -> None: ...


class MemoryRecords:
    """Records in this process; after a restart they are drawn again."""

    def __init__(self, rows: int, length: int) -> None:
        self._shape = (rows, length)
        self._done: dict[int, F64] = {}
        self._begun: dict[int, F64] = {}

    def rounds(self) -> set[int]:
        return set(self._done)

    def read(self, rnd: int, start: int, count: int) -> F64:
        return self._done[rnd][:, start : start + count]

    def begin(self, rnd: int, needed: Collection[int]) -> None:
        dead = [past for past in self._done if past not in needed]
        free = [self._done.pop(past) for past in dead]
        self._begun[rnd] = free[0] if free else np.empty(self._shape)

    def write(self, rnd: int, start: int, chunk: F64) -> None:
        self._begun[rnd][:, start : start + chunk.shape[1]] = chunk

    def end(self, rnd: int) -> None:
        self._done[rnd] = self._begun.pop(rnd)


class FileRecords:
    """One file of mode 0600 for each round; a new one is written over one not needed any more.

    Writing over it erases the old noise. The file has its round's name only once it is whole and
    on disk. Chunks lie one after the other, each (rows, count).
    """

    def __init__(self, place: Path, rows: int, length: int) -> None:
        self._place, self._rows, self._size = place, rows, 8 * rows * length
        self._open: dict[int, int] = {}  # descriptors of records that are read
        self._begun: dict[int, int] = {}
        self._lock = threading.Lock()

    def _path(self, rnd: int) -> Path:
        return self._place / f"record-{rnd:08d}"

    def rounds(self) -> set[int]:
        """Rounds with a record; one of the wrong size is none, and is drawn again."""
        paths = self._place.glob("record-????????")
        whole = [path.name for path in paths if path.stat().st_size == self._size]
        return {int(name.removeprefix("record-")) for name in whole}

    def read(self, rnd: int, start: int, count: int) -> F64:
        with self._lock:
            if rnd not in self._open:
                self._open[rnd] = os.open(self._path(rnd), os.O_RDONLY | os.O_NOFOLLOW)
        chunk = np.empty((self._rows, count))
        found = os.preadv(self._open[rnd], [chunk.data], 8 * self._rows * start)
        if found != chunk.nbytes:
            raise OSError(f"{self._path(rnd)} ends early: remove it, it will be drawn again")
        return chunk

    def begin(self, rnd: int, needed: Collection[int]) -> None:
        self._close()
        written = self._place / f"record-{rnd:08d}.new"
        if not self._begun:
            for stale in set(self._place.glob("record-*.new")) - {written}:
                shred(stale)
        for past in self.rounds() - set(needed) - {rnd}:
            if written.exists():
                shred(self._path(past))
            else:
                self._path(past).rename(written)
        self._begun[rnd] = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    def write(self, rnd: int, start: int, chunk: F64) -> None:
        whole = np.ascontiguousarray(chunk)
        sent = os.pwrite(self._begun[rnd], whole.data, 8 * self._rows * start)
        if sent != whole.nbytes:
            raise OSError(f"disk full at {self._place}: the noise of round {rnd} needs room")

    def end(self, rnd: int) -> None:
        opened = self._begun.pop(rnd)
        os.ftruncate(opened, self._size)
        os.fsync(opened)
        os.close(opened)
        path = self._path(rnd)
        path.with_name(path.name + ".new").rename(path)
        sync_folder(self._place)

    def _close(self) -> None:
        for opened in self._open.values():
            os.close(opened)
        self._open.clear()
