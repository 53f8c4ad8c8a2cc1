"""Preference training in several processes, each with a GPU of its own, by `accelerate launch`.

The run writes a job into the training's folder and starts the launcher, which starts this module
once for each process. The processes share every optimiser step's pairs; each has the whole base
model, so it must fit into one GPU. The first process writes adapters, checkpoints and metrics. It
imports no torch itself: that is for the processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import replace_private
from privsyn_flower.common.progress import bar, silent
from privsyn_flower.common.python_path import finding_us
from privsyn_flower.text.models.devices import loopback_only
from privsyn_flower.text.preference.tuning import Pair, Setting, Tuning
from privsyn_flower.text.serving import supervisor

JOB, METRICS, STEPS, LOG = "job.json", "metrics.json", "steps", "accelerate.log"
MODULE = "privsyn_flower.text.preference.launched"
LOOK_EVERY = 1.0  # seconds between two looks at the processes
TAIL = 12  # lines of their log in an error


def launch_command(work: Path | str, processes: int, arguments: Sequence[str]) -> list[str]:
    """The command line that trains the job in `work`. arguments: come last and win over ours."""
    return [
        sys.executable, "-m", "accelerate.commands.launch",
        "--multi_gpu", "--num_machines", "1", "--num_processes", str(processes),
        # Precision is the trainer's affair (`Setting.dtype`); port 0: a free one.
        "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
        *arguments, "-m", MODULE, str(work),
    ]  # fmt: skip


def launch_environment(device: str) -> dict[str, str]:
    """What the processes need beside our own environment."""
    return {"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {}


def fit_launched(
    setting: Setting,
    tuning: Tuning,
    pairs: Sequence[Pair],
    *,
    start: Path | None,
    work: Path,
    seed: int,
) -> list[dict[str, float]]:
    """As `fit.fit`, in `tuning.processes` processes. Raises RuntimeError with the end of their log.

    They end with this process, however it ends.
    """
    device = setting.device.partition(":")[0]  # of which each process has one of its own
    plain = replace(setting, model=os.fspath(setting.model), device=device, progress=False)
    job = {
        "setting": asdict(plain),
        "tuning": asdict(tuning),
        "pairs": [dict(pair) for pair in pairs],
        "start": str(start) if start else "",
        "seed": seed,
    }
    replace_private(work / JOB, json.dumps(job).encode())
    (work / METRICS).unlink(missing_ok=True)
    (work / STEPS).unlink(missing_ok=True)
    log = work / LOG
    with log.open("ab") as output:
        command = launch_command(work.absolute(), tuning.processes, setting.launch_arguments)
        own = {**loopback_only(), **finding_us(os.environ), **launch_environment(device)}
        own["PYTHONSAFEPATH"] = "1"  # nothing of the folder that the run was started in
        process = supervisor.start(command, own, output)
    try:
        _wait(process, setting, tuning, len(pairs), work)
    finally:
        supervisor.end_group(process, 1.0)
    if process.returncode or not (work / METRICS).is_file():
        tail = log.read_text("utf-8", errors="replace").splitlines()[-TAIL:]
        raise RuntimeError(
            "\n".join([f"accelerate ended with status {process.returncode}; see {log}", *tail])
        )
    metrics: list[dict[str, float]] = json.loads((work / METRICS).read_text("utf-8"))
    (work / JOB).unlink()
    return metrics


def _wait(
    process: subprocess.Popen[bytes], setting: Setting, tuning: Tuning, pairs: int, work: Path
) -> None:
    """Until the processes end, showing the steps that the first one wrote down."""
    shown, steps = 0, tuning.epochs * -(-pairs // tuning.batch_size)
    with bar(setting.progress, "preference training", steps) as advance:
        while process.poll() is None:
            time.sleep(LOOK_EVERY)
            with contextlib.suppress(OSError, ValueError):
                done = int((work / STEPS).read_text("ascii"))
                advance(done - shown)
                shown = done


def worker(work: Path) -> None:
    """One of the processes."""
    from privsyn_flower.text.preference.fit import fit

    job = json.loads((work / JOB).read_text("utf-8"))
    first, local = os.environ.get("RANK", "0") == "0", int(os.environ.get("LOCAL_RANK", "0"))

    def steps(stage: str, done: float, total: float, note: str = "") -> None:
        replace_private(work / STEPS, str(int(done)).encode())

    fields: dict[str, Any] = {**job["setting"], "progress": steps if first else silent}
    setting, tuning = Setting(**fields), Tuning(**job["tuning"])
    if setting.device != "cpu":
        import torch

        torch.cuda.set_device(local)
    start = Path(job["start"]) if job["start"] else None
    metrics = fit(setting, tuning, job["pairs"], start=start, work=work, seed=job["seed"])
    if first:
        replace_private(work / METRICS, json.dumps(metrics).encode())


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
