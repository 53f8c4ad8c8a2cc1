"""Rows of a jsonl, csv or parquet file, whatever its encoding; bad lines are reported, not fatal.

Only the standard library is needed for jsonl and csv: a device that holds its user's text in
such a file installs nothing else.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from .storage import DataError, require_arrow

Row = tuple[int, Mapping[str, Any]]  # line (or row) number from 1, column -> value
Report = Callable[[int, str, str], None]  # line, problem, advice; never given any text

MAX_LINE = 8 * 2**20  # characters: a longer line is skipped without being held in memory
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_rows(path: Path, report: Report) -> Iterator[Row]:
    """Rows in file order. Raises DataError for an unknown format, OSError if unreadable."""
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return _jsonl_rows(path, report)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, report, "\t" if suffix == ".tsv" else ",")
    if suffix == ".parquet":
        return _parquet_rows(path)
    raise DataError(
        f"{path.name}: format {suffix!r} is not known (data.path, data.public-path): "
        "convert it to .jsonl, .csv, .tsv or .parquet"
    )


def column_names(path: Path) -> list[str]:
    """Columns of the file's first readable row; empty for an empty file."""
    for _, row in read_rows(path, lambda *_: None):
        return [str(name) for name in row]
    return []


def _jsonl_rows(path: Path, report: Report) -> Iterator[Row]:
    for number, line in _lines(path, report):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            report(number, "the line is not valid JSON", "write one JSON object per line")
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            report(number, "the line is no JSON object", "write one JSON object per line")


def _csv_rows(path: Path, report: Report, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))
    reader = csv.reader((line for _, line in _lines(path, report)), delimiter=delimiter)
    header: list[str] | None = None
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            report(reader.line_num, "the line is not valid CSV", "quote fields and close quotes")
            continue
        if header is None:
            header = row
        elif len(row) == len(header):
            yield reader.line_num, dict(zip(header, row, strict=True))
        elif row:
            report(
                reader.line_num,
                f"the row has {len(row)} fields, the header {len(header)}",
                "quote fields that hold separators, quotes or line breaks",
            )


def _parquet_rows(path: Path) -> Iterator[Row]:
    require_arrow()
    from pyarrow import parquet

    number = 0
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _lines(path: Path, report: Report) -> Iterator[tuple[int, str]]:
    """Decoded lines with their numbers; bytes that are not UTF-8 become U+FFFD."""
    with path.open("rb") as raw:
        wide = raw.read(2) in _UTF16
    encoding, errors = ("utf-16", "replace") if wide else ("utf-8-sig", "surrogateescape")
    with path.open(encoding=encoding, errors=errors, newline="") as handle:
        number = 0
        while line := handle.readline(MAX_LINE):
            number += 1
            if len(line) == MAX_LINE and not line.endswith("\n"):
                _skip_line(handle)
                report(number, f"the line is longer than {MAX_LINE} characters", "split it up")
                continue
            if not line.isascii() and _ESCAPED_BYTE.search(line):
                line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                report(number, "the line holds bytes that are not UTF-8", "save the file as UTF-8")
            yield number, line


def _skip_line(handle: TextIO) -> None:
    while (rest := handle.readline(MAX_LINE)) and not rest.endswith("\n"):
        pass
