"""Records of comma- or tab-separated text as RFC 4180 has them, read piece by piece.

A quoted field may hold separators, line breaks and doubled quotes. What stands inside of quotes is
text and never becomes a row, however long it is: of a field its first `MAX_FIELD` characters are
kept and the rest is passed over, so memory is bounded and the record keeps its other fields.

A writer that quotes and doubles makes no broken record, whatever the text. In a file of another
origin (quotes inside quotes not doubled, no quoting at all, a file cut off) a record can be broken:
text follows a closing quote, or a quote is never closed. Then its first line is given up, and
reading goes on with the line below: one stray quote costs one row. Two limits of that, which no
reader of such files can do without: a stray quote that a later one happens to close makes one row
of what lies between them; and what lies below a quote left open for more than `MAX_REPLAY`
characters is lost up to the end of that record.

The standard library's reader is no help: at a field above its limit, or at an error, it goes on
with the next line, inside of the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

Piece = tuple[int, str]  # number of a line from 1, and the line or, of a very long one, a part

MAX_FIELD = 2**20  # characters kept of a field
MAX_FIELDS = 1000  # of the header, and so of any record
MAX_REPLAY = 8 * 2**20  # characters kept to go on below the first line of a broken record
MAX_REPLAY_LINES = 2**16


@dataclass(slots=True)
class Record:
    """line: its first. fields: no more than the first record has. count: of all its fields; 0
    when it is broken."""

    line: int
    fields: list[str]
    count: int


def records(pieces: Iterator[Piece], delimiter: str, end: str) -> Iterator[Record]:
    """Records in file order, broken ones among them; blank lines are none.

    pieces: lines with their `end` ("\\n" or "\\r"); a line longer than the reader takes at once is
    several pieces of one number. Of the first record `MAX_FIELDS` fields are kept at most.
    """
    source, width = _Source(pieces), 0
    while (first := source.next()) is not None:
        line, piece = first
        if '"' in piece or not piece.endswith(end):
            record = _parsed(source, first, _Parser(delimiter, end, width or MAX_FIELDS))
        elif text := _stripped(piece, end):  # most lines: no quotes, and whole
            fields = text.split(delimiter, width or MAX_FIELDS)[: width or MAX_FIELDS]
            kept = [field[:MAX_FIELD] for field in fields]
            record = Record(line, kept, text.count(delimiter) + 1)
        else:
            continue
        width = width or len(record.fields)
        yield record


def _parsed(source: _Source, first: Piece, parser: _Parser) -> Record:
    """The record that begins with `first`; where it is broken, source goes on below."""
    source.remember(first)
    more: Piece | None = first
    while more is not None and parser.feed(more[1]):
        more = source.next()
        if more is not None:
            source.remember(more)
    parser.finish()
    if parser.broken:
        source.replay(below=first[0])
        return Record(first[0], [], 0)
    source.forget()
    return Record(first[0], parser.fields, parser.count)


class _Source:
    """Pieces in order; those of the record at hand may be read once more."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self._waiting: deque[Piece] = deque()
        self._seen: list[Piece] = []
        self._size = 0  # characters seen of this record
        self._skip = 0  # the line whose pieces are passed over
        self._budget = MAX_REPLAY  # characters that may be read again: as many as were read, and so

    def next(self) -> Piece | None:
        while True:
            if self._waiting:
                piece = self._waiting.popleft()
            else:
                fresh = next(self._pieces, None)
                if fresh is None:
                    return None
                piece = fresh
                self._budget += len(piece[1])
            if piece[0] != self._skip:
                return piece

    def remember(self, piece: Piece) -> None:
        self._size += len(piece[1])
        if self._size <= MAX_REPLAY and len(self._seen) < MAX_REPLAY_LINES:
            self._seen.append(piece)
        else:
            self._size = MAX_REPLAY + 1
            self._seen = [piece]  # where it ends

    def forget(self) -> None:
        self._seen, self._size = [], 0

    def replay(self, below: int) -> None:
        """Go on below the broken record's first line; below its last where it was too long."""
        if self._size > min(MAX_REPLAY, self._budget):
            self._skip = self._seen[-1][0]
        else:
            self._budget -= self._size
            self._skip = below
            self._waiting.extendleft(reversed([p for p in self._seen if p[0] != below]))
        self.forget()


class _Parser:
    """The record that is being read."""

    def __init__(self, delimiter: str, end: str, width: int) -> None:
        self.fields: list[str] = []
        self.count = 0
        self.broken = False
        self._delimiter, self._end, self._width = delimiter, end, width
        self._parts: list[str] = []  # of the field at hand
        self._room = MAX_FIELD
        self._state = "start"  # of a field; or: plain, inside (of quotes), after (a quote inside)

    def feed(self, piece: str) -> bool:
        """Read on; whether the record goes on below."""
        at = 0
        while at < len(piece) and not self.broken:
            if self._state == "inside":
                at = self._inside(piece, at)
            elif self._state == "start" and piece[at] == '"':
                self._state = "inside"
                at += 1
            elif self._state == "after" and piece[at] == '"':  # doubled
                self._keep('"')
                self._state = "inside"
                at += 1
            elif self._state == "after" and piece[at] != self._delimiter:
                self.broken = _stripped(piece[at:], self._end) not in ("", "\r")
                at = len(piece)
            else:
                at = self._plain(piece, at)
        return not self.broken and (self._state == "inside" or not piece.endswith(self._end))

    def finish(self) -> None:
        """The record is over: what it holds is in `fields`, unless a quote is still open."""
        self.broken = self.broken or self._state == "inside"
        if self._state == "plain" and self._end == "\n" and self._parts:
            self._parts[-1] = self._parts[-1].removesuffix("\r")
        self._end_field()

    def _inside(self, piece: str, at: int) -> int:
        quote = piece.find('"', at)
        self._keep(piece[at:] if quote < 0 else piece[at:quote])
        if quote < 0:
            return len(piece)
        self._state = "after"
        return quote + 1

    def _plain(self, piece: str, at: int) -> int:
        stop = piece.find(self._delimiter, at)
        if stop < 0:
            self._keep(piece[at:].removesuffix(self._end))
            self._state = "plain"
            return len(piece)
        self._keep(piece[at:stop])
        self._end_field()
        return stop + 1

    def _keep(self, text: str) -> None:
        if self._room and text and self.count < self._width:
            self._parts.append(text[: self._room])
            self._room = max(0, self._room - len(text))

    def _end_field(self) -> None:
        if self.count < self._width:
            self.fields.append("".join(self._parts))
        self.count += 1
        self._parts, self._room, self._state = [], MAX_FIELD, "start"


def _stripped(line: str, end: str) -> str:
    """Without its end; a carriage return before a line feed belongs to it."""
    if not line.endswith(end):
        return line
    line = line[: -len(end)]
    return line[:-1] if end == "\n" and line.endswith("\r") else line
