"""Rows of a jsonl, csv or parquet file, whatever its encoding; bad rows are reported, not fatal.

A record that cannot be read affects itself only, because records are of different users: one
user's text must never take away or change another user's. It is a row without columns, so that
the rows below keep their number. What quotes in a csv file can do is said in `delimited.py`.

Only the standard library is needed for jsonl and csv: a device that holds its user's text in
such a file installs nothing else.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, groupby, islice
from operator import itemgetter
from os.path import samestat
from pathlib import Path
from typing import Any, TextIO

from privsyn_flower.files import DataError

from .delimited import MAX_FIELDS, Piece, Record, records
from .findings import UTF8
from .long_lines import shortened
from .tables import require_arrow

Row = tuple[int, Mapping[str, Any]]  # line it begins in (parquet: row) from 1, column -> value
Report = Callable[[int, str, str], None]  # line, problem, advice; never given any text

MAX_LINE = 2**20  # characters: a longer line is never held in memory as a whole
BATCH_ROWS = 256  # parquet rows held at once
CORPUS_FILE = "mix.jsonl"  # the text of a folder that `privsyn public mix` made
NO_MIX = (
    f"(data.public-path) is a folder without {CORPUS_FILE}: name a file of text, or make the mix "
    "of the corpus with `privsyn public mix`"
)
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_rows(path: Path, report: Report, columns: Collection[str] = ()) -> Iterator[Row]:
    """Rows in file order; one that cannot be read is reported and has no columns.

    columns: those needed, all when empty; parquet decodes no others. Raises DataError for an
    unknown format, a csv header or a parquet file that is none; OSError if unreadable.
    """
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return _jsonl_rows(path, report)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, report, "\t" if suffix == ".tsv" else ",")
    if suffix == ".parquet":
        return _parquet_rows(path, report, columns)
    raise DataError(
        f"{path.name}: format {suffix!r} is not known (data.path, data.public-path, filter.source, "
        "--texts): convert it to .jsonl, .csv, .tsv or .parquet"
    )


def text_file(path: Path) -> Path:
    """The file of text that a path names: itself, or the mixed text of a corpus folder."""
    mixed = path / CORPUS_FILE
    return mixed if mixed.is_file() else path


def column_names(path: Path) -> list[str]:
    """Columns of a parquet file, or of the first readable row; empty for an empty file."""
    if path.suffix.lower() == ".parquet":
        with _parquet(path) as file:
            return [str(name) for name in file.schema_arrow.names]
    rows = (row for _, row in read_rows(path, lambda *_: None) if row)
    return [str(name) for name in next(rows, {})]


def _jsonl_rows(path: Path, report: Report) -> Iterator[Row]:
    end = _line_end(path)
    with _opened(path, end) as handle:
        for number, pieces in groupby(_pieces(handle, end, report), itemgetter(0)):
            parts = [piece for _, piece in islice(pieces, 2)]
            if len(parts) == 1 and not parts[0].strip():
                continue
            rest = (piece for _, piece in pieces)
            try:
                yield number, _json_row(parts, rest)
            except Exception:  # whatever it is, it is this line's
                report(number, "the line is no JSON object", "write one JSON object per line")
                yield number, {}


def _json_row(parts: list[str], rest: Iterator[str]) -> dict[str, Any]:
    """The object of a line; where that is long or deep, as much of it as columns need."""
    row: Any = None
    if len(parts) == 1:
        # Too deep or too long a number, or no JSON at all: the copy has the first two no more.
        with contextlib.suppress(RecursionError, ValueError):
            row = json.loads(parts[0])
    if row is None:
        row = json.loads(shortened(chain(parts, rest)), parse_int=_short_integer)
    if not isinstance(row, dict):
        raise TypeError(type(row).__name__)
    return row


def _short_integer(digits: str) -> int | None:
    return int(digits) if len(digits) < 100 else None


def _csv_rows(path: Path, report: Report, delimiter: str) -> Iterator[Row]:
    header: list[str] | None = None
    for record in _csv_records(path, report, delimiter):
        line = record.line
        if header is None:
            header = _header(record, path.name)
        elif record.count == len(header):
            yield line, dict(zip(header, record.fields, strict=True))
        else:
            if record.count:
                problem = f"the row has {record.count} fields, the header {len(header)}"
                advice = "quote fields that hold separators, quotes or line breaks"
            else:
                problem = "the row is not valid CSV: a quote is never closed, or text follows one"
                advice = "write the file with a CSV library, which doubles quotes in a text"
            report(line, problem, advice)
            yield line, {}


def _csv_records(path: Path, report: Report, delimiter: str) -> Iterator[Record]:
    """By two readers of one file: another's quotes would not be where the first found them."""
    end = _line_end(path)
    with _opened(path, end) as handle, _opened(path, end) as second:
        if not samestat(os.fstat(handle.fileno()), os.fstat(second.fileno())):
            raise DataError(f"{path.name} was replaced while it was opened: read it again")
        again = _pieces(second, end, lambda *_: None)
        yield from records(_pieces(handle, end, report), again, delimiter, end)


