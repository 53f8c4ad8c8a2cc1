"""This machine's speeds: of matrix products, and of small models on made-up text.

A speed is tokens a second of one kind of work by a model of one size. They are measured once and
kept in `speeds.json` in the cache folder by sizes, so that nothing of a run is in it.

What a run will take is counts of work times these speeds (`forecast`). The counts are the recipes'
(`Task`), bounded by public keys; what no speed is known for is counted at the machine's best ("at
least").
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.preflight.findings import Finding, Findings
from privsyn_flower.app.preflight.sizes import Size, model_files, size_of
from privsyn_flower.common.files import locked, replace_private
from privsyn_flower.config import RunConfig, cache_folder
from privsyn_flower.server_apps.methods.stages import Task, tokens_of
from privsyn_flower.text.embedders import can_import
from privsyn_flower.text.models.devices import (
    cpu_workers,
    gpu_facts,
    gpu_rate,
    main_memory,
    resolve_device,
)

FILE = "speeds.json"
FORMAT = 2  # raise it when what is measured changes
PRODUCT = 512  # rows of the matrices that are multiplied on a CPU
SMALL = 150_000_000  # parameters of a model that is timed in seconds
LEAST_SECONDS = 0.1  # timed at least
WORDS, WRITTEN = 36, 32  # of a made-up text; tokens of a completion that is timed
PASSES = {"fine-tuning": 3, "imitation": 3, "preferences": 6}  # over a token; 1 for other work
# Timed: work on so many texts, the texts, tokens of each; on a CPU, whether by all its workers.
Timing = tuple[Callable[[Sequence[str]], object], Sequence[str], int, bool]


@dataclass(frozen=True)
class Machine:
    """workers: side by side on a CPU. memory: bytes where the models are. operations: of matrix
    products a second. speeds: tokens a second by `speed_key`."""

    name: str
    device: str
    workers: int
    memory: int
    operations: float
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """What must be the same for its speeds to hold."""
        return f"{FORMAT} {self.name} {self.device} {self.workers} workers"

    def summary(self) -> str:
        """In a line."""
        workers = f", {self.workers} worker{'s' * (self.workers > 1)}"
        where = workers if self.device == "cpu" else f" ({self.device})"
        return (
            f"{self.name}{where}, {self.memory / 2**30:.0f} GiB; measured: "
            f"{self.operations / 1e9:,.0f} GFLOP/s in matrix products, {len(self.speeds)} kinds of "
            "work"
        )


def seconds_of(task: Task, size: Size, machine: Machine) -> tuple[float, bool]:
    """Seconds of all times of a task, and whether such work was timed on this machine."""
    if task.seconds:
        return task.seconds * task.times, True
    tokens = float(task.items) * task.tokens * task.times
    speed = machine.speeds.get(speed_key(task, size), 0.0)
    # A pass takes two operations a parameter and token, a training step three passes (Kaplan et
    # al. 2020, arXiv 2001.08361, section 2.1); low-rank factors spare the weights' own gradients.
    passes = 2 if task.adapters else PASSES.get(task.kind, 1)
    operations = 2.0 * passes * size.parameters * tokens
    found = tokens / speed if speed else operations / machine.operations
    return min(found, task.cap or math.inf), bool(speed) or not size.parameters


def speed_key(task: Task, size: Size) -> str:
    """What a speed is kept under: the kind of work and the model's size, no folder's name."""
    name = "" if "/" in size.name else f"{size.name} "
    way = " adapters" if task.adapters else ""
    return f"{task.kind} {name}{size.parameters} x {size.dimension}{way}"


def this_machine(cache: Path, device: str, *, needs_torch: bool = True) -> Machine:
    """This machine as the cache knows it, else measured in about a quarter of a second.

    device: as `models.device` has it. needs_torch: False where nothing uses it, so that it is not
    loaded to be asked for a GPU. Raises ValueError or RuntimeError for a device that is not here.
    """
    where = "cpu" if device == "auto" and not (needs_torch and can_import("torch")) else device
    where = resolve_device(where)
    cuda = where.startswith("cuda")
    name, memory = gpu_facts(where) if cuda else (_processor(), main_memory())
    found = Machine(name, where, cpu_workers(), memory, 0.0)
    stored = _stored(cache).get(found.identity)
    if stored is not None:
        return replace(found, **stored)
    found = replace(found, operations=gpu_rate(where) if cuda else _cpu_rate())
    remember(cache, found)
    return found


def remember(cache: Path, machine: Machine) -> None:
    """Keep a machine's figures, beside those of others; a cache that takes none has none."""
    path = cache / FILE
    try:
        with locked(path.with_suffix(".lock")):
            known = _stored(cache)
            before = known.get(machine.identity, {}).get("speeds", {})
            speeds = {**before, **machine.speeds}
            known[machine.identity] = {"operations": machine.operations, "speeds": speeds}
            replace_private(path, json.dumps(known, indent=1).encode())
    except OSError:
        return


