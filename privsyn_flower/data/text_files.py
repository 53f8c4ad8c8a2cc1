"""Text of files or of the Hugging Face hub: users by a column, and the public text beside them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from privsyn_flower.common.files import DataError, file_digest
from privsyn_flower.config import DataConfig

from .findings import LeftOut
from .groups import Group, Progress, Reading, Source, cut
from .hub import HUB, hub_columns, hub_rows, load_hub, place_path
from .reading import NO_MIX, column_names, text_file
from .spool import store_groups
from .users import Rows, Sample, Tell, collect_rows, rows_of
from .values import Columns

BLOCK = 8  # public texts of a file without users are grouped in rows of this many


def load_files(config: DataConfig, reading: Reading) -> Source:
    """The users of `data.path` or of a hub's data set, and the text of `data.public-path`."""
    path, public_path = _places(config)
    if not path:
        raise DataError("data.path is empty: name the file of the private users' text")
    columns = private_columns(config)
    reading.progress(f"reading {path}")
    rows, where = _rows(path, columns)
    left_out, public_left_out = LeftOut(), LeftOut()
    private = store_groups(
        rows,
        columns,
        where,
        reading.scratch,
        lambda own: cut(own, config, left_out),
        reading.tell,
        left_out,
    )
    public = public_groups(config, reading.progress, public_left_out) if public_path else []
    return Source(private, public, file_identity(config), left_out, public_left_out)


def file_identity(config: DataConfig) -> dict[str, str]:
    """Place -> content address."""
    return {place: place_identity(place) for place in _places(config) if place}


def public_groups(
    config: DataConfig, progress: Progress = lambda _: None, left_out: LeftOut | None = None
) -> list[Group]:
    """The groups of `data.public-path`: by user column if it has one, else rows of eight texts.

    left_out: where what is not taken is counted; else it goes to `progress`. Also what a deployed
    server starts from, where no private text is at hand.
    """
    path = public_place(config)
    if not path:
        raise DataError("data.public-path is empty: name the public text (file, or hub:NAME)")
    check_public(config)
    progress(f"reading {path}")
    user, text = config.user_column, config.public_text_column or config.text_column
    counts = LeftOut() if left_out is None else left_out
    groups = _public_groups(config, path, Columns(user, text), progress, counts)
    if counts.total() and left_out is None:
        progress(counts.summary(place_name(path)))
    if not groups:
        raise DataError(
            f"{path} (data.public-path) holds no text in column {text!r} (data.public-text-column, "
            "data.text-column): name another file or column, or leave data.public-path empty"
        )
    return groups


def _public_groups(
    config: DataConfig, path: str, named: Columns, progress: Progress, left_out: LeftOut
) -> list[Group]:
    user, text = named.user, named.text
    columns = _columns_at(path)
    label = config.label_column if config.label_column in columns else ""
    if user and user in columns:
        users = read_place(path, Columns(user, text, label), progress)
        return [Group(name, cut(own, config, left_out)) for name, own in users.items() if own]
    samples = [
        sample
        for own in read_place(path, Columns("", text, label), progress).values()
        for sample in cut(own, config, left_out)
    ]
    return blocks(samples)


def private_columns(config: DataConfig) -> Columns:
    """The columns and the date window of the users' text."""
    return Columns(
        "" if config.partition == "uniform" else config.user_column,  # it knows no users
        config.text_column,
        config.label_column,
        config.date_column,
        config.date_from,
        config.date_to,
    )


def private_groups(
    users: Mapping[str, Sequence[Sample]], config: DataConfig, left_out: LeftOut
) -> list[Group]:
    """The users of a source as groups. left_out: counts what becomes no sample."""
    return [Group(user, cut(own, config, left_out)) for user, own in users.items()]


def blocks(samples: Sequence[Sample], name: str = "rows", *, minority: bool = False) -> list[Group]:
    """Public texts of nobody in particular as groups of consecutive ones."""
    starts = range(0, len(samples), BLOCK)
    return [Group(f"{name}-{i}", tuple(samples[i : i + BLOCK]), minority) for i in starts]


def public_place(config: DataConfig) -> str:
    """`data.public-path`: a hub's data set, or a file, in a corpus folder the file of its text."""
    public = config.public_path
    if public and not public.startswith(HUB):
        file = text_file(Path(public).expanduser())
        if file.is_dir():
            raise DataError(f"{file} {NO_MIX}")
        public = str(file)
    return public


def check_public(config: DataConfig) -> None:
    """Raises DataError where the users' text is named as the public text, too."""
    places = _places(config)
    if not all(places) or config.source in ("docstrings", "chats", "emails"):
        return
    private, public = map(place_path, places)
    named = [place.partition("#")[2] if place.startswith(HUB) else "" for place in places]
    parts = {part.partition(":")[0] or "train" for part in named}
    there = private.exists() and public.exists()
    # Two splits of one data set are two texts; of one split, any rows are the users'.
    if len(parts) == 1 and (private == public or (there and private.samefile(public))):
        key = "data.path" if config.source == "files" else "data.source"
        raise DataError(
            f"data.public-path = {config.public_path!r} is the text of the users ({key}), and "
            "public text is used and released as it is: name text that is public"
        )


def _places(config: DataConfig) -> tuple[str, str]:
    private = config.path if config.source == "files" else config.source
    return private, public_place(config)


def read_place(place: str, columns: Columns, tell: Tell | None = None) -> dict[str, list[Sample]]:
    """user -> samples of a file or a `hub:` data set, whoever's they are. Raises DataError."""
    rows, where = _rows(place, columns)
    return collect_rows(rows, columns, 0, where, private=False, tell=tell)


def grouped_by_label(place: str, columns: Columns) -> dict[str, list[str]]:
    """label -> texts of what `read_place` reads, by name; "no label" for those without."""
    groups: dict[str, list[str]] = {}
    for own in read_place(place, columns).values():
        for sample in own:
            groups.setdefault(sample.label or "no label", []).append(sample.text)
    return dict(sorted(groups.items()))


def _rows(place: str, columns: Columns) -> tuple[Rows, str]:
    """The rows of a place, and its name in what is said of them."""
    if not place.startswith(HUB):
        path = Path(place).expanduser()
        return rows_of(path, columns), place_name(place)
    data = load_hub(place)
    columns.require(hub_columns(data), place)
    named = list(columns.named().values())
    return lambda report: hub_rows(place, data, named, report), place


def _columns_at(place: str) -> list[str]:
    if not place.startswith(HUB):
        return column_names(Path(place).expanduser())
    return hub_columns(load_hub(place))


def place_name(place: str) -> str:
    """A place as it is called in what is said of its rows."""
    return place if place.startswith(HUB) else Path(place).name


def place_identity(place: str, key: str = "data.path or data.public-path") -> str:
    """The content address of a file, a folder or a hub's data set. key: what names it."""
    hub, path = place.startswith(HUB), place_path(place)
    if hub and not path.is_dir():
        return f"{place} with datasets {importlib.metadata.version('datasets')}"
    try:
        if not path.is_dir():
            return file_digest(path)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        listing = [(file.relative_to(path).as_posix(), file_digest(file)) for file in files]
    except OSError as error:
        raise DataError(f"{place} ({key}) cannot be read: {error.strerror}") from error
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()
