"""Users' texts in Arrow files, written and read ROWS users at a time. PRIVATE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from privsyn_flower.files import DataError

from .spool import Group
from .tables import damaged, read_table, require_arrow, write_batches
from .users import LabelledText, Sample

ROWS = 256  # users of a batch; Arrow reads no less


def write_users(path: Path, users: Iterable[Group]) -> int:
    """Users -> a file of their ids, texts, labels and dates; how many they were."""
    arrow = require_arrow()
    several = arrow.list_(arrow.string())
    schema = arrow.schema(
        [("user", arrow.string()), ("texts", several), ("labels", several), ("dates", several)]
    )
    written = 0

    def batches() -> Iterator[list[list[Any]]]:
        nonlocal written
        waiting = iter(users)
        while part := list(islice(waiting, ROWS)):
            written += len(part)
            yield [
                [user.name for user in part],
                [[sample.text for sample in user.samples] for user in part],
                [[sample.label for sample in user.samples] for user in part],
                [[sample.date for sample in user.samples] for user in part],
            ]

    write_batches(path, schema, batches())
    return written


def read_users(path: Path, start: int = 0, length: int | None = None) -> dict[str, list[Sample]]:
    """Samples by user, all at once. Raises DataError as `read_table` does."""
    table = read_table(path, start, length)
    rows = zip(table["user"], table["texts"], table["labels"], table["dates"], strict=True)
    return {
        user: [Sample(*values) for values in zip(texts, labels, dates, strict=True)]
        for user, texts, labels, dates in rows
    }


class Shard(Mapping[str, list[str]]):
    """user -> texts (with labels: `LabelledText`s) of `length` users from row `start` of a file.

    Ids are in memory. Texts are read from the file, which stays open, a batch of ROWS users at a
    time: users who are asked for in their order cost one reading of the file. Raises DataError
    where the file is damaged, or holds other users than when it was opened.
    """

    def __init__(self, path: Path, start: int, length: int) -> None:
        arrow = require_arrow()
        self._path, self._start = path, start
        self._batch, self._texts = -1, list[list[str]]()
        try:
            source = arrow.OSFile(str(path))
            ids, texts = (arrow.ipc.IpcReadOptions(included_fields=f) for f in ([0], [0, 1, 2]))
            only_ids = arrow.ipc.open_file(source, options=ids)
            self._file = arrow.ipc.open_file(source, options=texts)
        except (OSError, ValueError, arrow.ArrowException) as error:
            raise damaged(path, error) from None
        names: list[str] = []
        for number in range(start // ROWS, -(-(start + length) // ROWS)):
            names += self._read(only_ids, number)["user"]
        first = start % ROWS
        self._names = names[first : first + length]
        self._places = {name: place for place, name in enumerate(self._names)}
        if len(self._places) != length:
            raise damaged(path, DataError(f"{len(self._places)} users"))

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, user: object) -> bool:
        return user in self._places

    def __getitem__(self, user: str) -> list[str]:
        number, place = divmod(self._start + self._places[user], ROWS)
        if number != self._batch:
            self._texts = self._texts_of(number)
            self._batch = number
        return self._texts[place]

    def _texts_of(self, number: int) -> list[list[str]]:
        """The texts of all users of a batch, this shard's and its neighbours'."""
        table = self._read(self._file, number)
        first = number * ROWS - self._start
        expected = self._names[max(0, first) : max(0, first + ROWS)]
        skip = max(0, -first)
        if table["user"][skip : skip + len(expected)] != expected:
            raise damaged(self._path, DataError("other users"))
        rows = zip(table["texts"], table["labels"], strict=True)
        return [_labelled(texts, labels) for texts, labels in rows]

    def _read(self, file: Any, number: int) -> dict[str, list[Any]]:
        arrow = require_arrow()
        try:
            batch = file.get_batch(number)
            if batch.num_rows != ROWS and number != file.num_record_batches - 1:
                raise DataError(f"{batch.num_rows} users in a batch")
            columns: dict[str, list[Any]] = batch.to_pydict()
        except (OSError, ValueError, IndexError, KeyError, arrow.ArrowException) as error:
            raise damaged(self._path, error) from None
        return columns


def _labelled(texts: list[str], labels: list[str]) -> list[str]:
    if not any(labels):
        return texts
    pairs = zip(texts, labels, strict=True)
    return [LabelledText(text, label) if label else text for text, label in pairs]
