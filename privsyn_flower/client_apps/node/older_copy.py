"""Whether a node's records were put back from an older copy, which has forgotten what came after.

The records count their changes (table `changes`), and the highest count is in a file beside them,
with what tells the records' key. Records that count less than the file says are an older copy: the
node refuses to go on. A kill between the two leaves the file behind, never ahead; so does a power
cut, as the file is not fsynced. It does not help where the whole folder was put back, or where the
file was lost with the records.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from privsyn_flower.common.files import build_file, locked

CHANGES_FILE = "node-changes.json"


class OlderCopy(Exception):
    """These records count fewer changes than the node has seen."""


def check_not_older(database: sqlite3.Connection, folder: Path, key_check: bytes) -> int:
    """How many changes the records count, in a transaction that has begun. Raises OlderCopy."""
    row = database.execute("SELECT count FROM changes").fetchone()
    count = 0 if row is None else int(row[0])
    if count < _seen(folder, key_check):
        raise OlderCopy
    return count


def count_change(database: sqlite3.Connection, count: int) -> int:
    """One more change, as the last of its transaction; the new count."""
    database.execute("DELETE FROM changes")
    database.execute("INSERT INTO changes VALUES (?)", (count + 1,))
    return count + 1


def remember_count(folder: Path, key_check: bytes, count: int) -> None:
    """Keep the count of a transaction that is on disk; a later one's stays."""
    with locked(folder / "node-changes.lock"):
        if count > _seen(folder, key_check):
            row = json.dumps({"key_check": key_check.hex(), "count": count})
            build_file(folder / CHANGES_FILE, lambda scratch: scratch.write_text(row))


def _seen(folder: Path, key_check: bytes) -> int:
    """The highest count that was kept for these records; 0 where there is none."""
    try:
        kept = json.loads((folder / CHANGES_FILE).read_text(encoding="utf-8"))
        return int(kept["count"]) if kept["key_check"] == key_check.hex() else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0
