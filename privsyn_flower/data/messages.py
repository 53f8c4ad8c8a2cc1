"""What sources of people's messages (chats, e-mails) have in common: how a person's messages become
samples, and the public text beside them.

That text has a minority, which is like messages: the chats that ship with the package, which a
model wrote without private data, or `data.public-path`. The rest is docstrings of public packages
and, where they are given, e-mails. A public sample's label is its domain.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from privsyn_flower.common.files import DataError, file_digest
from privsyn_flower.config import DataConfig, split_list

from .docstrings import package_groups, package_identity
from .findings import LeftOut
from .groups import Group, Reading, chunk, join_short
from .text_files import blocks, place_identity, public_groups, public_place
from .users import MAX_TEXT, Sample

POOL = Path(__file__).resolve().parent.parent / "assets" / "chats" / "public.jsonl.gz"
PROVENANCE = POOL.with_name("public.json")  # how it was made, and its sha256
DOCSTRINGS, NEAR_DOMAIN = "docstrings", "messages"  # labels of public samples
FEW = "what a person wrote in a conversation or e-mail, below data.min-words in all"
UNREAD = "a line without text"
LONGEST_LINE, LARGEST_POOL = 2**20, 2**28  # bytes, unpacked


class Joined(Counter[str]):
    """How many messages became how many texts. PRIVATE where the messages are."""

    def groups(self, own: Mapping[str, list[Sample]]) -> list[Group]:
        """Each person's samples as a group, by their ids; people and texts are counted."""
        self["people"], self["texts"] = len(own), sum(map(len, own.values()))
        return [Group(person, tuple(own[person])) for person in sorted(own)]

    def summary(self, where: str) -> str:
        """A line for a terminal."""
        repaired = self["repaired"]
        told = f"; {repaired:,} held characters that could not be decoded" if repaired else ""
        return (
            f"{where}: {self['messages']:,} messages of {self['people']:,} people became "
            f"{self['texts']:,} texts: what is shorter than data.min-words was joined with its "
            f"writer's next words, what is longer than data.sample-words was cut{told}"
        )


def samples_of(messages: Sequence[str], config: DataConfig, left_out: LeftOut) -> list[Sample]:
    """What one person wrote in one conversation or e-mail, in its order, as samples of
    `data.min-words` to `data.sample-words` words. Nobody else's messages are looked at."""
    texts = join_short(messages, config.min_words)
    left_out[FEW] += not texts
    return [
        Sample(piece)
        for text in texts
        for piece in chunk(text, config.sample_words, left_out, short=True)
    ]


def domain_identity(config: DataConfig) -> dict[str, str]:
    """What the public text is made of: place, or package and version -> content address."""
    found = package_identity(_packages(config))
    place = _pool_place(config)
    if place:
        found[f"public text {Path(place).name}"] = place_identity(place, "data.public-path")
    return found


def domains(
    config: DataConfig, reading: Reading, left_out: LeftOut, others: Sequence[Group] = ()
) -> list[Group]:
    """The public text, the minority first: text it shares with the rest stays with it. others: of
    the general text, labelled."""
    reading.progress("reading public text")
    groups = _near_domain(config, reading, left_out)
    for group in package_groups(_packages(config), config, reading):
        samples = tuple(replace(sample, label=DOCSTRINGS) for sample in group.samples)
        groups.append(Group(f"{DOCSTRINGS}/{group.name}", samples))
    return [*groups, *others]


def _packages(config: DataConfig) -> list[str]:
    return list(dict.fromkeys(split_list(config.public_packages)))


def _pool_place(config: DataConfig) -> str:
    """Where the minority is; empty where none is wanted. Raises DataError where it is missing."""
    if place := public_place(config):
        return place
    if not config.minority_share:
        return ""
    if not POOL.is_file():
        raise DataError(
            f"{POOL} is missing, which data.source = {config.source!r} takes its public messages "
            "from: reinstall the package, name a file of them as data.public-path, or set "
            "data.minority-share = 0"
        )
    if file_digest(POOL) != json.loads(PROVENANCE.read_bytes())["sha256"]:
        raise DataError(
            f"{POOL} does not have the sha256 of {PROVENANCE.name} beside it: reinstall the package"
        )
    return str(POOL)


def _near_domain(config: DataConfig, reading: Reading, left_out: LeftOut) -> list[Group]:
    place = _pool_place(config)
    if not place:
        return []
    packed = place.endswith(".jsonl.gz")
    groups = (
        blocks([Sample(text) for text in _packed_texts(Path(place), left_out)])
        if packed
        else public_groups(config, reading.progress, left_out)
    )
    found = []
    for group in groups:
        texts = [
            piece
            for sample in group.samples
            for piece in chunk(sample.text, config.sample_words, left_out, short=True)
        ]
        samples = tuple(Sample(text, label=NEAR_DOMAIN) for text in texts)
        if samples:
            found.append(Group(f"{NEAR_DOMAIN}/{group.name}", samples, minority=True))
    return found


def _packed_texts(path: Path, left_out: LeftOut) -> Iterator[str]:
    """The column "text" of JSON lines packed by gzip. Raises DataError where it is damaged, or
    unpacks to more than LARGEST_POOL bytes."""
    read = 0
    try:
        with gzip.open(path) as file:
            while line := file.readline(LONGEST_LINE):
                read += len(line)
                if read > LARGEST_POOL:
                    raise DataError(
                        f"{path.name} (data.public-path) unpacks to more than {LARGEST_POOL:,} "
                        "bytes: unpack it, and name the .jsonl file"
                    )
                text = _text_of(line)
                left_out[UNREAD] += not text
                if text:
                    yield text
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} (data.public-path) cannot be read as JSON lines packed by gzip "
            f"({type(error).__name__}): make or install it again"
        ) from None


def _text_of(line: bytes) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        return ""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8").strip()
