"""Fine-tunings that do not depend on each other: one after the other here, or in processes.

A training of a small model keeps one core busy (`text.models.devices.one_worker`). Several at once
are processes of their own (`process.py`), which measure their model as well; what they find is the
same to the last bit. One training may also be done by several processes, a GPU each, that meet by a
file and speak over the loopback interface alone."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.files import private_folder, replace_private
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.python_path import finding_us
from privsyn_flower.evaluation.rows import Rows, TokenRows, Work, rows_digest
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.devices import cpu_workers, loopback_only, main_memory

JOB, DONE, TRAINED, ERRORS = "job.json", "done.json", "trained.safetensors", "errors.txt"
PROGRESS_PREFIX = "privsyn-progress "  # begins a line of progress


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
    spec: Mapping[str, Any],
    rows: Rows,
    tuning: Tuning,
    progress: Progress,
    stage: str,
    *,
    work: Path | None,
    choice: Rows | None,
) -> float:
    """As `Downstream.fine_tune`; returns the mean training loss.

    model: prepared for the training; it gets the weights. spec: `Downstream.load_spec`. Raises
    RuntimeError with what a process said when one fails; the others are ended then.
    """
    from privsyn_flower.evaluation.fitting import put

    with _place(work) as folder, Line() as line:
        _write(folder, spec, tuning, stage, rows, choice)
        done = _done(processes, folder, progress, stage, line)
        from safetensors.torch import load_file

        put(model, load_file(folder / TRAINED))
        model.eval().requires_grad_(False)
        return float(done["loss"])


def sums_by_another(
    spec: Mapping[str, Any],
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
    """As `fine_tune` and then `user_sums` of the model that `spec` names, in another process; a
    list, as JSON has it. rows, users, choice: packed (`Downstream.packed`). Raises as
    `fine_tune_by` does, also when the line is cut."""
    with _place(work) as folder:
        TokenRows(row for own in users for row in own).save(folder / "users.npz")
        _write(folder, spec, tuning, stage, rows, choice, users=[len(own) for own in users])
        return _done(1, folder, progress, stage, line)["sums"]


def _write(
    folder: Path,
    spec: Mapping[str, Any],
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
    job = {"model": spec, "tuning": asdict(tuning), "stage": stage, "choose": bool(choice), **more}
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
            if line.startswith(PROGRESS_PREFIX):
                progress(*json.loads(line.removeprefix(PROGRESS_PREFIX)))
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
            text = (folder / f"{rank}-{ERRORS}").read_text("utf-8", "replace").strip()
            raise RuntimeError(
                f"{stage}: process {rank + 1} of {len(codes)} ended with {code}: "
                f"{text.splitlines()[-1] if text else 'it said nothing'}"
            )


WAKE = 1.0  # seconds; a signal that comes just before this thread sleeps is seen when it wakes


@dataclass(frozen=True)
class FineTuning:
    """name: of its result. rows: what the model learns from. stage: for the progress."""

    name: str
    rows: Any
    tuning: Tuning
    stage: str


# Of a process that has imported torch and transformers: bytes, and the operations that a core of
# 2025 does in the five seconds that it takes to start one (`benchmarks/busy.py`).
PROCESS, WORTH = 600 << 20, 3e11
SHARE = 0.5  # of the machine's memory, at most: this process, Flower and the data have the rest
# Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1, at four bytes an entry: activations of a
# layer that a backward pass needs, for a token and entry of its row, and for a head and pair of
# tokens. The vocabulary's scores are there four times, with their gradients.
LAYER_BYTES, PAIR_BYTES, SCORE_BYTES = 68, 10, 16

Tune = Callable[[FineTuning, Path | None], Any]
Begun = Callable[[str], AbstractContextManager[None]]


def worth_at_once(model: Any, job: FineTuning) -> int:
    """How many fine-tunings like this one go on at once on this machine.

    On a CPU as many as there are workers of one thread, if they fit into its memory and one of them
    takes longer than to start a process for it. 1 on a GPU, which is busy with one, and where one
    is done by several processes.
    """
    if model.device != "cpu" or getattr(model, "processes", 1) > 1:
        return 1
    tuning, size = job.tuning, model.model.config
    parameters = sum(one.numel() for one in model.model.parameters())
    steps = tuning.steps_of(max(1, len(job.rows)))
    if 6.0 * parameters * steps * tuning.batch_tokens < WORTH:  # Kaplan et al. 2020, section 2.1
        return 1
    tokens = min(tuning.micro_batch or tuning.batch_size, tuning.batch_size) * tuning.length
    heads = getattr(size, "num_attention_heads", 0)
    layers = getattr(size, "num_hidden_layers", 1)
    layer = LAYER_BYTES * size.hidden_size + PAIR_BYTES * heads * tuning.length
    # Weights, gradients, AdamW's two moments, and the start.
    batch = tokens * (layer * layers + SCORE_BYTES * size.vocab_size)
    need = int(PROCESS + 20 * parameters + batch)
    return max(1, min(cpu_workers(), int(SHARE * main_memory()) // need))


def sums_after(
    model: Any,
    wanted: Iterable[FineTuning],
    users: Mapping[str, Any],
    *,
    choice: Any = None,
    at_once: int = 0,
    progress: Progress = silent,
    work: Work | None = None,
    begun: Begun = lambda name: contextlib.nullcontext(),
) -> dict[str, F64]:
    """What users' sums are after each fine-tuning, by its name (`user_sums`).

    model: a `Downstream` or `Classifier`, all of them from its first weights. wanted: drawn as
    they are begun. choice: as in `fine_tune`. at_once: processes; 1: none but this; 0: as
    many as `worth_at_once`. work: where
    finished ones are kept. begun: called with each name, a context around it. When one fails or
    this is interrupted the others are ended; raises RuntimeError with the failed one's stage.
    """
    work, found = work or Work(), dict[str, F64]()
    tested = rows_digest([row for own in users.values() for row in model.packed(own)])
    source = _by_content(model.load_spec())
    chosen_by = None if choice is None else rows_digest(model.packed(choice))

    def one(job: FineTuning, tune: Tune) -> None:
        about = [source, asdict(job.tuning), rows_digest(model.packed(job.rows))]
        with begun(job.name):
            sums = work.once(job.name, [*about, tested, chosen_by], functools.partial(tune, job))
        found[job.name] = np.array(sums)

    def here(job: FineTuning, folder: Path | None) -> Any:
        own: dict[str, Any] = {"work": folder, "choice": choice}
        model.fine_tune(job.rows, job.tuning, progress, job.stage, **own)
        return model.user_sums(users).tolist()

    jobs = iter(wanted)
    first = next(jobs, None)
    if first is None:
        return found
    wanted, at_once = itertools.chain([first], jobs), at_once or worth_at_once(model, first)
    if at_once == 1:
        for job in wanted:
            one(job, here)
        return found
    packed = [model.packed(own) for own in users.values()]
    chosen = None if choice is None else model.packed(choice)

    def there(line: Line, job: FineTuning, folder: Path | None) -> Any:
        given = model.load_spec(), model.packed(job.rows), packed, job.tuning, progress, job.stage
        return sums_by_another(*given, work=folder, choice=chosen, line=line)

    _each(at_once, wanted, lambda job, line: one(job, functools.partial(there, line)))
    return found


def _by_content(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a model says of itself, a folder by what is in it: one that is written anew in the same
    place is another, and a copy is the same."""
    folder = Path(spec["model"]).expanduser()
    name = folder_fingerprint(folder) if folder.is_dir() else spec["model"]
    return {**spec, "model": name}


