"""What answers cost simulated nodes: CPU seconds, in a file beside each node's records.

Only simulated nodes write it, and only the simulation's own harness reads it, from the same disk:
a deployed node measures nothing and sends no timings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TIMINGS_FILE = "timings.jsonl"


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
