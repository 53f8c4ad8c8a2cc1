"""Records of delimited text as RFC 4180 has them, and long JSON lines that keep their columns."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privsyn_flower.data import delimited
from privsyn_flower.data.delimited import Piece, Record, records, shorten_json

HOSTILE = st.text(st.sampled_from('",\t\n\r\0 ax7é\u2028'), max_size=12)


def pieces(text: str, end: str, size: int) -> Iterator[Piece]:
    """Lines, in parts of at most `size` characters."""
    ends = text.count(end)
    for number, line in enumerate(text.split(end), 1):
        line += end if number <= ends else ""
        for at in range(0, len(line), size):
            yield number, line[at : at + size]


def read(text: str, end: str = "\n", size: int = 99, delimiter: str = ",") -> list[Record]:
    lines = pieces(text, end, size), pieces(text, end, size)
    return list(records(*lines, delimiter, end))


@given(
    rows=st.lists(st.lists(HOSTILE, min_size=3, max_size=3), min_size=1, max_size=6),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    delimiter=st.sampled_from(",\t"),
    size=st.sampled_from([2, 7, 99]),
)
def test_what_a_library_wrote_is_read_back(rows, quoting, end, delimiter, size):
    out = io.StringIO()
    writer = csv.writer(out, quoting=quoting, lineterminator=end, delimiter=delimiter)
    writer.writerows([["user", "label", "text"], *rows])
    found = read(out.getvalue(), end[-1], size, delimiter)
    starts = [1]
    for row in found[:-1]:
        breaks = sum(text.count(end[-1]) for text in row.fields)
        starts.append(starts[-1] + 1 + breaks)
    assert [record.line for record in found] == starts
    if quoting == csv.QUOTE_MINIMAL and end == "\n":  # where this writer leaves "\r" without quotes
        for fields in (*rows, *(record.fields for record in found)):
            fields[-1] = fields[-1].rstrip("\r")
    assert [record.fields for record in found] == [["user", "label", "text"], *rows]


@given(st.text(st.sampled_from('",\na'), max_size=20))
def test_whatever_the_standard_library_reads_is_read_alike(text):
    text = "x,y,z\n" + text
    try:
        expected = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error:
        assert any(not record.count for record in read(text))
        return
    assert [(r.count, r.fields) for r in read(text)] == [(len(row), row[:3]) for row in expected]


def test_below_a_broken_record_reading_goes_on_in_the_next_line():
    text = 'u,t\na,"open\nb,fine\nc,"said ""so"""\nd,"x" y\ne,fine\nf,"to the\nend'
    found = [(record.line, record.fields) for record in read(text)]
    assert found == [
        (1, ["u", "t"]),
        (2, []),
        (3, ["b", "fine"]),
        (4, ["c", 'said "so"']),
        (5, []),
        (6, ["e", "fine"]),
        (7, []),
        (8, ["end"]),
    ]


def test_a_long_quoted_text_makes_no_rows(monkeypatch):
    """Beyond every limit as well: what is inside of quotes stays there."""
    monkeypatch.setattr(delimited, "MAX_FIELD", 10)
    inside = "victim,evil\n" * 70_000
    for after in ('",2', '"'):
        found = read(f'u,t,n\nm,"{inside}{after}\nb,fine,2\n')
        assert [record.line for record in found] == [1, 2, 70_003]
        assert found[1].fields[:2] == ["m", "victim,evi"]
        assert found[2].fields == ["b", "fine", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 99])
@pytest.mark.parametrize("last", ['x,"y" z', "end"], ids=["text follows a quote", "never closed"])
def test_a_stray_quote_costs_one_row_however_far_it_reaches(last, size):
    rows = [["u,t", 'm,"open'], ["b,fine"] * 70_000, [last, "c,fine"]]
    found = read("\n".join(chain(*rows)), size=size)
    assert [record.line for record in found] == list(range(1, 70_005))
    assert [record.line for record in found if record.fields not in (["b", "fine"], ["c", "fine"])]\
        == [1, 2, 70_003]  # fmt: skip


def plain(text: str) -> list[tuple[int, int]]:
    """Line and count of fields, where each record that is broken is searched for its end anew."""
    lines, found, at = text.splitlines(keepends=True), [], 0
    while at < len(lines):
        parser, reached = delimited._Parser(",", "\n", 9), at
        while reached < len(lines) and parser.feed(lines[reached]):
            reached += 1
        parser.finish()
        if lines[at].strip():
            found.append((at + 1, 0 if parser.broken else parser.count))
        at = at + 1 if parser.broken else reached + 1
    return found


