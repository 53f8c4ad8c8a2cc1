"""What a node of `secure_vector` must not forget: stages it answered, its peers' keys, weights.

An SQLite file, because Flower's own state is a copy in memory. It knows nothing of anybody's data.
An older copy put back in its place forgets what came after.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privsyn_flower.secagg.cohort import Cohort
from privsyn_flower.secagg.session import Code, SecaggError, Session
from privsyn_flower.sqlite_file import private_file, transaction

REPLAYS_FILE = "secagg.sqlite"
LONGEST_NAME = 256  # of a run or query: the server chooses them, the node keeps them
LARGEST_NUMBER = 2**63 - 1  # that SQLite keeps
_TABLES = (
    "CREATE TABLE IF NOT EXISTS marks (run TEXT, query TEXT, stage TEXT, round INTEGER, "
    "attempt INTEGER, PRIMARY KEY (run, query, stage))",
    "CREATE TABLE IF NOT EXISTS pins (peer TEXT PRIMARY KEY, key BLOB NOT NULL, weight INTEGER)",
)


def mark(folder: Path, stage: str, session: Session) -> None:
    """Write down, on disk before this returns, that a stage of a session is being answered.

    Raises SecaggError(REPEATED) when this stage of (run, query) was answered at this (round,
    attempt) or a later one: of any number of processes, one answers.
    """
    if max(len(session.run), len(session.query)) > LONGEST_NAME or not (
        max(session.round, session.attempt) <= LARGEST_NUMBER
    ):
        raise SecaggError(
            Code.MALFORMED, f"names must have up to {LONGEST_NAME} characters, numbers 63 bits"
        )
    key, now = (session.run, session.query, stage), (session.round, session.attempt)
    with _open(folder) as database:
        last = database.execute(
            "SELECT round, attempt FROM marks WHERE run = ? AND query = ? AND stage = ?", key
        ).fetchone()
        if last is not None and now <= last:
            raise SecaggError(
                Code.REPEATED,
                f"stage {stage!r} was answered at round {last[0]}, attempt {last[1]}: round "
                f"{now[0]}, attempt {now[1]} is not answered again",
            )
        database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)", (*key, *now))


def pin(folder: Path, cohort: Cohort) -> None:
    """Trust on first use: keep every new member's identity key and weight, all or none.

    Raises SecaggError(PEER) when a node id shows another key or weight than before.
    """
    with _open(folder) as database:
        for member in cohort.members:
            peer = str(member.id)
            shown = {"key": member.identity, "weight": min(member.weight, LARGEST_NUMBER)}
            row = database.execute(
                "SELECT key, weight FROM pins WHERE peer = ?", (peer,)
            ).fetchone()
            for (what, value), kept in zip(shown.items(), row or (None, None), strict=True):
                if kept is not None and kept != value:  # an older file kept no weight
                    raise SecaggError(
                        Code.PEER,
                        f"node {peer} shows another {what} than the first time (kept in "
                        f"{folder / REPLAYS_FILE})",
                    )
            row = (peer, *shown.values())
            database.execute("INSERT OR REPLACE INTO pins VALUES (?, ?, ?)", row)


@contextmanager
def _open(folder: Path) -> Iterator[sqlite3.Connection]:
    """Committed when the block ends, as if it had never been when it raises."""
    path = private_file(folder / REPLAYS_FILE)
    try:
        with transaction(path) as database:
            for table in _TABLES:
                database.execute(table)
            if len(database.execute("PRAGMA table_info(pins)").fetchall()) == 2:
                database.execute("ALTER TABLE pins ADD COLUMN weight INTEGER")
            yield database
    except sqlite3.Error as error:
        raise SecaggError(Code.SETUP, f"{path} cannot be used: {error}") from None
