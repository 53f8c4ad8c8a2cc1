"""Where text comes from: the table of sources, by the name in `data.source`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from privsyn_flower.common.files import DataError
from privsyn_flower.config import DataConfig

from .chats import chats_identity, load_chats
from .docstrings import docstring_identity, load_docstrings
from .emails import emails_identity, load_emails
from .groups import Progress, Reading, Source
from .text_files import file_identity, load_files
from .users import Tell

HUB = "hub:"  # a data set's name follows


@dataclass(frozen=True, slots=True)
class Kind:
    """How a source is read (`load_source`), and what its text is made of (`identity`)."""

    load: Callable[[DataConfig, Reading], Source]
    identity: Callable[[DataConfig], dict[str, str]]


SOURCES = {
    "docstrings": Kind(load_docstrings, docstring_identity),
    "files": Kind(load_files, file_identity),
    "chats": Kind(load_chats, chats_identity),
    "emails": Kind(load_emails, emails_identity),
    HUB: Kind(load_files, file_identity),
}


def identity(config: DataConfig) -> dict[str, str]:
    """What the text is made of: package or file -> content address, without reading the text."""
    return _kind(config.source).identity(config)


def load_source(
    config: DataConfig, cache: Path, progress: Progress, tell: Tell | None = None, *, scratch: Path
) -> Source:
    """Read every group the configuration names. Raises DataError for what cannot be read.

    The other arguments: as of `Reading`.
    """
    reading = Reading(cache, progress, tell, scratch)
    return _kind(config.source).load(config, reading)


def _kind(name: str) -> Kind:
    found = SOURCES.get(HUB if name.startswith(HUB) else name)
    if found is None or name == HUB:
        named = ", ".join(repr(f"{one}NAME" if one == HUB else one) for one in SOURCES)
        raise DataError(f"data.source = {name!r} must be one of {named}")
    return found
