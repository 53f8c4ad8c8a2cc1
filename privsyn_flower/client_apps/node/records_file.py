"""The file under a node's records: whose it is, how it begins, one transaction at a time.

The records count their changes (table `changes`), and the highest count is in a file beside them,
with what tells the records' key. Records that count less than the file says were put back from an
older copy, which has forgotten what came after: the node refuses to go on. A kill between the two
leaves the file behind, never ahead; so does a power cut, as the file is not fsynced. It does not
help where the whole folder was put back, or where the file was lost with the records.
"""

from __future__ import annotations

import hmac
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from privsyn_flower.common.files import (
    PRIVATE_FILE,
    build_file,
    locked,
    private_folder,
    sync_folder,
)
from privsyn_flower.common.sqlite_file import transaction
from privsyn_flower.secagg.identity import create_secret, read_secret

KEY_FILE, CHANGES_FILE = "node-users.key", "node-changes.json"
_APPLICATION = 0x70737966  # "psyf": SQLite's header field for whose file this is
_LAYOUT = 5
_TABLES = """
CREATE TABLE header (key_check BLOB NOT NULL);
CREATE TABLE marks (
    run TEXT NOT NULL, query TEXT NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
    asked INTEGER NOT NULL, PRIMARY KEY (run, query));
CREATE TABLE users (
    id BLOB PRIMARY KEY, participations INTEGER NOT NULL, gaussian REAL NOT NULL,
    distance REAL NOT NULL, withdrawn INTEGER NOT NULL);
CREATE TABLE last_rounds (
    run TEXT NOT NULL, id BLOB NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (run, id));
CREATE TABLE attendance (
    run TEXT NOT NULL, query TEXT NOT NULL, id BLOB NOT NULL, round INTEGER NOT NULL,
    participations INTEGER NOT NULL, PRIMARY KEY (run, query, id));
CREATE TABLE matrices (
    run TEXT NOT NULL, query TEXT NOT NULL, terms TEXT NOT NULL, rounds INTEGER NOT NULL,
    PRIMARY KEY (run, query));
CREATE TABLE vectors (
    run TEXT NOT NULL, query TEXT NOT NULL, round INTEGER NOT NULL, token TEXT NOT NULL,
    PRIMARY KEY (run, query, round));
CREATE TABLE stages (
    run TEXT NOT NULL, query TEXT NOT NULL, stage TEXT NOT NULL, round INTEGER NOT NULL,
    attempt INTEGER NOT NULL, PRIMARY KEY (run, query, stage));
CREATE TABLE changes (count INTEGER NOT NULL);
CREATE TABLE pins (peer TEXT PRIMARY KEY, key BLOB NOT NULL, weight INTEGER);
"""


class RecordsError(RuntimeError):
    """The node's records cannot be trusted or reached; the text names the file and what to do."""


