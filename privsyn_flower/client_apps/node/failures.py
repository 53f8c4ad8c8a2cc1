"""What a node notes of its answers in its own folder: failures, and in a simulation CPU seconds.

Failures are what users' data raised, counted for the eyes of the node's owner. One JSON row for
each answer and cause, in `failures.jsonl` of the node's folder: run, round, attempt; kind, "users"
(they could not be read) or "answer" (no vector could be made of them); users, how many of the `of`
that took part (who failed twice is in two rows); error, the exception's type, and `at`, the file
and line that raised it. No text, no message, no id. PRIVATE all the same: it is sent nowhere, and
what becomes of the file changes no reply. `privsyn node status` prints it, a simulation reads it.

CPU seconds are written by simulated nodes alone (`timed`), and read by the simulation's own harness
from the same disk: a deployed node measures nothing and sends no timings.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from privsyn_flower.common.files import private_folder, replace_private
from privsyn_flower.protocol.question import Ticket

FAILURES_FILE = "failures.jsonl"
TIMINGS_FILE = "timings.jsonl"
MOST_BYTES = 1 << 18  # of the file; the older half goes first
MOST_CAUSES = 16  # of one answer
LONGEST = 300  # characters of a type's name, or of a place

What = Literal["users", "answer"]
Cause = tuple[What, str, str]  # kind, type, place


class Failures:
    """Of the answer that a node is making; `write` ends it."""

    def __init__(self) -> None:
        self._counts: Counter[Cause] = Counter()

    def add(self, kind: What, error: BaseException, users: int) -> None:
        """Count the users whom `error` left without a vector."""
        cause: Cause = (kind, type(error).__name__[:LONGEST], place_of(error))
        if cause in self._counts or len(self._counts) < MOST_CAUSES:
            self._counts[cause] += users

    def write(self, folder: Path, ticket: Ticket, of: int) -> None:
        """Append what was found to the folder's file. Raises nothing: a full disk is no answer.

        of: users that took part.
        """
        found, self._counts = self._counts, Counter()
        if not found:
            return
        rows = [
            {
                "run": ticket.run,
                "round": ticket.round,
                "attempt": ticket.attempt,
                "kind": kind,
                "users": min(users, of),
                "of": of,
                "error": error,
                "at": at,
            }
            for (kind, error, at), users in found.items()
        ]
        with contextlib.suppress(Exception):
            _append(folder, "".join(json.dumps(row) + "\n" for row in rows).encode())


def read_failures(folder: Path) -> list[dict[str, Any]]:
    """The rows of a node's folder, oldest first; a line that was cut short is left out."""
    rows = []
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / FAILURES_FILE).read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def _append(folder: Path, lines: bytes) -> None:
    private_folder(folder)
    path = folder / FAILURES_FILE
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, lines)
        size = os.fstat(file).st_size
    finally:
        os.close(file)
    if size > MOST_BYTES:
        _halve(path)


def _halve(path: Path) -> None:
    kept = path.read_bytes()[-MOST_BYTES // 2 :].partition(b"\n")[2]
    replace_private(path, kept)


def place_of(error: BaseException) -> str:
    """file:line of the innermost frame."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place[-LONGEST:]


@contextlib.contextmanager
def timed(cache: Path | None, ticket: Ticket, users: int) -> Iterator[None]:
    """Append the CPU seconds of this block, all threads of the process, to a node's timings.

    cache: the node's folder; None, of a node that is not simulated, writes nothing. users: that
    the node stands for. Nothing is written when the block raises; a file that cannot be written
    changes nothing else.
    """
    start = time.process_time()
    yield
    if cache is None:
        return
    entry = asdict(ticket) | {"cpu_seconds": time.process_time() - start, "users": users}
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = os.open(cache / TIMINGS_FILE, flags, 0o600)
        try:
            os.write(file, (json.dumps(entry) + "\n").encode())
        finally:
            os.close(file)
