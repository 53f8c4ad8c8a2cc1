"""A device's or a simulation's text file -> user -> samples.

What is odd in the data is handled where it lies (repaired or skipped), so that a record changes
nothing but its own user's samples. It is counted in the node's local log without quoting any
text, and never reported to a server: such counts are private too. `check_file` lists the same
oddities line by line for the person who owns the file.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from privsyn_flower.common.files import DataError

from .findings import ALIKE, LABEL, LONG, NODE_LOG, UNICODE, Finding, Tally
from .reading import Report, Row, column_names, read_rows
from .values import (
    PLAIN_DATE,
    ROUNDED,
    Columns,
    MissingColumn,
    RoundedIds,
    date_problem,
    id_problem,
    is_missing,
    labelled,
    shared_id,
    to_date,
    to_label,
    to_name,
    type_of,
)

Tell = Callable[[str], None]  # the person at this machine, never a server
Rows = Callable[[Report], Iterable[Row]]  # of a source, when they are asked for

RENAME = (
    "rename the column that is meant, or name it: --user-column NAME, --text-column NAME, ... (in "
    "a run: --set data.user-column=NAME, ...); with --user-column '' every row is a user"
)
MAX_TEXT = 100_000  # characters kept of one text: more cannot matter to any model here


@dataclass(frozen=True, slots=True)
class Sample:
    """One text of one user, PRIVATE where the user is; date as YYYY-MM-DD or empty."""

    text: str
    label: str = ""
    date: str = ""


def texts_of(users: Mapping[str, Iterable[Sample]]) -> dict[str, list[str]]:
    """user -> samples becomes user -> texts; those with a label are `LabelledText`s."""
    return {user: [labelled(s.text, s.label) for s in own] for user, own in users.items()}


def load_users(
    path: str | Path, *, samples_cap: int = 0, strict: bool = True, **columns: str
) -> dict[str, list[str]]:
    """user_id -> texts, both in file order (PRIVATE on a device).

    path: .jsonl, .csv, .tsv (standard library only) or .parquet. samples_cap: texts kept per
    user, the first ones; 0 keeps all. An exact repetition within a user is dropped; a user
    without any text stays, with an empty list, because the node stands for that user too. What
    was skipped is counted in the logger `privsyn_flower.node`, which goes nowhere by itself.
    strict: False on a node, where the column of labels or dates may be missing: else one user's
    row would decide whether anybody's text is read. columns: user_column, text_column and so on,
    as of `file_columns`.
    Raises DataError for a missing column or unknown format, OSError for an unreadable file.
    """
    samples = load_samples(path, samples_cap=samples_cap, strict=strict, **columns)
    return {user: [sample.text for sample in own] for user, own in samples.items()}


def load_samples(
    path: str | Path, *, samples_cap: int = 0, strict: bool = True, **columns: str
) -> dict[str, list[Sample]]:
    """As `load_users`, with each text's label and date."""
    where, chosen = Path(path), file_columns(**columns)
    return collect_rows(rows_of(where, chosen), chosen, samples_cap, where.name, strict=strict)


def check_file(path: str | Path, **columns: str) -> list[Finding]:
    """What loading `path` would skip or repair, by line; for the owner of the file.

    columns: as of `load_users`. Findings hold no text and no user id. Raises OSError for an
    unreadable file.
    """
    findings: list[Finding] = []
    examine(
        Path(path), file_columns(**columns), lambda *finding: findings.append(Finding(*finding))
    )
    return sorted(findings, key=lambda finding: finding.line)


def file_columns(
    *,
    user_column: str = "user_id",
    text_column: str = "text",
    label_column: str = "",
    date_column: str = "",
    date_from: str = "",
    date_to: str = "",
) -> Columns:
    """Columns by the names of the configuration's keys. Raises DataError for a bad window."""
    return Columns(user_column, text_column, label_column, date_column, date_from, date_to)


def examine(path: Path, columns: Columns, report: Report) -> tuple[SampleStore, RowCollector]:
    """The whole file's samples by user; reports what is odd, whatever is wrong with it."""
    held = SampleStore(report)
    gathered = RowCollector(columns, report, held)
    try:
        gathered.add_all(rows_of(path, columns)(report), path.name, private=False)
    except DataError as error:
        gathered.error = str(error)
        report(0, str(error), RENAME if isinstance(error, MissingColumn) else "correct the file")
        return held, gathered
    forms = Counter(map(_folded, held.users))
    for user, own in held.users.items():
        if forms[_folded(user)] > 1:
            problem = "another user id differs from this one by case or Unicode form alone"
            report(held.first_line[user], problem, ALIKE)
        if not own:
            report(held.first_line[user], "the user has no text", "leave the user out")
    if not gathered.rows:
        report(0, "the file holds no rows", "check that it is the file you mean")
    return held, gathered


