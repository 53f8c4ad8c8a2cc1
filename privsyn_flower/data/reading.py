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
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from os.path import samestat
from pathlib import Path
from typing import Any, TextIO

from privsyn_flower.common.files import DataError

from .delimited import MAX_FIELDS, Piece, Record, records, shorten_json
from .findings import UTF8
from .tables import require_arrow

Row = tuple[int, Mapping[str, Any]]  # line it begins in (parquet: row) from 1, column -> value
Report = Callable[[int, str, str], None]  # line, problem, advice; never given any text

MAX_LINE = 2**20  # characters: a longer line is never held in memory as a whole
BATCH_ROWS = 256  # parquet rows held at once
NARROW = {"float": 2**24, "halffloat": 2**11}  # Arrow's; up to which they hold every integer
CORPUS_FILE = "mix.jsonl"  # the text of a folder that `privsyn public mix` made
NO_MIX = (
    f"(data.public-path) is a folder without {CORPUS_FILE}: name a file of text, or make the mix "
    "of the corpus with `privsyn public mix`"
)
FORMATS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
DELIMITERS = ",;\t|"
NO_TEXT = {  # what a file of text never begins with: what it is, and what to do
    b"PK\x03\x04": ("a zip archive or an Excel workbook", "unpack it, or export it as CSV"),
    b"\xd0\xcf\x11\xe0": ("an Office document", "export it as CSV"),
    b"\x1f\x8b": ("compressed by gzip", "unpack it"),
    b"PAR1": ("parquet", "call it .parquet"),
    b"SQLite f": ("an SQLite database", "export its table as CSV"),
    b"%PDF": ("a PDF document", "export its text as CSV or jsonl"),
}
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_SEPARATOR = re.compile('"?sep=(.)"?')  # how Excel is told, in a line of its own


def read_rows(path: Path, report: Report, columns: Collection[str] = ()) -> Iterator[Row]:
    """Rows in file order; one that cannot be read is reported and has no columns.

    columns: those needed, all when empty; parquet decodes no others. Raises DataError for an
    unknown format, a csv header or a parquet file that is none; OSError if unreadable.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet_rows(path, report, columns)
    if suffix in (".jsonl", ".ndjson", ".csv", ".tsv"):
        _check_text(path)
        if suffix in (".csv", ".tsv"):
            return _csv_rows(path, report, _dialect(path), columns)
        _check_lines(path)
        return _jsonl_rows(path, report)
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
    end = "\n"  # whatever the first line holds, which is somebody's text
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
        row = json.loads(shorten_json(chain(parts, rest)), parse_int=_short_integer)
    if not isinstance(row, dict):
        raise TypeError(type(row).__name__)
    return row


def _short_integer(digits: str) -> int | None:
    return int(digits) if len(digits) < 100 else None


def _check_text(path: Path) -> None:
    """Raises DataError for another kind of file under the name of a text file; OSError."""
    with path.open("rb") as raw:
        head = raw.read(8)
    for start, (kind, advice) in NO_TEXT.items():
        if head.startswith(start):
            raise DataError(
                f"{path.name} is no {path.suffix} file: it begins with {start!r}, so it is {kind}: "
                f"{advice}"
            )


def _check_lines(path: Path) -> None:
    """Raises DataError for JSON of which a line is only a part."""
    first = next(iter(_first_lines(path)), (0, ""))[1].strip()
    if found := re.match(r"\[\s*(?=\{|$)|\{$", first):
        array = found[0].startswith("[")
        raise DataError(
            f"{path.name} begins with {found[0].strip()!r}: it is "
            f"{'a JSON array' if array else 'JSON over several lines'}, and a .jsonl file has one "
            f"object a line: jq -c {repr('.[]') if array else '.'} {shlex.quote(str(path))} > "
            "lines.jsonl"
        )


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the fields of a csv file are told apart. blank: blanks before a field are no part of it.
    line: the one that names the delimiter, 0: none."""

    delimiter: str
    blank: bool
    line: int


def _dialect(path: Path) -> Dialect:
    """Read from the header alone: what users wrote decides nothing."""
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = _first_lines(path)
    number, header = next(lines, (0, ""))
    line = 0
    if start := re.match(r'\s*([{[])\s*(?=["{\n]|$)', header):
        raise DataError(
            f"{path.name} is no {path.suffix} file: it begins with {start[1]!r}, so it is JSON: "
            "call it .jsonl, with one object a line"
        )
    if told := _SEPARATOR.fullmatch(header.strip("\r\n")):
        usual, line = told[1], number
        header = next(lines, (0, ""))[1]
    bare = re.sub('"[^"]*"', "", header)
    delimiter = usual
    if not line and usual not in bare:
        delimiter = max(DELIMITERS, key=bare.count)
        delimiter = delimiter if delimiter in bare else usual
    later = bare.split(delimiter)[1:]
    return Dialect(delimiter, bool(later) and all(name[:1] == " " for name in later), line)


