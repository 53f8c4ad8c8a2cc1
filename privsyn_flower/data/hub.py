"""Data sets of the Hugging Face hub, whole or streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from privsyn_flower.files import DataError

from .reading import Row


def load_hub(place: str) -> Any:
    """`hub:NAME[@CONFIG][#SPLIT[:ROWS]]` -> a `datasets` data set; NAME may be a local folder.

    SPLIT is train by default. With ROWS only the first rows are streamed, so that a slice of a
    very large set (`hub:allenai/c4@en#train:200000`) does not download the whole.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{place} needs the datasets package: pip install 'privsyn-flower[server]'"
        ) from error
    name, _, part = place.removeprefix("hub:").partition("#")
    name, _, subset = name.partition("@")
    split, _, rows = part.partition(":")
    if not name or (rows and not (rows.isdigit() and int(rows) > 0)):
        raise DataError(f"{place!r} must be hub:NAME[@CONFIG][#SPLIT[:ROWS]] with ROWS >= 1")
    options = {"split": split or "train", "streaming": bool(rows)}
    try:
        data = datasets.load_dataset(name, subset or None, **options)
    except Exception as error:
        raise DataError(f"{place} cannot be loaded: {_told(error)}") from None
    return data.take(int(rows)) if rows else data


def _told(error: Exception) -> str:
    """An error of the data library: in words when it is about names, by its kind when it is about
    content, which it may quote and a run folder must not hold."""
    about_content = type(error).__module__.startswith("pyarrow") or "Generation" in repr(
        type(error)
    )
    return type(error).__name__ if about_content else str(error)


def hub_columns(data: Any) -> list[str]:
    """The columns of a loaded data set. Raises DataError where it cannot be read."""
    return list(data.column_names or _first_row(data))


def hub_rows(place: str, data: Any, columns: Sequence[str]) -> Iterator[Row]:
    """Rows by number from 1. Raises DataError, without what it is about, when one cannot be had."""
    try:
        yield from _batched_rows(data, columns)
    except Exception as error:
        raise DataError(f"{place} cannot be read: {_told(error)}") from None


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
        raise DataError(f"the data set cannot be read: {_told(error)}") from None
