"""Comma-separated records: what a CSV library wrote is read back, and nothing else comes of it."""

from __future__ import annotations

import csv
import io
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.data import delimited
from privsyn_flower.data.delimited import Piece, Record, records

HOSTILE = st.text(st.sampled_from('",\t\n\r\0 ax7é\u2028'), max_size=12)


def pieces(text: str, end: str, size: int) -> Iterator[Piece]:
    """Lines, in parts of at most `size` characters."""
    for number, line in enumerate(text.split(end), 1):
        line += end if number <= text.count(end) else ""
        for at in range(0, len(line), size):
            yield number, line[at : at + size]


def read(text: str, end: str = "\n", size: int = 99, delimiter: str = ",") -> list[Record]:
    return list(records(pieces(text, end, size), delimiter, end))


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
            fields[-1] = fields[-1].removesuffix("\r")
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
    monkeypatch.setattr(delimited, "MAX_REPLAY", 40)
    inside = "victim,evil\n" * 50
    for after in ('",2', '"'):
        found = read(f'u,t,n\nm,"{inside}{after}\nb,fine,2\n', size=5)
        assert [record.line for record in found] == [1, 2, 53]
        assert found[1].fields[:2] == ["m", "victim,evi"]
        assert found[2].fields == ["b", "fine", "2"]


def test_a_long_broken_record_is_given_up_whole(monkeypatch):
    monkeypatch.setattr(delimited, "MAX_REPLAY", 40)
    lost = "lost,row\n" * 50
    found = read(f'u,t\nm,"{lost}x,"y" z\nb,fine\n')
    assert [(record.line, record.fields) for record in found] == [
        (1, ["u", "t"]), (2, []), (53, ["b", "fine"]),
    ]  # fmt: skip


def test_stray_quotes_cost_no_more_than_a_second_reading(monkeypatch):
    """Each of these lines leaves a quote open, read by itself or inside of the quote above."""
    monkeypatch.setattr(delimited, "MAX_REPLAY", 20_000)
    fed = 0
    original = delimited._Parser.feed

    def counted(self, piece):
        nonlocal fed
        fed += len(piece)
        return original(self, piece)

    monkeypatch.setattr(delimited._Parser, "feed", counted)
    text = "u,t\n" + 'x","y\n' * 2_000
    read(text)
    assert len(text) <= fed <= 2 * len(text) + 2 * delimited.MAX_REPLAY


@pytest.mark.parametrize(
    "line",
    ['"' + "x\n" * 100_000, '"",' * 60_000, "x," * 100_000, '"x",' * 60_000, "x" * 300_000],
    ids=["never closed", "many quoted", "many", "many texts", "one long"],
)  # fmt: skip
def test_memory_is_bounded(line, monkeypatch):
    for name, limit in (("FIELD", 2**13), ("REPLAY", 2**16), ("REPLAY_LINES", 2**10)):
        monkeypatch.setattr(delimited, f"MAX_{name}", limit)
    rows = ["u,t\n", *line.splitlines(keepends=True)]
    source = (
        (number, row[at : at + 9_000])
        for number, row in enumerate(rows, 1)
        for at in range(0, len(row), 9_000)
    )
    tracemalloc.start()
    count = sum(1 for _ in records(source, ",", "\n"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count >= 2
    assert peak < 2**20
