"""The ledger's file: locked, fsynced JSON lines that survive a kill at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privsyn_flower.files import replace_private, sync_folder

Row = dict[str, Any]


class LedgerError(RuntimeError):
    """The ledger does not allow this, or its file cannot be trusted."""


def missing(path: Path) -> LedgerError:
    """The ledger that charges were written to is not there."""
    return LedgerError(
        f"no ledger at {path}: it was moved or removed, and it alone knows what was spent: put it "
        "back, or start a new run in another folder"
    )


@contextmanager
def locked(path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the file under an exclusive lock, until the block ends.

    create: make a missing file (mode 0600) and its folders. Raises LedgerError when the file
    is missing otherwise: a ledger that vanished must not start again from nothing.
    """
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        raise missing(path) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)  # releases the lock


def read_rows(descriptor: int, path: Path) -> list[Row]:
    """All complete rows of the open file. Raises LedgerError as `parsed` does."""
    return parsed(_read_all(descriptor), path)


def parsed(content: bytes, path: Path) -> list[Row]:
    """All complete rows. A last line without newline is skipped: nobody relied on it.

    Raises LedgerError naming the line when a complete one is not a JSON object.
    """
    complete = content[: content.rfind(b"\n") + 1]
    rows = []
    for number, line in enumerate(complete.splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise LedgerError(f"{path}, line {number} is damaged: restore it from a copy")
        rows.append(row)
    return rows


def append_row(descriptor: int, path: Path, row: Row) -> None:
    """Cut off a torn last line, append one row, fsync; the first row syncs the folder too.

    When the disk refuses, the file is put back to the rows it had, and OSError names it.
    """
    end = _read_all(descriptor).rfind(b"\n") + 1
    os.ftruncate(descriptor, end)
    line = json.dumps(row, allow_nan=False).encode("utf-8") + b"\n"
    try:
        written = 0
        while written < len(line):
            written += os.pwrite(descriptor, line[written:], end + written)
        os.fsync(descriptor)
        if end == 0:
            sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_rows_atomically(path: Path, rows: list[Row]) -> None:
    """Replace the file at `path` (0600) by these rows; a reader sees the old or the new one."""
    replace_private(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def _read_all(descriptor: int) -> bytes:
    parts = []
    position = 0
    while part := os.pread(descriptor, 1 << 20, position):
        parts.append(part)
        position += len(part)
    return b"".join(parts)
