"""The runs that a grid still lacks: each a `privsyn run` of its own, some of them at once.

A run has its own process, FLWR_HOME and ports (`local.simulation`), and its words go to a log of
its own. Ending the command ends its runs, which resume when it is called again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from privsyn_flower.app.cli.compare.cells import Cell, Outcome, begin, look
from privsyn_flower.app.cli.outcome import ENDED_EARLY, NO_BENCHMARK, NOT_USABLE
from privsyn_flower.app.local.processes import end_group, spawn
from privsyn_flower.files import private_folder

PATIENCE = 120.0  # seconds that a run has to end its Flower before it is killed
LOOK = 0.2  # seconds until an interrupt is seen

Tell = Callable[[str], None]


def privsyn() -> list[str]:
    """The command of this installation."""
    return [str(Path(sys.executable).parent / "privsyn")]


def run_cells(
    cells: Sequence[Cell],
    logs: Path,
    *,
    jobs: int = 1,
    tell: Tell = print,
    program: Sequence[str] = (),
) -> list[Outcome]:
    """Run every cell, `jobs` at once; what came of each, in their order. A failure stops no other.

    logs: folder of their output. program: what is called, `privsyn` by default. An interrupt
    (KeyboardInterrupt) ends all runs that are going on, waits for them, and goes on upwards.
    """
    private_folder(logs)
    stop = threading.Event()

    def one(numbered: tuple[int, Cell]) -> Outcome:
        number, cell = numbered
        if stop.is_set():
            return Outcome(cell, None, "not started")
        tell(f"[{number}/{len(cells)}] {cell.says}: running")
        began = time.monotonic()
        try:
            found = run_cell(cell, logs, stop, program or privsyn(), jobs)
        except (OSError, ValueError) as error:
            found = Outcome(cell, None, str(error))
        spent = f"{time.monotonic() - began:.0f} s"
        accuracy = found.benchmark.get("accuracy", {}).get(found.result)
        said = f"accuracy {accuracy:.4f}" if found.summary else f"failed: {found.reason}"
        tell(f"[{number}/{len(cells)}] {cell.says}: {said} ({spent})")
        return found

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting = [pool.submit(one, numbered) for numbered in enumerate(cells, 1)]
        try:
            return [future.result() for future in waiting]
        finally:
            stop.set()  # of no effect when all are done


def run_cell(
    cell: Cell, logs: Path, stop: threading.Event, program: Sequence[str], jobs: int = 1
) -> Outcome:
    """Start or resume one cell's run and wait for it; ended early when `stop` is set."""
    if (cell.folder / "config.toml").exists():
        command = [*program, "run", "--resume", str(cell.folder)]
    else:
        command = [*program, "run", str(begin(cell))]
    log = logs / f"{cell.folder.name}.log"
    start = log.stat().st_size if log.exists() else 0
    code = _waited(spawn(command, _environment(jobs), log), stop)
    found = look(cell)
    if found.summary is not None and code in (0, ENDED_EARLY, NOT_USABLE):
        return found
    if code == NO_BENCHMARK:
        return Outcome(cell, None, f"it has its result, and no benchmark: {last_words(log, start)}")
    reason = "interrupted" if stop.is_set() else last_words(log, start)
    return Outcome(cell, None, reason or f"it ended with {code}; {log}")


def last_words(log: Path, start: int) -> str:
    """Why a run failed: its last error lines in the log, from `start` on."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode("utf-8", "replace").splitlines()
    errors = [i for i, line in enumerate(lines) if line.startswith("error:")]
    if not errors:
        return f"{lines[-1].strip()} ({log})" if lines else ""
    return " ".join(line.strip() for line in lines[errors[-1] :]).removeprefix("error: ")


def _environment(jobs: int) -> dict[str, str]:
    """Runs at once share the cores: threads that outnumber them would only wait."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    shared = {"OMP_NUM_THREADS": str(threads)} if jobs > 1 else {}
    return {**shared, **os.environ}


def _waited(process: subprocess.Popen[bytes], stop: threading.Event) -> int:
    """The exit status of a process, which is asked to end as soon as `stop` is set."""
    while not stop.is_set():
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK)
    end_group(process.pid, process, wait=PATIENCE)
    return process.wait()
