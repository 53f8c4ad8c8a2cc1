"""`privsyn plan`: what a run will promise, exchange, compute and need, before anything is begun.

Privacy is read from the promise, findings from the other checks of this room. Times and memory are
estimates of `privsyn_flower.estimates`; what is not known is said to be unknown.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from privsyn_flower.config import RunConfig
from privsyn_flower.estimates.machine import Machine
from privsyn_flower.estimates.memory import memory
from privsyn_flower.estimates.shapes import Shape, model_files, shape_of
from privsyn_flower.estimates.timing import estimate
from privsyn_flower.estimates.work import Task, operations
from privsyn_flower.preflight import check_ready
from privsyn_flower.preflight.exchange import Exchange, exchange_of, trained
from privsyn_flower.preflight.findings import Finding
from privsyn_flower.preflight.machine import KINDS, used_models
from privsyn_flower.preflight.signal import Signal, signal_of
from privsyn_flower.privacy.promise import Promise
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.promised import promised, statement

HALVED = ("meta-llama/", "sentence-transformers/sentence-t5")  # published in 16 bits an entry
WORD_BYTES = 7  # of a synthetic text, with the space
KEPT_MODELS = 4  # parameters of a training in its folder: start, question, state and model/


@dataclass(frozen=True)
class ModelPlan:
    """A model that the run loads. download: bytes to fetch, None where its size is unknown."""

    key: str
    name: str
    parameters: int | None
    source: str
    here: bool
    download: int | None


@dataclass(frozen=True)
class StagePlan:
    """seconds: on this machine's server side, node_seconds: on simulated nodes; None: unknown, or
    elsewhere. first_round: of the server's seconds in `rounds`. timed: measured by such work here;
    else no less than that. memory: bytes here; gpu_memory: with the models on a GPU."""

    stage: str
    tasks: list[str]
    seconds: float | None
    node_seconds: float
    first_round: float | None
    timed: bool
    operations: float
    memory: int | None
    gpu_memory: int | None
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything about one configuration on one machine."""

    config: RunConfig
    promise: Promise
    machine: Machine
    signal: Signal
    exchange: Exchange
    models: list[ModelPlan]
    stages: list[StagePlan]
    disk: dict[str, int]
    free: int
    findings: list[Finding]

    @property
    def ready(self) -> bool:
        """Whether the run would start here and, as far as is known, fit."""
        return not any(finding.fatal for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        said = statement(self.config, checked=False)
        phases = [
            {
                "name": phase.name,
                "rounds": phase.rounds,
                "spare": phase.spare if phase.source == "nodes" else 0,
                "noise_multiplier": phase.multiplier,
                "sampling_rate": phase.rate,
                "noise_of": phase.source,
                "participations": phase.most,
            }
            for phase in self.promise.phases
        ]
        return {
            "method": self.config.method,
            "ready": self.ready,
            "privacy": {
                "epsilon": self.promise.epsilon,
                "epsilon_asked": self.promise.target,
                "delta": self.promise.delta,
                "releases": releases(self.promise),
                "phases": phases,
                "sentence": said.short(),
            },
            "signal": {**asdict(self.signal), "ratio": self.signal.ratio},
            "device": asdict(self.exchange),
            "models": [asdict(model) for model in self.models],
            "stages": [asdict(stage) for stage in self.stages],
            "disk": {**self.disk, "free": self.free},
            "machine": asdict(self.machine) | {"told": self.machine.told()},
            "findings": [asdict(finding) for finding in self.findings],
        }


def releases(made: Promise) -> int:
    """Sums that leave the users with noise, spare ones included."""
    return sum(p.rounds + (p.spare if p.source == "nodes" else 0) for p in made.phases)


def plan_of(config: RunConfig, folder: Path, machine: Machine) -> Plan:
    """The plan of a run in `folder`, with absolute paths; raises ConfigError and ValueError for
    numbers that make no promise."""
    made = promised(config, checked=False)
    models = [_model(config, kind, name) for kind, name in used_models(config).items()]
    shapes = {kind: shape_of(kind, config) for kind in KINDS}
    stages = stages_of(config, recipe_of(config).work(config), shapes, machine)
    disk = disk_of(config, shapes, models)
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    length, _ = trained(config, shapes.get("downstream")) if config.trains else (None, None)
    found = [
        *check_ready(config, folder),
        *_too_large(config, shapes, machine),
        *_disk(sum(disk.values()), free),
    ]
    signal, exchange = signal_of(config, length), exchange_of(config, machine)
    return Plan(config, made, machine, signal, exchange, models, stages, disk, free, found)


def _model(config: RunConfig, kind: str, name: str) -> ModelPlan:
    shape = shape_of(kind, config)
    served = kind == "generator" and config.generation.base_url
    here = bool(served) or model_files(kind, name, config) is not None or bool(shape and shape.here)
    if shape is None:
        source = "unknown: the model is not here, and no table has its size"
        return ModelPlan(f"models.{kind}", name, None, source, here, None)
    download = 0 if here else shape.parameters * (2 if name.startswith(HALVED) else 4)
    return ModelPlan(f"models.{kind}", name, shape.parameters, shape.source, here, download)


def stages_of(
    config: RunConfig, tasks: Sequence[Task], shapes: dict[str, Shape | None], machine: Machine
) -> list[StagePlan]:
    """The stages in the order of their first tasks."""
    names = list(dict.fromkeys(task.stage for task in tasks))
    return [
        _stage(config, name, [task for task in tasks if task.stage == name], shapes, machine)
        for name in names
    ]


def _stage(
    config: RunConfig,
    name: str,
    tasks: Sequence[Task],
    shapes: dict[str, Shape | None],
    machine: Machine,
) -> StagePlan:
    seconds, on_nodes, first, work, timed = 0.0, 0.0, 0.0, 0.0, True
    sizes, notes, known = [0], list[str](), True
    gpu = [0]
    for task in tasks:
        shape = shapes.get(task.model)
        if elsewhere(config, task):
            notes.append(f"{task.what}: on the server of generation.base-url")
            continue
        if shape is None:
            notes.append(f"{task.what}: unknown, the size of models.{task.model} is not known")
            known = False
            continue
        found = estimate(task, shape, machine)
        timed = timed and found.timed
        work += operations(task, shape)
        sizes.append(memory(task, shape, machine.device, _workers(config, task, machine)))
        gpu.append(memory(task, shape, "cuda"))
        if task.nodes:
            on_nodes += found.seconds
        else:
            seconds += found.seconds
            first += estimate(task.once(), shape, machine).seconds
    return StagePlan(
        name,
        [_described(task) for task in tasks],
        seconds if known else None,
        on_nodes,
        first if name == "rounds" and config.rounds > 1 and known else None,
        timed,
        work,
        max(sizes) if known else None,
        max(gpu) if known else None,
        "; ".join(notes),
    )


def _described(task: Task) -> str:
    what = {"generation": "completions", "fine-tuning": "sequences", "preferences": "pairs"}
    unit = what.get(task.kind, "texts")
    often = f", {task.times} times" if task.times > 1 else ""
    return f"{task.what}: {task.items:,} {unit} of {task.tokens} tokens{often}"


def elsewhere(config: RunConfig, task: Task) -> bool:
    """Whether a running server does the work, of which nothing is known here."""
    return task.kind == "generation" and bool(config.generation.base_url)


def _workers(config: RunConfig, task: Task, machine: Machine) -> int:
    served = task.kind == "generation" and config.generation.backend != "huggingface"
    return 1 if served or task.kind == "embedding" else machine.workers


def _too_large(
    config: RunConfig, shapes: dict[str, Shape | None], machine: Machine
) -> list[Finding]:
    """Work that does not fit into this machine's memory, with the key that says how large it is."""
    worst = dict[tuple[str, str], tuple[int, Task]]()
    for task in recipe_of(config).work(config):
        shape = shapes.get(task.model)
        if shape is None or elsewhere(config, task):
            continue
        need = memory(task, shape, machine.device, _workers(config, task, machine))
        if need > worst.get((task.stage, task.what), (machine.memory, task))[0]:
            worst[(task.stage, task.what)] = (need, task)
    found = list[Finding]()
    for need, task in worst.values():
        shape = shapes[task.model]
        least = memory(_smallest(task), shape, machine.device) if shape else 0
        key = f"lower {task.key}" if task.key and least <= machine.memory else (
            f"choose a smaller models.{task.model}"
        )  # fmt: skip
        found.append(
            Finding(
                f"{task.stage}: {task.what} needs about {_gib(need)} of memory, and "
                f"{machine.device} has {_gib(machine.memory)} here: {key}, or run it where there "
                "is more"
            )
        )
    return found


def _smallest(task: Task) -> Task:
    """The task with as little at a time as there can be."""
    return replace(task, batch=1)


def disk_of(
    config: RunConfig, shapes: dict[str, Shape | None], models: Sequence[ModelPlan]
) -> dict[str, int]:
    """Bytes on disk: models to fetch, the run folder, and the cache of a simulation."""
    run, cache, data = 0, 0, config.data
    embedder, generator = shapes.get("embedder"), shapes.get("generator")
    if config.trains:
        length, down = trained(config, shapes.get("downstream"))
        run += KEPT_MODELS * (down or 0)
        if config.trusts_aggregator and config.ftrl.mechanism == "blt":
            run += 8 * config.ftrl.buffers * (length or 0)
    elif embedder is not None:
        size = recipe_of(config).length(config)
        run += config.rounds * size * (embedder.dimension + 12)
        run += config.expand.samples * data.sample_words * WORD_BYTES
        cache += 4 * embedder.dimension * data.users * data.samples_per_user
        if recipe_of(config).retrieves(config):
            cache += 4 * embedder.dimension * data.public_pool
    if config.uses("popri") and generator is not None:
        own = config.popri
        run += config.rounds * own.epochs * 4 * generator.lora(own.lora_rank)
        text = recipe_of(config).length(config) * data.sample_words * WORD_BYTES
        run += config.rounds * text
    fetched = sum(model.download or 0 for model in models)
    return {"models": fetched, "run_folder": run, "cache": cache}


def _disk(wanted: int, free: int) -> list[Finding]:
    if wanted <= free:
        return []
    return [
        Finding(
            f"about {_gib(wanted)} of disk are needed at most and {_gib(free)} are free: make "
            "room, or choose another run-folder and cache",
            fatal=False,
        )
    ]


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
