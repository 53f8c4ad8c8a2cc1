"""Which columns of a source hold what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from privsyn_flower.files import DataError

from .values import to_date

NAMED, LONGEST = 20, 40  # columns that a message names, and characters of each


class MissingColumn(DataError):
    """A column that is not in the file."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns hold what, and the window of dates kept (inclusive, YYYY-MM-DD).

    user: empty makes every row a user of its own, named by its number. Raises DataError for a bad
    window.
    """

    user: str = "user_id"
    text: str = "text"
    label: str = ""
    date: str = ""
    date_from: str = ""
    date_to: str = ""

    def __post_init__(self) -> None:
        for key, value in (("date-from", self.date_from), ("date-to", self.date_to)):
            if value and to_date(value) != value:
                raise DataError(f"data.{key} = {value!r} must be a date as YYYY-MM-DD")
            if value and not self.date:
                raise DataError(f"data.{key} = {value!r} needs data.date-column")
        if self.date_from and self.date_to and self.date_from > self.date_to:
            raise DataError(
                f"data.date-from = {self.date_from!r} is after data.date-to = {self.date_to!r}"
            )

    @property
    def window(self) -> str:
        """The keys that choose by date, and what they say."""
        pairs = (("date-from", self.date_from), ("date-to", self.date_to))
        told = " and ".join(f"data.{key} = {value!r}" for key, value in pairs if value)
        return told or f"data.date-column = {self.date!r}"

    def named(self) -> dict[str, str]:
        """Configuration key -> column, for the columns in use."""
        pairs = {
            "user-column": self.user,
            "text-column": self.text,
            "label-column": self.label,
            "date-column": self.date,
        }
        return {key: column for key, column in pairs.items() if column}

    def require(self, present: Iterable[str], where: str) -> None:
        """DataError naming the key, the column and the columns there are."""
        existing = sorted(set(map(str, present)))
        for key, column in self.named().items():
            if column not in existing:
                if not existing:
                    raise DataError(f"no row of {where} can be read (data.{key} = {column!r})")
                raise MissingColumn(
                    f"column {column!r} (data.{key}) is not in {where}, which has: "
                    f"{quoted(existing)}"
                )


def quoted(names: Sequence[str]) -> str:
    """Columns of somebody's file, for a message: the first ones, cut, as Python writes text."""
    told = [repr(name[:LONGEST] + "..." * (len(name) > LONGEST)) for name in names[:NAMED]]
    return ", ".join(told + ["..."] * (len(names) > NAMED))