def _each(at_once: int, jobs: Iterable[FineTuning], do: Callable[[FineTuning, Line], None]) -> None:
    """`do` for each, in so many threads; the first error ends all and is raised."""
    left, lock = iter(jobs), threading.Lock()
    # No work begins before all threads are known: an interrupt while one is being started would
    # leave it to nobody, and its process with it.
    ready = threading.Event()

    def turns(line: Line) -> None:
        ready.wait()
        for job in _drawn(left, lock):
            if not line.whole:
                return
            do(job, line)

    with Line() as line, ThreadPoolExecutor(at_once) as pool, contextlib.ExitStack() as ending:
        ending.callback(ready.set)
        ending.callback(line.cut)  # first; then the threads are waited for, which have its end
        running = [pool.submit(turns, line) for _ in range(at_once)]
        ready.set()
        failed: BaseException | None = None
        over = set[Future[None]]()
        while len(over) < len(running) and failed is None:
            over = wait(running, WAKE, FIRST_EXCEPTION).done
            failed = next((error for one in over if (error := one.exception())), None)
    if failed:
        raise failed


def _drawn(jobs: Iterator[FineTuning], lock: threading.Lock) -> Iterator[FineTuning]:
    """What is left of `jobs`, one thread at a time."""
    while True:
        with lock:
            job = next(jobs, None)
        if job is None:
            return
        yield job