def _first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without blank ones; of a very long one the first part."""
    end = _line_end(path)
    with _opened(path, end) as handle:
        for number, pieces in groupby(_pieces(handle, end, lambda *_: None), itemgetter(0)):
            _, piece = next(pieces)
            if piece.strip():
                yield number, piece


def form_of(path: Path) -> str:
    """What is unusual about how a file of text is written, though it is read; else empty."""
    notes = []
    if path.suffix.lower() in (".csv", ".tsv"):
        found = _dialect(path)
        why = f" as line {found.line} says" if found.line else ""
        if found.line or found.delimiter != ("\t" if path.suffix.lower() == ".tsv" else ","):
            notes.append(f"fields are separated by {found.delimiter!r}{why}")
        if found.blank:
            notes.append("blanks after a separator are no part of a field")
    if path.suffix.lower() != ".parquet" and (encoding := _encoding(path)) != "utf-8-sig":
        notes.append(f"the encoding is {encoding}")
    return ", ".join(notes)


def _csv_rows(
    path: Path, report: Report, dialect: Dialect, columns: Collection[str]
) -> Iterator[Row]:
    header: list[str] | None = None
    for record in _csv_records(path, report, dialect):
        line = record.line
        if header is None:
            header = _header(record, path.name, columns)
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


def _csv_records(path: Path, report: Report, dialect: Dialect) -> Iterator[Record]:
    """By two readers of one file: another's quotes would not be where the first found them."""
    end = _line_end(path)
    with _opened(path, end) as handle, _opened(path, end) as second:
        if not samestat(os.fstat(handle.fileno()), os.fstat(second.fileno())):
            raise DataError(f"{path.name} was replaced while it was opened: read it again")
        pieces, again = (
            (piece for piece in _pieces(file, end, told) if piece[0] != dialect.line)
            for file, told in ((handle, report), (second, lambda *_: None))
        )
        yield from records(pieces, again, dialect.delimiter, end, blank=dialect.blank)


def _header(record: Record, file: str, columns: Collection[str]) -> list[str]:
    where = f"{file}: the header in line {record.line}"
    if not record.count:
        raise DataError(
            f"{where} is not valid CSV: a quote in it is never closed, or text follows one"
        )
    if record.count > MAX_FIELDS:
        raise DataError(f"{where} has more than {MAX_FIELDS} columns")
    header = [name.strip() for name in record.fields]
    for name in columns:
        if header.count(name) > 1:
            raise DataError(
                f"{where} has {header.count(name)} columns {name!r}: rename all but one"
            )
    return header


def _parquet_rows(path: Path, report: Report, columns: Collection[str]) -> Iterator[Row]:
    wanted = list(dict.fromkeys(columns)) or None
    number = 0
    with _parquet(path) as file:
        kinds = {field.name: str(field.type) for field in file.schema_arrow}
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
            for found in _python_rows(batch):
                row, number = _with_digits(found, kinds), number + 1
                if len(row) < batch.num_columns:
                    report(number, "a value of the row cannot be read", "correct or remove it")
                yield number, row


def _with_digits(row: dict[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """The row with as many digits of a narrow float as it has: Python's floats would hide that
    integers beyond them are rounded. kinds: column -> its Arrow type."""
    for name, value in row.items():
        most = NARROW.get(kinds[name])
        if most and isinstance(value, float) and abs(value) > most:
            row[name] = f"{value:e}"
    return row


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
        with path.open("rb") as raw:
            if raw.read(4) != b"PAR1":
                raise DataError(
                    f"{path.name} is no .parquet file: it does not begin with PAR1; call it what "
                    "it is, as .csv or .jsonl"
                ) from None
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
    encoding = _encoding(path)
    errors = "surrogateescape" if encoding == "utf-8-sig" else "replace"
    return path.open(encoding=encoding, errors=errors, newline=newline)


def _encoding(path: Path) -> str:
    """UTF-16 and UTF-32 by their mark, or by the zeros in two first characters of ASCII."""
    with path.open("rb") as raw:
        head = raw.read(4)
    if head in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        return "utf-32"
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    patterns = {
        "utf-16-le": [False, True, False, True],
        "utf-16-be": [True, False, True, False],
        "utf-32-le": [False, True, True, True],
        "utf-32-be": [True, True, True, False],
    }
    zeros = [byte == 0 for byte in head]
    return next((name for name, found in patterns.items() if found == zeros), "utf-8-sig")
