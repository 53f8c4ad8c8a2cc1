"""What several tests share about users."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"users.{kind}"
    if kind == "jsonl":
        return write_jsonl(path, rows)
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.Table.from_pylist(rows), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return path