def _folded(user: str) -> str:
    """What ids have in common that a reader takes for one."""
    return unicodedata.normalize("NFKC", user).casefold()


def rows_of(path: Path, columns: Columns) -> Rows:
    """The rows of a file, when they are asked for."""

    def rows(report: Report) -> Iterable[Row]:
        if path.suffix.lower() == ".parquet":  # its other columns are not even decoded
            columns.require(column_names(path), path.name)
        return read_rows(path, report, columns.named().values())

    return rows


def collect_rows(
    rows: Rows,
    columns: Columns,
    cap: int,
    where: str,
    *,
    strict: bool = True,
    private: bool = True,
    tell: Tell | None = None,
) -> dict[str, list[Sample]]:
    """Samples by user of any source: `rows(report)` iterates over (line, row).

    Oddities are summed up in the local log. strict: a column of labels or dates that no row has is
    a DataError. private: refuse what public text may have, see `RowCollector.add_all`. tell: gets
    what was skipped, in a sentence, PRIVATE unless the text is public.
    """
    if cap < 0:
        raise DataError(f"samples-cap = {cap} must be at least 0 (0 keeps all)")
    tally = Tally()
    held = SampleStore(tally.report, cap)
    gathered = RowCollector(columns, tally.report, held)
    gathered.add_all(rows(tally.report), where, strict, private)
    outside = (gathered.outside, "of other dates")
    for count, why in (outside, (held.beyond, f"beyond {cap} of a user")):
        if count:
            NODE_LOG.warning("%s: %d texts are left out: %s", where, count, why)
    empty = sum(not own for own in held.users.values())
    log_skipped(where, gathered, held.accepted, empty, tally, tell)
    return held.users


def log_skipped(
    where: str,
    gathered: RowCollector,
    accepted: int,
    empty: int,
    tally: Tally,
    tell: Tell | None = None,
) -> None:
    """To the local log, and to whoever reads the rows anyway: what of them is not read.

    accepted: rows that are. empty: users without text.
    """
    rows = gathered.rows
    if tell is not None and gathered.mostly_outside:
        tell(f"{where}: {gathered.mostly_outside}")
    for kind in tally.kinds:
        NODE_LOG.warning("%s: %s; %s", where, kind, kind.advice)
    if empty:
        NODE_LOG.warning("%s: %d users have no text", where, empty)
    if tell is not None and tally.skipped:
        said = "; ".join(map(str, tally.skipped))
        skipped = rows - accepted - gathered.outside
        tell(f"{where}: skipped {skipped:,} of {rows:,} rows: {said}")


class SampleSink(Protocol):
    """Where samples go as their rows come."""

    def add(self, line: int, user: str, sample: Sample | None) -> None:
        """A row of a user's, and its sample where it has one to keep."""


@dataclass(slots=True)
class SampleStore:
    """Samples by user (PRIVATE), in memory; cap: of one user's, 0: none.

    accepted: samples that a user has, or that are left out on purpose: `beyond` the cap.
    """

    report: Report
    cap: int = 0
    users: dict[str, list[Sample]] = field(default_factory=dict)
    first_line: dict[str, int] = field(default_factory=dict)
    texts: dict[str, set[str]] = field(default_factory=dict)
    accepted: int = 0
    beyond: int = 0

    def add(self, line: int, user: str, sample: Sample | None) -> None:
        """As `SampleSink.add`: a text that its user has already is reported, and left out."""
        # A user is one whatever the row holds: who is there must not depend on texts or dates.
        own = self.users.setdefault(user, [])
        self.first_line.setdefault(user, line)
        if sample is None:
            return
        known = self.texts.setdefault(user, set())
        if sample.text in known:
            self.report(line, "the user has this very text already", "remove repetitions")
            return
        self.accepted += 1
        if not self.cap or len(own) < self.cap:
            known.add(sample.text)
            own.append(sample)
        else:
            self.beyond += 1


