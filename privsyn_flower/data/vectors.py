"""Private embeddings at rest: one SQLite file per node, readable by its owner only.

Embeddings can be inverted to text, so what is deleted is overwritten (`secure_delete`), and the
pages of a change wait in memory, not in a journal file that would keep them on the disk. A
process killed in the middle of a change can therefore leave a damaged file: every row carries a
digest of its content and owner, so that a damaged one is never taken for a user's.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F32
from privsyn_flower.common.sqlite_file import LOCK_SECONDS, private_file

# Raise it when rows are computed (further apart than runtimes are, 1e-5) or kept in another way:
# older rows are then erased.
LAYOUT = 2
_SCHEMA = """CREATE TABLE embeddings (
    user TEXT NOT NULL, model TEXT NOT NULL, texts BLOB NOT NULL, rows INTEGER NOT NULL,
    digest BLOB NOT NULL, vectors BLOB NOT NULL, PRIMARY KEY (user, model))"""
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class VectorFile:
    """The rows of one node's users under one embedder (`model`, its fingerprint), on disk.

    `wanted` below is user -> hash of the user's texts. Methods raise sqlite3.Error or OSError.
    """

    def __init__(self, folder: Path, model: str) -> None:
        self.folder, self.model = folder, model
        self.path = folder / "embeddings.sqlite"

    def read(self, wanted: Mapping[str, bytes]) -> dict[str, F32]:
        """user -> rows (n, d), for those whose rows are here, whole and finite."""
        found: dict[str, F32] = {}
        names = list(wanted)
        with self._open() as database:
            for start in range(0, len(names), 500):  # SQLite allows 999 parameters
                part = names[start : start + 500]
                marks = ",".join("?" * len(part))
                query = (
                    "SELECT user, texts, rows, digest, vectors FROM embeddings "
                    f"WHERE model = ? AND user IN ({marks})"
                )
                for user, texts, *block in database.execute(query, [self.model, *part]):
                    rows = self._rows(user, wanted[user], *block)
                    if texts == wanted[user] and rows is not None:
                        found[user] = rows
        return found

    def write(self, fresh: Mapping[str, F32], wanted: Mapping[str, bytes]) -> None:
        """Keep users' rows, in place of what was kept of them under this model."""
        values = [
            (user, self.model, wanted[user], len(rows), self._digest(user, wanted[user], rows),
             rows.tobytes())
            for user, rows in fresh.items()
        ]  # fmt: skip
        with self._open() as database, database:
            database.executemany(
                "INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?, ?, ?, ?)", values
            )

    def keep_only(self, wanted: Mapping[str, bytes]) -> tuple[set[str], set[int]]:
        """Erase, for every model, the rows of text that no user has any longer.

        Returns whose rows are kept under this model, and of which widths; they may be damaged.
        """
        users, widths = set[str](), set[int]()
        with self._open() as database:
            # Neither reads the vectors, of which SQLite knows the length without them.
            query = "SELECT user, texts, model, rows, length(vectors) FROM embeddings"
            stale = set()
            for user, texts, model, rows, length in database.execute(query):
                if wanted.get(user) != texts:
                    stale.add((user, texts))
                elif model == self.model:
                    users.add(user)
                    if isinstance(rows, int) and rows > 0 and isinstance(length, int):
                        widths.add(length // (4 * rows))
            if stale:
                with database:
                    database.executemany(
                        "DELETE FROM embeddings WHERE user = ? AND texts = ?", stale
                    )
        return users, widths

    def forget(self, user: str) -> bool:
        """Erase a user's rows of every model; whether there were any."""
        if not self.path.exists():
            return False
        try:
            with self._open() as database, database:
                gone = database.execute("DELETE FROM embeddings WHERE user = ?", (user,))
                return gone.rowcount > 0
        except sqlite3.DatabaseError as error:
            if not self.discard_broken(error):
                raise
            return True

    def discard_broken(self, error: BaseException) -> bool:
        """Remove the file if `error` says that it is damaged; the next use starts a new one."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if isinstance(error, sqlite3.DatabaseError) and code in _BROKEN:
            self.path.unlink(missing_ok=True)
            return True
        return False

    def _rows(self, user: str, texts: bytes, count: Any, digest: Any, vectors: Any) -> F32 | None:
        """A row's vectors (count, d), or None when they are damaged."""
        try:
            rows = np.frombuffer(vectors, dtype=np.float32).reshape(count, -1)
        except (TypeError, ValueError):
            return None
        if digest != self._digest(user, texts, rows) or not np.isfinite(rows).all():
            return None
        return rows

    def _digest(self, user: str, texts: bytes, rows: F32) -> bytes:
        head = repr((user, self.model, texts, rows.shape)).encode("utf-8", "surrogatepass")
        return hashlib.sha256(head + b"\0" + rows.tobytes()).digest()

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(private_file(self.path), timeout=LOCK_SECONDS)
        try:
            database.execute("PRAGMA secure_delete = ON")
            database.execute("PRAGMA journal_mode = MEMORY").fetchone()
            if _layout(database) != LAYOUT:
                _start_afresh(database)
            yield database
        finally:
            database.close()


def _layout(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _start_afresh(database: sqlite3.Connection) -> None:
    """Erase the rows of another layout; another process may be at it too."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        if _layout(database) != LAYOUT:
            database.execute("DROP TABLE IF EXISTS embeddings")
            database.execute(_SCHEMA)
            database.execute(f"PRAGMA user_version = {LAYOUT}")
