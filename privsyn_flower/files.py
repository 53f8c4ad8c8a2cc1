"""Files that several processes may write at once: locks, atomic replacement, Arrow tables."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


class DataError(ValueError):
    """Data or its configuration is wrong; the text names the value, the bound and the key."""


class UnavailableError(RuntimeError):
    """A model or library is not on this machine: no user's text is the cause, so it may be told."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (a file made for it) against other processes.

    The lock goes with the process, so a crash leaves nothing to clean up.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as handle:
        if sys.platform == "win32":  # pragma: no cover
            import msvcrt

            msvcrt.locking(handle.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def make_private(path: Path) -> Path:
    """Make `path` its owner's only: a file 0600; a folder 0700, created when nothing is there."""
    if not path.is_file():
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    path.chmod(PRIVATE_FILE if path.is_file() else PRIVATE_FOLDER)
    return path


def build_folder(target: Path, fill: Callable[[Path], None]) -> Path:
    """`fill` a temporary folder (0700) and rename it to `target`; a reader sees all or nothing.

    Several processes may call at once: one builds, the others wait and find it. Returns target.
    """
    with locked(target.with_name(target.name + ".lock")):
        if target.exists():
            return target
        scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
        try:
            fill(scratch)
            scratch.replace(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def write_atomic(target: Path, fill: Callable[[Path], None]) -> None:
    """`fill` a temporary file (0600) beside `target` and rename it to `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f"{target.name}.", dir=target.parent)
    os.close(descriptor)
    scratch = Path(name)
    try:
        fill(scratch)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_table(path: Path, columns: Mapping[str, Sequence[Any]], *, rows_per_batch: int) -> None:
    """Columns of Python values -> an Arrow file, readable in slices without loading the rest."""
    arrow = require_arrow()
    table = arrow.table({name: list(values) for name, values in columns.items()})
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)


def read_table(path: Path, start: int = 0, length: int | None = None) -> dict[str, list[Any]]:
    """Rows [start, start + length) of an Arrow file -> columns of Python values.

    Raises DataError where the file is damaged or not there.
    """
    arrow = require_arrow()
    try:
        with arrow.memory_map(str(path)) as source:
            table = arrow.ipc.open_file(source).read_all().slice(start, length)
            columns: dict[str, list[Any]] = table.to_pydict()
    except (OSError, ValueError, KeyError, arrow.ArrowException) as error:
        raise damaged(path, error) from None
    return columns


def damaged(path: Path, error: Exception) -> DataError:
    """What is said of a file in a cache that cannot be read."""
    return DataError(
        f"{path} is damaged or incomplete ({type(error).__name__}): delete the folder "
        f"{path.parent}, and the next run builds it again"
    )


def require_arrow() -> Any:
    """The pyarrow module, imported on demand: a device that reads jsonl never needs it."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise DataError(
            "this source needs pyarrow: pip install 'privsyn-flower[server]'"
        ) from error
    return pyarrow
