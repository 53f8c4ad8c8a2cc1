"""What answers cost simulated nodes: CPU seconds, in a file beside each node's records.

Only simulated nodes write it, and only the simulation's own harness reads it, from the same disk:
a deployed node measures nothing and sends no timings.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from privsyn_flower.protocol.question import Ticket

TIMINGS_FILE = "timings.jsonl"


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


def read_timings(folder: Path, run: str) -> list[dict[str, Any]]:
    """The entries of one run from all nodes with a cache in `folder`, by round and attempt.

    An entry has run, query, round, attempt, cpu_seconds and users: the users that the node
    stands for. A line that a killed node left unfinished is passed over.
    """
    found = []
    for path in sorted(folder.glob(f"*/{TIMINGS_FILE}")):
        for line in path.read_text("utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry["run"] == run:
                found.append(entry)
    return sorted(found, key=lambda entry: (entry["query"], entry["round"], entry["attempt"]))
