"""A private SQLite file: readable by its owner only, one transaction at a time, on disk at its end.

For what a node must not forget: on a device every message is handled by a fresh process, and two
may be in flight.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from privsyn_flower.common.files import PRIVATE_FILE, private_folder

LOCK_SECONDS = 20.0  # that another process's transaction is waited for


@contextmanager
def transaction(
    path: Path, check: Callable[[sqlite3.Connection], None] = lambda database: None
) -> Iterator[sqlite3.Connection]:
    """One transaction of a connection of its own; committed, or as if it had never been.

    Under the writer's lock (`BEGIN IMMEDIATE`) and fsynced, its folder too (`synchronous = EXTRA`:
    else a journal that was removed may be back after a power cut, and undo the transaction): a kill
    leaves all of it or nothing, and nothing acknowledged is lost. check: looks at the file before
    the lock is taken. Raises sqlite3.Error or OSError.
    """
    path.chmod(PRIVATE_FILE)  # SQLite gives its log files the mode of this one
    database = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)
    try:
        database.execute("PRAGMA synchronous = EXTRA")
        check(database)
        database.execute("BEGIN IMMEDIATE")
        yield database
        database.execute("COMMIT")
    finally:
        database.close()  # rolls back what was not committed


def private_file(path: Path) -> Path:
    """`path`, empty and 0600 when nothing is there, in a folder 0700: never open to others."""
    private_folder(path.parent)
    path.touch(mode=PRIVATE_FILE)  # made with its mode
    path.chmod(PRIVATE_FILE)
    return path
