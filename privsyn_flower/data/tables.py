"""Arrow tables: columns of Python values in files that are read in slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import DataError


def write_table(path: Path, columns: Mapping[str, Sequence[Any]], *, rows_per_batch: int) -> None:
    """Columns of Python values -> an Arrow file, readable in slices without loading the rest."""
    arrow = require_arrow()
    table = arrow.table({name: list(values) for name, values in columns.items()})
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)


def read_table(path: Path, start: int = 0, length: int | None = None) -> dict[str, list[Any]]:
    """Rows [start, start + length) of an Arrow file -> columns of Python values.

    Raises DataError where the file is damaged or not there.
    """
    arrow = require_arrow()
    try:
        with arrow.memory_map(str(path)) as source:
            table = arrow.ipc.open_file(source).read_all().slice(start, length)
            columns: dict[str, list[Any]] = table.to_pydict()
    except (OSError, ValueError, KeyError, arrow.ArrowException) as error:
        raise damaged(path, error) from None
    return columns


def damaged(path: Path, error: Exception) -> DataError:
    """What is said of a file in a cache that cannot be read."""
    return DataError(
        f"{path} is damaged or incomplete ({type(error).__name__}): delete the folder "
        f"{path.parent}, and the next run builds it again"
    )


def require_arrow() -> Any:
    """The pyarrow module, imported on demand: a device that reads jsonl never needs it."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise DataError(
            "this source needs pyarrow: pip install 'privsyn-flower[server]'"
        ) from error
    return pyarrow
