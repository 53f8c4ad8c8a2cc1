"""One fine-tuning by several processes of this machine, a GPU each (`process.py`).

They meet by a file, and speak over the loopback interface alone.
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

JOB, DONE, TRAINED, ERRORS = "job.json", "done.json", "trained.safetensors", "errors.txt"
TOLD = "privsyn-progress "  # begins a line of progress


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
    from privsyn_flower.text.models.libraries import latest_checkpoint

    with _place(work) as folder:
        latest_checkpoint(folder / "work")  # what a kill left half written is removed by one alone
        private_folder(folder / "work")
        for name, some in (("rows", rows), ("choice", choice or [])):
            TokenRows(some).save(folder / f"{name}.npz")
        job = {**said, "tuning": asdict(tuning), "stage": stage, "choose": bool(choice)}
        replace_private(folder / JOB, json.dumps(job).encode())
        (folder / "meeting").unlink(missing_ok=True)
        _wait(_started(processes, folder), folder, progress)
        done = json.loads((folder / DONE).read_text("utf-8"))
        from safetensors.torch import load_file

        put(model, load_file(folder / TRAINED))
        model.eval().requires_grad_(False)
        return float(done["loss"])


@contextmanager
def _place(work: Path | None) -> Iterator[Path]:
    if work is not None:
        yield private_folder(work)
        return
    with TemporaryDirectory(prefix="privsyn-") as folder:
        yield Path(folder)


def _started(processes: int, folder: Path) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "privsyn_flower.evaluation.process", str(folder)]
    common = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    loopback = dict.fromkeys(names, "lo") if sys.platform == "linux" else {}
    started = []
    for rank in range(processes):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **common, **loopback}
        errors = (folder / f"{rank}-{ERRORS}").open("w")
        with errors:
            started.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, **own},
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stderr=errors,
                    text=True,
                )
            )
    return started


def _wait(started: Sequence[subprocess.Popen[str]], folder: Path, progress: Progress) -> None:
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
    for rank, code in enumerate(codes):
        if code:
            said = (folder / f"{rank}-{ERRORS}").read_text("utf-8", "replace").strip()
            raise RuntimeError(
                f"process {rank} of evaluation.processes = {len(codes)} ended with {code}: "
                f"{said.splitlines()[-1] if said else 'it said nothing'}"
            )
