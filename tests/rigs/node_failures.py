"""What several tests share about node failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def note(cache: Path, place: str, **changes: Any) -> Path:
    """A row as a node writes it into its cache."""
    row = {"run": "r", "round": 1, "attempt": 1, "kind": "answer", "users": 25, "of": 25}
    row |= {"error": "NameError", "at": "train.py:12", **changes}
    path = cache / place / "failures.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return path
