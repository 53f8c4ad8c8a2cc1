"""A simulated federation as an immutable folder: built once, read by server and nodes.

`private.arrow`, `test.arrow` and `development.arrow` hold PRIVATE users; `public.arrow` and
`public_validation.arrow` are public. A deployed node never comes here: it reads its own file
with `load_users`. Where the text comes from: SOURCES, by the name in `data.source`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from privsyn_flower.common.files import DataError, build_folder, private_folder
from privsyn_flower.common.units import VERSION
from privsyn_flower.config import DataConfig

from .canaries import CANARIES, Canary, canaries, with_canaries
from .chats import chats_identity, load_chats
from .docstrings import docstring_identity, load_docstrings
from .emails import emails_identity, load_emails
from .groups import Reading, Source
from .hub import HUB
from .partition import Split, split
from .reading import text_file
from .spool import Shard, read_users, write_users
from .tables import damaged, read_table, write_table
from .text_files import file_identity, load_files, place_name
from .users import Sample, Tell, texts_of
from .values import label_of

LAYOUT = 5  # raise it when the folder's content or the rules that fill it change

TABLES = ("private", "test", "development", "public", "public_validation")
SKIPPED = "skipped.txt"  # what was left out of private rows, PRIVATE

Users = Mapping[str, list[str]]


def prepare(
    config: DataConfig,
    cache: Path,
    progress: Callable[[str], None] | None = None,
    tell: Tell | None = None,
) -> Path:
    """Build, or find, the folder of this configuration's federation under `cache`/data.

    Its name is a hash of the configuration and of what the text is made of (package versions
    and files, or the bytes of the named files). Safe to call from several processes at once:
    one builds, the others wait. progress: gets a line of text per step, nothing private, because
    a run folder keeps it. tell: gets what was skipped of the private rows, which is PRIVATE: for
    the terminal of whoever owns them.
    Raises DataError when the source is missing, malformed or too small. Such an error states
    counts of ids, rows and public texts, and of private texts where the configuration chooses by
    them (`DataConfig.chosen_by_text`). No deployed node comes here.
    """
    target = cache / "data" / prepared_key(config)[:24]
    note = progress or (lambda _: None)

    def fill(folder: Path) -> None:
        skipped: list[str] = []
        with tempfile.TemporaryDirectory(dir=folder, prefix="rows.") as name:
            reading = Reading(cache, note, skipped.append, scratch=Path(name))
            source = _kind(config.source).load(config, reading)
            across = config.near_duplicates == "remove"
            note("removing near duplicates and splitting users" if across else "splitting users")
            _write(folder, split(source, config), config, source)
        skipped += _left_out(folder, source, config)
        (folder / SKIPPED).write_text("".join(f"{line}\n" for line in skipped), "utf-8")

    if target.is_dir():
        _check_whole(target)
    else:
        private_folder(cache / "data")
        build_folder(target, fill)
    if tell is not None:
        for line in (target / SKIPPED).read_text("utf-8").splitlines():
            tell(line)
    return target


def prepared_key(config: DataConfig) -> str:
    """What the folder is called by: 64 digits. Reads the bytes of named files, and no text.

    Raises DataError when a source is missing.
    """
    return _prepared_key(config.model_dump_json(), *_stamps(config))


class Federation:
    """Reads a folder made by `prepare`; every method is deterministic in the folder.

    Raises DataError when `folder` is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        meta = self.folder / "meta.json"
        try:
            self.meta: dict[str, Any] = json.loads(meta.read_text("utf-8"))
            self.users = int(self.meta["users"])  # declared private users; public
        except OSError:
            raise DataError(f"{folder} holds no federation: build it with prepare()") from None
        except (ValueError, TypeError, KeyError) as error:
            raise damaged(meta, error) from None

    def public(self) -> list[str]:
        """The pool: `public_pool` public texts in random order, `minority_share` of them from
        the minority packages; empty when the configuration names no public text."""
        return self._pool("text")

    def public_labels(self) -> list[str]:
        """The label of each text of `public()`, public as it; "" where the source has none."""
        return self._pool("label")

    def public_corpus(self) -> list[str]:
        """Every public text but the validation's, the pool among them; models train on it."""
        return list(self._corpus["text"])

    def public_general(self) -> list[str]:
        """The corpus without the minority packages: all that the downstream base has seen."""
        table = self._corpus
        return [t for t, minor in zip(table["text"], table["minority"], strict=True) if not minor]

    def public_minority(self) -> list[str]:
        """The pool without its general text: what is like the private text."""
        general = set(self.public_general())
        return [text for text in self.public() if text not in general]

    def public_groups(self) -> list[list[str]]:
        """The corpus by public module (or author), texts in their original order; general and
        minority. A run of them is an example of "more text of the same kind"."""
        groups: dict[int, list[str]] = {}
        for text, group in zip(self._corpus["text"], self._corpus["group"], strict=True):
            groups.setdefault(group, []).append(text)
        return list(groups.values())

    def public_validation(self) -> list[str]:
        """Public texts from modules that are not in the corpus, mixed like the pool."""
        return list(read_table(self.folder / "public_validation.arrow")["text"])

    def shard(self, partition: int, partitions: int) -> Users:
        """user_id -> texts of the users that node `partition` hosts; labels with them. PRIVATE.

        Their ids are in memory, their texts are read when they are asked for.
        """
        return Shard(*self._rows(partition, partitions))

    def shard_samples(self, partition: int, partitions: int) -> dict[str, list[Sample]]:
        """As `shard`, with labels and dates. PRIVATE."""
        return read_users(*self._rows(partition, partitions))

    def held_out(self, which: Literal["test", "development"]) -> Users:
        """user_id -> texts of held-out users who have any; labels with them. PRIVATE, for the
        benchmark only."""
        if which not in ("test", "development"):
            raise DataError(f"held-out users {which!r} must be 'test' or 'development'")
        users = read_users(self.folder / f"{which}.arrow")
        return texts_of({user: own for user, own in users.items() if own})

    def canaries(self) -> list[Canary]:
        """The made-up users of `data.canaries`, who are among the private ones. PRIVATE: whether
        each takes part is for an audit to guess."""
        path = self.folder / CANARIES
        rows = json.loads(path.read_text("utf-8")) if path.exists() else []
        return [Canary(**row) for row in rows]

    @functools.cached_property
    def _corpus(self) -> dict[str, list[Any]]:
        return read_table(self.folder / "public.arrow")

    def _pool(self, column: str) -> list[str]:
        table = self._corpus
        chosen = sorted((place, i) for i, place in enumerate(table["pool"]) if place >= 0)
        return [table[column][i] for _, i in chosen]

    def _rows(self, partition: int, partitions: int) -> tuple[Path, int, int]:
        """The file of the private users, a node's first row of it, and how many it has."""
        sizes = shard_sizes(self.users, partitions)
        if not 0 <= partition < partitions:
            raise DataError(f"partition-id = {partition} must be in 0..{partitions - 1}")
        return self.folder / "private.arrow", sum(sizes[:partition]), sizes[partition]


