"""What ids, labels and dates mean, the same from every format, and what is none of them.

A user is the unit of privacy, so an id must be one person's. Some are not: a 64-bit number that
became a float has lost its last digits, and a missing value that was written as a word ('nan') is
everybody's who had none. Whoever shares such an id would be protected together, as one person.
"""

from __future__ import annotations

import datetime
import math
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Self

from privsyn_flower.common.files import DataError

EXACT = 2**53  # the largest number up to which a float holds every integer
ENOUGH = 3  # different ids that all look rounded: by chance, once in a million
AS_TEXT = (
    "export the column of ids again as text (pandas: dtype=str when the file is first read; Excel: "
    "a column of the kind Text)"
)
OWN_ID = (
    "give each of these people an id of their own, or remove the rows; if it is somebody's true "
    "id, put a letter before every id"
)
AS_UTF8 = "save the file as UTF-8, so that ids that differ stay different"
ROUNDED = f"if they were numbers in a spreadsheet or a float, {AS_TEXT}"
PLAIN_ID = "write ids as text or whole numbers"
PLAIN_DATE = "write dates as YYYY-MM-DD, or in seconds or milliseconds since 1970"
# As pandas, R, SQL, JavaScript and Excel write what is missing; names such as Nan or Na are none.
MISSING = frozenset(
    "nan NaN NAN -nan -NaN none None null Null NULL nil NA N/A n/a <NA> #N/A #NA NaT \\N (null) "
    "undefined #REF! #VALUE! #NAME? #NULL! #DIV/0! #NUM!".split()
) | {"[object Object]", "#N/A N/A", "[deleted]", "[removed]"}
_SCIENTIFIC = re.compile(r"[+-]?\d+(?:[.,]\d+[eE][+-]?|[eE]\+)\d+")  # 1e10 may be hexadecimal
_FLOAT = re.compile(r"[+-]?(\d+)[.,]0+")
# Seconds, milliseconds, microseconds and nanoseconds of 1973 to 2286: no number is two of them.
_UNITS = ((1e8, 1e10, 1), (1e11, 1e13, 10**3), (1e14, 1e16, 10**6), (1e17, 1e19, 10**9))
_ISO = re.compile(r"(?P<day>\d{4}-.{4}\d|\d{8}(?=T|\d{6}$|$))")
_TYPES: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    ((int, float, Decimal), "a number"),
    (str, "text"),
    (bytes, "binary"),
    ((datetime.date, datetime.time, datetime.timedelta), "a date or time"),
    (Mapping, "an object"),
    (Sequence, "a list"),
)


