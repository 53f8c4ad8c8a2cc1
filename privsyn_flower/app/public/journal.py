"""What a stage wrote and what it was made of, which agree after a kill at any moment.

Lines are appended to STAGE.jsonl; STAGE.state.json says, every few seconds and at the end, how much
of the file holds, and which pieces of the source are done. What was written after that is cut off
and made again, of answers that are kept (`asking`). Memory does not grow with the corpus: pieces
are taken in the source's order, so that the last one and the few that are under way say all.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from privsyn_flower.common.files import DataError, file_lock, write_atomic

T = TypeVar("T")
Position = tuple[int, ...]  # of a piece in its source; later pieces have larger ones

EVERY = 2.0  # seconds between two states on disk
FIELDS = frozenset(
    ("settings", "until", "bytes", "lines", "taken", "last", "open", "counts", "seconds")
)


def state_path(folder: Path, stage: str) -> Path:
    """Where the state of a stage lies."""
    return folder / f"{stage}.state.json"


def read_state(folder: Path, stage: str) -> dict[str, Any] | None:
    """The state of a stage; None: it was not begun. Raises DataError for a damaged one."""
    path = state_path(folder, stage)
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not state.keys() >= FIELDS or state["bytes"] < 0:
            raise ValueError
        return state
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f"{path} is damaged: remove it with {stage}.jsonl, to begin again"
        ) from None


class Journal:
    """The lines of one stage of a corpus (a context manager; one process at a time has it).

    Args:
        folder: of the corpus; made when it is not there.
        stage: the name of its files.
        settings: what the lines depend on. A stage begun with others is refused (DataError), or
            begun again if `anew`.

    Raises DataError, on entering, for a file that no stage wrote: it is not the stage's to change.

    Attributes:
        counts: of whatever the stage counts; those of pieces that are not done are kept apart.
        until: of how much of the source all is taken and done; None: it is not.
        open: pieces under way, with their counts, which hold when they are done. again: those of
            them that were so when the state was last written down by an earlier process.
        begun: tells these lines from those of the same stage when it is begun again.
    """

    def __init__(
        self, folder: Path, stage: str, settings: Mapping[str, Any], *, anew: bool = False
    ) -> None:
        self.folder, self.stage, self.settings = folder, stage, dict(settings)
        self.path, self.anew = folder / f"{stage}.jsonl", anew
        self._left = ExitStack()

    def _load(self) -> None:
        """Where an earlier process left off, or the beginning."""
        state = read_state(self.folder, self.stage)
        self._new = state is None
        if state is None or (self.anew and state["settings"] != self.settings):
            state = {"begun": secrets.token_hex(8)}
        else:
            self._compare(state["settings"])
        self.begun = state.get("begun")
        self.bytes, self.lines = int(state.get("bytes", 0)), int(state.get("lines", 0))
        self.taken, self.seconds = int(state.get("taken", 0)), float(state.get("seconds", 0.0))
        self.counts = Counter[str](state.get("counts", {}))
        self.last = tuple(state["last"]) if state.get("last") else None
        self.again = {tuple(position) for position in state.get("open", ())}
        self.until: int | str | None = state.get("until")
        self.open = {position: Counter[str]() for position in self.again}

    def _compare(self, settings: Mapping[str, Any]) -> None:
        """Raises DataError where the lines were begun with other settings."""
        for key in (*self.settings, *settings):
            before, now = settings.get(key), self.settings.get(key)
            if before != now:
                raise DataError(
                    f"{self.path} was begun with {key} = {before!r}, and now it is {now!r}: change "
                    f"it back, name another folder, or remove {self.stage}.jsonl and "
                    f"{self.stage}.state.json to begin again"
                )

    def __enter__(self) -> Journal:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as entered:
            entered.enter_context(file_lock(self.folder / f".{self.stage}.lock"))
            self._load()
            self._file = entered.enter_context(self._opened())
            self._began = time.monotonic()
            self.save()  # before the first line: no file of a stage is without a state
            self._file.truncate(self.bytes)
            self._left = entered.pop_all()
        return self

    def _opened(self) -> BinaryIO:
        """The file, to append to. Raises DataError for one that is not the stage's, or is short."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        try:
            file = os.fdopen(os.open(self.path, flags, 0o666), "ab")
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise DataError(
                f"{self.path} is a symbolic link, which is not written through: move it away, or "
                "name another folder"
            ) from None
        size = os.fstat(file.fileno()).st_size
        if not (self._new and size) and size >= self.bytes:
            return file
        file.close()
        raise DataError(
            f"{self.path} is there, and nothing tells that `privsyn public` wrote it: move it "
            "away, or name another folder"
            if self._new
            else f"{self.path} is shorter than it was written: restore it, or remove "
            f"it with {self.stage}.state.json to begin again"
        )

    def __exit__(self, *_: object) -> None:
        with self._left:  # closed also where the disk is full
            self.save()

    @property
    def start(self) -> Position | None:
        """The earliest piece of the source that may be needed; None: its first."""
        return min(self.again, default=self.last)

    def take(
        self, pieces: Iterable[tuple[Position, T]], most: int = 0
    ) -> Iterator[tuple[Position, T]]:
        """The pieces that are not done yet, each marked as under way. most: of all ever; 0: all."""
        for position, piece in pieces:
            if self.last is None or position > self.last:
                if most and self.taken >= most:
                    return
                self.last = position
                self.taken += 1
                self.open[position] = Counter()
            elif position not in self.again:
                continue
            yield position, piece

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line."""
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        self._file.write(data)
        self.bytes += len(data)
        self.lines += 1

    def done(self, position: Position) -> None:
        """A piece has all its lines."""
        self.counts += self.open.pop(position)
        self.again.discard(position)

    @property
    def due(self) -> bool:
        """Whether it is time to write the state down."""
        return time.monotonic() - self._written >= EVERY

    def tick(self) -> None:
        """Write the state down, if it is time."""
        if self.due:
            self.save()

    def save(self) -> None:
        """Lines and state on disk, the lines first."""
        self._file.flush()
        os.fsync(self._file.fileno())
        now = time.monotonic()
        self.seconds, self._began = self.seconds + now - self._began, now
        state = {
            "settings": self.settings,
            "begun": self.begun,
            "until": self.until,
            "bytes": self.bytes,
            "lines": self.lines,
            "taken": self.taken,
            "last": self.last,
            "open": sorted(self.open),
            "counts": dict(self.counts),
            "seconds": round(self.seconds, 3),
        }
        write_atomic(state_path(self.folder, self.stage), json.dumps(state, indent=1).encode())
        self._written = now


def lines_of(folder: Path, stage: str, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """(byte offset, line) of what is written down of a stage, from the line at `offset` on."""
    state = read_state(folder, stage)
    if state is None:
        return
    with (folder / f"{stage}.jsonl").open("rb") as file:
        file.seek(offset)
        while offset < state["bytes"]:
            data = file.readline()
            yield offset, json.loads(data)
            offset += len(data)
