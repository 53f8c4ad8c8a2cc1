"""The terminal: progress bars from events, with what a stage does in words, and tables that fit its
width.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

SURE_AFTER = 2.0  # seconds of a stage that tell its speed
EVERY = 10.0  # seconds between two lines of a stage where there is no terminal, at least
REPORT_EVERY = 0.2  # seconds between two reports of one stage
WIDTH = 100  # columns where there is no terminal to ask
NARROWEST = 40  # columns in which a table can be read
LABEL, LEAST = 20, 14  # columns of a figure's name and of a run, in a table of runs side by side


class Pace:
    """How long stages still take, by their own speed so far.

    Events bring their time, so that this needs no clock.
    """

    def __init__(self) -> None:
        self.seen: dict[str, tuple[float, float, float]] = {}  # first time, first done, last done

    def left(self, event: Mapping[str, Any]) -> float | None:
        """Seconds that the stage of this event still takes; None: it cannot be said."""
        stage, now, done = event["stage"], float(event["t"]), float(event["done"])
        start, first, last = self.seen.get(stage, (now, done, done))
        if done < last:  # the stage began again
            start, first = now, done
        self.seen[stage] = (start, first, done)
        if done <= first or done >= float(event["total"]) or now - start < SURE_AFTER:
            return None
        return (float(event["total"]) - done) * (now - start) / (done - first)


def spoken(seconds: float | None) -> str:
    """Seconds left, in words; "" for None."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"about {max(10, 10 * round(seconds / 10))} s left"
    return f"about {seconds / 60:.0f} min left"


class Display:
    """Bars on a terminal; where stderr is a file, a line of a stage every EVERY seconds, and its
    first and last."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal
        self.tasks: dict[str, Any] = {}
        self.printed: dict[str, float] = {}  # by kind of stage: when its last line was due
        self.finished: set[str] = set()  # kinds of stages whose first end was printed
        self.waiting: dict[str, str] = {}  # by kind of stage: its newest line, too soon to print
        self.pace = Pace()
        self._last = "", 0.0  # stage and time of the last report
        # What is told has the room that names and bars leave, and is cut there.
        what = Column(max_width=38, no_wrap=True, overflow="ellipsis")
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self.progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=what),
            BarColumn(bar_width=20 if self.console.width >= WIDTH else 8),
            TextColumn("{task.fields[told]}", markup=False, table_column=rest),
            console=self.console,
            expand=True,
        )

    def __enter__(self) -> Self:
        if self.live:
            self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # the terminal may be closed
            if self.live:
                self.progress.stop()
            self.say(list(self.waiting.values()))
            self.waiting.clear()

    def show(self, event: dict[str, Any]) -> None:
        """One event of progress.jsonl."""
        stage, done, total = event["stage"], float(event["done"]), float(event["total"])
        what, unit = stage_in_words(stage)
        left = self.pace.left(event) if unit != CAPPED else None
        if not self.live:
            note = str(event["note"])
            count = progress_text(done, total, unit) or (
                "done" if done >= total and not note else ""
            )
            told = _listed(count, note, spoken(left))
            self._print(stage, float(event["t"]), done >= total, f"{what}: {told}".rstrip(": "))
            return
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(what, total=total, note="", told="")
        task = self.tasks[stage]
        note = event["note"] or self.progress.tasks[task].fields["note"]
        told = _listed(progress_text(done, total, unit), spoken(left), note)
        self.progress.update(task, completed=done, total=total, note=note, told=told)
        if stage == "rounds":  # its bar tells what is over
            for one, other in self.tasks.items():
                if one.startswith("round "):
                    self.progress.update(other, visible=False)
        elif done >= total and stage.startswith("round "):
            self.progress.update(task, visible=False)

    def report(self, stage: str, done: float, total: float, note: str = "") -> None:
        """Progress of a command in this process, a few times a second (`progress.Progress`)."""
        now = time.time()
        if done < total and self._last[0] == stage and now - self._last[1] < REPORT_EVERY:
            return
        self._last = stage, now
        self.show({"t": now, "stage": stage, "done": done, "total": total, "note": note})

    def warn(self, text: str) -> None:
        """A warning of the run, above the bars."""
        if self.live:
            self.console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)
        else:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def say(self, lines: list[str]) -> None:
        """What the run has to tell, above the bars."""
        for line in lines:
            if self.live:
                self.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                print(line, file=sys.stderr, flush=True)

    def _print(self, stage: str, now: float, last: bool, line: str) -> None:
        """A line of a file, now or when it is due. A stage that comes again for each user or round
        has one line every EVERY seconds, whether it ended or not."""
        kind = kind_of(stage)
        if stage == "rounds":  # it tells what is over
            self.waiting = {k: v for k, v in self.waiting.items() if not k.startswith("round: ")}
        self.waiting[kind] = line
        if last and kind not in self.finished:
            self.finished.add(kind)
            self.printed.pop(kind, None)
        for each in list(self.waiting):
            if now - self.printed.get(each, -EVERY) >= EVERY:
                self.printed[each] = now
                self.say([self.waiting.pop(each)])


def _listed(*words: str) -> str:
    return ", ".join(word for word in words if word)


def width() -> int:
    """Columns of the terminal, or of COLUMNS; WIDTH where there is neither."""
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def recorder(columns: int) -> Console:
    """Draws with what the terminal can show: lines, or ASCII."""
    sheet = io.TextIOWrapper(
        io.BytesIO(), encoding=sys.stdout.encoding or "utf-8", errors="replace"
    )
    return Console(width=columns, record=True, file=sheet, highlight=False)


def recorded(console: Console) -> str:
    """What was printed to a `recorder`, without spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in console.export_text().rstrip().splitlines())


