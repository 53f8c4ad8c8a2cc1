"""A run's synthetic.jsonl as one Parquet file, a block of rows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from privsyn_flower.app.report.publishing.product import PublishError

ROWS = 10_000  # of one row group
# What the methods write beside a text; a reader knows each by its card.
COLUMNS = {
    "text": "the text",
    "label": "its class, of a public list",
    "topic": "number of the public topic that it was written about",
    "keywords": "public keywords of that topic",
    "round": "the round whose votes picked it first",
    "votes": "noisy votes for it, of all rounds together",
}


def columns_of(source: Path) -> tuple[int, list[str]]:
    """Rows of a file of text, and the columns that they have, in the order of COLUMNS.

    Raises PublishError for a file without rows, and for one that no method writes.
    """
    count, found = 0, set[str]()
    for number, row in enumerate(_read(source), 1):
        strange = set(row) - COLUMNS.keys()
        if strange or not isinstance(row.get("text"), str):
            what = f"has {', '.join(sorted(strange))}" if strange else "has no text"
            raise PublishError(f"{source}, row {number} {what}: it is not as its run wrote it")
        found |= row.keys()
        count = number
    if not count:
        raise PublishError(f"{source} holds no text: there is nothing to publish")
    return count, [name for name in COLUMNS if name in found]


def write_parquet(source: Path, target: Path, columns: list[str]) -> None:
    """Write the rows of `source` to `target` with these columns; the same rows, the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"topic": pa.int64(), "keywords": pa.list_(pa.string())}
    types |= {"round": pa.int64(), "votes": pa.float64()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in columns])
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        rows = _read(source)
        while block := list(islice(rows, ROWS)):
            writer.write_table(pa.Table.from_pylist(block, schema=schema))


def size_category(rows: int) -> str:
    """The hub's name for a number of rows."""
    if rows < 1_000:
        return "n<1K"
    bounds = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
    at = min((len(str(rows)) - 4), len(bounds) - 1)
    return f"n>{bounds[-1]}" if at == len(bounds) - 1 else f"{bounds[at]}<n<{bounds[at + 1]}"


def _read(source: Path) -> Iterator[Mapping[str, Any]]:
    """Rows, one after another: a file may hold millions. Raises PublishError for a damaged one."""
    # newline: a text may hold U+2028 and its like, which end no row.
    with source.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise PublishError(f"{source}, line {number} is damaged: {error}") from None
            if not isinstance(row, dict):
                raise PublishError(f"{source}, line {number} is no object")
            yield row
