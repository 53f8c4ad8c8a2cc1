"""A device's or a simulation's text file -> user -> samples.

What is odd in the data is handled where it lies (repaired or skipped), so that a record changes
nothing but its own user's samples. It is counted in the node's local log without quoting any
text, and never reported to a server: such counts are private too. `check_file` lists the same
oddities line by line for the person who owns the file.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from privsyn_flower.files import DataError

from .findings import LONG, NODE_LOG, UNICODE, Finding, Tally
from .reading import Report, Row, column_names, read_rows

Tell = Callable[[str], None]  # the person at this machine, never a server
Rows = Callable[[Report], Iterable[Row]]  # of a source, when they are asked for

MAX_TEXT = 100_000  # characters kept of one text: more cannot matter to any model here


@dataclass(frozen=True, slots=True)
class Sample:
    """One text of one user, PRIVATE where the user is; date as YYYY-MM-DD or empty."""

    text: str
    label: str = ""
    date: str = ""


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


def texts_of(users: Mapping[str, Iterable[Sample]]) -> dict[str, list[str]]:
    """user -> samples becomes user -> texts; those with a label are `LabelledText`s."""
    return {
        user: [LabelledText(s.text, s.label) if s.label else s.text for s in own]
        for user, own in users.items()
    }


def label_of(text: str) -> str:
    """The label of a user's text, PRIVATE; empty when it has none."""
    return text.label if isinstance(text, LabelledText) else ""


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
                raise DataError(
                    f"column {column!r} (data.{key}) is not in {where}, which has: "
                    f"{', '.join(existing) or 'no columns'}"
                )


def load_users(
    path: str | Path,
    *,
    user_column: str = "user_id",
    text_column: str = "text",
    label_column: str = "",
    date_column: str = "",
    date_from: str = "",
    date_to: str = "",
    samples_cap: int = 0,
    strict: bool = True,
) -> dict[str, list[str]]:
    """user_id -> texts, both in file order (PRIVATE on a device).

    path: .jsonl, .csv, .tsv (standard library only) or .parquet. samples_cap: texts kept per
    user, the first ones; 0 keeps all. An exact repetition within a user is dropped; a user
    without any text stays, with an empty list, because the node stands for that user too. What
    was skipped is counted in the logger `privsyn_flower.node`, which goes nowhere by itself.
    strict: False on a node, where the column of labels or dates may be missing: else one user's
    row would decide whether anybody's text is read.
    Raises DataError for a missing column or unknown format, OSError for an unreadable file.
    """
    columns = Columns(user_column, text_column, label_column, date_column, date_from, date_to)
    samples = collect(path, columns, samples_cap, strict=strict)
    return {user: [sample.text for sample in own] for user, own in samples.items()}


def load_samples(
    path: str | Path,
    *,
    user_column: str = "user_id",
    text_column: str = "text",
    label_column: str = "",
    date_column: str = "",
    date_from: str = "",
    date_to: str = "",
    samples_cap: int = 0,
    strict: bool = True,
) -> dict[str, list[Sample]]:
    """As `load_users`, with each text's label and date."""
    columns = Columns(user_column, text_column, label_column, date_column, date_from, date_to)
    return collect(path, columns, samples_cap, strict=strict)


def check_file(
    path: str | Path,
    *,
    user_column: str = "user_id",
    text_column: str = "text",
    label_column: str = "",
    date_column: str = "",
) -> list[Finding]:
    """What loading `path` would skip or repair, by line; for the owner of the file.

    Findings hold no text and no user id. Raises OSError for an unreadable file.
    """
    findings: list[Finding] = []
    columns = Columns(user_column, text_column, label_column, date_column)
    examine(Path(path), columns, lambda *finding: findings.append(Finding(*finding)))
    return sorted(findings, key=lambda finding: finding.line)


