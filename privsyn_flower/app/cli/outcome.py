"""How a run ended: what is said of it last, and the exit status."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from privsyn_flower.app.cli.ending import ending
from privsyn_flower.app.report.summaries import read_summary
from privsyn_flower.config import cache_folder, load_config
from privsyn_flower.runs import UNFINISHED, UNUSABLE, RunFolder, benchmark_due
from privsyn_flower.server_apps.public_text import is_deployment

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
