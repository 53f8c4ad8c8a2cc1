"""The cells of a grid: their configurations, where their runs are, and what has been measured.

A cell is a method at one value of every axis with one seed. Its run folder is named by a digest of
its resolved configuration and of the models that it uses, so a changed grid runs only what
is new. Results count only if the configuration that they were made by is still the cell's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.app.report.summaries import RESULTS, ReportError, Summary, read_summary
from privsyn_flower.common.files import write_atomic
from privsyn_flower.config import (
    ConfigError,
    RunConfig,
    Scalar,
    absolute_paths,
    differences,
    flat_defaults,
    load_config,
    to_toml,
)
from privsyn_flower.config.grid import GridConfig, GridMethod, Point
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.runs import UNFINISHED, UNUSABLE, write_json
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.gguf import packaged
from privsyn_flower.text.tiny.assets import MANIFEST, PACKAGE_ASSETS, embedded

PLACES = ("run-folder", "cache", "assets")  # where things lie: no part of what is measured
MODELS = ("embedder", "infiller", "generator", "downstream")
TOPICS = ("embedder", "conditional", "downstream")  # of CTCL
NOTE = "cell.json"  # in a run folder: the cell that it was started for
CELL_CONFIG = "cell.toml"  # and the file that it was started with


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a grid. config: None where it cannot be run, and `error` says why."""

    method: GridMethod
    point: Point
    seed: int
    config: RunConfig | None
    error: str
    folder: Path
    store: Path | None

    @property
    def name(self) -> str:
        """In file names: pretext-epsilon7.58-seed0."""
        return named(self.method, self.point, self.seed)

    @property
    def says(self) -> str:
        """For people: PrE-Text, epsilon 7.58, seed 0."""
        return ", ".join(
            [self.method.title, *map(" ".join, self.point.items()), f"seed {self.seed}"]
        )

    def note(self) -> dict[str, Any]:
        """What stands beside a result, to know it again."""
        return {
            "method": self.method.name,
            "point": dict(self.point),
            "seed": self.seed,
            "models": models_used(self.config) if self.config else {},
        }


@dataclass(frozen=True, eq=False)
class Outcome:
    """What is there of a cell. summary: None for none, and `reason` says why. folder: of the run
    itself; None where only its summary was kept. blocked: it cannot be run either. left_out: it
    was not asked for, or needs what this machine lacks."""

    cell: Cell
    summary: Summary | None
    reason: str = ""
    folder: Path | None = None
    blocked: bool = False
    left_out: bool = False

    @property
    def benchmark(self) -> Mapping[str, Any]:
        """The run's figures on held-out users."""
        figures: Mapping[str, Any] = (self.summary or {}).get("benchmark", {})
        return figures

    @property
    def result(self) -> str:
        """The run's own result among the benchmark's names; "" for none."""
        measured = self.benchmark.get("accuracy", {})
        return next((name for name in RESULTS if name in measured), "")


def named(method: GridMethod, point: Point, seed: int) -> str:
    """A cell's name in file names."""
    values = [f"{axis.rpartition('.')[2]}{value}" for axis, value in point.items()]
    return "-".join([method.name, *values, f"seed{seed}"])


def cells_of(
    grid: GridConfig, path: Path, out: Path, given: Mapping[str, Scalar] | None = None
) -> list[Cell]:
    """All cells, the first seeds first. path: of the grid file. given: `--set`.

    Raises ConfigError for a `--set` of what the grid varies.
    """
    given = dict(given or {})
    if twice := grid.varying_keys() & given.keys():
        raise ConfigError(
            f"--set {', '.join(sorted(twice))}: the grid varies that itself; change {path}"
        )
    store = path.parent / grid.archive if grid.archive else None
    found = [
        _cell(grid, method, point, seed, path.parent / method.config, out, store, given)
        for method in grid.methods
        for point in grid.points(method)
        for seed in method.seeds or grid.seeds
    ]
    order = {seed: rank for rank, seed in enumerate(dict.fromkeys(cell.seed for cell in found))}
    return sorted(found, key=lambda cell: order[cell.seed])


def _cell(
    grid: GridConfig,
    method: GridMethod,
    point: Point,
    seed: int,
    base: Path,
    out: Path,
    store: Path | None,
    given: dict[str, Scalar],
) -> Cell:
    """One cell with its configuration, or with what is wrong about it."""
    name = named(method, point, seed)
    try:
        config = load_config(base, {**grid.settings(method, point, given), "seed": seed})
        if not config.benchmark:
            raise ConfigError("benchmark = false: nothing would be compared; set benchmark = true")
        price(config)
        folder = (out / "runs" / f"{name}-{digest(config)[:8]}").absolute()
    # ConfigError, noise that no calibration reaches, and folders that are no models
    except (ValueError, FileNotFoundError) as error:
        return Cell(method, point, seed, None, str(error), out / "runs" / name, store)
    return Cell(method, point, seed, config, "", folder, store)


def price(config: RunConfig) -> str:
    """Epsilon and noise of a run. Raises ConfigError, or ValueError, where it cannot have them."""
    from privsyn_flower.server_apps.methods import recipe_of
    from privsyn_flower.server_apps.privacy_plan import statement

    if not recipe_of(config).phases(config):
        return "asks no user anything"
    plan = statement(config)
    return f"epsilon {at_most(plan.epsilon)}, noise multiplier {plan.noise_multiplier:.4g}"


