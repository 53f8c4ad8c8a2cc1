"""Records of comma- or tab-separated text (RFC 4180) and JSON lines of any length, piece by piece.

A quoted field may hold separators, line breaks and doubled quotes. What stands inside of quotes is
text and never becomes a row, however long it is: of a field its first `MAX_FIELD` characters are
kept and the rest is passed over, so memory is bounded and the record keeps its other fields.

A writer that quotes and doubles makes no broken record, whatever the text. In a file of another
origin (quotes inside quotes not doubled, no quoting at all, a file cut off) a record can be broken:
text follows a closing quote, or a quote is not closed before the file ends. Then its first line is
given up, and reading goes on with the line below, however far away that was found out: one stray
quote costs one row. One limit of that, which no reader of such files can do without: a stray quote
that a later one happens to close makes one row of what lies between them.

To go on there nothing is remembered: a second reader of the same file follows the first, and what
it reads of such a record is never searched a second time for the end of a quote. So each character
is parsed twice at most, however many quotes are stray.

The standard library's reader is no help: at a field above its limit, or at an error, it goes on
with the next line, inside of the text.

`shorten_json` cuts a long line of JSON: the record of a very long text must keep its user, because
who is a member of a simulation must not depend on the length of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Piece = tuple[int, str]  # number of a line from 1, and the line or, of a very long one, a part

MAX_FIELD = 2**20  # characters kept of a field
MAX_FIELDS = 1000  # of the header, and so of any record


@dataclass(slots=True)
class Record:
    """line: its first. fields: no more than the first record has. count: of all its fields; 0
    when it is broken."""

    line: int
    fields: list[str]
    count: int


def records(
    pieces: Iterator[Piece],
    again: Iterator[Piece],
    delimiter: str,
    end: str,
    *,
    blank: bool = False,
) -> Iterator[Record]:
    """Records in file order, broken ones among them; blank lines are none.

    pieces: lines with their `end` ("\\n" or "\\r"); a line longer than the reader takes at once is
    several pieces of one number. again: the same pieces, read only below a broken record. blank:
    blanks before a field are no part of it. Of the first record `MAX_FIELDS` fields are kept at
    most.
    """
    source, width = _Source(pieces, again), 0
    while (first := source.next()) is not None:
        line, piece = first
        if '"' in piece or not piece.endswith(end):
            record = _parsed(source, first, _Parser(delimiter, end, width or MAX_FIELDS, blank))
        elif text := _stripped(piece, end):  # most lines: no quotes, and whole
            fields = text.split(delimiter, width or MAX_FIELDS)[: width or MAX_FIELDS]
            kept = [(field.lstrip(" ") if blank else field)[:MAX_FIELD] for field in fields]
            record = Record(line, kept, text.count(delimiter) + 1)
        else:
            continue
        width = width or len(record.fields)
        yield record


def _parsed(source: _Source, first: Piece, parser: _Parser) -> Record:
    """The record that begins with `first`; where it is broken, source goes on below."""
    last: Piece | None = first
    line = first[0]
    while last is not None:
        line, piece = last
        goes_on = parser.feed(piece)
        if not goes_on or (piece.endswith(parser.end) and source.breaks_below(line)):
            break
        last = source.next()
    parser.finish()
    if parser.broken:
        source.go_on_below(first[0], line)
        return Record(first[0], [], 0)
    return Record(first[0], parser.fields, parser.count)


class _Source:
    """Pieces in order; below the first line of a broken record once more, from the other reader."""

    def __init__(self, pieces: Iterator[Piece], again: Iterator[Piece]) -> None:
        self._pieces, self._again = pieces, again
        self._count = self._count_again = 0  # pieces had of each
        self._behind = False  # whether pieces come from the other reader
        self._skip = 0  # lines up to this one are passed over
        self._breaks = 0  # the last line of the broken record that reached furthest

    def next(self) -> Piece | None:
        piece = self._any()
        while piece is not None and piece[0] <= self._skip:
            piece = self._any()
        return piece

    def breaks_below(self, line: int) -> bool:
        """Whether a quote that is open at the end of this line is known to make no record.

        An open quote at the beginning of a line ends alike whoever opened it, and one was open
        at the beginning of each line of the broken record but its first.
        """
        return line < self._breaks

    def go_on_below(self, line: int, last: int) -> None:
        """Pass over the rest of the first line of a broken record that was read up to `last`."""
        self._skip = line
        if last > line:
            self._breaks, self._behind = last, True

    def _any(self) -> Piece | None:
        if self._behind:
            piece = next(self._again, None)
            self._count_again += 1
            self._behind = piece is not None and self._count_again < self._count
            if piece is not None:
                return piece
        piece = next(self._pieces, None)
        self._count += piece is not None
        return piece


class _Parser:
    """The record that is being read."""

    def __init__(self, delimiter: str, end: str, width: int, blank: bool = False) -> None:
        self.fields: list[str] = []
        self.count = 0
        self.broken = False
        self.end, self._delimiter, self._width, self._blank = end, delimiter, width, blank
        self._parts: list[str] = []  # of the field at hand
        self._room = MAX_FIELD
        self._state = "start"  # of a field; or: plain, inside (of quotes), after (a quote inside)

    def feed(self, piece: str) -> bool:
        """Read on; whether the record goes on below."""
        at = 0
        while at < len(piece) and not self.broken:
            if self._state == "inside":
                at = self._inside(piece, at)
            elif self._state == "start" and self._blank and piece[at] == " ":
                at += 1
            elif self._state == "start" and piece[at] == '"':
                self._state = "inside"
                at += 1
            elif self._state == "after" and piece[at] == '"':  # doubled
                self._keep('"')
                self._state = "inside"
                at += 1
            elif self._state == "after" and piece[at] != self._delimiter:
                self.broken = _stripped(piece[at:], self.end) not in ("", "\r")
                at = len(piece)
            else:
                at = self._plain(piece, at)
        return not self.broken and (self._state == "inside" or not piece.endswith(self.end))

    def finish(self) -> None:
        """The record is over: what it holds is in `fields`, unless a quote is still open."""
        self.broken = self.broken or self._state == "inside"
        if self._state == "plain" and self.end == "\n" and self._parts:
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
            self._keep(piece[at:].removesuffix(self.end))
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


MAX_STRING = 2**20  # characters kept of a string
MAX_COPY = 2**23  # of the copy: no record has that many columns
BLOCK = 1024  # tokens
_ESCAPE = 6  # characters of the longest, \u0041
_TOKEN = re.compile(r'[^"\\\[\]{}]+|\\u[0-9a-fA-F]{4}|\\.?|["\[\]{}]', re.DOTALL)


def shorten_json(pieces: Iterable[str]) -> str:
    """The line with its strings cut and null for what is nested: valid JSON if it was that.

    Raises ValueError where even so it is too long.
    """
    copy = _Copy()
    rest = ""
    for piece in pieces:
        rest = copy.add(rest + piece, last=False)
    copy.add(rest, last=True)
    return "".join([*copy.blocks, *copy.tokens])


class _Copy:
    """blocks, then tokens: the copy. The rest is the state between two pieces of a line."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.tokens: list[str] = []  # small strings take many times their length: joined in time
        self._depth = 0
        self._quoted = False
        self._room = MAX_STRING  # of the string at hand
        self._left = MAX_COPY

    def add(self, text: str, *, last: bool) -> str:
        """Copy `text`; returns the end of it that the next piece may complete."""
        for match in _TOKEN.finditer(text):
            token = match[0]
            if token[0] == "\\" and not last and len(text) - match.start() < _ESCAPE:
                return text[match.start() :]
            if self._quoted and token != '"':
                self._in_string(token)
            elif token == '"':
                self._quoted, self._room = not self._quoted, MAX_STRING
                self._keep(token, 1)
            elif token in "[{":
                self._depth += 1
                self._keep(token, 1)
                if self._depth == 2:
                    self._keep("null", 2)
            elif token in "]}":
                self._keep(token, 1)
                self._depth -= 1
            else:
                self._keep(token, 1)
        return ""

    def _in_string(self, token: str) -> None:
        whole = token[0] == "\\"  # an escape is kept as it is or not at all
        if self._room >= (len(token) if whole else 1):
            self._keep(token[: self._room], 1)
        self._room = max(0, self._room - len(token))

    def _keep(self, token: str, depth: int) -> None:
        if self._depth <= depth and (depth == 1 or self._depth == depth):
            self._left -= len(token)
            if self._left < 0:
                raise ValueError(f"the line has more than {MAX_COPY} characters beside long texts")
            self.tokens.append(token)
            if len(self.tokens) == BLOCK:
                self.blocks.append("".join(self.tokens))
                self.tokens = []
