"""A look at a text file before a run: bounded, for the person who owns the file and the machine.

Rows are read and counted by what the run reads them with. Counts of a private file are private.
They are shown on the owner's terminal, in simulation only, and never stored or sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .columns import Columns
from .findings import Tally
from .reading import column_names, read_rows
from .users import Gathered, Held, Sample

WHOLE = 4 * 2**20  # bytes: a file up to this is read to its end
ROWS, CHARACTERS = 1_000, 2**22  # what is looked at of a longer one


@dataclass
class Preview:
    """What a file's first rows hold. PRIVATE where the file is.

    whole: the file ended within the look. rows: readable ones; records: the others, too. columns:
    of all of them. samples: of each user, without exact repetitions. read: what else was found.
    """

    columns: set[str]
    rows: int
    records: int
    whole: bool
    samples: dict[str, list[Sample]]
    read: Gathered

    def users(self, least: int = 0) -> int:
        """Users with at least this many different texts."""
        return sum(len(own) >= least for own in self.samples.values())

    @property
    def texts(self) -> list[str]:
        """Different texts of each user, one user after the other."""
        return [sample.text for own in self.samples.values() for sample in own]


def preview(path: Path, columns: Columns) -> Preview:
    """Look at a file, all of it if it is small. Raises DataError, OSError as reading does."""
    whole, complete = True, path.stat().st_size <= WHOLE
    present = set(column_names(path)) if path.suffix.lower() == ".parquet" else set[str]()
    wanted = [name for name in columns.named().values() if name in present]  # decode no others
    tally, rows, characters = Tally(), 0, 0
    held = Held(tally.report)
    read = Gathered(columns, tally.report, held)
    for line, row in read_rows(path, tally.report, wanted):
        if not complete and (rows == ROWS or characters > CHARACTERS):
            whole = False
            break
        rows += bool(row)
        text = row.get(columns.text)
        characters += len(text) if isinstance(text, str) else 0
        read.add(line, row)
    read.finish()
    return Preview(read.present | present, rows, read.rows, whole, held.users, read)
