"""`privsyn compare GRID.toml`: run what is missing, then write the tables and pictures."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from privsyn_flower.app.cli.compare.cells import Outcome, cells_of, keep, look, price
from privsyn_flower.app.cli.compare.details import details
from privsyn_flower.app.cli.compare.estimates import Difference, differences, lines_of
from privsyn_flower.app.cli.compare.figures import draw
from privsyn_flower.app.cli.compare.pairs import Kept, completed, keep_pairs, load_pairs, place
from privsyn_flower.app.cli.compare.running import run_cells
from privsyn_flower.app.cli.compare.tables import differences_csv, markdown, runs_csv, table_csv
from privsyn_flower.app.cli.endings import stoppable
from privsyn_flower.config import ConfigError, Scalar
from privsyn_flower.config.grid import GridConfig, load_grid
from privsyn_flower.files import locked, private_folder, write_atomic

TABLE = "table.md"


def compare_command(
    path: Path,
    *,
    out: Path | None = None,
    configs: Sequence[Path] = (),
    given: Mapping[str, Scalar] | None = None,
    jobs: int = 1,
    run: bool = True,
    program: Sequence[str] = (),
) -> tuple[Path, list[Outcome]]:
    """The folder with the tables, and what there is of every cell.

    run: False makes the tables of what is there. program: stands for `privsyn` in tests. Raises
    ConfigError for a wrong grid file; KeyboardInterrupt when it was interrupted, after its runs
    were ended and the tables of what is there were written.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs {jobs}: at least 1 run at once")
    grid, folder = load_grid(path, configs), out or Path("results") / path.stem
    cells = cells_of(grid, path, folder, given)
    # Its runs show private text (`benchmark`): the owner alone may look.
    private_folder(folder)
    with locked(folder / ".lock"):
        kept = load_pairs(place(grid, path))
        outcomes = [look(cell) for cell in cells]
        try:
            if run:
                outcomes = _run(outcomes, folder, jobs, program)
        except KeyboardInterrupt:
            write(grid, [look(cell) for cell in cells], folder, kept=kept)
            raise
        keep(outcomes)
        found = write(grid, outcomes, folder, f"privsyn compare {path}", kept)
        keep_pairs(found, kept, place(grid, path))
    return folder, outcomes


def _run(outcomes: list[Outcome], folder: Path, jobs: int, program: Sequence[str]) -> list[Outcome]:
    """Run what is missing; the outcomes with those of the runs in their places."""
    due = [one.cell for one in outcomes if one.summary is None and not one.blocked]
    if not due:
        return outcomes
    with stoppable():
        found = run_cells(due, folder / "logs", jobs=jobs, tell=_tell, program=program)
    made = {id(one.cell): one for one in found}
    return [made.get(id(one.cell), one) for one in outcomes]


def write(
    grid: GridConfig,
    outcomes: Sequence[Outcome],
    folder: Path,
    made_by: str = "privsyn compare",
    kept: Kept | None = None,
) -> list[Difference]:
    """table.md, table.csv, differences.csv, runs.csv, methods/NAME.md and the pictures; the
    differences that are in them. kept: intervals of runs whose users' figures are not here."""
    lines = lines_of(grid, outcomes)
    found = completed(differences(grid, lines), kept or {})
    pictures = draw(grid, lines, found, folder)
    page = markdown(grid, lines, found, outcomes)
    page += "".join(f"\n![{picture.stem}]({picture.name})\n" for picture in pictures)
    files = {
        TABLE: page,
        "table.csv": table_csv(lines),
        "differences.csv": differences_csv(found),
        "runs.csv": runs_csv(outcomes),
    }
    files |= {f"methods/{m.name}.md": f"{details(m, lines, made_by)}\n" for m in grid.methods}
    for name, text in files.items():
        write_atomic(folder / name, text.encode())
    return found


def listed(
    path: Path, out: Path | None, configs: Sequence[Path], given: Mapping[str, Scalar]
) -> tuple[list[str], bool]:
    """For --dry-run: a line for every cell, and whether all of them can be run."""
    outcomes = [
        look(cell)
        for cell in cells_of(
            load_grid(path, configs), path, out or Path("results") / path.stem, given
        )
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
    """A line for every cell without a result."""
    return [f"{o.cell.says}: {o.reason or 'not run'}" for o in outcomes if o.summary is None]


def _tell(text: str) -> None:
    """A line on stderr, if there still is somebody to read it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