def digest(config: RunConfig) -> str:
    """sha256 of what a result depends on: keys that differ from their defaults, models' weights."""
    defaults = flat_defaults()
    keys = {key: value for key, value in settings(config).items() if value != defaults.get(key)}
    text = json.dumps([keys, models_used(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def settings(config: RunConfig) -> dict[str, Scalar]:
    """All keys but those that only say where things lie."""
    return {key: value for key, value in config.flat().items() if key not in PLACES}


def models_used(config: RunConfig) -> dict[str, str]:
    """Key in `[models]` -> digest of the shipped model or local folder that it names.

    Of those that a run may use; a model of the hub is known by its name alone.
    """
    keys = TOPICS if config.uses("ctcl") else ("downstream",) if config.trains else MODELS
    path = (Path(config.assets).expanduser() if config.assets else PACKAGE_ASSETS) / MANIFEST
    shipped = json.loads(path.read_text(encoding="utf-8"))["models"] if path.exists() else {}
    found = {}
    for key in keys:
        name = str(getattr(config.models, key))
        if (model := packaged(key, name)) is not None:
            found[key] = model.identity
        elif (place := embedded(key, name)) in shipped:
            weights = json.dumps(shipped[place]["sha256"], sort_keys=True)
            found[key] = hashlib.sha256(weights.encode()).hexdigest()[:16]
        elif Path(name).expanduser().is_dir():
            found[key] = folder_fingerprint(Path(name).expanduser())[:16]
    return found


def look(cell: Cell) -> Outcome:
    """What is there of a cell: a finished run, a kept summary, or why neither counts."""
    if cell.config is None:
        return Outcome(cell, None, f"refused: {cell.error}", blocked=True)
    found = _of_run(cell, cell.config)
    if found.summary is None and cell.store is not None:
        stored = _of_store(cell, cell.config, cell.store / f"{cell.name}.json")
        return stored if stored.summary is not None or not found.reason else found
    return found


def _of_run(cell: Cell, config: RunConfig) -> Outcome:
    if not (cell.folder / "config.toml").exists():
        return Outcome(cell, None)
    stored = _stored(cell.folder / "config.toml")
    wrong = stored if isinstance(stored, str) else ""
    if isinstance(stored, RunConfig):
        differing = differences(settings(absolute_paths(config, cell.folder)), settings(stored))
        wrong = "; ".join(differing)
        if not differing and _note(cell.folder / NOTE) != cell.note():
            wrong = "it was started with other models, or by hand"
    if wrong:
        reason = f"{cell.folder} is another configuration's ({wrong}): remove it to measure anew"
        return Outcome(cell, None, reason, blocked=True)
    if not (cell.folder / "summary.json").exists():
        return Outcome(cell, None, "unfinished", cell.folder)
    try:
        summary = read_summary(cell.folder)
    except ReportError as error:
        return Outcome(cell, None, str(error), cell.folder, blocked=True)
    if UNFINISHED in summary:
        return Outcome(cell, None, "unfinished", cell.folder)
    if "benchmark" not in summary and (reasons := summary.get(UNUSABLE)):
        return Outcome(cell, None, "; ".join(reasons), cell.folder)
    return Outcome(cell, summary, folder=cell.folder)


def _of_store(cell: Cell, config: RunConfig, path: Path) -> Outcome:
    if not path.exists():
        return Outcome(cell, None)
    stored = _stored(path.with_suffix(".toml"))
    if isinstance(stored, str):
        return Outcome(cell, None, f"{path} is not used: {stored}")
    differing = differences(settings(config), settings(stored))
    try:
        summary = read_summary(path)
    except ReportError as error:
        return Outcome(cell, None, f"{error}: it is not used, and a new run takes its place")
    if not differing and _other_models(summary.get("cell", {}).get("models", {}), config):
        differing = ["the models are others"]
    if differing:
        return Outcome(cell, None, f"{path} is not used: {'; '.join(differing)}")
    return Outcome(cell, summary)


def _other_models(used: Mapping[str, str], config: RunConfig) -> bool:
    """Whether a kept result is another model's. used: its `models_used`. The folder of a local
    model may be gone since: then the name, which is compared with all other keys, has to do."""
    here = models_used(config)
    gone = {key for key in used.keys() - here.keys() if not _ships(config, key)}
    return {key: value for key, value in used.items() if key not in gone} != here


def _ships(config: RunConfig, key: str) -> bool:
    name = str(getattr(config.models, key, ""))
    return embedded(key, name) is not None or packaged(key, name) is not None


def _stored(path: Path) -> RunConfig | str:
    """A run's configuration, or why it cannot be read."""
    try:
        return load_config(path)
    except ConfigError as error:
        return str(error)


def _note(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # a damaged one says as little as none
        return None


def keep(outcomes: Sequence[Outcome]) -> None:
    """Copy finished runs' summaries and configurations to where the grid keeps them.

    Users' sums stay in the run folder: they are PRIVATE.
    """
    for outcome in outcomes:
        cell = outcome.cell
        if outcome.folder and outcome.summary and cell.store and cell.config:
            place = cell.store / f"{cell.name}.json"
            anywhere = {"run_folder": "", "cache": "", "assets": ""}
            text = to_toml(cell.config.model_copy(update=anywhere))
            write_atomic(place.with_suffix(".toml"), text.encode())
            write_json(place, {**outcome.summary, "cell": cell.note()})


def begin(cell: Cell) -> Path:
    """Prepare the folder of a cell that was never started; the file to run."""
    if cell.config is None:
        raise ConfigError(cell.error)
    cell.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(cell.folder / NOTE, cell.note())
    config = cell.config.model_copy(update={"run_folder": str(cell.folder)})
    write_atomic(cell.folder / CELL_CONFIG, to_toml(config).encode())
    return cell.folder / CELL_CONFIG
