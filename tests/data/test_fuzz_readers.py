"""Files nobody would write on purpose: every reader ends in rows or in an error that says why."""

from __future__ import annotations

import csv
import functools
import io
import json
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.data import (
    DataError,
    check_file,
    delimited,
    load_samples,
    reading,
    survey,
)
from privsyn_flower.data.values import Columns
from tests.fuzz import fuzz_settings
from tests.rigs.users import write

KINDS = ("jsonl", "csv", "tsv", "parquet")
OTHERS = {f"u{i}": [f"text {k} of {i}" for k in range(2)] for i in range(3)}
OPTIONS = {"label_column": "label", "date_column": "date", "date_from": "2000-01-01"}
HOSTILE = st.one_of(
    st.text(st.one_of(st.sampled_from('",\t\n\r\0{}[]:u0123'), st.characters()), max_size=60),
    st.sampled_from(["", " ", '"', '"\n', "1e999", "9" * 5000, "[" * 3000, "\ud83d", "\ufeff"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), HOSTILE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3),
    max_leaves=6,
)


@functools.cache
def whole(kind: str) -> bytes:
    """A good file with every column."""
    rows = [
        {"user_id": user, "text": text, "label": "x", "date": "2024-01-02"}
        for user, own in OTHERS.items()
        for text in own
    ]
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder), kind, rows).read_bytes()


def readers(path: Path) -> list[Callable[[], Any]]:
    return [
        lambda: load_samples(path),
        lambda: load_samples(path, **OPTIONS, strict=False, samples_cap=1),
        lambda: load_samples(path, user_column=""),
        lambda: check_file(path, label_column="label"),
        lambda: survey(path, Columns("user_id", "text", "label", "date")).described(),
        lambda: reading.column_names(path),
    ]


def read(path: Path) -> None:
    for reader in readers(path):
        try:
            found = reader()
        except (DataError, OSError) as error:
            assert str(error)
        else:
            repr(found).encode("utf-8")  # whatever was read is text that can be written


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """A good file with some bytes changed, put in or taken out, or cut off."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        piece = draw(st.binary(max_size=6) | st.sampled_from([b'"', b"\n", b"\r", b"\0", b"\xff"]))
        content[at : at + draw(st.integers(0, 8))] = piece
    return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@fuzz_settings(60)
@given(data=st.data())
def test_any_bytes(kind: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"f.{kind}"
    marks = st.sampled_from([b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"PAR1"])
    content = st.builds(bytes.__add__, marks, st.binary(max_size=300)) | damaged(whole(kind))
    path.write_bytes(data.draw(content))
    read(path)


@fuzz_settings(60)
@given(values=st.dictionaries(st.sampled_from(["text", "label", "date", "other"]), VALUES))
def test_any_values_of_one_user_in_jsonl(values: dict[str, Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.jsonl"
    line = json.dumps({"user_id": "m"} | values).encode() + b"\n"
    path.write_bytes(line + whole("jsonl") + line)
    unchanged(path)
    assert "m" in load_samples(path, strict=False)


@fuzz_settings(60)
@given(line=st.binary(max_size=200))
def test_any_line_between_those_of_others_in_jsonl(line: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.jsonl"
    first, rest = whole("jsonl").split(b"\n", 1)
    path.write_bytes(first + b"\n" + line.replace(b"\n", b"").replace(b'"u', b"") + b"\n" + rest)
    unchanged(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "tsv"])
@fuzz_settings(60)
@given(fields=st.lists(HOSTILE, min_size=3, max_size=3), quoting=st.sampled_from([0, 1]))
def test_any_fields_of_one_user_in_csv(
    kind: str, fields: list[str], quoting: Any, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"f.{kind}"
    out = io.StringIO()
    csv.writer(out, delimiter="\t" if kind == "tsv" else ",", quoting=quoting).writerow(
        ["m", *(text.encode("utf-8", "replace").decode() for text in fields)]
    )
    row = out.getvalue().encode()
    header, rest = whole(kind).split(b"\n", 1)
    path.write_bytes(header + b"\n" + row + rest + row)
    unchanged(path)
    assert "m" in load_samples(path)


@fuzz_settings(60)
@given(text=st.binary(max_size=80), day=st.integers(-(2**52), 2**52))
def test_any_values_of_one_user_in_parquet(text: bytes, day: int, tmp_path_factory: Any) -> None:
    """Bytes that claim to be text, and dates that no calendar has."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path_factory.mktemp("fuzz") / "f.parquet"
    rows = [("m", text, day)] + [(u, t.encode(), 1) for u, own in OTHERS.items() for t in own]
    users, texts, days = zip(*rows, strict=True)
    raw = arrow.array(texts, arrow.binary())
    columns = {
        "user_id": list(users),
        "text": arrow.Array.from_buffers(arrow.string(), len(rows), raw.buffers()),
        "date": arrow.array(days, arrow.int64()).cast(arrow.timestamp("s")),
    }
    parquet.write_table(arrow.table(columns), path)
    unchanged(path)
    for options in ({}, {"date_column": "date"}):
        assert "m" in load_samples(path, **options)


def unchanged(path: Path) -> None:
    """Reading ends well, and every other user's texts are what they were."""
    read(path)
    found = load_samples(path, strict=False)
    assert {u: [s.text for s in own] for u, own in found.items() if u != "m"} == OTHERS


LINES = {
    "one long line": lambda size: ["x" * size],
    "one long text": lambda size: ['{"user_id": "m", "text": "', "y" * size, '"}\n'],
    "never closed": lambda size: ['m,"', *(["line\n"] * (size // 5))],
    "quotes": lambda size: ['m,"', *(['""'] * (size // 2)), '"\n'],
    "stray quotes": lambda size: ['x","y\n'] * (size // 6),
    "separators": lambda size: ["," * size, "\n"],
    "blank": lambda size: ["\n" * size],
    "the same row": lambda size: ['m,"the same"\n'] * (size // 13),
    "returns": lambda size: ["\r" * size],
    "not UTF-8": lambda size: ["\udcff" * size],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("name", LINES)
def test_memory_is_bounded(
    tmp_path: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits made small, so that a small file is far beyond them."""
    monkeypatch.setattr(reading, "MAX_LINE", 2**14)
    for limit in ("MAX_STRING", "MAX_COPY"):
        monkeypatch.setattr(delimited, limit, 2**14)
    monkeypatch.setattr(delimited, "MAX_FIELD", 2**14)
    path = tmp_path / f"f.{kind}"
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as handle:
        handle.write("user_id,text\n" if kind == "csv" else "")
        handle.writelines(LINES[name](150_000))
    tracemalloc.start()
    try:
        load_samples(path, strict=False)
    except DataError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**19
