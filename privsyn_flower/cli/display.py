"""The terminal: progress bars from events, and the result table."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Mapping
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
            with contextlib.suppress(OSError):  # the terminal may be closed
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
        if stage == "rounds":  # its bar tells what is over
            for one, other in self.tasks.items():
                if one.startswith("round "):
                    self.progress.update(other, visible=False)
        elif done >= total and stage.startswith("round "):
            self.progress.update(task, visible=False)

    def warn(self, text: str) -> None:
        """A warning of the run, above the bars."""
        if self.live:
            self.console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)
        else:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def _print(self, stage: str, done: float, total: float, note: str) -> None:
        fraction = done / total if total else 1.0
        last = self.printed.get(stage, -1.0)
        if fraction >= 1.0 or note or last < 0 or fraction - last >= 0.25:
            self.printed[stage] = fraction
            print(f"[{stage}] {done:g}/{total:g} {note}".rstrip(), file=sys.stderr, flush=True)


def result_table(summary: Mapping[str, Any]) -> str:
    """A short table of summary.json, as text."""
    table = Table(title=f"{summary['method']} on {summary['dataset']}", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for key in ("users", "rounds", "epsilon", "delta", "noise_multiplier", "synthetic_samples"):
        value = summary[key]
        table.add_row(key, f"{value:.6g}" if isinstance(value, float) else str(value))
    early = summary.get("ended_early")
    if early:
        table.add_row("rounds planned", str(summary["rounds_planned"]))
    for key in ("bytes_down_per_user_round", "bytes_up_per_user_round", "wall_seconds"):
        table.add_row(key, f"{summary[key]:,.0f}")
    # Drawn with what the terminal can show: lines, or ASCII.
    sheet = io.TextIOWrapper(
        io.BytesIO(), encoding=sys.stdout.encoding or "utf-8", errors="replace"
    )
    console = Console(width=100, record=True, file=sheet)
    console.print(table)
    for extra in benchmark_tables(summary.get("benchmark") or {}):
        console.print(extra)
    if early:
        planned = summary["rounds_planned"]
        console.print(f"ended early after {summary['rounds']} of {planned} rounds: {early}")
    # Runs of earlier versions have the long form only.
    console.print(f"privacy: {summary.get('privacy_short', summary['privacy'])}")
    return console.export_text().rstrip()


def benchmark_tables(benchmark: dict[str, Any]) -> list[Table]:
    """The benchmark's figures: the model by training text, then what the answers found."""
    if not benchmark:
        return []
    classes = benchmark.get("task") == "classification"
    what, second = ("classes", "macro_f1") if classes else ("next tokens", "loss")
    models = Table(
        title=f"small model, {what} of {benchmark['held_out_users']} held-out users",
        title_justify="left",
    )
    for column in ("fine-tuned on", "accuracy", second.replace("_", "-")):
        models.add_column(column, justify="left" if column == "fine-tuned on" else "right")
    for name, value in benchmark["accuracy"].items():
        text = benchmark.get("methods", {}).get(name, name)
        models.add_row(text, f"{value:.4f}", f"{benchmark[second][name]:.4f}")
    for pair, (value, low, high) in benchmark["accuracy_difference"].items():
        interval = f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"
        models.add_row(f"accuracy, {pair.replace('-', ' minus ')}", interval, "")
    votes = Table(title="what the answers found", title_justify="left")
    votes.add_column("benchmark-only figure")
    votes.add_column("value", justify="right")
    shares = benchmark.get("true_votes")
    if shares:
        ratio, share = str(shares["mean_ratio"]), str(shares["seeds_against_random"])
        votes.add_row("true votes of survivors / of as many random", ratio)
        votes.add_row("seeds' share against random public text", share)
    rates = [rate for rate in benchmark.get("responses", {}).get("recovery_rate", []) if rate]
    if rates:
        votes.add_row("recovery rate of the preferences", f"{sum(rates) / len(rates):.3f}")
    for name, found in benchmark.get("near_duplicates", {}).items():
        votes.add_row(f"synthetic texts that repeat {name} text", f"{found['share']:.4f}")
    for group, distances in benchmark["frechet"].items():
        for name, value in distances.items():
            votes.add_row(f"Frechet distance to held-out ({group}): {name}", f"{value:.4f}")
    return [models, votes]
