"""Sentences of running text, by punctuation alone."""

from __future__ import annotations

import re

# Their full stop does not end a sentence; lower case.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof sr jr st mt vs etc e.g i.e eg ie inc ltd co corp vol pp fig al approx dept "
    "est gen gov hon lt col sgt capt rev sen rep u.s u.k u.n a.m p.m jan feb mar apr jun jul aug "
    "sep sept oct nov dec".split()
)
# Marks with what closes after them, a space, and the beginning of another sentence.
_END = re.compile(
    r"""(?<=[.!?…।॥؟۔။។])(["'”’»)\]]*)\s+(?=["'“‘«(\[]*[^\W_a-zß-öø-ÿ])"""
    r"|(?<=[。！？])[”’」』）]*\s*"
)
_WORD = re.compile(r"[\w.]*")
_LOOKED_AT = 40  # characters before a full stop: more than any abbreviation has


def sentences(text: str) -> list[str]:
    """A text -> its sentences with their punctuation, white space made single; none is empty.

    A sentence ends with a line, or with a mark before a space and a letter that is no lower-case
    one, a digit or a quotation; not after initials and the commonest English abbreviations. So a
    title before a name is kept with it, and a sentence that ends in an abbreviation goes on with
    the next.
    """
    found = []
    for line in text.splitlines():
        start = 0
        for end in _END.finditer(line):
            if _goes_on(line, end.start() - 1):
                continue
            found.append(line[start : end.end()])
            start = end.end()
        found.append(line[start:])
    return [one for one in (" ".join(piece.split()) for piece in found) if one]


def _goes_on(line: str, mark: int) -> bool:
    """Whether the mark at a place of a line is the full stop of an abbreviation or an initial."""
    if line[mark] != ".":
        return False
    backwards = _WORD.match(line[max(0, mark - _LOOKED_AT) : mark][::-1])
    last = backwards[0][::-1].lower() if backwards else ""
    return last in _ABBREVIATIONS or (len(last) == 1 and last.isalpha() and last != "i")
