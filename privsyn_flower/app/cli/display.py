"""The terminal: progress bars from events, the claim, and the result table."""

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from privsyn_flower.app.report.forms import claim_lines
from privsyn_flower.app.report.places import dataset_name
from privsyn_flower.app.report.reading import first_texts
from privsyn_flower.app.report.stages import CAPPED, kind_of, progress_text, stage_in_words
from privsyn_flower.app.report.summaries import epsilon_of, unusable_lines, verdict_lines
from privsyn_flower.app.report.tables import measured_rows
from privsyn_flower.common.terminal import one_line
from privsyn_flower.runs import SEEDS

SHOWN_TEXTS = 3  # of the synthetic ones, as soon as they are there
SHOWN_SEEDS = 5
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


def seed_lines(summary: Mapping[str, Any], folder: Path) -> list[str]:
    """The texts that the users' votes picked, most votes first; nothing of methods without."""
    count = summary.get("seeds", 0)
    texts = first_texts(folder, SHOWN_SEEDS, SEEDS) if count else []
    head = f"{count:,} texts that the users' votes picked, {SEEDS}; of most votes:"
    return [head, *(f"    {one_line(row['text'])}" for row in texts)] if texts else []


def product_lines(summary: Mapping[str, Any], folder: Path) -> list[str]:
    """What a run has made, before its benchmark begins."""
    count = int(summary["synthetic_samples"])
    seeds = seed_lines(summary, folder)
    texts = [] if count == summary.get("seeds") else first_texts(folder, SHOWN_TEXTS)
    written = f"{count:,} synthetic texts, synthetic.jsonl"
    made = written if count or texts else "a trained model, model/"
    return [
        *unusable_lines(summary),
        *seeds,
        f"the result is ready in {folder}: {made}",
        *(f"    {one_line(row['text'])}" for row in texts),
        *verdict_lines(summary),
        *(f"{line.about}: {line.text}" for line in claim_lines(summary)),
        "its benchmark follows, which epsilon does not cover; Ctrl-C ends it and keeps the result",
    ]


def width() -> int:
    """Columns of the terminal, or of COLUMNS; WIDTH where there is neither."""
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def result_table(summary: Mapping[str, Any]) -> str:
    """What the run came to, as text: the claim, the verdict, and the figures last."""
    console = _recorder(width())
    console.print(_claim(summary))
    for line in verdict_lines(summary):
        console.print(line, soft_wrap=True, markup=False)
    if early := summary.get("ended_early"):
        planned = summary["rounds_planned"]
        console.print(
            f"ended early after {summary['rounds']} of {planned} rounds: {early}", markup=False
        )
    for title, table in _tables(summary):
        console.print(f"\n{title}", markup=False)
        console.print(table)
    return _recorded(console)


def _recorder(columns: int) -> Console:
    """Draws with what the terminal can show: lines, or ASCII."""
    sheet = io.TextIOWrapper(
        io.BytesIO(), encoding=sys.stdout.encoding or "utf-8", errors="replace"
    )
    return Console(width=columns, record=True, file=sheet, highlight=False)


def _recorded(console: Console) -> str:
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
    console = _recorder(columns)
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
    return _recorded(console).splitlines()


def _claim(summary: Mapping[str, Any]) -> Table:
    """The claim, its lines under each other as wide as the terminal is."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in claim_lines(summary):
        grid.add_row(Text(line.about), Text(line.text))
    return grid


def _tables(summary: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    """The figures with their titles, details first."""
    yield from benchmark_tables(summary.get("benchmark") or {})
    if "models" in summary.get("measured", {}):
        yield "models on the users' text, by a paid release", _measured(summary["measured"])
    yield f"{summary['method']} on {dataset_name(summary['dataset'])}", _figures(summary)


def _figures(summary: Mapping[str, Any]) -> Table:
    """The run's own figures."""
    table = Table()
    table.add_column("figure")
    table.add_column("value", justify="right")
    for key in ("users", "rounds", "epsilon", "delta", "noise_multiplier", "synthetic_samples"):
        value = epsilon_of(summary) if key == "epsilon" else summary[key]
        table.add_row(key, f"{value:.6g}" if isinstance(value, float) else str(value))
    if summary.get("ended_early"):
        table.add_row("rounds planned", str(summary["rounds_planned"]))
    for key in ("bytes_down_per_user_round", "bytes_up_per_user_round", "wall_seconds"):
        table.add_row(key, f"{summary[key]:,.0f}")
    return table


def _measured(estimates: Mapping[str, Any]) -> Table:
    """Given models on the users' text."""
    heading, _, *rows = measured_rows(estimates)
    table = Table()
    for column in heading:
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def benchmark_tables(benchmark: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """The benchmark's figures with their titles: what the answers found, then the model by training
    text."""
    if not benchmark:
        return []
    models = f"small model, {_task(benchmark)[0]} of {benchmark['held_out_users']} held-out users"
    return [("what the answers found", _answers(benchmark)), (models, _models(benchmark))]


def _task(benchmark: Mapping[str, Any]) -> tuple[str, str]:
    """What is predicted, and the measure beside accuracy."""
    classes = benchmark.get("task") == "classification"
    return ("classes", "macro_f1") if classes else ("next tokens", "loss")


def _models(benchmark: Mapping[str, Any]) -> Table:
    second = _task(benchmark)[1]
    models = Table()
    for column in ("fine-tuned on", "accuracy", second.replace("_", "-")):
        justify: Any = "left" if column == "fine-tuned on" else "right"
        models.add_column(column, justify=justify, overflow="fold")
    for name, value in benchmark["accuracy"].items():
        text = benchmark.get("methods", {}).get(name, name)
        models.add_row(text, f"{value:.4f}", f"{benchmark[second][name]:.4f}")
    for pair, (value, low, high) in benchmark["accuracy_difference"].items():
        interval = f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"
        models.add_row(f"accuracy, {pair.replace('-', ' minus ')}", interval, "")
    return models


def _answers(benchmark: Mapping[str, Any]) -> Table:
    votes = Table()
    votes.add_column("benchmark-only figure", overflow="fold")
    votes.add_column("value", justify="right")
    if "unknown_rate" in benchmark:
        unknown = f"{benchmark['unknown_rate']:.4f}"
        votes.add_row("held-out words outside of the vocabulary, never right", unknown)
    for name, share in benchmark.get("proximity", {}).get("minority_share", {}).items():
        text = benchmark.get("methods", {}).get(name, name)
        votes.add_row(f"minority's share of the text: {text}", f"{share:.4f}")
    shares = benchmark.get("true_votes")
    if shares:
        votes.add_row("true votes of survivors / of as many random", str(shares["mean_ratio"]))
        if "seeds_against_random" in shares:  # not without public text, nor with classes
            share = str(shares["seeds_against_random"])
            votes.add_row("seeds' share against random public text", share)
    rates = [rate for rate in benchmark.get("responses", {}).get("recovery_rate", []) if rate]
    if rates:
        votes.add_row("recovery rate of the preferences", f"{sum(rates) / len(rates):.3f}")
    for name, found in benchmark.get("near_duplicates", {}).items():
        votes.add_row(f"synthetic texts that repeat {name} text", f"{found['share']:.4f}")
    for group, distances in benchmark["frechet"].items():
        for name, value in distances.items():
            votes.add_row(f"Frechet distance to held-out ({group}): {name}", f"{value:.4f}")
    return votes