def fitted(markdown: str, columns: int) -> str:
    """Markdown in so many columns: long lines wrapped, and the rows of a table that is too wide
    side by side."""
    lines = list[str]()
    for is_table, group in itertools.groupby(markdown.splitlines(), lambda one: one[:1] == "|"):
        own = list(group)
        if not is_table:
            for line in own:
                indent = " " * (len(line) - len(line.lstrip(" -")))
                lines += textwrap.wrap(line, columns, subsequent_indent=indent) or [""]
        elif max(map(len, own)) <= columns:
            lines += own
        else:
            lines += _side_by_side(own, columns)
    return "\n".join(lines)


def _side_by_side(lines: Sequence[str], columns: int) -> list[str]:
    """A Markdown table, its rows as columns, some at a time; without figures that no row has."""
    heading, _, *rows = (
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
    )
    tables = math.ceil(len(rows) / max(1, (columns - LABEL - 4) // LEAST))
    console = recorder(columns)
    for number in range(tables):
        own = rows[number * len(rows) // tables : (number + 1) * len(rows) // tables]
        table = Table()
        table.add_column(Text(heading[0]), max_width=LABEL)
        for row in own:
            table.add_column(Text(row[0]), justify="right", overflow="fold")
        for figure, *values in list(zip(heading, *own, strict=True))[1:]:
            if set(values) != {"-"}:
                table.add_row(*map(Text, (figure, *values)))
        console.print(table)
    return recorded(console).splitlines()


class Stage(NamedTuple):
    """what: is being done. unit: of what is counted, "" where a count says nothing."""

    what: str
    unit: str


TEXTS, ROUNDS, STEPS, NODES = "texts", "rounds", "steps", "nodes"
CAPPED = "steps at most"  # unit of a stage that may stop early, so no speed tells its end
STAGES = {
    "data": Stage("preparing the data", ""),
    "models": Stage("loading models", ""),
    "public": Stage("preparing public text", ""),
    "nodes": Stage("greeting the nodes", NODES),
    "rounds": Stage("asking the users", ROUNDS),
    "topics": Stage("asking the users for their topics", ""),
    "votes": Stage("asking the users for their votes", ""),
    "topics: embedding": Stage("embedding public text for topics", TEXTS),
    "topics: clustering": Stage("finding topics in public text", "passes"),
    "evaluation": Stage("measuring models on the nodes", ""),
    "expansion": Stage("writing synthetic text", TEXTS),
    "generate": Stage("writing synthetic text", TEXTS),
    "generating": Stage("generating text", TEXTS),
    "expanding": Stage("writing text from seeds", TEXTS),
    "embedding": Stage("embedding texts", TEXTS),
    "varying": Stage("varying texts", TEXTS),
    "describing public text": Stage("describing public text", TEXTS),
    "preference training": Stage("training on preferences", STEPS),
    "training on pairs": Stage("training on pairs", STEPS),
    "proximity": Stage("scoring public text", TEXTS),
    "benchmark": Stage("benchmark, not covered by epsilon", "parts"),
    "control": Stage("to compare: text from noise", TEXTS),
    "control rounds": Stage("to compare: rounds on noise", ROUNDS),
    "no_private_step": Stage("to compare: text before private steps", TEXTS),
    "histogram_only": Stage("to compare: text by topics alone", TEXTS),
    "training_only": Stage("to compare: text by training alone", TEXTS),
    "unaligned": Stage("to compare: text before alignment", TEXTS),
    "rival": Stage("to compare: text of the rival", TEXTS),
    "rival rounds": Stage("to compare: rounds of the rival", ROUNDS),
}
IN_ROUND = {
    "nodes": Stage("answers", NODES),
    "candidates": Stage("making candidates", STEPS),
    "pairs": Stage("preference pairs", "pairs"),
}
TRAINING = ("fine-tuning", "training")
MAY_STOP = ("tuning the", "training the")  # by a held-out loss or models.train-seconds
_ROUND = re.compile(r"round (\d+): (.+)")


def stage_in_words(stage: str) -> Stage:
    """A stage of progress.jsonl in words; one that nobody named keeps its own name."""
    if found := _ROUND.fullmatch(stage):
        what, unit = IN_ROUND.get(found[2], Stage(found[2], ""))
        return Stage(f"round {found[1]}: {what}", unit)
    if stage in STAGES:
        return STAGES[stage]
    plain = stage.replace("_", " ")
    if plain.startswith(MAY_STOP):
        return Stage(plain, CAPPED)
    return Stage(plain, STEPS if plain.startswith(TRAINING) else "")


def kind_of(stage: str) -> str:
    """A stage of progress.jsonl without the number of its round."""
    return _ROUND.sub(r"round: \2", stage)


def progress_text(done: float, total: float, unit: str) -> str:
    """How far a stage is: "3 of 8 rounds"; "" where there is nothing to count."""
    if total <= 0 or (total <= 1 and not unit):
        return ""
    if unit == CAPPED:  # how it ended is in its note
        return f"{done:,.10g} of at most {total:,.10g} steps" if done < total else ""
    return f"{done:,.10g} of {total:,.10g} {unit}".rstrip()
