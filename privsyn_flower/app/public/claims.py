"""What public text may carry already: the claim of the run that it was made or chosen by.

Text that is made of users' answers is public, but not free: its epsilon goes along, in the
statement that lies beside it, and adds up with that of whatever is made of it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from privsyn_flower.files import DataError

STATEMENT = "privacy.md"  # `privacy.sentence.FILE`, which this room does not import
TITLE = "# Privacy of this"  # of every statement, and of no page that somebody else wrote
MOST = 2**20  # characters that are read of one
SCORES = ("unknown", "before", "after")  # columns of `proximity.TextScores`


def carried(place: Path) -> str:
    """The statement beside a file of text, or in a folder of such files; "" for none."""
    beside = (place if place.is_dir() else place.parent) / STATEMENT
    if not beside.is_file():
        return ""
    with beside.open(encoding="utf-8", errors="replace") as file:
        text = file.read(MOST).strip()
    return text if text.startswith(TITLE) else ""


def check_chosen(place: Path, columns: Collection[str]) -> None:
    """Raises DataError for text that a trained model chose, of which nothing says any more what it
    carries: `place` is asked only where it has no statement. columns: of its file, or of a row."""
    if all(name in columns for name in SCORES):
        raise DataError(
            f"{place} has the columns {', '.join(SCORES)}, so a trained model chose its texts, and "
            f"they carry the epsilon of its training: put the {STATEMENT} that was written with "
            "them beside it"
        )