@given(st.text(st.sampled_from('""",\na'), max_size=60), st.sampled_from([1, 3, 99]))
def test_what_is_known_of_an_open_quote_changes_no_record(text, size):
    assert [(r.line, r.count) for r in read(text, size=size)] == plain(text)


STRAY = {
    "each opens and closes": ['x","y'],
    "each opens": ['m,"x'],
    "most open": ['m,"x', "b,fine"],
    "closed wrongly": ['m,"x', "b,fine", 'c,"x" y'],
    "all kinds": ['x","y', '"', 'm,"x"', 'm,"x" y', '"",""'],
}


@pytest.mark.parametrize("rows", STRAY.values(), ids=STRAY)
@pytest.mark.parametrize("size", [5, 99])
def test_stray_quotes_cost_no_more_than_a_second_reading(rows, size, monkeypatch):
    """Each of these lines leaves a quote open, read by itself or inside of the quote above."""
    fed = had = 0
    original = delimited._Parser.feed

    def counted(self, piece):
        nonlocal fed
        fed += len(piece)
        return original(self, piece)

    def told(text):
        nonlocal had
        for number, piece in pieces(text, "\n", size):
            had += len(piece)
            yield number, piece

    monkeypatch.setattr(delimited._Parser, "feed", counted)
    text = "u,t\n" + "\n".join(rows * 2_000)
    assert len(list(records(told(text), told(text), ",", "\n"))) >= 1_000
    assert fed <= 2 * len(text) and len(text) <= had <= 2 * len(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ['"' + "x\n" * 100_000, '"",' * 60_000, "x," * 100_000, '"x",' * 60_000, "x" * 300_000],
    ids=["never closed", "many quoted", "many", "many texts", "one long"],
)  # fmt: skip
def test_memory_is_bounded(line, monkeypatch):
    monkeypatch.setattr(delimited, "MAX_FIELD", 2**13)
    rows = ["u,t\n", *line.splitlines(keepends=True)]
    source, again = (
        (
            (number, row[at : at + 9_000])
            for number, row in enumerate(rows, 1)
            for at in range(0, len(row), 9_000)
        )
        for _ in range(2)
    )
    tracemalloc.start()
    count = sum(1 for _ in records(source, again, ",", "\n"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count >= 2
    assert peak < 2**20


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NESTED = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)


def cut_up(line: str, size: int) -> list[str]:
    return [line[at : at + size] for at in range(0, len(line), size)]


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(
    row=st.dictionaries(st.text(st.sampled_from('ab"\\{[]}\n\u2028'), max_size=4), NESTED),
    size=st.integers(1, 40),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_what_is_short_stays(row: Any, size: int, ascii_only: bool, indent: Any) -> None:
    line = json.dumps(row, ensure_ascii=ascii_only, indent=indent)
    expected = {k: None if isinstance(v, list | dict) else v for k, v in row.items()}
    assert json.loads(shorten_json(cut_up(line, size))) == expected


@given(
    text=st.text(st.sampled_from('ab"\\\n\0é{['), min_size=9, max_size=60),
    size=st.integers(1, 40),
    ascii_only=st.booleans(),
)
def test_long_strings_are_cut_and_the_rest_is_there(text: str, size: int, ascii_only: bool) -> None:
    line = json.dumps({"text": text * 3, "user_id": "m"}, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "MAX_STRING", 30)
        found = json.loads(shorten_json(cut_up(line, size)))
    assert found["user_id"] == "m"
    assert (text * 3).startswith(found["text"]) and len(found["text"]) >= 4


def test_a_text_that_looks_like_columns_is_text() -> None:
    text = '", "user_id": "other", "x": {"' * 5
    line = json.dumps({"text": text, "user_id": "m", "more": [{"user_id": "other"}]})
    assert json.loads(shorten_json(cut_up(line, 7))) == {"text": text, "user_id": "m", "more": None}


@pytest.mark.parametrize(
    "line", ["[" * 99_999, "{" * 99_999, '{"a":[' * 9_999, '"\\', "\\", "}" * 99, '{"a": 1', ""]
)
def test_no_object(line: str) -> None:
    with pytest.raises(ValueError):
        json.loads(shorten_json(cut_up(line, 1000)))


def test_memory_of_long_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "MAX_STRING", 2**12)
    monkeypatch.setattr(delimited, "MAX_COPY", 2**14)
    for unit in ("x", "\\\\", "[", '""', "1,"):
        tracemalloc.start()
        with contextlib.suppress(ValueError):
            shorten_json(unit * 1000 for _ in range(200))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**18, unit