def _stored(cache: Path) -> dict[str, dict[str, Any]]:
    def rate(value: Any) -> float:
        if not 0 < (number := float(value)) < math.inf:
            raise ValueError(f"a rate of {number}")
        return number

    try:
        found = json.loads((cache / FILE).read_text("utf-8"))
        return {
            str(name): {
                "operations": rate(one["operations"]),
                "speeds": {str(key): rate(value) for key, value in one["speeds"].items()},
            }
            for name, one in found.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _cpu_rate() -> float:
    """Operations a second of float32 products, the best of five; by the seconds of all cores, so
    that other work just now takes nothing off."""
    one = np.ones((PRODUCT, PRODUCT), dtype=np.float32)
    result, spent = one @ one, math.inf
    for _ in range(5):
        start = time.process_time()
        np.matmul(one, one, out=result)
        spent = min(spent, max(time.process_time() - start, 1e-9))
    return 2.0 * PRODUCT**3 * cpu_workers() / spent


def timed(config: RunConfig, tasks: Iterable[Task], machine: Machine, *, seconds: float) -> Machine:
    """The machine with the speeds of these tasks' work, where their models are small and here: what
    is not known is timed, what seems longest first, until so many seconds are over."""
    end, wanted = time.monotonic() + seconds, dict[str, tuple[float, Task, Size]]()
    for task in tasks:
        size = size_of(task.model, config)
        if size is None or task.seconds or not 0 < size.parameters <= SMALL:
            continue
        if (key := speed_key(task, size)) not in machine.speeds:
            before = wanted[key][0] if key in wanted else 0.0
            wanted[key] = (before + seconds_of(task, size, machine)[0], task, size)
    for key, (_, task, size) in sorted(wanted.items(), key=lambda one: -one[1][0]):
        folder = model_files(task.model, size.name, config)
        if time.monotonic() >= end:
            break
        if folder is None:
            continue
        try:
            speed = _speed(config, task, folder, machine)
        except (ImportError, MemoryError, RuntimeError, ValueError):
            continue  # the run says what is wrong with a model; a forecast does without
        machine = replace(machine, speeds={**machine.speeds, key: speed})
        remember(cache_folder(config), machine)
    return machine


def _speed(config: RunConfig, task: Task, folder: Path, machine: Machine) -> float:
    """Tokens a second: once to get ready, then for LEAST_SECONDS or longer. On a CPU by this
    process's seconds on its cores, shared by the workers: other work is no part of it."""
    work, texts, tokens, workers = WORK[task.kind](config, task, folder, machine.device)
    cpu = machine.device == "cpu"
    clock = time.process_time if cpu else time.perf_counter
    work(texts[:1])
    done, start = 0, clock()
    while (spent := clock() - start) < LEAST_SECONDS:
        work(texts)
        done += len(texts)
    return done * tokens * (machine.workers if cpu and workers else 1) / spent


def _embedding(config: RunConfig, task: Task, folder: Path, device: str) -> Timing:
    from privsyn_flower.text import load_embedder

    embedder = load_embedder(config.models.embedder, device, progress=False)
    return embedder.embed, dummy_texts(8), tokens_of(WORDS), True


def _mask_filling(config: RunConfig, task: Task, folder: Path, device: str) -> Timing:
    from privsyn_flower.text.variation import MaskFill

    own: dict[str, Any] = {"steps": 1, "max_tokens": task.tokens, "batch_size": 16}
    model, rng = MaskFill(folder, device=device, progress=False, **own), np.random.default_rng(0)
    return lambda texts: model.vary(texts, rng), dummy_texts(32), task.tokens, True


def _scoring(config: RunConfig, task: Task, folder: Path, device: str) -> Timing:
    from privsyn_flower.text.models.lm_metrics import Scorer

    model, length = Scorer(folder, device), min(task.tokens, 64)
    (row,) = model.encode([" ".join(dummy_texts(8))], max_tokens=length, length=length + 1)
    return lambda texts: model.sums([row] * len(texts), 10.0), dummy_texts(32), length, False


def _generation(config: RunConfig, task: Task, folder: Path, device: str) -> Timing:
    from privsyn_flower.text.generators import HuggingFaceGenerator
    from privsyn_flower.text.prompts import expand_prompt

    tokens, texts, rng = min(task.tokens, WRITTEN), dummy_texts(32), np.random.default_rng(0)
    own: dict[str, Any] = {"max_tokens": tokens, "batch_size": 16, "device": device}
    model = HuggingFaceGenerator(folder, progress=False, **own)
    prompts = [expand_prompt(texts[i : i + 2]) for i in range(0, len(texts), 2)]
    return lambda some: model.complete(some, 1, rng), prompts, tokens, True


def _fine_tuning(config: RunConfig, task: Task, folder: Path, device: str) -> Timing:
    from privsyn_flower.evaluation.downstream import Adapter, Downstream
    from privsyn_flower.evaluation.tuning import Tuning

    length, options = min(task.tokens, 64), config.evaluation
    factors = Adapter(options.adapter_rank, options.adapter_alpha) if task.adapters else None
    precision = options.precision if task.model == "downstream" else "float32"
    own: dict[str, Any] = {"device": device, "adapter": factors, "base_dtype": precision}
    model = Downstream(folder, length=length, **own)
    rows = model.encode(dummy_texts(64, 64))

    def steps(some: Sequence[str]) -> None:
        model.fine_tune(rows, Tuning(len(some), 8, length, 1e-6, precision=precision))

    # Training on pairs takes twice the passes of a fine-tuning of the same model; the trainer's
    # libraries alone take longer to load than a timing may last.
    share = 2 if task.kind == "preferences" else 1
    return steps, ["a step"] * 2, 8 * length // share, False


WORK: dict[str, Callable[[RunConfig, Task, Path, str], Timing]] = {
    "embedding": _embedding,
    "mask-filling": _mask_filling,
    "scoring": _scoring,
    "generation": _generation,
    "fine-tuning": _fine_tuning,
    "imitation": _fine_tuning,
    "preferences": _fine_tuning,
}


def dummy_texts(count: int, words: int = WORDS) -> list[str]:
    """Texts of Python's own documentation: no user's, and the same everywhere."""
    import pydoc_data.topics as topics

    pool = " ".join(topics.topics.values()).split()
    starts = np.random.default_rng(0).integers(0, len(pool) - words, size=count)
    return [" ".join(pool[first : first + words]) for first in starts]


GENERATOR_WORK = ("generation", "imitation", "preferences")
UNITS = {"generation": "completions", "fine-tuning": "sequences", "preferences": "pairs"}
TIMES = ((86400 * 365.25, "years"), (86400.0, "days"), (3600.0, "h"), (60.0, "min"))


@dataclass(frozen=True)
class Stage:
    """seconds: at most, of the server; None: unknown. node_seconds: of simulated nodes. timed:
    all by speeds of such work; else no less than that. unknown: why a task is left out."""

    stage: str
    tasks: list[str]
    seconds: float | None
    node_seconds: float
    timed: bool
    unknown: list[str]


def forecast(config: RunConfig, tasks: Iterable[Task], machine: Machine) -> list[Stage]:
    """The stages of a run in their order. tasks: those that this machine does."""
    named = dict[str, list[Task]]()
    for task in tasks:
        named.setdefault(task.stage, []).append(task)
    return [_stage(config, name, own, machine) for name, own in named.items()]


def _stage(config: RunConfig, name: str, tasks: Sequence[Task], machine: Machine) -> Stage:
    spent, timed, unknown = {False: 0.0, True: 0.0}, True, list[str]()
    for task in tasks:
        size = size_of(task.model, config)
        if served(config, task):
            unknown.append(f"{task.what}: on the server of generation.base-url")
        elif size is None:
            unknown.append(f"{task.what}: the size of models.{task.model} is not known here")
        else:
            seconds, known = seconds_of(task, size, machine)
            spent[task.nodes] += seconds
            timed = timed and known
    some = len(unknown) < len(tasks)
    described = [_described(task) for task in tasks]
    return Stage(name, described, spent[False] if some else None, spent[True], timed, unknown)


def _described(task: Task) -> str:
    often = f", {task.times} times" if task.times > 1 else ""
    if task.seconds:
        return f"{task.what}{often}"
    unit = UNITS.get(task.kind, "texts")
    return f"{task.what}: {task.items:,} {unit} of {task.tokens} tokens{often}"


def served(config: RunConfig, task: Task) -> bool:
    """Whether a running server does the work, of which nothing is known here."""
    return task.kind == "generation" and bool(config.generation.base_url)


def memory_of(task: Task, size: Size, device: str) -> int:
    """Bytes of the weights and their optimiser; what a batch needs comes on top."""
    entry = 2 if device.startswith("cuda") and task.kind in GENERATOR_WORK else 4
    adamw = task.kind == "fine-tuning" and not task.adapters  # gradients and two moments
    return (entry + 12 * adamw) * size.parameters


def memory_needed(
    config: RunConfig, tasks: Iterable[Task], device: str
) -> dict[str, tuple[int, Task]]:
    """Key in `[models]` -> bytes at least, and the work that needs most."""
    found = dict[str, tuple[int, Task]]()
    for task in tasks:
        size = size_of(task.model, config)
        if size is not None and not served(config, task):
            need = memory_of(task, size, device)
            if need > found.get(task.model, (0, task))[0]:
                found[task.model] = need, task
    return found


def too_large(needed: Mapping[str, tuple[int, Task]], machine: Machine) -> Findings:
    """Models that do not fit into this machine's memory, each once. needed: `memory_needed`."""
    for need, task in needed.values():
        if need > machine.memory:
            yield Finding(
                f"{task.kind} by models.{task.model} needs more than {need / 2**30:,.1f} GiB of "
                f"memory, and {machine.device} has {machine.memory / 2**30:,.1f} GiB here: choose "
                f"a smaller models.{task.model}, or run it where there is more"
            )


def spoken(seconds: float) -> str:
    """A time as one says it."""
    for size, unit in TIMES:
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "less than a second"
