"""What a stream keeps of past rounds: arrays in files beside the key, in memory, or nothing.

A record is (rows, length) float64, written and read in chunks of coordinates. Records are noise,
so they are as PRIVATE as the key.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import numpy as np

from privsyn_flower.arrays import F64
from privsyn_flower.files import sync_folder
from privsyn_flower.privacy.correlated.keys import shred


class Records(Protocol):
    """Records by round. A round's record is there as a whole or not at all."""

    def rounds(self) -> set[int]: ...
    def read(self, rnd: int, start: int, count: int) -> F64: ...
    def begin(self, rnd: int, kept: Collection[int]) -> None:
        """A new record; those of rounds not in `kept` are not needed any more."""

    def write(self, rnd: int, start: int, chunk: F64) -> None: ...
    def end(self, rnd: int) -> None:
        """The record is whole: from here on it is found, after a kill or a power cut too."""


class NoRecords:
    """Nothing is kept: every round is drawn again from the first one on."""

    def rounds(self) -> set[int]:
        return set()

    def read(self, rnd: int, start: int, count: int) -> F64:
        raise KeyError(rnd)

    def begin(self, rnd: int, kept: Collection[int]) -> None: ...

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

    def begin(self, rnd: int, kept: Collection[int]) -> None:
        dead = [past for past in self._done if past not in kept]
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

    def begin(self, rnd: int, kept: Collection[int]) -> None:
        self._close()
        written = self._place / f"record-{rnd:08d}.new"
        if not self._begun:
            for stale in set(self._place.glob("record-*.new")) - {written}:
                shred(stale)
        for past in self.rounds() - set(kept) - {rnd}:
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
