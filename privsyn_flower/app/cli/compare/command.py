"""`privsyn compare GRID.toml`: run what is missing, then write the tables and pictures.

Each run is a `privsyn run` of its own, with its own process, FLWR_HOME and ports
(`local.simulation`); its words go to a log of its own. Ending the command ends its runs, which
resume when it is called again.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from privsyn_flower.app.cli.compare.cells import Cell, Outcome, begin, cells_of, keep, look, price
from privsyn_flower.app.cli.compare.details import details
from privsyn_flower.app.cli.compare.estimates import (
    Difference,
    StoredPairs,
    completed,
    differences,
    keep_pairs,
    lines_of,
    load_pairs,
    place,
)
from privsyn_flower.app.cli.compare.figures import draw
from privsyn_flower.app.cli.compare.tables import differences_csv, markdown, runs_csv, table_csv
from privsyn_flower.app.cli.ending import ENDED_EARLY, NO_BENCHMARK, NOT_USABLE, tell
from privsyn_flower.app.local.processes import end_group, spawn, stoppable
from privsyn_flower.common.files import LockTaken, file_lock, private_folder, write_atomic
from privsyn_flower.config import ConfigError, Scalar
from privsyn_flower.config.grid import GridConfig, load_grid

PATIENCE = 120.0  # seconds that a run has to end its Flower before it is killed
LOOK = 0.2  # seconds until an interrupt is seen


def run_cells(
    cells: Sequence[Cell],
    logs: Path,
    *,
    jobs: int = 1,
    program: Sequence[str] = (),
) -> list[Outcome]:
    """Run every cell, `jobs` at once; what came of each, in their order. A failure stops no other.

    logs: folder of their output. program: what is called, `privsyn` by default. An interrupt
    (KeyboardInterrupt) ends all runs that are going on, waits for them, and goes on upwards.
    """
    private_folder(logs)
    stop = threading.Event()
    called = program or [str(Path(sys.executable).parent / "privsyn")]  # of this installation

    def one(numbered: tuple[int, Cell]) -> Outcome:
        number, cell = numbered
        if stop.is_set():
            return Outcome(cell, None, "not started")
        tell(f"[{number}/{len(cells)}] {cell.says}: running")
        began = time.monotonic()
        try:
            found = run_cell(cell, logs, stop, called, jobs)
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


TABLE, NOT_RUN = "table.md", "not run"
NEEDS_GPU = "it needs a GPU, and there is none here"


def compare_command(
    path: Path,
    *,
    out: Path | None = None,
    configs: Sequence[Path] = (),
    given: Mapping[str, Scalar] | None = None,
    jobs: int = 1,
    run: bool = True,
    only: Collection[str] = (),
    program: Sequence[str] = (),
) -> tuple[Path, list[Outcome]]:
    """The folder with the tables, and what there is of every cell.

    run: False makes the tables of what is there. only: names of the methods to run, where it is not
    all; the tables are of all. program: stands for `privsyn` in tests. Raises
    ConfigError for a wrong grid file; KeyboardInterrupt when it was interrupted, after its runs
    were ended and the tables of what is there were written.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs {jobs}: at least 1 run at once")
    grid, folder = load_grid(path, configs), out or Path("results") / path.stem
    cells = cells_of(grid, path, folder, given)
    _check_names(only, grid, path)
    # Its runs show private text (`benchmark`): the owner alone may look.
    private_folder(folder)
    with _alone(folder):
        stored = load_pairs(place(grid, path))
        outcomes = [look(cell) for cell in cells]
        try:
            if run:
                outcomes = _run([_chosen(one, only) for one in outcomes], folder, jobs, program)
        except KeyboardInterrupt:
            write(grid, [look(cell) for cell in cells], folder, stored=stored)
            raise
        pairs = write(grid, outcomes, folder, f"privsyn compare {path}", stored)
        if not given:  # with --set it is another grid, whose runs take nobody's place
            keep(outcomes)
            keep_pairs(pairs, stored, place(grid, path))
    return folder, outcomes


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder; where another process does, say which, and wait for it."""
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(folder / ".lock"))
        except LockTaken as taken:
            tell(f"{folder} is in use by process {taken.owner}: waiting until that ends")
            held.enter_context(file_lock(folder / ".lock", patience=math.inf))
        yield


def _check_names(only: Collection[str], grid: GridConfig, path: Path) -> None:
    """Raises ConfigError for a method that the grid does not have."""
    if unknown := set(only) - (names := {method.name for method in grid.methods}):
        raise ConfigError(f"--only {sorted(unknown)[0]}: {path} has {', '.join(sorted(names))}")


def _chosen(one: Outcome, only: Collection[str]) -> Outcome:
    """Whether a cell that is not there is to be run, and can be on this machine."""
    from privsyn_flower.text.models.devices import resolve_device

    if one.summary is not None or one.blocked:
        return one
    if only and one.cell.method.name not in only:
        return replace(one, left_out=True)
    if one.cell.method.needs == "gpu" and resolve_device() == "cpu":
        return replace(one, reason=one.reason or NEEDS_GPU, left_out=True)
    return one


def _run(outcomes: list[Outcome], folder: Path, jobs: int, program: Sequence[str]) -> list[Outcome]:
    """Run what is missing; the outcomes with those of the runs in their places."""
    due = [
        one.cell for one in outcomes if one.summary is None and not (one.blocked or one.left_out)
    ]
    if not due:
        return outcomes
    with stoppable():
        found = run_cells(due, folder / "logs", jobs=jobs, program=program)
    made = {id(one.cell): one for one in found}
    return [made.get(id(one.cell), one) for one in outcomes]


def write(
    grid: GridConfig,
    outcomes: Sequence[Outcome],
    folder: Path,
    made_by: str = "privsyn compare",
    stored: StoredPairs | None = None,
) -> list[Difference]:
    """table.md, table.csv, differences.csv, runs.csv, methods/NAME.md and the pictures; the
    differences that are in them. stored: intervals of runs whose users' figures are not here."""
    lines = lines_of(grid, outcomes)
    pairs = completed(differences(grid, lines), stored or {})
    pictures = draw(grid, lines, pairs, folder)
    page = markdown(grid, lines, pairs, outcomes)
    page += "".join(f"\n![{picture.stem}]({picture.name})\n" for picture in pictures)
    files = {
        TABLE: page,
        "table.csv": table_csv(lines),
        "differences.csv": differences_csv(pairs),
        "runs.csv": runs_csv(outcomes),
    }
    files |= {f"methods/{m.name}.md": f"{details(m, lines, made_by)}\n" for m in grid.methods}
    for name, text in files.items():
        write_atomic(folder / name, text.encode())
    return pairs


