"""A public corpus as a stream of texts with their places, and the claim that such text carries.

Text that is made of users' answers is public, but not free: its epsilon goes along, in the
statement that lies beside it, and adds up with that of whatever is made of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import DataError, write_atomic
from privsyn_flower.config.data import DataConfig
from privsyn_flower.data.hub import HUB, hub_columns, hub_rows, load_hub, place_path
from privsyn_flower.data.reading import FORMATS, MAX_LINE, column_names, read_rows
from privsyn_flower.data.values import check_column

STATEMENT = "privacy.md"  # `privacy.sentence.FILE`, which this package does not import
TITLE = "# Privacy of this"  # of every statement, and of no page that somebody else wrote
MOST, TOP = 2**20, 9  # characters that are read of one; lines that the title is among
SCORES = ("unknown", "before", "after")  # columns of `proximity.TextScores`


def carried(place: Path | str) -> str:
    """The statement of a file of text, of a folder of such files or of a model's folder: the file's
    own, or beside it, or one folder up, where runs and what is published of them have it; "" for
    none.

    A place may be `hub:` and a folder, whose files may lie in folders of it, each with its own; of
    what is on the hub nothing is known here.
    """
    path, hub = place_path(str(place)), str(place).startswith(HUB)
    if hub and not path.is_dir():
        return ""
    found = list[str]()
    for own in (path, path.resolve()):  # what a link leads to, too
        folder = (own if own.is_dir() else own.parent).absolute()
        places = statement_of_file(own), folder / STATEMENT, folder.parent / STATEMENT
        found += islice(filter(None, map(_statement, places)), 1)
    if hub:
        found += map(_statement, sorted(path.rglob(f"*{STATEMENT}")))
    return together(found)


def together(claims: Iterable[str]) -> str:
    """Statements one after another, each once."""
    found = ""
    for claim in claims:
        if claim not in found:
            found = f"{found}\n\n{claim}".strip()
    return found


def hand_on(claim: str, folder: Path) -> None:
    """What was made of something that carries `claim`, and lies in `folder`, carries it as well;
    beside what it carries already. Nothing is written for ""."""
    path = folder / STATEMENT
    if claim and claim not in (before := _statement(path)):
        write_atomic(path, f"{together([before, claim])}\n".encode())


def statement_of_file(path: Path) -> Path:
    """Where the statement of one file lies that is in no folder of a run."""
    return path.with_name(f"{path.name}.{STATEMENT}")


def _statement(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open(encoding="utf-8-sig", errors="replace") as open_file:
        text = open_file.read(MOST).strip()
    # Whoever publishes it may have put a line on top, as `privsyn publish --drop-found` does.
    head = text.splitlines()[:TOP]
    return text if any(line.startswith(TITLE) for line in head) else ""


def check_chosen(place: Path, columns: Collection[str]) -> None:
    """Raises DataError for text that a trained model chose, of which nothing says any more what it
    carries: `place` is asked only where it has no statement. columns: of its file, or of a row."""
    if all(name in columns for name in SCORES):
        raise DataError(
            f"{place} has the columns {', '.join(SCORES)}, so a trained model chose its texts, and "
            f"they carry the epsilon of its training: put the {STATEMENT} that was written with "
            "them beside it"
        )


USER = DataConfig().user_column
HEAD = 2**20  # bytes that tell a file from another, with its length


class Source:
    """Texts of `filter.source`: a file, a folder of files (in the order of their names), a hub's
    data set. column: of the text. public_users: a column of users is there, and they are public.
    carried: the statement of text that was made of users' answers, as it lies beside; "" for none.

    Raises DataError for a place without such files, without the column, with users' ids, as private
    data has them, or with texts that a trained model chose and no statement of it; OSError.
    """

    def __init__(self, place: str, column: str, *, public_users: bool = False) -> None:
        if not place:
            raise DataError("filter.source is empty: name the public text to judge")
        self.place, self.column, self.public_users = place, column, public_users
        self._data: Any = load_hub(place) if place.startswith(HUB) else None
        self.files = [] if place.startswith(HUB) else _files(Path(place).expanduser())
        names = hub_columns(self._data) if self._data is not None else column_names(self.files[0])
        check_column(place, column, names, "filter.text-column")
        self.carried = together([carried(place), *map(carried, self.files)])
        self._look_at(names, place)
        for file in self.files[1:]:
            self._look_at(column_names(file), file.name)
        self.size = sum(file.stat().st_size for file in self.files)  # bytes; 0: not known

    def _look_at(self, columns: Collection[str], where: str) -> None:
        """Of a file, or a row: raises DataError for columns that public text does not have."""
        if USER in columns and not self.public_users:
            raise DataError(
                f"{where} (filter.source) has a column {USER!r}, as files of private text have: "
                "what is here is sent to a model and kept, without any privacy. If all of it is "
                "public, set filter.public-users = true"
            )
        if not self.carried:
            check_chosen(Path(self.place).expanduser(), columns)

    def identity(self) -> str:
        """What tells the corpus from another, without reading it: of each file name, length and
        first megabyte."""
        if self._data is not None:
            return self.place
        digest = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as handle:
                head = hashlib.sha256(handle.read(HEAD)).hexdigest()
            digest.update(f"{file.name} {file.stat().st_size} {head}\n".encode())
        return digest.hexdigest()

    def texts(self, start: tuple[int, ...] | None = None) -> Iterator[tuple[tuple[int, int], str]]:
        """((file, row), text), files from 0 and rows as their readers count; rows without text are
        passed over. start: files before its file are not opened."""
        for number in count(start[0] if start else 0):
            if number >= max(1, len(self.files)):
                return
            rows = (
                hub_rows(self.place, self._data, [self.column])
                if self._data is not None
                else read_rows(self.files[number], lambda *_: None, (self.column,))
            )
            for row, values in rows:
                self._look_at(values, f"row {row} of {self.place}")  # of jsonl each has its own
                text = values.get(self.column)
                if isinstance(text, str) and text.strip():
                    # Half a pair of surrogates, which JSON can spell, is no character: it could
                    # neither be sent nor written.
                    yield (number, row), text.encode("utf-8", "replace").decode("utf-8")


def text_lines(path: Path) -> Iterator[str]:
    """A text a line; of one beyond the bound of every reader, what is before it."""
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(MAX_LINE):
            yield line.rstrip("\r\n")
            while not line.endswith("\n") and (line := file.readline(MAX_LINE)):
                pass


def _files(path: Path) -> list[Path]:
    """The files of a place. Raises DataError without any, FileNotFoundError."""
    if not path.is_dir():
        path.stat()
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in FORMATS)
    if not files:
        raise DataError(
            f"{path} (filter.source) has no file of {', '.join(FORMATS)}: name a folder with some, "
            "or a file"
        )
    return files
