"""Words of others on a terminal: they show, and do not steer it."""

from __future__ import annotations

import re

# What moves the cursor, colours, hides or turns around: control characters but the end of a line
# and the tabulator, line separators, and marks of writing direction.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """The text, with what would steer a terminal written out, as \\x1b."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str, most: int = 90) -> str:
    """The beginning of a text, at most `most` characters, without line ends and escapes."""
    plain = "".join(c for c in " ".join(text.split()) if c.isprintable())
    return plain if len(plain) <= most else f"{plain[: most - 3]}..."
