"""What several tests share about popri."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privsyn_flower.runs import read_jsonl


def finish(process: Any, seconds: float = 1500) -> tuple[int, list[str], list[str]]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out.strip().splitlines(), err.strip().splitlines()


def private_texts(mini: Path) -> list[bytes]:
    return [row["text"].encode() for row in read_jsonl(mini / "users.jsonl")]
