"""The end of a run on the terminal, some of its texts, its claim, and what they were worth; and the
exit status.

All other figures are on the run's page and in `privsyn report`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from privsyn_flower.app.cli.display import recorded, recorder, width
from privsyn_flower.app.report.page import REPORT
from privsyn_flower.app.report.places import dataset_name
from privsyn_flower.app.report.reading import RunFolder as ReportFolder
from privsyn_flower.app.report.reading import first_texts
from privsyn_flower.app.report.summaries import (
    RESULTS,
    benchmark_lines,
    claim,
    read_summary,
    text_lines,
    unusable_lines,
)
from privsyn_flower.app.report.tables import measured_rows
from privsyn_flower.common.terminal import escaped, one_line
from privsyn_flower.config import cache_folder, load_config
from privsyn_flower.evaluation.verdict import WORDS
from privsyn_flower.runs import SEEDS, SYNTHETIC, UNFINISHED, UNUSABLE, RunFolder, benchmark_due
from privsyn_flower.server_apps.public_text import is_deployment

SHOWN = 5  # texts: every n-th of the file, so that nobody picks them
INDENT = "    "
# What a result is worth beyond: any public text, and the part of it that is like the users'.
AGAINST = tuple(f"against {WORDS[name]}: " for name in ("random_public", "minority_public"))


def ending(summary: Mapping[str, Any], folder: Path) -> str:
    """The last lines of a run, as wide as the terminal is; why a result is of no use first."""
    columns = width()
    unusable = [part for line in unusable_lines(summary) for part in wrap(line, columns)]
    texts = _texts(summary, folder, columns)
    return "\n".join([*unusable, *texts, *_grid(_facts(summary, folder), columns)])


def product_lines(summary: Mapping[str, Any], folder: Path) -> list[str]:
    """What a run has made, before its benchmark begins."""
    return [
        *unusable_lines(summary),
        f"the result is ready in {folder}: its benchmark follows, which epsilon does not cover; "
        "Ctrl-C ends it and keeps the result",
        *_texts(summary, folder, width()),
        *(f"{about}: {text}" for about, text in claim(summary)),
        *(f"text: {line}" for line in text_lines(summary)),
    ]


def _texts(summary: Mapping[str, Any], folder: Path, columns: int) -> list[str]:
    """SHOWN texts, spread evenly over what was written, or over the seeds where that is all."""
    count, front = int(summary["synthetic_samples"]), int(summary.get("seeds_in_front", 0))
    if count and count in (front, summary.get("seeds", 0)):  # most votes first
        rows = first_texts(folder, SHOWN, SEEDS)
        head = f"{count:,} texts that the users' votes picked, {SEEDS}; of most votes:"
    else:
        rows = ReportFolder(folder).texts(SHOWN, first=front)
        after = f", after {front:,} seeds" if front else ""
        head = (
            f"{count - front:,} synthetic texts{after} in {SYNTHETIC}; {len(rows)} of them, evenly "
            "spaced:"
        )
    if not rows:
        return []
    room = columns - len(INDENT)
    return [*wrap(head, columns), *(f"{INDENT}{shortened(row['text'], room)}" for row in rows)]


def shortened(text: str, columns: int) -> str:
    """The beginning of a text in so many columns, control characters written out; a wide character
    takes two."""
    line = one_line(escaped(text), columns)
    if cell_len(line) <= columns:
        return line
    return f"{set_cell_size(line, columns - 3).rstrip()}..."


def _facts(summary: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    """(what a line is about, the line)."""
    yield from claim(summary)
    yield from (("text", line) for line in text_lines(summary))
    if early := summary.get("ended_early"):
        of = f"{summary['rounds']} of {summary['rounds_planned']} rounds"
        yield "rounds", f"ended early after {of}: {early}"
    if "models" in summary.get("measured", {}):
        _, _, *rows = measured_rows(summary["measured"])
        yield from (
            ("model", f"{name}: accuracy {accuracy}, gained {gained}, loss {loss}")
            for name, accuracy, gained, loss in rows
        )
    else:
        yield "worth", _worth(summary)
    yield from (("note", note) for note in summary.get("notes", []))
    more = f", or {REPORT} in its folder" if (folder / REPORT).is_file() else ""
    where = dataset_name(summary["dataset"])
    yield "more", f"all figures of {summary['method']} on {where}: privsyn report{more}"


def _worth(summary: Mapping[str, Any]) -> str:
    """The downstream figure against public text alone, with its interval over users."""
    found = summary.get("benchmark") or {}
    accuracy = found.get("accuracy", {})
    own = next((accuracy[name] for name in RESULTS if name in accuracy), None)
    if own is None:
        return "not measured: a simulation measures it with benchmark = true"
    what = "classes" if found.get("task") == "classification" else "next tokens"
    lines = benchmark_lines(summary)
    against = "; ".join(line for line in lines if line.startswith(AGAINST))
    compared = f"; {against}. Not covered by epsilon; {lines[-1]}" if against else (
        f", not covered by epsilon; no control on {WORDS['random_public']}"
    )  # fmt: skip
    return f"accuracy {own:.4f} on {what} of {found['held_out_users']} held-out users{compared}"


def _grid(facts: Iterator[tuple[str, str]], columns: int) -> list[str]:
    """Facts under each other, wrapped; a word before several lines stands once."""
    grid, last = Table.grid(padding=(0, 2, 0, 0)), ""
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for about, text in facts:
        grid.add_row(Text("" if about == last else about), Text(text))
        last = about
    console = recorder(columns)
    console.print(grid)
    return recorded(console).splitlines()


ENDED_EARLY = 3  # exit status: a result of fewer rounds than planned
NO_BENCHMARK = 4  # exit status: a result without the benchmark that it was to have
NOT_USABLE = 5  # exit status: a result that is empty, unreadable or says nothing


def tell(text: str) -> None:
    """A line on stderr, if there still is somebody to read it: the terminal may be closed."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def show_outcome(folder: Path) -> None:
    """All that a run came to; why it is of no use first."""
    summary = read_summary(folder)
    print(ending(summary, folder))
    if dropped := summary.get("dropped"):
        told = ", ".join(f"{count:,} {why}" for why, count in dropped.items())
        tell(f"completions that gave no text: {told}")
    if summary.get(UNUSABLE):
        tell(
            "error: the result is of no use (NOT USABLE, above); what was released and paid for is "
            f"there: privsyn run --resume {folder} --set KEY=VALUE makes it again"
        )
    if benchmark_due(folder):
        tell(
            "warning: the result is complete, its benchmark is not; finish that alone with: "
            f"privsyn run --resume {folder}"
        )
    for line in _node_failures(folder):
        print(f"warning: {line}", file=sys.stderr)


def _node_failures(folder: Path) -> list[str]:
    """What failed on a simulation's nodes. It depends on users' text: for this terminal alone, and
    in no file of the run."""
    config, run = load_config(folder / "config.toml"), RunFolder(folder).load_value("run")
    if is_deployment(config) or not isinstance(run, str):
        return []
    from privsyn_flower.strategies.engine.node_failures import NODES, report

    return report(cache_folder(config) / NODES, run)


def exit_status(folder: Path) -> int:
    """0 for a run that has all that it was to have."""
    summary = read_summary(folder)
    if UNFINISHED in summary:
        return NO_BENCHMARK
    if summary.get(UNUSABLE):
        return NOT_USABLE
    return ENDED_EARLY if summary.get("ended_early") else 0
