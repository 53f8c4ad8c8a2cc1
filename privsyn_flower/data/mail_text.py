"""The bytes of an e-mail -> its sender, and what the sender wrote: no quotation, no signature.

Other people's words are theirs: what is quoted, forwarded, or added by a list is not the sender's.
"""

from __future__ import annotations

import email
import re
from dataclasses import dataclass
from email.message import Message
from email.utils import parseaddr

from .docstring_worker import is_prose

UNREADABLE = "an e-mail that cannot be read"
NOBODY = "an e-mail without a sender's address"
NO_TEXT = "an e-mail without plain text"

_ADDRESS = re.compile(r"[^@\s<>]+@[^@\s<>]+")
_END = re.compile(  # what follows is a signature, a list's footer, or somebody else's
    r"--\s*|_{10,}\s*|-{2,} ?(?:original|forwarded) .*|begin forwarded message.*"
    r"|-{5}begin pgp signature.*",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\s{0,3}[\w.]{0,4}[>|]")  # also with initials before it
_NOTE = re.compile(r".*\b(?:wrote|writes|said|schrieb|écrit)\s*:\s*", re.IGNORECASE)
_ABOUT = re.compile(r"(?:on|at|in|quoting|am|le)\b.*", re.IGNORECASE)  # begins such a note
_PGP = re.compile(r"-{5}BEGIN PGP SIGNED MESSAGE-{5}|Hash: \w+")


@dataclass(frozen=True, slots=True)
class Mail:
    """sender: the address in lower case, PRIVATE. paragraphs: of one line each; None: it has no
    plain text, and its sender is one all the same. repaired: whether characters could not be
    decoded."""

    sender: str
    paragraphs: tuple[str, ...] | None
    repaired: bool = False


def read_mail(data: bytes) -> Mail | str:
    """An e-mail, or why there is none (one of the causes above). Raises nothing."""
    try:
        message = email.message_from_bytes(data)
        sender = _sender(message)
        if not sender:
            return NOBODY
        text = _plain_text(message)
        if text is None:
            return Mail(sender, None)
        return Mail(sender, tuple(own_paragraphs(text)), "\ufffd" in text)
    except Exception:  # whatever it is, it is this e-mail's
        return UNREADABLE


def own_paragraphs(text: str) -> list[str]:
    """What the sender wrote, a paragraph a line, without lines that are no prose."""
    found: list[str] = []
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        ended = bool(_END.fullmatch(line))
        if _QUOTED.match(line):
            del lines[_note_start(lines) :]
        elif line.strip() and not ended:
            if not _PGP.fullmatch(line.strip()):
                lines.append(line.strip())
            continue
        del lines[_note_start(lines) :]
        kept = [line for line in lines if is_prose(line)]
        if kept:
            found.append(" ".join(" ".join(kept).split()))
        lines = []
        if ended:
            break
    return found


def _note_start(lines: list[str]) -> int:
    """Where, at the end of a paragraph, it begins to say who wrote what is quoted below it."""
    if not lines or not _NOTE.fullmatch(lines[-1]):
        return len(lines)
    begun = len(lines) > 1 and not _ABOUT.fullmatch(lines[-1]) and _ABOUT.fullmatch(lines[-2])
    return len(lines) - (2 if begun else 1)


def _sender(message: Message) -> str:
    address = parseaddr(str(message["From"] or ""))[1].strip().lower()
    return address if _ADDRESS.fullmatch(address) else ""


def _plain_text(message: Message) -> str | None:
    """The first part of plain text that is no attachment."""
    for part in message.walk():
        if part.get_content_type() != "text/plain" or part.get_filename():
            continue
        payload = part.get_payload(decode=True)
        if not isinstance(payload, bytes):
            continue
        try:
            return payload.decode(part.get_content_charset() or "utf-8", "replace")
        except (LookupError, ValueError):  # an encoding that there is not
            return payload.decode("utf-8", "replace")
    return None