def _header(record: Record, name: str) -> list[str]:
    where = f"{name}: the header in line {record.line}"
    if not record.count:
        raise DataError(
            f"{where} is not valid CSV: a quote in it is never closed, or text follows one"
        )
    if record.count > MAX_FIELDS:
        raise DataError(f"{where} has more than {MAX_FIELDS} columns")
    return record.fields


def _parquet_rows(path: Path, report: Report, columns: Collection[str]) -> Iterator[Row]:
    wanted = list(dict.fromkeys(columns)) or None
    number = 0
    with _parquet(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
            for row in _python_rows(batch):
                number += 1
                if len(row) < batch.num_columns:
                    report(number, "a value of the row cannot be read", "correct or remove it")
                yield number, row


def _python_rows(batch: Any) -> list[dict[str, Any]]:
    """Rows of an Arrow batch as Python values, without those that cannot be had."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
        return rows
    except Exception:  # a date beyond Python's, bytes that are not UTF-8: find the row
        if batch.num_rows > 1:
            half = batch.num_rows // 2
            return _python_rows(batch.slice(0, half)) + _python_rows(batch.slice(half))
    row = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        with contextlib.suppress(Exception):
            row[name] = column[0].as_py()
    return [row]


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The open file. Raises DataError where it is no parquet file, or a damaged one."""
    require_arrow()
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (OSError, DataError):
        raise
    except Exception as error:  # Arrow has many, and quotes what it found in some
        raise DataError(
            f"{path.name} cannot be read as parquet ({type(error).__name__}): write it again"
        ) from None


def _pieces(handle: TextIO, end: str, report: Report) -> Iterator[Piece]:
    """Decoded lines with their numbers and ends, one longer than MAX_LINE in several pieces;
    bytes that are not UTF-8 become U+FFFD."""
    number, whole = 0, True
    while piece := handle.readline(MAX_LINE):
        number += whole
        whole = piece.endswith(end)
        if not piece.isascii() and _ESCAPED_BYTE.search(piece):
            piece = piece.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            report(number, "the line holds bytes that are not UTF-8", UTF8)
        yield number, piece


def _line_end(path: Path) -> str:
    """What ends the first line ends every line: elsewhere the other character is text, which
    some writers leave without quotes."""
    with _opened(path, "") as handle:
        while piece := handle.readline(MAX_LINE):
            if piece.endswith("\n"):
                return "\n"
            if piece.endswith("\r"):
                return "\n" if handle.read(1) == "\n" else "\r"
    return "\n"


def _opened(path: Path, newline: str) -> TextIO:
    with path.open("rb") as raw:
        wide = raw.read(2) in _UTF16
    encoding, errors = ("utf-16", "replace") if wide else ("utf-8-sig", "surrogateescape")
    return path.open(encoding=encoding, errors=errors, newline=newline)
