"""Fine-tunings in processes of their own on this machine (`process.py`).

One by several, a GPU each, that meet by a file and speak over the loopback interface alone; or one
by one process, which measures it as well, so that others go on beside it (`side_by_side.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from privsyn_flower.evaluation.rows import Rows, TokenRows
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.files import private_folder, replace_private
from privsyn_flower.progress import Progress
from privsyn_flower.python_path import finding_us
from privsyn_flower.text.models.devices import loopback_only

JOB, DONE, TRAINED, ERRORS = "job.json", "done.json", "trained.safetensors", "errors.txt"
TOLD = "privsyn-progress "  # begins a line of progress


class Line:
    """The stdin of processes that are to end when this is cut, or when this process is gone."""

    def __init__(self) -> None:
        self.end, self._ours = os.pipe()
        self.whole = True

    def cut(self) -> None:
        """End the processes, those included that begin later."""
        if self.whole:
            self.whole = False
            os.close(self._ours)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        os.close(self.end)


def fine_tune_by(
    processes: int,
    model: Any,
    said: Mapping[str, Any],
    rows: Rows,
    tuning: Tuning,
    progress: Progress,
    stage: str,
    *,
    work: Path | None,
    choice: Rows | None,
) -> float:
    """As `Downstream.fine_tune`; returns the mean training loss.

    model: prepared for the training; it gets the weights. said: `Downstream.said`. Raises
    RuntimeError with what a process said when one fails; the others are ended then.
    """
    from privsyn_flower.evaluation.fitting import put

    with _place(work) as folder, Line() as line:
        _write(folder, said, tuning, stage, rows, choice)
        done = _done(processes, folder, progress, stage, line)
        from safetensors.torch import load_file

        put(model, load_file(folder / TRAINED))
        model.eval().requires_grad_(False)
        return float(done["loss"])


def sums_by_another(
    said: Mapping[str, Any],
    rows: Rows,
    users: Sequence[Rows],
    tuning: Tuning,
    progress: Progress,
    stage: str,
    *,
    work: Path | None,
    choice: Rows | None,
    line: Line,
) -> Any:
    """As `fine_tune` and then `user_sums` of the model that `said` names, in another process; a
    list, as JSON has it. rows, users, choice: packed (`Downstream.packed`). Raises as
    `fine_tune_by` does, also when the line is cut."""
    with _place(work) as folder:
        TokenRows(row for own in users for row in own).save(folder / "users.npz")
        _write(folder, said, tuning, stage, rows, choice, users=[len(own) for own in users])
        return _done(1, folder, progress, stage, line)["sums"]


def _write(
    folder: Path,
    said: Mapping[str, Any],
    tuning: Tuning,
    stage: str,
    rows: Rows,
    choice: Rows | None,
    **more: Any,
) -> None:
    from privsyn_flower.text.models.libraries import latest_checkpoint

    latest_checkpoint(folder / "work")  # what a kill left half written is removed by one alone
    private_folder(folder / "work")
    for name, some in (("rows", rows), ("choice", choice or [])):
        TokenRows(some).save(folder / f"{name}.npz")
    job = {"model": said, "tuning": asdict(tuning), "stage": stage, "choose": bool(choice), **more}
    replace_private(folder / JOB, json.dumps(job).encode())
    (folder / "meeting").unlink(missing_ok=True)


@contextmanager
def _place(work: Path | None) -> Iterator[Path]:
    if work is not None:
        yield private_folder(work)
        return
    with TemporaryDirectory(prefix="privsyn-") as folder:
        yield Path(folder)


def _done(processes: int, folder: Path, progress: Progress, stage: str, line: Line) -> Any:
    """What the first of the processes says in the end."""
    _wait(_started(processes, folder, line), folder, progress, stage)
    return json.loads((folder / DONE).read_text("utf-8"))


def _started(processes: int, folder: Path, line: Line) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "privsyn_flower.evaluation.process", str(folder)]
    started = []
    for rank in range(processes):
        errors = (folder / f"{rank}-{ERRORS}").open("w")
        with errors:
            started.append(
                subprocess.Popen(
                    command,
                    env={**finding_us(os.environ), **_group(rank, processes)},
                    stdin=line.end,
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stderr=errors,
                    text=True,
                )
            )
    return started


def _group(rank: int, processes: int) -> dict[str, str]:
    """What torch and accelerate read of a group of processes; one alone is none."""
    if processes == 1:
        return {}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), **sizes, **loopback_only()}


def _wait(
    started: Sequence[subprocess.Popen[str]], folder: Path, progress: Progress, stage: str
) -> None:
    try:
        first = started[0]
        for line in first.stdout or ():
            if line.startswith(TOLD):
                progress(*json.loads(line.removeprefix(TOLD)))
        codes = [one.wait() for one in started]
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
                one.wait()
            if one.stdout:
                one.stdout.close()
    for rank, code in enumerate(codes):
        if code:
            said = (folder / f"{rank}-{ERRORS}").read_text("utf-8", "replace").strip()
            raise RuntimeError(
                f"{stage}: process {rank + 1} of {len(codes)} ended with {code}: "
                f"{said.splitlines()[-1] if said else 'it said nothing'}"
            )