def to_name(value: object) -> str:
    """A user id or label as a string, the same from every format; empty when it is none.

    A float without a fraction is its integer, as parquet writers turn integers with gaps into
    floats; bytes that are no text are their hexadecimal digits.
    """
    if isinstance(value, float | Decimal):
        return str(int(value)) if math.isfinite(value) and value == math.floor(value) else ""
    if isinstance(value, bytes):
        raw = value
        try:
            value = raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw.hex()
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8").strip()
    if isinstance(value, uuid.UUID):
        return str(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def to_label(value: object) -> str:
    """A label as a string, the same from every format: as `to_name`, and of what is no id, but may
    be a class, as well: true or false, a number with a fraction."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | Decimal) and math.isfinite(value) and value % 1:
        return str(value)
    return to_name(value)


def id_problem(value: object) -> tuple[str, str]:
    """Why `to_name` has nothing of an id, and what to do about it."""
    if is_missing(value):
        return "the row has no user id", "give every row a user id"
    if isinstance(value, float | Decimal):
        return "the user id is a number with a fraction", f"{PLAIN_ID}, without a fraction"
    kind = type_of(value)
    within = ': of {"$oid": "5f1e"} keep "5f1e"' if isinstance(value, Mapping) else ""
    return f"the user id is {kind}", f"{PLAIN_ID}, not as {kind}{within}"


def shared_id(value: object) -> tuple[str, str] | None:
    """Why an id that `to_name` reads may be several people's, and what to do about it."""
    if isinstance(value, float) and abs(value) > EXACT:
        return "the user id is a float beyond 2^53, which has lost its last digits", AS_TEXT
    if isinstance(value, bytes):
        value = to_name(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text in MISSING:
        return f"the user id is {text!r}, which stands for no one person", OWN_ID
    float_text = _FLOAT.fullmatch(text)
    if _SCIENTIFIC.fullmatch(text) or (float_text and int(float_text[1]) > EXACT):
        return "the user id is a number that has lost its last digits (as 1.58222E+18 has)", AS_TEXT
    if "\ufffd" in text or (not text.isascii() and text != to_name(text)):
        return "the user id holds a character that could not be read", AS_UTF8
    return None


@dataclass(slots=True)
class RoundedIds:
    """Whether all ids beyond 2^53 are numbers as a float would have them: either exactly, or with
    zeros where its digits end, as spreadsheets and JavaScript write them."""

    _large: set[str] | None = field(default_factory=set)  # None: one is not
    _zeros: bool = True

    def add(self, name: str) -> None:
        """An id, as `to_name` has it."""
        if self._large is None or not 16 <= len(name) <= 30 or not name.isdecimal():
            return
        number = int(name)
        zeros = number == int(Decimal(repr(float(number))))
        if number <= EXACT or name in self._large:
            return
        if not zeros and number != int(float(number)):
            self._large = None
            return
        self._zeros = self._zeros and zeros
        if len(self._large) < ENOUGH:
            self._large.add(name)

    @property
    def possible(self) -> bool:
        """Whether they may be rounded: ids of some services end in zero bits by themselves."""
        return bool(self._large)

    @property
    def sure(self) -> bool:
        """Whether so many end in zeros that they are."""
        return self._large is not None and self._zeros and len(self._large) == ENOUGH


def to_date(value: object) -> str:
    """YYYY-MM-DD of an ISO string, a date, or seconds since 1970 (UTC), or thousandths, millionths
    or billionths of them, the same from every format; empty otherwise.

    Other numbers are none: a year, a month as 201503 or the days of a spreadsheet would be seconds
    of January 1970.
    """
    if isinstance(value, datetime.date):
        return value.isoformat()[:10]
    text = _date_text(value)
    if iso := _ISO.match(text):  # Python alone reads 1420070400, which are seconds, as of 1420
        try:
            return datetime.date.fromisoformat(iso["day"]).isoformat()
        except ValueError:
            pass
    try:
        number = float(text)
    except ValueError:
        return ""
    for least, most, unit in _UNITS:
        if least <= number < most:
            return datetime.datetime.fromtimestamp(number / unit, datetime.UTC).date().isoformat()
    return ""


def date_problem(value: object) -> tuple[str, str]:
    """Why `to_date` has nothing of a date, and what to do about it."""
    text = _date_text(value)
    if is_missing(value):
        return "the date is missing", PLAIN_DATE
    if not re.fullmatch(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", text):
        if isinstance(value, str | bool | bytes):
            return "the date is unreadable", PLAIN_DATE
        return f"the date is {type_of(value)}", PLAIN_DATE
    number = float(text)
    if 1000 <= number < 3000:
        return "the date is a number like a year", "write a year as YYYY-MM-DD, as 2015-01-01"
    if 100_000 <= number < 300_000 and 1 <= number % 100 <= 12:
        return "the date is a number like a month", "write a month as YYYY-MM-DD, as 2015-03-01"
    if 1 <= number < 100_000:
        return "the date is a number like the days of a spreadsheet", (
            "write days as YYYY-MM-DD (Excel: a cell format yyyy-mm-dd before the export)"
        )
    return "the date is a number that is no time since 1970 in a known unit", PLAIN_DATE


def is_missing(value: object) -> bool:
    """Whether there is no value: nothing, a float that is no number, or blanks."""
    if isinstance(value, str | bytes):
        return not value.strip()
    return value is None or value != value


def type_of(value: object) -> str:
    """What kind of value it is, in words."""
    for types, words in _TYPES:
        if isinstance(value, types):
            return words
    return f"a {type(value).__name__}"


def _date_text(value: object) -> str:
    if isinstance(value, bool):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


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
                    f"{quote_columns(existing)}"
                )


def check_column(place: object, column: str, names: Sequence[str], key: str) -> None:
    """Raises DataError for public text without the column that `key` names."""
    if column not in names:
        raise DataError(
            f"{place} has no column {column!r} but {quote_columns(names) or 'none'}: name its "
            f"column of text with {key}"
        )


def quote_columns(names: Sequence[str]) -> str:
    """Columns of somebody's file, for a message: the first ones, cut, as Python writes text."""
    told = [repr(name[:LONGEST] + "..." * (len(name) > LONGEST)) for name in names[:NAMED]]
    return ", ".join(told + ["..."] * (len(names) > NAMED))


class LabelledText(str):
    """A text with its label, which is as private or as public as the text: the text itself to
    whatever does not ask for labels."""

    __slots__ = ("label",)
    label: str

    def __new__(cls, text: str, label: str = "") -> Self:
        """text: the characters. label: its class."""
        made = super().__new__(cls, text)
        made.label = label
        return made


def labelled(text: str, label: str) -> str:
    """The text with its label, where it has one."""
    return LabelledText(text, label) if label else text


def label_of(text: str) -> str:
    """The label of a user's text, PRIVATE; empty when it has none."""
    return text.label if isinstance(text, LabelledText) else ""
