"""Where text comes from: docstrings, files or the Hugging Face hub -> private and public groups."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from privsyn_flower.common.files import DataError, file_digest
from privsyn_flower.common.python_path import canonical
from privsyn_flower.common.units import pieces, units
from privsyn_flower.config import DataConfig, split_list

from .docstrings import Module, find_package, scan_packages
from .findings import LeftOut
from .hub import hub_columns, hub_rows, load_hub
from .reading import NO_MIX, column_names, text_file
from .spool import Group, store_groups
from .users import Rows, Sample, Tell, collect_rows, rows_of
from .values import Columns

Progress = Callable[[str], None]

BLOCK = 8  # public texts of a file without users are grouped in rows of this many
LONGEST_WORD = 16  # characters of a sample's words, on average; longer ones are data, not text
REST = "the rest of a text, below a quarter of data.sample-words"
DATA = f"a sample whose words have more than {LONGEST_WORD} characters on average"


@dataclass(frozen=True, slots=True)
class Source:
    """private: candidates for users (PRIVATE), those of a file read from the disk one by one;
    public: candidates for the public text. left_out, public_left_out: what became neither."""

    private: Sequence[Group]
    public: list[Group]
    origin: dict[str, str] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)
    public_left_out: LeftOut = field(default_factory=LeftOut)


def identity(config: DataConfig) -> dict[str, str]:
    """What the text is made of: package or file -> content address, without reading the text."""
    if config.source == "docstrings":
        private, public, minority = package_lists(config)
        packages = [find_package(name) for name in (*private, *public, *minority)]
        return {f"{p.name} {p.version}": p.key for p in packages}
    return {place: _place_identity(place) for place in _places(config) if place}


def load_source(
    config: DataConfig, cache: Path, progress: Progress, tell: Tell | None = None, *, scratch: Path
) -> Source:
    """Read every group the configuration names. Raises DataError for what cannot be read.

    progress: gets public notes. tell: what was skipped of private rows, for who reads them anyway.
    scratch: an empty private folder for the users' text, which is read from there while the source
    is in use.
    """
    if config.source == "docstrings":
        return _docstring_source(config, cache, progress)
    path, public_path = _places(config)
    if not path:
        raise DataError("data.path is empty: name the file of the private users' text")
    columns = private_columns(config)
    progress(f"reading {path}")
    rows, where = _rows(path, columns)
    left_out, public_left_out = LeftOut(), LeftOut()
    private = store_groups(
        rows, columns, where, scratch, lambda own: _cut(own, config, left_out), tell, left_out
    )
    public = public_groups(config, progress, public_left_out) if public_path else []
    return Source(private, public, identity(config), left_out, public_left_out)


def public_groups(
    config: DataConfig, progress: Progress = lambda _: None, left_out: LeftOut | None = None
) -> list[Group]:
    """The groups of `data.public-path`: by user column if it has one, else rows of eight texts.

    left_out: where what is not taken is counted; else it goes to `progress`. Also what a deployed
    server starts from, where no private text is at hand.
    """
    _, path = _places(config)
    if not path:
        raise DataError("data.public-path is empty: name the public text (file, or hub:NAME)")
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
        users = _read(path, Columns(user, text, label), progress)
        return [Group(name, _cut(own, config, left_out)) for name, own in users.items() if own]
    samples = [
        sample
        for own in _read(path, Columns("", text, label), progress).values()
        for sample in _cut(own, config, left_out)
    ]
    blocks = range(0, len(samples), BLOCK)
    return [Group(f"rows-{i}", tuple(samples[i : i + BLOCK])) for i in blocks]


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
    """The users of a source as `load_source` has them. left_out: counts what becomes no sample."""
    return [Group(user, _cut(own, config, left_out)) for user, own in users.items()]


def package_lists(config: DataConfig) -> tuple[list[str], list[str], list[str]]:
    """Private, general public and minority packages; DataError when one is on two sides."""
    sides = {
        "private-packages": split_list(config.private_packages),
        "public-packages": split_list(config.public_packages),
        "minority-packages": split_list(config.minority_packages),
    }
    seen: dict[str, str] = {}
    for key, names in sides.items():
        for name in names:
            other = seen.setdefault(canonical(name), key)
            if other != key:
                raise DataError(f"package {name!r} is in data.{other} and data.{key}: keep one")
    for key in ("private-packages", "public-packages"):
        if not sides[key]:
            raise DataError(f"data.{key} is empty: name at least one installed package")
    private, public, minority = (list(dict.fromkeys(names)) for names in sides.values())
    return private, public, minority


def _docstring_source(config: DataConfig, cache: Path, progress: Progress) -> Source:
    private, public, minority = package_lists(config)

    def groups(names: Sequence[str], minor: bool) -> list[Group]:
        modules = scan_packages(names, cache, progress=progress)
        found = (_module_group(module, config.sample_words, minor) for module in modules)
        return [group for group in found if group.samples]

    # The minority comes first: text it shares with a general package stays with the minority,
    # so that the general text really does not hold it.
    open_text = groups(minority, True) + groups(public, False)
    return Source(groups(private, False), open_text, identity(config))


def _module_group(module: Module, words: int, minority: bool) -> Group:
    texts = (text for docstring in module.docstrings for text in chunk(docstring, words))
    return Group(module.name, tuple(Sample(t, label=module.package) for t in texts), minority)


def _cut(samples: Sequence[Sample], config: DataConfig, left_out: LeftOut) -> tuple[Sample, ...]:
    """The samples as they are, or cut into consecutive ones of `data.sample-words` words.

    POPri, section 4: samples are successive spans of a speech or an abstract, which is a user.
    """
    if not config.chunk:
        return tuple(samples)
    return tuple(
        replace(sample, text=piece)
        for sample in samples
        for piece in chunk(sample.text, config.sample_words, left_out, short=True)
    )


def chunk(
    text: str, size: int, left_out: LeftOut | None = None, *, short: bool = False
) -> list[str]:
    """Cut a text into samples of `size` units (`privsyn_flower.common.units`).

    Not taken, and counted in left_out: a rest below a quarter of that, which a whole text is not
    where short ones are wanted, and a sample that is data by the length of its words.
    """
    found: list[str] = []
    every = pieces(text, size)
    for piece in every:
        count = len(units(piece)) if piece is every[-1] else size
        if len(piece) - piece.count(" ") > LONGEST_WORD * count:
            cause = DATA
        elif 4 * count < size and not (short and len(every) == 1):
            cause = REST
        else:
            found.append(piece)
            continue
        if left_out is not None:
            left_out[cause] += 1
    return found


def _places(config: DataConfig) -> tuple[str, str]:
    public = config.public_path
    if public and not public.startswith("hub:"):
        file = text_file(Path(public).expanduser())
        if file.is_dir():
            raise DataError(f"{file} {NO_MIX}")
        public = str(file)
    if config.source == "files":
        return config.path, public
    if config.source.startswith("hub:"):
        return config.source, public
    raise DataError(f"data.source = {config.source!r} must be 'docstrings', 'files' or 'hub:NAME'")


def _read(place: str, columns: Columns, tell: Tell | None) -> dict[str, list[Sample]]:
    rows, where = _rows(place, columns)
    return collect_rows(rows, columns, 0, where, private=False, tell=tell)


def _rows(place: str, columns: Columns) -> tuple[Rows, str]:
    """The rows of a place, and its name in what is said of them."""
    if not place.startswith("hub:"):
        path = Path(place).expanduser()
        return rows_of(path, columns), place_name(place)
    data = load_hub(place)
    columns.require(hub_columns(data), place)
    named = list(columns.named().values())
    return lambda report: hub_rows(place, data, named, report), place


def _columns_at(place: str) -> list[str]:
    if not place.startswith("hub:"):
        return column_names(Path(place).expanduser())
    return hub_columns(load_hub(place))


def place_name(place: str) -> str:
    """A place as it is called in what is said of its rows."""
    return place if place.startswith("hub:") else Path(place).name


def _place_identity(place: str) -> str:
    if place.startswith("hub:"):
        folder = Path(place.removeprefix("hub:").partition("#")[0].partition("@")[0])
        if not folder.is_dir():
            version = importlib.metadata.version("datasets")
            return f"{place} with datasets {version}"
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        listing = [(path.relative_to(folder).as_posix(), file_digest(path)) for path in files]
        return hashlib.sha256(json.dumps(listing).encode()).hexdigest()
    path = Path(place).expanduser()
    try:
        return file_digest(path)
    except OSError as error:
        raise DataError(
            f"{place} (data.path or data.public-path) cannot be read: {error.strerror}"
        ) from error