class RecordsFile:
    """An SQLite file at `path` and the key of its users' ids beside it; made at the first use."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.key_path = self.path.with_name(KEY_FILE)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction of a connection of its own; committed, or as if it had never been.

        Raises RecordsError, IdentityError (the key may have been read by others) or OSError.
        """
        private_folder(self.path.parent)
        if not (self.key_path.exists() and self.path.exists()):
            with locked(self.path.with_suffix(".lock")):
                self._complete()
        key_check = _check(self.key_path)
        with self._connection() as database:
            found = database.execute("SELECT key_check FROM header").fetchone()
            if found is None or not hmac.compare_digest(found[0], key_check):
                raise RecordsError(
                    f"{self.key_path} is not the key of {self.path}: restore the one it was made "
                    "with, or users' limits would start again from zero"
                )
            row = database.execute("SELECT count FROM changes").fetchone()
            count = known = 0 if row is None else int(row[0])
            if known < self._seen(key_check):
                raise RecordsError(
                    f"{self.path} is an older copy, which has forgotten what users have spent "
                    f"since, or {CHANGES_FILE} is of a later moment: put the latest of both back; "
                    f"removing it and {self.key_path} makes every user's limits start again from "
                    "zero"
                )
            before = database.total_changes
            yield database
            if database.total_changes > before:
                count = known + 1
                database.execute("DELETE FROM changes")
                database.execute("INSERT INTO changes VALUES (?)", (count,))
        if count > known:
            self._remember(key_check, count)

    def _remember(self, key_check: bytes, count: int) -> None:
        """Keep the count of a transaction that is on disk; a later one's stays."""
        changes = self.path.with_name(CHANGES_FILE)
        with locked(changes.with_suffix(".lock")):
            if count > self._seen(key_check):
                row = json.dumps({"key_check": key_check.hex(), "count": count})
                build_file(changes, lambda scratch: scratch.write_text(row))

    def _seen(self, key_check: bytes) -> int:
        """The highest count that was kept for these records; 0 where there is none."""
        try:
            kept = json.loads(self.path.with_name(CHANGES_FILE).read_text(encoding="utf-8"))
            return int(kept["count"]) if kept["key_check"] == key_check.hex() else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def ids(self, users: Sequence[str]) -> list[bytes]:
        """Users as the file knows them: HMAC-SHA256 of each id under the file's key.

        Of the id as data files have it (`data.values.to_name`), whoever spelt it with blanks.
        """
        from privsyn_flower.data.values import to_name

        key = read_secret(self.key_path)
        return [hmac.digest(key, to_name(user).encode(), "sha256") for user in users]

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with transaction(self.path, self._check_header) as database:
                yield database
        except sqlite3.Error as error:
            raise RecordsError(
                f"{self.path} cannot be used ({error}): restore it from a copy, or end the "
                "process that holds it"
            ) from None

    def _check_header(self, database: sqlite3.Connection) -> None:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (layout,) = database.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise RecordsError(f"{self.path} is another program's file: move it away")
        if layout != _LAYOUT:
            raise RecordsError(
                f"{self.path} has layout {layout}, this version reads {_LAYOUT}: use the version "
                "of privsyn-flower that wrote it"
            )

    def _complete(self) -> None:
        """Make the file, then its key, each whole or not at all; the caller holds the lock.

        The key comes last: where there is a key there was a file, and its loss is no new start.
        """
        if self.key_path.exists() and not self.path.exists():
            raise RecordsError(
                f"{self.path} is gone but its key is there: restore it from a copy; removing "
                f"{self.key_path} too makes every user's limits start again from zero"
            )
        if not self.path.exists():
            self._build()
        if self.key_path.exists():
            return  # another process was faster
        scratch = self.key_path.with_suffix(".new")
        scratch.unlink(missing_ok=True)
        create_secret(scratch)
        with self._connection() as database:
            for table in ("marks", "stages", "users", "pins"):
                if database.execute(f"SELECT 1 FROM {table}").fetchone():
                    raise RecordsError(
                        f"{self.key_path} is gone: restore it from a copy, without it {self.path} "
                        "does not know its users"
                    )
            database.execute("DELETE FROM header")
            database.execute("INSERT INTO header VALUES (?)", (_check(scratch),))
        scratch.replace(self.key_path)
        sync_folder(self.path.parent)

    def _build(self) -> None:
        """An empty file of this layout, with a rollback journal: a write-ahead log is for processes
        of one machine, and a simulation in a Ray cluster has its folder on several."""
        scratch = self.path.with_suffix(".new")
        scratch.unlink(missing_ok=True)
        scratch.touch(mode=PRIVATE_FILE)
        database = sqlite3.connect(scratch, isolation_level=None)
        try:
            # Without files beside it, which a kill would leave for the next attempt to find.
            database.execute("PRAGMA journal_mode = MEMORY").fetchone()
            database.executescript(f"BEGIN; {_TABLES} COMMIT;")
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {_LAYOUT}")
        finally:
            database.close()
        scratch.replace(self.path)
        sync_folder(self.path.parent)


def _check(key_path: Path) -> bytes:
    """Tells one key from another without telling the key."""
    return hmac.digest(read_secret(key_path), b"privsyn-flower records", "sha256")
