"""A look at a text file before a run: bounded, for the person who owns the file and the machine.

Counts of a private file are private. They are shown on the owner's terminal, in simulation only,
and never stored or sent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .reading import column_names, read_rows
from .users import Columns, to_name

WHOLE = 4 * 2**20  # bytes: a file up to this is read to its end
ROWS, CHARACTERS = 1_000, 2**22  # what is looked at of a longer one


@dataclass
class Preview:
    """What a file's first rows hold. PRIVATE where the file is.

    whole: the file ended within the look. rows: readable ones. columns: of all of them. texts:
    user -> different texts, users without any left out. oddities: problem -> [lines, first line].
    """

    columns: set[str] = field(default_factory=set)
    rows: int = 0
    whole: bool = True
    texts: Counter[str] = field(default_factory=Counter)
    oddities: dict[str, list[int]] = field(default_factory=dict)
    odd_lines: int = 0
    lines: int = 0

    def users(self, least: int = 1) -> int:
        """Users with at least this many different texts."""
        return sum(count >= least for count in self.texts.values())

    @property
    def samples(self) -> int:
        """Different texts of each user, summed."""
        return self.texts.total()


def preview(path: Path, columns: Columns) -> Preview:
    """Look at a file, all of it if it is small. Raises DataError, OSError as reading does."""
    found, odd = Preview(), set[int]()

    def report(line: int, problem: str, _: str) -> None:
        found.oddities.setdefault(problem, [0, line])[0] += 1
        odd.add(line)

    whole = path.stat().st_size <= WHOLE
    parquet = path.suffix.lower() == ".parquet"
    present = set(column_names(path)) if parquet else set[str]()
    wanted = [name for name in columns.named().values() if name in present]  # decode no others
    seen: dict[str, set[int]] = {}
    line = characters = 0
    for line, row in read_rows(path, report, wanted):
        if not whole and (found.rows == ROWS or characters > CHARACTERS):
            found.whole = False
            break
        found.rows += 1
        found.columns.update(row)
        user = to_name(row.get(columns.user)) if columns.user else f"row-{line}"
        text = row.get(columns.text)
        characters += len(text) if isinstance(text, str) else 0
        if not user:
            report(line, "the row has no user id", "")
        elif not isinstance(text, str) or not text.strip():
            report(line, "the row has no text", "")
        else:
            seen.setdefault(user, set()).add(hash(text))
    found.columns |= present
    found.texts = Counter({user: len(texts) for user, texts in seen.items()})
    found.odd_lines, found.lines = len(odd), max(line, *odd, 0)
    return found
