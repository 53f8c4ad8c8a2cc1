"""Fine-tunings that do not hang on one another: one after the other here, or several at once.

A training of a small model keeps one core busy (`text.models.devices.one_worker`). Several at once
are processes of their own; what they find is the same to the last bit.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.arrays import F64
from privsyn_flower.evaluation.several import Line, sums_by_another
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.evaluation.work import Work, rows_digest
from privsyn_flower.progress import Progress, silent
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.devices import cpu_workers, main_memory

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
    source = _by_content(model.said())
    chosen_by = None if choice is None else rows_digest(model.packed(choice))

    def one(job: FineTuning, tune: Tune) -> None:
        about = [source, asdict(job.tuning), rows_digest(model.packed(job.rows))]
        with begun(job.name):
            made = work.once(job.name, [*about, tested, chosen_by], functools.partial(tune, job))
        found[job.name] = np.array(made)

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
        given = model.said(), model.packed(job.rows), packed, job.tuning, progress, job.stage
        return sums_by_another(*given, work=folder, choice=chosen, line=line)

    _each(at_once, wanted, lambda job, line: one(job, functools.partial(there, line)))
    return found


def _by_content(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a model says of itself, a folder by what is in it: one that is written anew in the same
    place is another, and a copy is the same."""
    folder = Path(said["model"]).expanduser()
    name = folder_fingerprint(folder) if folder.is_dir() else said["model"]
    return {**said, "model": name}


def _each(at_once: int, jobs: Iterable[FineTuning], do: Callable[[FineTuning, Line], None]) -> None:
    """`do` for each, in so many threads; the first error ends all and is raised."""
    left, lock = iter(jobs), threading.Lock()

    def turns(line: Line) -> None:
        for job in _drawn(left, lock):
            if not line.whole:
                return
            do(job, line)

    with Line() as line, ThreadPoolExecutor(at_once) as pool, contextlib.ExitStack() as ending:
        ending.callback(line.cut)  # then the threads are waited for, which have its end
        running = [pool.submit(turns, line) for _ in range(at_once)]
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