def listed(
    path: Path,
    out: Path | None,
    configs: Sequence[Path],
    given: Mapping[str, Scalar],
    only: Collection[str] = (),
) -> tuple[list[str], bool]:
    """For --dry-run: a line for every cell, and whether all of them can be run. only: as in
    `compare_command`, of these methods alone. Raises ConfigError as it does."""
    grid = load_grid(path, configs)
    _check_names(only, grid, path)
    outcomes = [
        look(cell)
        for cell in cells_of(grid, path, out or Path("results") / path.stem, given)
        if not only or cell.method.name in only
    ]
    rows = []
    for one in outcomes:
        state = "done" if one.summary else "blocked" if one.blocked else "missing"
        told = f": {price(one.cell.config)}" if one.cell.config else ""
        rows.append(f"{state:8}{one.cell.says}{told}" + (f" ({one.reason})" if one.reason else ""))
    counts = [
        sum(row.startswith(state) for row in rows) for state in ("done", "missing", "blocked")
    ]
    rows.append("{} done, {} missing, {} that cannot be run".format(*counts))
    return rows, not counts[2]


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for every cell without a result that was to be run."""
    due = [one for one in outcomes if one.summary is None and not one.left_out]
    return [f"{one.cell.says}: {one.reason or NOT_RUN}" for one in due]


def left_out(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for every method of which runs were left out, with their number and the reason."""
    found: dict[tuple[str, str], int] = {}
    for one in outcomes:
        if one.left_out:
            key = one.cell.method.title, one.reason
            found[key] = found.get(key, 0) + 1
    return [
        f"{title}: {count} not run" + (f" ({reason})" if reason else "")
        for (title, reason), count in found.items()
    ]
