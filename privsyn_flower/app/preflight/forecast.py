"""What a run will take on this machine: counts of work times speeds that were measured here.

The counts are the recipes' (`Task`), bounded by public keys; the speeds are those of `speeds`.
What no speed is known for is counted at the machine's best ("at least").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from privsyn_flower.app.preflight.findings import Finding, Findings
from privsyn_flower.app.preflight.sizes import Size, size_of
from privsyn_flower.app.preflight.speeds import Machine, seconds_of
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.stages import Task

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