def examine(path: Path, columns: Columns, report: Report) -> tuple[dict[str, list[Sample]], int]:
    """The whole file's samples by user, and how many rows it has; reports what is odd, whatever is
    wrong with it."""
    held = Held(report)
    gathered = Gathered(columns, report, held)
    try:
        gathered.add_all(_rows_of(path, columns, report), path.name)
    except DataError as error:
        advice = "rename it, or name the one that is meant (an empty user column: rows are users)"
        report(0, str(error), advice)
        return held.users, gathered.rows
    for user, own in held.users.items():
        if not own:
            report(held.first_line[user], "the user has no text", "leave the user out")
    if not gathered.rows:
        report(0, "the file holds no rows", "check that it is the file you mean")
    return held.users, gathered.rows


def collect(
    path: str | Path,
    columns: Columns,
    cap: int = 0,
    *,
    strict: bool = False,
    tell: Tell | None = None,
) -> dict[str, list[Sample]]:
    """The samples of a file by user; oddities are summed up in the local log.

    strict: a column of labels or dates that no row has is a DataError. On a node it must not be:
    there one user's row would decide whether anybody's text is read. tell: as `collect_rows` has.
    """
    where = Path(path)
    return collect_rows(rows_of(where, columns), columns, cap, where.name, strict=strict, tell=tell)


def rows_of(path: Path, columns: Columns) -> Rows:
    """The rows of a file, for `collect_rows`."""
    return lambda report: _rows_of(path, columns, report)


def _rows_of(path: Path, columns: Columns, report: Report) -> Iterable[Row]:
    if path.suffix.lower() == ".parquet":  # its other columns are not even decoded
        columns.require(column_names(path), path.name)
    return read_rows(path, report, columns.named().values())


def collect_rows(
    rows: Rows,
    columns: Columns,
    cap: int,
    where: str,
    *,
    strict: bool = True,
    tell: Tell | None = None,
) -> dict[str, list[Sample]]:
    """As `collect`, for rows of any source: `rows(report)` iterates over (line, row).

    tell: gets what was skipped, in a sentence, PRIVATE unless the text is public.
    """
    if cap < 0:
        raise DataError(f"samples-cap = {cap} must be at least 0 (0 keeps all)")
    tally = Tally()
    held = Held(tally.report, cap)
    gathered = Gathered(columns, tally.report, held)
    gathered.add_all(rows(tally.report), where, strict)
    for count, why in ((gathered.kept, "of other dates"), (held.beyond, f"beyond {cap} of a user")):
        if count:
            NODE_LOG.warning("%s: %d texts are left out: %s", where, count, why)
    empty = sum(not own for own in held.users.values())
    say_skipped(where, gathered.rows, gathered.kept + held.kept, empty, tally, tell)
    return held.users


def say_skipped(
    where: str, rows: int, kept: int, empty: int, tally: Tally, tell: Tell | None = None
) -> None:
    """To the local log, and to whoever reads the rows anyway: what of `rows` is not read.

    kept: rows that are. empty: users without text.
    """
    for kind in tally.kinds:
        NODE_LOG.warning("%s: %s; %s", where, kind, kind.advice)
    if empty:
        NODE_LOG.warning("%s: %d users have no text", where, empty)
    if tell is not None and tally.skipped:
        said = "; ".join(map(str, tally.skipped))
        tell(f"{where}: skipped {rows - kept:,} of {rows:,} rows: {said}")


class Holder(Protocol):
    """Where samples go as their rows come."""

    def add(self, line: int, user: str, sample: Sample | None) -> None:
        """A row of a user's, and its sample where it has one to keep."""


@dataclass(slots=True)
class Held:
    """Samples by user (PRIVATE), in memory; cap: of one user's, 0: none.

    kept: samples that a user has, or that are left out on purpose: `beyond` the cap.
    """

    report: Report
    cap: int = 0
    users: dict[str, list[Sample]] = field(default_factory=dict)
    first_line: dict[str, int] = field(default_factory=dict)
    texts: dict[str, set[str]] = field(default_factory=dict)
    kept: int = 0
    beyond: int = 0

    def add(self, line: int, user: str, sample: Sample | None) -> None:
        """As `Holder.add`: a text that its user has already is reported, and left out."""
        # A user is one whatever the row holds: who is there must not depend on texts or dates.
        own = self.users.setdefault(user, [])
        self.first_line.setdefault(user, line)
        if sample is None:
            return
        known = self.texts.setdefault(user, set())
        if sample.text in known:
            self.report(line, "the user has this very text already", "remove repetitions")
            return
        self.kept += 1
        if not self.cap or len(own) < self.cap:
            known.add(sample.text)
            own.append(sample)
        else:
            self.beyond += 1


