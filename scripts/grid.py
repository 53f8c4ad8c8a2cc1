"""A configuration over a grid of settings, compared on the development users.

    python scripts/grid.py GRID.toml CONFIG.toml [--out results/grid] [--set KEY=VALUE] [--dry-run]

A grid file has a list of values for each key. Every point is one `privsyn run` with its own
folder; finished runs are kept and unfinished ones resumed, so the script goes on where it was
stopped. A point that fails (a bound that its noise cannot have, for one) is named in the table.
--dry-run lists the points with their epsilon and noise, and runs nothing.

Choosing the best of many runs is paid for by none of them: each point's epsilon covers that point
alone, and the figures are measured on development users' text (`benchmark`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.config import (
    ConfigError,
    RunConfig,
    Scalar,
    load_config,
    parse_override,
    toml_value,
)
from privsyn_flower.runs import complete
from privsyn_flower.server_apps.promised import statement

ROOT = Path(__file__).resolve().parent.parent
ALWAYS: dict[str, Scalar] = {"evaluation.on": "development", "benchmark": True}

Point = dict[str, Scalar]
Run = Callable[[Sequence[str]], int]


def points(grid: Mapping[str, Any]) -> list[Point]:
    """Every combination of the values, the last key's changing fastest.

    Raises ConfigError for a key without a list of values.
    """
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{key} = {values!r} in a grid: expected a list of values")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def name_of(point: Point) -> str:
    """A folder name that says the settings: training.learning-rate=0.1,rounds=20."""
    return ",".join(f"{key}={value}" for key, value in point.items())


def check(config: RunConfig) -> str:
    """The epsilon and noise of a point; raises ConfigError where it cannot be run."""
    claimed = statement(config)
    return f"epsilon {claimed.epsilon:.4g}, noise multiplier {claimed.noise_multiplier:.4g}"


def execute(command: Sequence[str]) -> int:
    """Run `privsyn` with these arguments; its exit code."""
    program = str(Path(sys.executable).parent / "privsyn")
    return subprocess.run([program, *command], stdout=subprocess.DEVNULL, check=False).returncode


def summary_of(path: Path, settings: Point, folder: Path, run: Run) -> dict[str, Any] | None:
    """The summary of one point's run; made now unless it is there. None when the run failed."""
    if not complete(folder):
        if (folder / "config.toml").exists():
            command = ["run", "--resume", str(folder)]
        else:
            command = ["run", str(path)]
            for key, value in {**settings, "run-folder": str(folder)}.items():
                command += ["--set", f"{key}={toml_value(value)}"]
        if run(command) != 0:
            return None
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text("utf-8"))
    return summary


def row(point: Point, summary: dict[str, Any] | None) -> list[str]:
    """One line of the table: settings, accuracy and loss of the result and of its start."""
    if summary is None:
        return [name_of(point), "failed", "", "", "", ""]
    measured = summary["benchmark"]
    trained = "trained" if "trained" in measured["accuracy"] else "synthetic"
    cells = [f"{measured['accuracy'][trained]:.4f}", f"{measured['loss'][trained]:.4f}"]
    for measure in ("accuracy", "loss"):
        start = measured[measure].get("random_public")
        cells.append("" if start is None else f"{start:.4f}")
    return [name_of(point), *cells, f"{summary['epsilon']:.3f}"]


def table(rows: list[list[str]]) -> str:
    """Markdown, the lowest loss first and what failed last."""
    ordered = sorted(rows, key=lambda cells: (cells[2] == "", float(cells[2] or 0)))
    head = ["settings", "accuracy", "loss", "accuracy before", "loss before", "epsilon"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *ordered]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main(arguments: Sequence[str] | None = None, run: Run = execute) -> int:
    """Run the grid; 1 when a point could not be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("grid", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "grid")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    fixed = {**ALWAYS, **dict(map(parse_override, options.set))}
    rows: list[list[str]] = []
    for point in points(tomllib.loads(options.grid.read_text("utf-8"))):
        settings = {**fixed, **point}
        try:
            price = check(load_config(options.config, settings))
        except ConfigError as error:
            print(f"{name_of(point)}: refused: {error}")
            rows.append(row(point, None))
            continue
        print(f"{name_of(point)}: {price}", flush=True)
        if not options.dry_run:
            folder = (options.out / options.config.stem / name_of(point)).resolve()
            rows.append(row(point, summary_of(options.config.resolve(), settings, folder, run)))
    if rows:
        print(table(rows))
    return int(any(cells[1] == "failed" for cells in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(str(error))
