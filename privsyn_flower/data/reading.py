"""Rows of a jsonl, csv or parquet file, whatever its encoding; bad lines are reported, not fatal.

A record that cannot be read affects itself only, because records are of different users: one
user's text must never take away or change another user's. So a csv row is one line: a quoted
field may not span lines, or one unclosed quote would swallow the rows below it. Texts with line
breaks belong into jsonl or parquet.

Only the standard library is needed for jsonl and csv: a device that holds its user's text in
such a file installs nothing else.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from .storage import DataError, require_arrow

Row = tuple[int, Mapping[str, Any]]  # line (or row) number from 1, column -> value
Report = Callable[[int, str, str], None]  # line, problem, advice; never given any text

MAX_LINE = 8 * 2**20  # characters: a longer line is skipped without being held in memory
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_rows(path: Path, report: Report, columns: Collection[str] = ()) -> Iterator[Row]:
    """Rows in file order. columns: those needed, all when empty; parquet decodes no others.

    Raises DataError for an unknown format or an unreadable csv header, OSError if unreadable.
    """
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return _jsonl_rows(path, report)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, report, "\t" if suffix == ".tsv" else ",")
    if suffix == ".parquet":
        return _parquet_rows(path, report, columns)
    raise DataError(
        f"{path.name}: format {suffix!r} is not known (data.path, data.public-path): "
        "convert it to .jsonl, .csv, .tsv or .parquet"
    )


def column_names(path: Path) -> list[str]:
    """Columns of a parquet file, or of the first readable row; empty for an empty file."""
    if path.suffix.lower() == ".parquet":
        require_arrow()
        from pyarrow import parquet

        return [str(name) for name in parquet.read_schema(path).names]
    for _, row in read_rows(path, lambda *_: None):
        return [str(name) for name in row]
    return []


def _jsonl_rows(path: Path, report: Report) -> Iterator[Row]:
    for number, line in _lines(path, report):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except Exception:  # too deep, too long a number: whatever it is, it is this line's
            report(number, "the line is not valid JSON", "write one JSON object per line")
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            report(number, "the line is no JSON object", "write one JSON object per line")


def _csv_rows(path: Path, report: Report, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))
    header: list[str] | None = None
    for number, line in _lines(path, report):
        try:
            row = next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter, strict=True), [])
        except csv.Error:
            if header is None:
                raise DataError(
                    f"{path.name}: the header in line {number} is not valid CSV"
                ) from None
            report(
                number,
                "the line is not valid CSV: a quote is not closed in it, or text follows one",
                "close quotes on the line, double those in a text; a field cannot span lines: "
                "keep texts with line breaks in jsonl",
            )
            continue
        if header is None:
            header = row or None
        elif len(row) == len(header):
            yield number, dict(zip(header, row, strict=True))
        elif row:
            report(
                number,
                f"the row has {len(row)} fields, the header {len(header)}",
                "quote fields that hold separators or quotes; a field cannot span lines",
            )


def _parquet_rows(path: Path, report: Report, columns: Collection[str]) -> Iterator[Row]:
    require_arrow()
    from pyarrow import parquet

    number = 0
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(
            batch_size=1024, columns=list(dict.fromkeys(columns)) or None
        ):
            for row in _python_rows(batch):
                number += 1
                if row is None:
                    report(number, "a value of the row cannot be read", "correct or remove it")
                else:
                    yield number, row


def _python_rows(batch: Any) -> list[dict[str, Any] | None]:
    """Rows of an Arrow batch as Python values; None for a row with a value that has none."""
    try:
        rows: list[dict[str, Any] | None] = batch.to_pylist()
        return rows
    except Exception:  # a date beyond Python's, bytes that are not UTF-8: find the row
        if batch.num_rows == 1:
            return [None]
        half = batch.num_rows // 2
        return _python_rows(batch.slice(0, half)) + _python_rows(batch.slice(half))


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
