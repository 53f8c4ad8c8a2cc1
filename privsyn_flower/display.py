"""The terminal: progress bars from events, and the result table."""

from __future__ import annotations

import io
import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


class Display:
    """Bars on a terminal; one line per started or finished stage when stderr is a file."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal
        self.tasks: dict[str, Any] = {}
        self.printed: dict[str, float] = {}
        self.progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
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
        if self.live:
            self.progress.stop()

    def show(self, event: dict[str, Any]) -> None:
        """One event of progress.jsonl."""
        stage, done, total = event["stage"], float(event["done"]), float(event["total"])
        if not self.live:
            self._print(stage, done, total, str(event["note"]))
            return
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(stage, total=total, note="")
        task = self.tasks[stage]
        note = event["note"] or self.progress.tasks[task].fields["note"]
        self.progress.update(task, completed=done, total=total, note=note)
        if done >= total and stage.startswith("round "):
            self.progress.update(task, visible=False)  # the bar "rounds" tells the rest

    def _print(self, stage: str, done: float, total: float, note: str) -> None:
        fraction = done / total if total else 1.0
        last = self.printed.get(stage, -1.0)
        if fraction >= 1.0 or note or last < 0 or fraction - last >= 0.25:
            self.printed[stage] = fraction
            print(f"[{stage}] {done:g}/{total:g} {note}".rstrip(), file=sys.stderr, flush=True)


def result_table(summary: dict[str, Any]) -> str:
    """A short table of summary.json, as text."""
    table = Table(title=f"{summary['method']} on {summary['dataset']}", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for key in ("users", "rounds", "epsilon", "delta", "noise_multiplier", "synthetic_samples"):
        value = summary[key]
        table.add_row(key, f"{value:.6g}" if isinstance(value, float) else str(value))
    for key in ("bytes_down_per_user_round", "bytes_up_per_user_round", "wall_seconds"):
        table.add_row(key, f"{summary[key]:,.0f}")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table)
    for extra in benchmark_tables(summary.get("benchmark") or {}):
        console.print(extra)
    console.print(f"privacy: {summary['privacy']}")
    return console.export_text().rstrip()


def benchmark_tables(benchmark: dict[str, Any]) -> list[Table]:
    """The benchmark's figures: language models by training text, then votes and distances."""
    tables = []
    if accuracy := benchmark.get("accuracy"):
        table = Table(title="small LM fine-tuned on ..., held-out users", title_justify="left")
        for column in ("training text", "next-token accuracy", "cross-entropy"):
            table.add_column(column, justify="left" if column == "training text" else "right")
        for name, value in accuracy.items():
            table.add_row(name, f"{value:.4f}", f"{benchmark['loss'][name]:.4f}")
        tables.append(table)
    rows = {key: value for key, value in benchmark.items() if isinstance(value, int | float)}
    if rows:
        table = Table(title="benchmark-only figures", title_justify="left")
        table.add_column("figure")
        table.add_column("value", justify="right")
        for key, value in rows.items():
            table.add_row(key, f"{value:.4g}")
        tables.append(table)
    return tables
