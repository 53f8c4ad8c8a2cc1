"""Words of others, shown or passed on: they steer no terminal, and tell no places and logins."""

from __future__ import annotations

import logging
import re
import sys

# What moves the cursor, colours, hides or turns around: control characters but the end of a line
# and the tabulator, line separators, and marks of writing direction.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_LOGIN = re.compile(r"://[^/\s]*@")  # of a URL
# Where an absolute path begins, as in `files:/a` and `sqlite:////a`; `https://a` has none.
_ROOT = r"""(?:(?:(?<=:)//+|(?<![\w.~/\\-]))(?:~[\w.-]*)?/(?!/)|(?<!\w)[A-Za-z]:[\\/](?!/))"""
_PATH = re.compile(
    rf"""(?P<quote>['"`])(?P<in>{_ROOT})(?P<quoted>[^'"`\n]*)(?P=quote)"""
    rf"""|(?P<root>{_ROOT})(?P<bare>[^\s,;:'"`()<>\[\]{{}}|]*)"""
)


def escaped(text: str) -> str:
    """The text, with what would steer a terminal written out, as \\x1b."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str, most: int = 90) -> str:
    """The beginning of a text, at most `most` characters, without line ends and escapes."""
    plain = "".join(c for c in " ".join(text.split()) if c.isprintable())
    return plain if len(plain) <= most else f"{plain[: most - 3]}..."


def without_logins(text: str) -> str:
    """The text, its URLs without user names and passwords."""
    return _LOGIN.sub("://", text)


def without_places(text: str) -> str:
    """The text, of each absolute path the last part alone, and its URLs without logins.

    A path with spaces is known as one path in quotes.
    """
    return _PATH.sub(_last_part, without_logins(text))


def last_part(path: str) -> str:
    """Of a path its name alone, behind an ellipsis."""
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return f"\u2026/{name}"


def _last_part(found: re.Match[str]) -> str:
    """Of one path in a text; a name at the root stays as it is, as in HTML's end tags."""
    quote = found["quote"] or ""
    root, rest = (found["in"], found["quoted"]) if quote else (found["root"], found["bare"])
    if root in ("/", "~/") and not re.search(r"[/\\].", rest):
        return found[0]
    return f"{quote}{last_part(root + rest)}{quote}"


def plain_log(name: str = "flwr") -> None:
    """Where stderr is no terminal, Flower's lines get their time and lose their colours."""
    if sys.stderr.isatty():
        return
    for handler in logging.getLogger(name).handlers:
        if hasattr(handler, "timestamps") and hasattr(handler, "colored"):  # Flower's console's
            handler.timestamps, handler.colored = True, False