@dataclass(slots=True)
class Gathered:
    """Rows as they come, their samples handed to `holder`. rows: all; kept: left out on purpose
    (dates), without what the holder keeps."""

    columns: Columns
    report: Report
    holder: Holder
    rows: int = 0
    kept: int = 0

    def add_all(self, rows: Iterable[Row], where: str, strict: bool = True) -> None:
        """Add rows; DataError when a wanted column is in none of them (labels, dates: strict)."""
        present: set[str] = set()
        for line, row in rows:
            self.rows += 1
            present.update(row)
            try:
                self._add(line, row)
            except Exception:
                self.report(line, "the row cannot be read", "correct or remove it")
        if self.rows:
            optional = {name for name in (self.columns.label, self.columns.date) if name}
            if not strict and optional - present:
                self.report(0, "no row has the labels or dates", "name another column, or none")
            self.columns.require(present if strict else present | optional, where)

    def _add(self, line: int, row: Mapping[str, Any]) -> None:
        columns = self.columns
        user = to_name(row.get(columns.user)) if columns.user else f"row-{self.rows}"
        if not user:
            if row:  # else it could not be read at all, which was said
                self.report(line, "the row has no user id", "give every row a user id")
            return
        sample = None
        try:
            sample = self._sample(line, row)
        finally:
            self.holder.add(line, user, sample)

    def _sample(self, line: int, row: Mapping[str, Any]) -> Sample | None:
        """What the row has to keep."""
        columns = self.columns
        if not row:
            return None
        date = to_date(row.get(columns.date)) if columns.date else ""
        if columns.date and not date:
            self.report(line, "the date is missing or unreadable", "write dates as YYYY-MM-DD")
            return None
        if (columns.date_from and date < columns.date_from) or (
            columns.date_to and date > columns.date_to
        ):
            self.kept += 1
            return None
        text = self._text(line, row.get(columns.text))
        if not text:
            return None
        return Sample(text, to_name(row.get(columns.label)) if columns.label else "", date)

    def _text(self, line: int, value: Any) -> str:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if value is None or value == "" or (isinstance(value, str) and value.isspace()):
            self.report(line, "the text is empty", "remove rows without text")
            return ""
        if not isinstance(value, str):
            self.report(line, f"the text is a {type(value).__name__}", "write the text as a string")
            return ""
        if len(value) > MAX_TEXT:
            self.report(
                line,
                f"the text is longer than the {MAX_TEXT} characters that are kept",
                LONG,
            )
        text: str = value[:MAX_TEXT]
        if not text.isascii():
            valid: str = text.encode("utf-8", "replace").decode("utf-8")
            if valid != text:
                self.report(line, "the text holds half a character", UNICODE)
            return valid
        return text


def to_name(value: object) -> str:
    """A user id or label as a string, the same from every format; empty when it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # parquet writers turn integers with gaps into floats
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8").strip()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def to_date(value: object) -> str:
    """YYYY-MM-DD of an ISO string, a date, or seconds or milliseconds since 1970 (UTC), the
    same from every format; empty otherwise."""
    if isinstance(value, datetime.date):
        return value.isoformat()[:10]
    text = "" if isinstance(value, bool) else str(value).strip()
    try:
        return datetime.date.fromisoformat(text[:10]).isoformat()
    except ValueError:
        pass
    try:
        seconds = float(text)
        seconds = seconds / 1000 if abs(seconds) > 1e11 else seconds
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return ""
