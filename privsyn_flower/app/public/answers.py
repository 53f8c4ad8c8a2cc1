"""Answers of a model, kept by what was asked: what is paid for once is not asked again.

One SQLite file. An answer that `put` returned from survives a kill; the last ones before a power
cut may be lost, and are asked for again.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

from privsyn_flower.files import DataError
from privsyn_flower.text.protocols import Reply

FILE = "answers.sqlite"
LOCK_SECONDS = 60.0  # that another process's write is waited for


class AnswerStore:
    """Replies by key, in `folder`/answers.sqlite; safe to use from several threads.

    Raises DataError for a file that is no such store, or is damaged.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = sqlite3.connect(
            self.path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            # Written ahead: a commit is one append without an fsync, and no kill leaves half of it.
            self._run("PRAGMA journal_mode = WAL")
            self._run("PRAGMA synchronous = NORMAL")
            self._run(
                "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, text TEXT NOT NULL, "
                "prompt_tokens INTEGER, tokens INTEGER)"
            )
            self._run("SELECT key, text, prompt_tokens, tokens FROM answers LIMIT 1")
        except BaseException:
            self.close()
            raise

    def get(self, key: bytes) -> Reply | None:
        """The reply under a key, if there is one."""
        found = self._run("SELECT text, prompt_tokens, tokens FROM answers WHERE key = ?", key)
        return Reply(*found[0]) if found else None

    def put(self, key: bytes, reply: Reply) -> None:
        """Keep a reply with a text; after `close` nothing is kept."""
        if self._database is not None:
            self._run(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)",
                key, reply.text, reply.prompt_tokens, reply.tokens,
            )  # fmt: skip

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._database is None:
                return []  # closed meanwhile: a thread of a stream that was left
            try:
                return self._database.execute(statement, values).fetchall()
            except sqlite3.OperationalError as error:
                raise OSError(f"{self.path}: {error}") from error
            except sqlite3.DatabaseError as error:
                raise DataError(
                    f"{self.path} cannot be read ({error}): move it away, and what it held is "
                    "asked for again"
                ) from error
