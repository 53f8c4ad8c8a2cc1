"""Which ledger a run is charged on: one answer for `privsyn run` and for every `start`.

A ledger never lies in the run folder. A folder is copied, put back or removed, and what was spent
must not be forgotten with it: two copies of a run have one ledger, found by the run's id, and the
one that went on is known there (`Rounds.run` compares). The folder remembers which ledger its run
began with, by the ledger's own id; no other one, and no new one, takes its place.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from privsyn_flower.common.files import ledger_folder
from privsyn_flower.config import ConfigError
from privsyn_flower.privacy.ledger import Ledger, LedgerError
from privsyn_flower.privacy.ledger.journal import locked, read_rows
from privsyn_flower.privacy.ledger.usage import exclusive, export
from privsyn_flower.runs import RunFolder

BEGUN_WITH = "ledger"  # value in the run folder: the ledger's id, and where it was
COPY = "ledger.jsonl"  # in the run folder: this run's rows, when it was last held


def run_id(folder: RunFolder) -> str:
    """The run's name in messages and ledger rows: drawn once, kept in the folder.

    Raises LedgerError on a folder with rounds and no name: their charges could not be found.
    """
    stored = folder.load_value("run")
    if isinstance(stored, str):
        return stored
    if folder.has_rounds():
        raise LedgerError(
            f"{folder.path} holds rounds, but checkpoints/run.json is missing, so their charges "
            "cannot be found: put it back, or start a new run in another folder"
        )
    name = uuid.uuid4().hex
    folder.save_value("run", name)
    return name


def ledger_scope(population_name: str) -> Literal["run", "population"]:
    """Whose releases the ledger counts, as the privacy statement says it."""
    return "population" if population_name else "run"


def shared_ledger(ledger: str | Path, population_name: str) -> Path | None:
    """The file named, or the declared population's; None: each run has one of its own.

    Raises ConfigError for a shared file without a population, and for a population whose name
    cannot name a file.
    """
    if population_name and Path(population_name).name != population_name:
        raise ConfigError(
            f"population-name = {population_name!r} names a ledger file: leave out '/'"
        )
    if ledger and not population_name:
        raise ConfigError(
            f"ledger = {str(ledger)!r} is shared by runs: set population-name to the name of the "
            "declared population it belongs to"
        )
    if ledger:
        return Path(ledger).expanduser().absolute()
    return ledger_folder() / f"{population_name}.jsonl" if population_name else None


def own_ledger(run: str) -> Path:
    """The ledger of a run that shares none, by the run's id."""
    return ledger_folder() / "runs" / f"{run}.jsonl"


def ledger_path(folder: RunFolder, ledger: str | Path, population_name: str) -> Path:
    """Where the run's ledger lies. Raises ConfigError for a file in the run folder, too."""
    path = shared_ledger(ledger, population_name)
    if path is None:
        return own_ledger(run_id(folder))
    if folder.path.resolve() in path.resolve().parents:
        raise ConfigError(
            f"the ledger {path} lies in the run folder: a copy of the folder would forget what was "
            "spent after it; name a file outside (key ledger), or another run-folder"
        )
    return path


def open_ledger(
    folder: RunFolder, *, ledger: str | Path = "", population_name: str = "", **terms: Any
) -> Ledger:
    """The run's ledger; made only for a run that has asked nothing yet.

    terms: as `Ledger.open` has them. Raises LedgerError when the ledger that the run began with is
    not there, ConfigError as `ledger_path` does.
    """
    path = ledger_path(folder, ledger, population_name)
    population = population_name or f"run {run_id(folder)}"
    known = folder.load_value(BEGUN_WITH)
    if known is None and folder.has_rounds():
        raise LedgerError(
            f"{folder.path} holds rounds, but does not say on which ledger they were charged "
            f"(checkpoints/{BEGUN_WITH}.json; earlier versions wrote none): start a new run in "
            "another folder"
        )
    if known is not None and not path.exists():
        raise LedgerError(
            f"no ledger at {path}; this run began with {known['path']}, and that file alone knows "
            "what was spent: put it back (keys ledger, population-name; variable XDG_DATA_HOME), "
            "or start a new run in another folder"
        )
    try:
        found = Ledger.open(
            path, population=population, identity=known["id"] if known else None, **terms
        )
    except OSError as error:
        raise LedgerError(
            f"the ledger {path} cannot be written ({error.strerror}): name another file (key "
            "ledger), or set the variable XDG_DATA_HOME to a folder of yours"
        ) from error
    if known is None:  # before the first charge
        folder.save_value(BEGUN_WITH, {"id": found.header.id, "path": str(path)})
    return found


def discard_if_uncharged(folder: RunFolder) -> bool:
    """Drop what a run that has charged nothing has left, its empty ledger too; whether it did.

    It has asked nobody, so that nothing of it binds the next start. False, too, where a ledger
    without charges is not to be believed: it is another one, or nodes were asked (their weights are
    in the folder from the first charge on), so that it was put back to an earlier state.
    """
    known = folder.load_value(BEGUN_WITH)
    if known is None or folder.load_value("weights") is not None:
        return False
    path, run = Path(known["path"]), run_id(folder)
    if not path.exists():  # it may hold charges, wherever it is
        return False
    with locked(path) as handle:
        rows = read_rows(handle, path)
        if not rows or rows[0].get("id") != known["id"]:
            return False
        if any(str(row.get("run", "")).startswith(run) for row in rows):
            return False
    if path == own_ledger(run):
        path.unlink()
    for name in ("checkpoints", "evaluations", "models", "popri", "queries"):
        shutil.rmtree(folder.path / name, ignore_errors=True)
    return True


@contextmanager
def exclusive_ledger(ledger: Ledger, folder: RunFolder) -> Iterator[Ledger]:
    """The ledger for this run alone; its rows are copied to the run folder at the end."""
    with exclusive(ledger):
        try:
            yield ledger
        except BaseException:  # a failed run has charges too; what failed matters more than a copy
            with suppress(OSError, LedgerError):
                export(ledger, run_id(folder), folder.path / COPY)
            raise
        export(ledger, run_id(folder), folder.path / COPY)
