"""Seconds of a task: by work of its kind that was timed here, else by the machine's best case."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from privsyn_flower.config import RunConfig, cache_folder
from privsyn_flower.server_apps.estimates.machine import Machine, remember
from privsyn_flower.server_apps.estimates.memory import entry_bytes
from privsyn_flower.server_apps.estimates.shapes import Shape, model_files, shape_of
from privsyn_flower.server_apps.estimates.work import Task, operations, tokens_of, weight_bytes_read

SMALL = 64_000_000  # parameters of a model that is timed in about half a second
WORDS = 36  # of a made-up text
LEAST_SECONDS = 0.1  # timed at least
PROMPTS, WRITTEN = 16, 32  # completions that are timed, and the most tokens of one
STEPS = 2  # of a fine-tuning that is timed


@dataclass(frozen=True)
class Estimate:
    """seconds: of all times of a task. timed: by such work on this machine; else no less than
    this, because no machine does more than its products and its memory allow."""

    seconds: float
    timed: bool


def estimate(task: Task, shape: Shape, machine: Machine) -> Estimate:
    """How long a task takes on a machine; a task with a cap, that long at most."""
    speed = machine.speeds.get(key(task, shape), 0.0)
    if speed:
        found = Estimate(task.total_tokens / speed, True)
    else:
        entry = entry_bytes(task, machine.device)
        computing = operations(task, shape) / machine.operations[str(entry)]
        reading = weight_bytes_read(task, shape, entry) / machine.bandwidth
        found = Estimate(max(computing, reading), shape.parameters == 0)
    if task.cap and found.seconds > task.cap:
        return Estimate(task.cap, found.timed)
    return found


def key(task: Task, shape: Shape) -> str:
    """What a timing is kept under: the kind of work, and the sizes of the model. A folder's name
    is not in it."""
    name = "" if "/" in shape.name else f"{shape.name} "
    sizes = f"{shape.width}x{shape.layers} of {shape.vocabulary}"
    way = f" rank {task.rank}, {task.entry} bytes" if task.rank or task.entry != 4 else ""
    return f"{task.kind} {name}{shape.parameters} {sizes}{way}"


def timed(config: RunConfig, tasks: Iterable[Task], machine: Machine, *, seconds: float) -> Machine:
    """The machine with the speeds of these tasks' work, where their models are small and here.

    What is not known is timed, what seems longest first, until so many seconds are over; kept in
    the cache.
    """
    end = time.monotonic() + seconds
    wanted = dict[str, tuple[float, Task, Shape]]()
    for task in tasks:
        shape = shape_of(task.model, config)
        if shape is None or not 0 < shape.parameters <= SMALL or key(task, shape) in machine.speeds:
            continue
        known = wanted.get(key(task, shape))
        long = estimate(task, shape, machine).seconds + (known[0] if known else 0.0)
        wanted[key(task, shape)] = (long, task, shape)
    for _, task, shape in sorted(wanted.values(), key=lambda one: -one[0]):
        folder = model_files(task.model, shape.name, config)
        if time.monotonic() >= end:
            break
        if folder is None:
            continue
        try:
            speed = WORK[task.kind](config, task, folder, machine)
        except (ImportError, MemoryError, RuntimeError, ValueError):
            continue  # the run says what is wrong with a model; an estimate does without
        machine = replace(machine, speeds={**machine.speeds, key(task, shape): speed})
        remember(cache_folder(config), machine)
    return machine


def made_up(count: int, words: int = WORDS) -> list[str]:
    """Texts of Python's own documentation: no user's, and the same everywhere."""
    import pydoc_data.topics as topics

    pool = " ".join(topics.topics.values()).split()
    starts = np.random.default_rng(0).integers(0, len(pool) - words, size=count)
    return [" ".join(pool[first : first + words]) for first in starts]


def _rate(
    work: Callable[[Sequence[str]], object],
    texts: Sequence[str],
    tokens: int,
    device: str,
    workers: int,
) -> float:
    """Tokens a second: once to get ready, then for LEAST_SECONDS or longer.

    On a CPU by the seconds of this process on its cores, shared by so many workers: what else the
    machine does just now is no part of it.
    """
    clock = time.process_time if device == "cpu" else time.perf_counter
    work(texts[:1])
    done, start = 0, clock()
    while (spent := clock() - start) < LEAST_SECONDS:
        work(texts)
        done += len(texts)
    return done * tokens * (workers if device == "cpu" else 1) / spent


def _embedding(config: RunConfig, task: Task, folder: Path, machine: Machine) -> float:
    from privsyn_flower.text import load_embedder

    embedder = load_embedder(config.models.embedder, machine.device, progress=False)
    tokens = tokens_of(WORDS)
    return _rate(embedder.embed, made_up(8), tokens, machine.device, machine.workers)


def _mask_filling(config: RunConfig, task: Task, folder: Path, machine: Machine) -> float:
    from privsyn_flower.text.variation import MaskFill

    model = MaskFill(
        folder, steps=1, max_tokens=task.tokens, batch_size=16,
        device=machine.device, progress=False,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    return _rate(
        lambda texts: model.vary(texts, rng), made_up(32), task.tokens, machine.device,
        machine.workers,
    )  # fmt: skip


def _scoring(config: RunConfig, task: Task, folder: Path, machine: Machine) -> float:
    from privsyn_flower.text.models.lm_metrics import Scorer

    model, length = Scorer(folder, machine.device), min(task.tokens, 64)
    (row,) = model.encode([" ".join(made_up(8))], max_tokens=length, length=length + 1)
    return _rate(
        lambda texts: model.sums([row] * len(texts), 10.0), made_up(task.batch), length,
        machine.device, 1,
    )  # fmt: skip


def _generation(config: RunConfig, task: Task, folder: Path, machine: Machine) -> float:
    from privsyn_flower.text.generators import HuggingFaceGenerator
    from privsyn_flower.text.prompts import expand_prompt

    tokens = min(task.tokens, WRITTEN)
    model = HuggingFaceGenerator(
        folder, max_tokens=tokens, batch_size=PROMPTS, device=machine.device, progress=False
    )
    texts = made_up(2 * PROMPTS)
    prompts = [expand_prompt(texts[i : i + 2]) for i in range(0, len(texts), 2)]
    rng = np.random.default_rng(0)
    return _rate(
        lambda some: model.complete(some, 1, rng), prompts, tokens, machine.device,
        machine.workers,
    )  # fmt: skip


def _fine_tuning(config: RunConfig, task: Task, folder: Path, machine: Machine) -> float:
    from privsyn_flower.evaluation.downstream import Adapter, Downstream
    from privsyn_flower.evaluation.tuning import Precision, Tuning

    length, batch = min(task.tokens, 64), min(task.batch, 8)
    precision: Precision = "float32" if task.entry == 4 else "bfloat16"
    factors = Adapter(task.rank, config.evaluation.adapter_alpha) if task.rank else None
    model = Downstream(
        folder, length=length, device=machine.device, adapter=factors, base_dtype=precision
    )
    rows = model.encode(made_up(64, 64))

    def steps(some: Sequence[str]) -> None:
        model.fine_tune(rows, Tuning(len(some), batch, length, 1e-6, precision=precision))

    return _rate(steps, ["a step"] * STEPS, batch * length, machine.device, 1)


def _preferences(config: RunConfig, task: Task, folder: Path, machine: Machine) -> float:
    """Half as fast as a fine-tuning of the same model, which takes half the passes: the trainer's
    libraries alone take longer to load than a timing may last."""
    return _fine_tuning(config, task, folder, machine) / 2


WORK: dict[str, Callable[[RunConfig, Task, Path, Machine], float]] = {
    "embedding": _embedding,
    "mask-filling": _mask_filling,
    "scoring": _scoring,
    "generation": _generation,
    "fine-tuning": _fine_tuning,
    "imitation": _fine_tuning,
    "preferences": _preferences,
}
