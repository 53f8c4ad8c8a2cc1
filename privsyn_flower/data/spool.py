"""Users' texts on disk in bounded memory: rows made into groups, and Arrow files of users. PRIVATE.

Rows of one user may lie anywhere in a source. They are written to PARTS files by a hash of the
user's id, and each file, which holds all rows of its users in their order, is read back as a
whole: what a user holds is found from that user's rows alone. The groups go to one more file. In
memory stay a part at a time, and 16 bytes a group, its place in that file and in the source. The
files lie in the folder that `prepare` fills, which only its owner may read, and go with it when
that fails. This process alone reads what it wrote there.

The federation that comes of it keeps its users in Arrow files, written and read ROWS at a time.
"""

from __future__ import annotations

import marshal
import os
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, overload

import numpy as np

from privsyn_flower.common.arrays import I64
from privsyn_flower.common.files import DataError

from .findings import LeftOut, Tally
from .groups import Group
from .reading import Report
from .tables import damaged, read_table, require_arrow
from .users import RowCollector, Rows, Sample, SampleStore, Tell, log_skipped
from .values import Columns, labelled

PARTS = 128  # files of rows; one of them is in memory at a time
PART_ROWS = 256  # of a part, written together
OTHER_DATES = "a date before data.date-from or after data.date-to"

# Which row of the source (from 1), its line, its user; and its text, label and date, if it has one.
_Entry = tuple[Any, ...]


class Spool:
    """Rows by parts (`users.SampleSink`); few rows never touch the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[list[_Entry]] = [[] for _ in range(PARTS)]
        self._files: dict[int, IO[bytes]] = {}
        self._count = 0

    def add(self, line: int, user: str, sample: Sample | None) -> None:
        """As `SampleSink.add`."""
        self._count += 1
        part = hash(user) % PARTS
        own = () if sample is None else (sample.text, sample.label, sample.date)
        rows = self._rows[part]
        rows.append((self._count, line, user, *own))
        if len(rows) == PART_ROWS:
            self._flush(part)

    def parts(self, report: Report) -> Iterator[tuple[dict[str, list[Sample]], list[int], int]]:
        """Of each part: its users' samples, the row that each user begins in (in the same order),
        and how many rows were kept. Once."""
        for part in range(PARTS):
            held = SampleStore(report)
            first: list[int] = []
            for number, line, user, *own in self._entries(part):
                if user not in held.users:
                    first.append(number)
                held.add(line, user, Sample(*own) if own else None)
            yield held.users, first, held.accepted

    def close(self) -> None:
        """Give up the files."""
        for file in self._files.values():
            file.close()

    def _flush(self, part: int) -> None:
        file = self._files.get(part)
        if file is None:
            file = self._files[part] = (self._folder / f"rows-{part}").open("w+b")
        marshal.dump(self._rows[part], file)
        self._rows[part] = []

    def _entries(self, part: int) -> Iterator[_Entry]:
        file = self._files.pop(part, None)
        if file is not None:
            with file:
                end = file.tell()
                file.seek(0)
                while file.tell() < end:
                    yield from marshal.load(file)
            (self._folder / f"rows-{part}").unlink()
        yield from self._rows[part]
        self._rows[part] = []


class StoredGroups(Sequence[Group]):
    """Groups in a file, in the order of the source, each read when it is asked for. PRIVATE."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        weakref.finalize(self, self._file.close)
        self._ends = array("q", [0])
        self._first = array("q")
        self._order: I64 = np.zeros(0, dtype=np.int64)

    def append(self, group: Group, first: int) -> None:
        """Add a group that begins in row `first` of the source; `sort` must follow the last."""
        values = [(sample.text, sample.label, sample.date) for sample in group.samples]
        data = marshal.dumps((group.name, values))
        self._file.write(data)
        self._ends.append(self._ends[-1] + len(data))
        self._first.append(first)

    def sort(self) -> None:
        """Put the groups into the order in which they begin."""
        self._file.flush()
        self._order = np.argsort(np.frombuffer(self._first, dtype=np.int64))
        self._first = array("q")

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, place: int) -> Group: ...
    @overload
    def __getitem__(self, place: slice) -> list[Group]: ...
    def __getitem__(self, place: int | slice) -> Group | list[Group]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        number = int(self._order[place])
        start, end = self._ends[number], self._ends[number + 1]
        name, values = marshal.loads(os.pread(self._file.fileno(), end - start, start))
        return Group(name, tuple(Sample(*value) for value in values))


def store_groups(
    rows: Rows,
    columns: Columns,
    where: str,
    folder: Path,
    cut: Callable[[Sequence[Sample]], tuple[Sample, ...]],
    tell: Tell | None,
    left_out: LeftOut | None = None,
) -> StoredGroups:
    """The rows of a source (PRIVATE) as groups, one for each user, in a file of `folder`.

    As `users.collect_rows` reads them, `strict`, in memory that does not grow with their number but
    for 16 bytes a user. cut: what becomes of one user's samples. left_out: counts rows beyond the
    window of dates. Raises DataError as it does.
    """
    tally, spool = Tally(), Spool(folder)
    try:
        gathered = RowCollector(columns, tally.report, spool)
        gathered.add_all(rows(tally.report), where)
        if gathered.outside and left_out is not None:
            left_out[OTHER_DATES] += gathered.outside
        groups, kept, empty = StoredGroups(folder / "groups"), 0, 0
        for users, first, read in spool.parts(tally.report):
            for (user, own), number in zip(users.items(), first, strict=True):
                groups.append(Group(user, cut(own)), number)
                empty += not own
            kept += read
    finally:
        spool.close()
    groups.sort()
    log_skipped(where, gathered, kept, empty, tally, tell)
    return groups


ROWS = 256  # users of a batch; Arrow reads no less


def write_users(path: Path, users: Iterable[Group]) -> int:
    """Users -> a file of their ids, texts, labels and dates; how many they were."""
    arrow = require_arrow()
    several = arrow.list_(arrow.string())
    schema = arrow.schema(
        [("user", arrow.string()), ("texts", several), ("labels", several), ("dates", several)]
    )
    waiting, written = iter(users), 0
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_file(sink, schema) as writer:
        while part := list(islice(waiting, ROWS)):
            written += len(part)
            columns = {
                "user": [user.name for user in part],
                "texts": [[sample.text for sample in user.samples] for user in part],
                "labels": [[sample.label for sample in user.samples] for user in part],
                "dates": [[sample.date for sample in user.samples] for user in part],
            }
            writer.write_batch(arrow.RecordBatch.from_pydict(columns, schema=schema))
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
        return [list(map(labelled, texts, labels)) for texts, labels in rows]

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