def _check_whole(folder: Path) -> None:
    """DataError where a file of a prepared folder was cut off or lost; reads no text."""
    Federation(folder)
    for name in TABLES:
        read_table(folder / f"{name}.arrow", length=0)


def shard_sizes(users: int, partitions: int) -> list[int]:
    """Users per node when `users` are dealt in order to `partitions` nodes: equal to one."""
    if not 1 <= partitions <= users:
        raise DataError(f"num-partitions = {partitions} (nodes) must be in 1..{users} (data.users)")
    whole, rest = divmod(users, partitions)
    return [whole + (i < rest) for i in range(partitions)]


def _stamps(config: DataConfig) -> tuple[tuple[str, int, int], ...]:
    """Path, size and time of named files, so that a process hashes each only once."""
    found = []
    for name in (config.path, config.public_path, config.public_emails):
        path = text_file(Path(name).expanduser())
        if name and path.is_file():
            status = path.stat()
            found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(found)


@functools.lru_cache(maxsize=64)  # simulated nodes ask for every message; listing packages is slow
def _prepared_key(config_json: str, *_stamps: tuple[str, int, int]) -> str:
    config = DataConfig.model_validate_json(config_json)
    text = json.dumps([LAYOUT, VERSION, config_json, identity(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _left_out(folder: Path, source: Source, config: DataConfig) -> list[str]:
    """What of the text that was read is nobody's sample, PRIVATE, for who owns the files."""
    if config.source == "docstrings":
        return []
    where, lines = (place_name(config.path) if config.source == "files" else config.source), []
    if source.left_out.total():
        lines.append(source.left_out.summary(where))
    taken = config.users + config.held_out_users + config.development_users
    if config.partition != "uniform" and len(source.private) > taken:
        lines.append(f"{where}: {len(source.private) - taken:,} users are not among the {taken:,}")
    without, plain = 0, 0
    for own in Shard(folder / "private.arrow", 0, config.users).values():
        without += not own
        plain += sum(not label_of(text) for text in own)
    if without:
        lines.append(f"{where}: {without:,} of {config.users:,} users have no sample")
    if plain and config.label_column:
        lines.append(f"{where}: {plain:,} samples have no label, and are of no class")
    return lines


def _domains(public: Mapping[str, list[Any]]) -> dict[str, dict[str, int]]:
    """Texts of the corpus, and of the pool, by label."""
    pool = [label for label, at in zip(public["label"], public["pool"], strict=True) if at >= 0]
    return {"corpus": Counter(public["label"]), "pool": Counter(pool)}


def _write(folder: Path, parts: Split, config: DataConfig, source: Source) -> None:
    pool = [parts.public[group].samples[at].text for group, at in parts.pool]
    made, private = canaries(pool, config), parts.private
    if made:
        private = with_canaries(private, made, config.samples_per_user)
        (folder / CANARIES).write_text(json.dumps([one.row() for one in made]), "utf-8")
    users = write_users(folder / "private.arrow", private)
    write_users(folder / "test.arrow", parts.test)
    write_users(folder / "development.arrow", parts.development)
    place = {where: i for i, where in enumerate(parts.pool)}
    rows = [
        (sample.text, sample.label, g, group.minority, place.get((g, s), -1))
        for g, group in enumerate(parts.public)
        for s, sample in enumerate(group.samples)
    ]
    names = ("text", "label", "group", "minority", "pool")
    columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    write_table(folder / "public.arrow", columns, rows_per_batch=4096)
    write_table(folder / "public_validation.arrow", {"text": parts.validation}, rows_per_batch=4096)
    meta = {
        "layout": LAYOUT,
        "users": users,
        "public": {
            "corpus": len(rows),
            "general": sum(not minority for minority in columns["minority"]),
            "groups": len(parts.public),
            "pool": len(parts.pool),
            "validation": len(parts.validation),
            "domains": _domains(columns) if config.has_minority else {},
            "left_out": {} if config.chosen_by_text else dict(source.public_left_out),
        },
        "origin": source.origin,
        "config": config.model_dump(by_alias=True),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1, sort_keys=True), "utf-8")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a source is read (every group, or DataError), and what its text is made of."""

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


def _kind(name: str) -> Kind:
    found = SOURCES.get(HUB if name.startswith(HUB) else name)
    if found is None or name == HUB:
        named = ", ".join(repr(f"{one}NAME" if one == HUB else one) for one in SOURCES)
        raise DataError(f"data.source = {name!r} must be one of {named}")
    return found