@dataclass(slots=True)
class RowCollector:
    """Rows as they come, their samples handed to `holder`.

    rows: all. present: columns of any. inside, outside: of the dates that are wanted; undated: with
    none. shared: the first id that may be several people's. error: why nothing can be used.
    """

    columns: Columns
    report: Report
    holder: SampleSink
    rows: int = 0
    present: set[str] = field(default_factory=set)
    inside: int = 0
    outside: int = 0
    undated: int = 0
    first_undated: str = ""
    shared: str = ""
    error: str = ""
    rounded: RoundedIds = field(default_factory=RoundedIds)
    first_rounded: int = 0
    leaves_shared_out: bool = False

    def add_all(
        self, rows: Iterable[Row], where: str, strict: bool = True, private: bool = True
    ) -> None:
        """Add rows; DataError when a wanted column is in none of them (labels, dates: strict).

        private: the rows are of users, the unit of privacy: DataError, too, for ids that several
        people may share, and when no row is within the dates. On a node (not strict) a row with
        such an id is left out alone: it must not decide whether the others' are read.
        """
        self.leaves_shared_out = private and not strict
        for line, row in rows:
            self.add(line, row)
            if self.shared and private:
                raise DataError(self.shared_id_message(where))
        self.finish()
        if self.rows:
            columns = self.columns
            optional = {name for name in (columns.label, columns.date) if name}
            if not strict and optional - self.present:
                self.report(0, "no row has the labels or dates", "name another column, or none")
            columns.require(self.present if strict else self.present | optional, where)
        if private and self.shared:
            raise DataError(self.shared_id_message(where))
        if private and self.all_outside:
            raise DataError(f"{where}: {self.all_outside}")

    def add(self, line: int, row: Mapping[str, Any]) -> None:
        """One row; raises nothing."""
        self.rows += 1
        self.present.update(row)
        try:
            self._add(line, row)
        except Exception:
            self.report(line, "the row cannot be read", "correct or remove it")

    def finish(self) -> None:
        """The last row was added: what only all ids together can tell."""
        if self.rounded.possible and not self.shared:
            problem = "the user ids beyond 2^53 may all be rounded: each is a number as floats are"
            self.report(self.first_rounded, problem, ROUNDED)
            if self.rounded.sure:
                self.shared = f"row {self.first_rounded}: {problem}; {ROUNDED}"

    def shared_id_message(self, where: str) -> str:
        """Why the ids cannot be used."""
        return (
            f"{where} (data.user-column = {self.columns.user!r}), {self.shared}. Several people "
            "may share such an id, and would be protected together as one"
        )

    @property
    def all_outside(self) -> str:
        """Why no row is left, where dates are the reason; else empty."""
        if self.inside or not self.outside + self.undated:
            return ""
        return (
            f"no row is left by {self.columns.window}: {self.outside:,} are outside, and "
            f"{self.undated:,} have no date that can be read ({self.first_undated or PLAIN_DATE})"
        )

    @property
    def mostly_outside(self) -> str:
        """That the window leaves out more than half, where it does."""
        if 2 * self.outside <= self.rows:
            return ""
        return f"{self.columns.window} leaves out {self.outside:,} of {self.rows:,} rows"

    def _add(self, line: int, row: Mapping[str, Any]) -> None:
        columns = self.columns
        user = f"row-{self.rows}"
        if columns.user:
            user = to_name(found := row.get(columns.user))
            if user and (problem := shared_id(found)):
                self.report(line, *problem)
                if self.leaves_shared_out:
                    return
                self.shared = self.shared or f"row {line}: {problem[0]}; {problem[1]}"
            elif not user and row:  # else it could not be read at all, which was said
                self.report(line, *id_problem(found))
            self._look_for_rounded(line, user)
        if not user:
            return
        sample = None
        try:
            sample = self._sample(line, row)
        finally:
            self.holder.add(line, user, sample)

    def _look_for_rounded(self, line: int, user: str) -> None:
        self.rounded.add(user)
        if self.rounded.possible and not self.first_rounded:
            self.first_rounded = line

    def _sample(self, line: int, row: Mapping[str, Any]) -> Sample | None:
        """What the row has to keep."""
        columns = self.columns
        if not row:
            return None
        date = to_date(found := row.get(columns.date)) if columns.date else ""
        if columns.date and not date:
            problem, advice = date_problem(found)
            self.undated += 1
            self.first_undated = self.first_undated or f"row {line}: {problem}; {advice}"
            self.report(line, problem, advice)
            return None
        if (columns.date_from and date < columns.date_from) or (
            columns.date_to and date > columns.date_to
        ):
            self.outside += 1
            return None
        self.inside += 1
        text = self._text(line, row.get(columns.text))
        if not text:
            return None
        label = to_label(row.get(columns.label)) if columns.label else ""
        if columns.label and not label:
            self.report(line, "the text has no label", LABEL)
        return Sample(text, label, date)

    def _text(self, line: int, value: Any) -> str:
        if is_missing(value):
            self.report(line, "the text is empty", "remove rows without text")
            return ""
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str):
            kind = type_of(value)
            self.report(line, f"the text is {kind}", f"write the text as a string, not as {kind}")
            return ""
        if len(value) > MAX_TEXT:
            self.report(
                line, f"the text is longer than the {MAX_TEXT} characters that are kept", LONG
            )
        text: str = value[:MAX_TEXT]
        if not text.isascii():
            valid: str = text.encode("utf-8", "replace").decode("utf-8")
            if valid != text:
                self.report(line, "the text holds half a character", UNICODE)
            return valid
        return text
