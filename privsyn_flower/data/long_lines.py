"""A JSON object's line of any length, made short enough to be held and parsed.

The record of a very long text must keep its user: who is a member of a simulation must not depend
on the length of a text. So such a line is copied piece by piece, without what no column needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_STRING = 2**20  # characters kept of a string
MAX_COPY = 2**23  # of the copy: no record has that many columns
BLOCK = 1024  # tokens
_ESCAPE = 6  # characters of the longest, \u0041
_TOKEN = re.compile(r'[^"\\\[\]{}]+|\\u[0-9a-fA-F]{4}|\\.?|["\[\]{}]', re.DOTALL)


def shortened(pieces: Iterable[str]) -> str:
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
