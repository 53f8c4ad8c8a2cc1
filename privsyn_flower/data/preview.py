"""A look at a text file before a run: bounded, for the person who owns the file and the machine.

Counts of a private file are private. They are shown on the owner's terminal, in simulation only,
and never stored or sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .reading import column_names, read_rows
from .users import Columns, to_name

WHOLE = 4 * 2**20  # bytes: a file up to this is read to its end
ROWS, CHARACTERS = 1_000, 2**22  # what is looked at of a longer one


@dataclass
class Preview:
    """What a file's first rows hold. PRIVATE where the file is.

    whole: the file ended within the look. rows: readable ones; records: the others, too. columns:
    of all of them. texts: user -> samples of different texts, 0 of a user without any.
    """

    columns: set[str] = field(default_factory=set)
    rows: int = 0
    records: int = 0
    whole: bool = True
    texts: Counter[str] = field(default_factory=Counter)

    def users(self, least: int = 0) -> int:
        """Users with at least this many different texts."""
        return sum(count >= least for count in self.texts.values())

    @property
    def samples(self) -> int:
        """Samples of each user, summed."""
        return self.texts.total()


def preview(
    path: Path, columns: Columns, cut: Callable[[str], Sequence[str]] = lambda text: (text,)
) -> Preview:
    """Look at a file, all of it if it is small. cut: a text -> the samples that it becomes.

    Raises DataError, OSError as reading does."""
    found = Preview()
    whole = path.stat().st_size <= WHOLE
    parquet = path.suffix.lower() == ".parquet"
    present = set(column_names(path)) if parquet else set[str]()
    wanted = [name for name in columns.named().values() if name in present]  # decode no others
    seen: dict[str, set[int]] = {}
    characters = 0
    for _, row in read_rows(path, lambda *_: None, wanted):
        if not whole and (found.rows == ROWS or characters > CHARACTERS):
            found.whole = False
            break
        found.records += 1
        found.rows += bool(row)
        found.columns.update(row)
        user = to_name(row.get(columns.user)) if columns.user else f"row-{found.records}"
        text = row.get(columns.text)
        characters += len(text) if isinstance(text, str) else 0
        if user:
            own = seen.setdefault(user, set())
            found.texts.setdefault(user, 0)
            if isinstance(text, str) and text.strip() and hash(text) not in own:
                own.add(hash(text))
                found.texts[user] += len(cut(text))
    found.columns |= present
    return found
