"""Data sets of the Hugging Face hub, whole or streamed, and local folders that are laid out so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import DataError

from .reading import FORMATS, Report, Row, column_names, read_rows

HUB = "hub:"  # begins the place of a data set of the hub; its name follows
TYPES = (
    "often a column has values of several types, or files have different columns: write it as text "
    "in all of them"
)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a split in a local folder, read as any other file here. most: rows, 0: all."""

    paths: list[Path]
    most: int


def place_path(place: str) -> Path:
    """What a place names on this machine, if it is there: a file or a folder, also of `hub:`."""
    bare = place.partition("#")[0].partition("@")[0] if place.startswith(HUB) else place
    return Path(bare.removeprefix(HUB)).expanduser()


def load_hub(place: str) -> Any:
    """`hub:NAME[@CONFIG][#SPLIT[:ROWS]]` -> `Files`, or a `datasets` data set.

    NAME may be a local folder. SPLIT is train by default. With ROWS only the first rows are
    streamed, so that a slice of a very large set (`hub:allenai/c4@en#train:200000`) does not
    download the whole.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{place} needs the datasets package: pip install 'privsyn-flower[server]'"
        ) from error
    name, _, part = place.removeprefix(HUB).partition("#")
    name, _, subset = name.partition("@")
    split, _, rows = part.partition(":")
    if not name or (rows and not (rows.isdigit() and int(rows) > 0)):
        raise DataError(f"{place!r} must be hub:NAME[@CONFIG][#SPLIT[:ROWS]] with ROWS >= 1")
    # Of a folder here the library would keep a copy of the text in its own cache.
    streaming = bool(rows) or Path(name).is_dir()
    options: dict[str, Any] = {"split": split or "train", "streaming": streaming}
    try:
        if Path(name).is_dir():
            builder = datasets.load_dataset_builder(name, subset or None)
            if paths := _own_files(builder.config.data_files, split or "train"):
                return Files(paths, int(rows or 0))
        data = datasets.load_dataset(name, subset or None, **options)
        if data.info.builder_name == "csv":  # else pandas drops texts 'NA' and reads 007 as 7
            text = datasets.Features({one: datasets.Value("string") for one in hub_columns(data)})
            options |= {"features": text, "keep_default_na": False}
            data = datasets.load_dataset(name, subset or None, **options)
    except Exception as error:
        raise DataError(f"{place} cannot be loaded: {_describe_error(error)}") from None
    return data.take(int(rows)) if rows else data


def _own_files(by_split: Any, split: str) -> list[Path]:
    """The files of a split, where all of them are of formats that are read here."""
    paths = [Path(str(path)) for path in (by_split or {}).get(split, [])]
    return paths if all(path.suffix.lower() in FORMATS for path in paths) else []


def _describe_error(error: BaseException) -> str:
    """An error of the data library: in words when it is about names, by its kind when it is about
    content, which it may quote and a run folder must not hold."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause)
    about_content = [
        one
        for one in causes
        if type(one).__module__.startswith(("pyarrow", "pandas")) or "Generation" in repr(type(one))
    ]
    if not about_content:
        return str(error)
    return f"{' from '.join(dict.fromkeys(type(one).__name__ for one in causes))}: {TYPES}"


def hub_columns(data: Any) -> list[str]:
    """The columns of a loaded data set. Raises DataError where it cannot be read."""
    if isinstance(data, Files):
        return column_names(data.paths[0])
    return list(data.column_names or _first_row(data))


def hub_rows(
    place: str, data: Any, columns: Sequence[str], report: Report = lambda *_: None
) -> Iterator[Row]:
    """Rows by number from 1. Raises DataError, without what it is about, when one cannot be had."""
    try:
        if isinstance(data, Files):
            rows = chain.from_iterable(read_rows(path, report, columns) for path in data.paths)
            yield from islice(rows, data.most or None)
        else:
            yield from _batched_rows(data, columns)
    except Exception as error:
        raise DataError(f"{place} cannot be read: {_describe_error(error)}") from None


def _batched_rows(data: Any, columns: Sequence[str]) -> Iterator[Row]:
    wanted = list(columns)
    number = 0
    for batch in data.select_columns(wanted).iter(batch_size=1024):
        for values in zip(*(batch[name] for name in wanted), strict=True):
            number += 1
            yield number, dict(zip(wanted, values, strict=True))


def _first_row(data: Any) -> Iterable[str]:
    try:
        return next(iter(data), {})  # a streamed set may not know its columns before the first row
    except Exception as error:
        raise DataError(f"the data set cannot be read: {_describe_error(error)}") from None
