"""`privsyn plan`: what a run will promise, exchange, compute and need, before anything is begun.

Privacy is read from the promise, findings from the other checks of this room. Times and memory are
estimates of `privsyn_flower.server_apps.estimates`; what is not known is said to be unknown.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from privsyn_flower.app.preflight import check_ready
from privsyn_flower.app.preflight.data import HUB, left_out, long_texts
from privsyn_flower.app.preflight.exchange import Exchange, exchange_of, trained
from privsyn_flower.app.preflight.findings import Finding
from privsyn_flower.app.preflight.launches import Launch, launches
from privsyn_flower.app.preflight.machine import in_hub_cache
from privsyn_flower.app.preflight.signal import Signal, signal_of, weak
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.baseline import Baseline
from privsyn_flower.privacy.promise import Phase, Promise
from privsyn_flower.server_apps.estimates.beside import need
from privsyn_flower.server_apps.estimates.machine import Machine
from privsyn_flower.server_apps.estimates.memory import memory
from privsyn_flower.server_apps.estimates.shapes import model_files, shape_of
from privsyn_flower.server_apps.estimates.stages import (
    ROUNDS,
    Shapes,
    done_here,
    elsewhere,
    shapes_of,
    stage_of,
)
from privsyn_flower.server_apps.estimates.work import Task
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.promised import baseline, promised, statement
from privsyn_flower.server_apps.public_text import is_deployment
from privsyn_flower.server_apps.readiness import used_models
from privsyn_flower.strategies.popri.config import PopriConfig

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
    unknown: list[str]


@dataclass(frozen=True)
class Plan:
    """Everything about one configuration on one machine.

    promise, signal, exchange: None for a method whose users answer nothing.
    """

    config: RunConfig
    promise: Promise | None
    machine: Machine
    signal: Signal | None
    exchange: Exchange | None
    models: list[ModelPlan]
    stages: list[StagePlan]
    disk: dict[str, int]
    free: int
    findings: list[Finding]
    launches: list[Launch]

    @property
    def ready(self) -> bool:
        """Whether the run would start here and, as far as is known, fit."""
        return not any(finding.fatal for finding in self.findings)

    @property
    def trust(self) -> str:
        """Who is trusted, and what the figures of privacy are about."""
        return self.claim.short()

    @property
    def claim(self) -> PrivacyStatement | Baseline:
        """What the run will say of privacy."""
        return baseline(self.config) or statement(self.config)

    @property
    def phases(self) -> Sequence[Phase]:
        """Of the promise; none without one."""
        return self.promise.phases if self.promise else ()

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
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
            for phase in self.phases
        ]
        return {
            "method": self.config.method,
            "ready": self.ready,
            "privacy": {
                "epsilon": self.promise.epsilon if self.promise else self.claim.epsilon,
                "epsilon_asked": self.promise.target if self.promise else None,
                "delta": self.claim.delta,
                "releases": releases(self.phases),
                "phases": phases,
                "sentence": self.trust,
            },
            "signal": self.signal and {**asdict(self.signal), "ratio": self.signal.ratio},
            "device": self.exchange and asdict(self.exchange),
            "models": [asdict(model) for model in self.models],
            "stages": [asdict(stage) for stage in self.stages],
            "disk": {**self.disk, "free": self.free},
            "machine": asdict(self.machine) | {"told": self.machine.told()},
            "findings": [asdict(finding) for finding in self.findings],
            "processes": [asdict(one) for one in self.launches],
        }


def releases(phases: Sequence[Phase]) -> int:
    """Sums that leave the users with noise, spare ones included."""
    return sum(p.rounds + (p.spare if p.source == "nodes" else 0) for p in phases)


def plan_of(config: RunConfig, folder: Path, machine: Machine) -> Plan:
    """The plan of a run in `folder`, with absolute paths; raises ConfigError and ValueError for
    numbers that make no promise."""
    made = None if baseline(config) else promised(config)
    models = [_model(config, kind, name) for kind, name in used_models(config).items()]
    shapes, tasks = shapes_of(config), done_here(config, recipe_of(config).work(config))
    names = dict.fromkeys(task.stage for task in tasks)
    stages = [
        _stage(config, name, [task for task in tasks if task.stage == name], shapes, machine)
        for name in names
    ]
    length, _ = trained(config, shapes.get(config.trained)) if config.updates else (None, None)
    signal = signal_of(config, length) if made else None
    exchange = exchange_of(config, machine) if made else None
    disk = disk_of(config, shapes, models, exchange)
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    ready = check_ready(config, folder)
    found = [
        *ready,
        *([] if any(finding.fatal for finding in ready) else left_out(config)),
        *_data(config),
        *_too_large(config, tasks, shapes, machine),
        *_disk(sum(disk.values()), free),
        *(weak(config, signal, length) if signal else ()),
    ]
    begun = launches(config, machine.device)
    return Plan(config, made, machine, signal, exchange, models, stages, disk, free, found, begun)


def _model(config: RunConfig, kind: str, name: str) -> ModelPlan:
    shape = shape_of(kind, config)
    served = kind == "generator" and config.generation.base_url
    here = bool(served) or model_files(kind, name, config) is not None or bool(shape and shape.here)
    if shape is None:
        source = "unknown: the model is not here, and no table has its size"
        return ModelPlan(f"models.{kind}", name, None, source, here, None)
    download = 0 if here else shape.parameters * (2 if name.startswith(HALVED) else 4)
    return ModelPlan(f"models.{kind}", name, shape.parameters, shape.source, here, download)


def _stage(
    config: RunConfig, name: str, tasks: Sequence[Task], shapes: Shapes, machine: Machine
) -> StagePlan:
    found = stage_of(config, tasks, shapes, machine)
    sized = [(t, s) for t in tasks if (s := shapes.get(t.model)) and t not in found.unknown]
    sizes = [
        found.at_once * need(task, shape)
        if task.apart and found.at_once > 1
        else memory(task, shape, machine.device, _workers(config, task, machine))
        for task, shape in sized
    ]
    several = name == ROUNDS and config.rounds > 1
    return StagePlan(
        name,
        [_described(task, found.at_once) for task in tasks],
        found.server if sized else None,
        found.nodes,
        found.first if several and sized else None,
        found.timed,
        found.operations,
        max(sizes, default=None),
        max((memory(task, shape, "cuda") for task, shape in sized), default=None),
        [_why(config, task) for task in found.unknown],
    )


def _why(config: RunConfig, task: Task) -> str:
    if elsewhere(config, task):
        return f"{task.what}: on the server of generation.base-url"
    return f"{task.what}: unknown, the size of models.{task.model} is not known here"


def _described(task: Task, at_once: int) -> str:
    what = {"generation": "completions", "fine-tuning": "sequences", "preferences": "pairs"}
    unit = what.get(task.kind, "texts")
    often = f", {task.times} times" if task.times > 1 else ""
    beside = f", {at_once} at once" if task.apart and at_once > 1 else ""
    return f"{task.what}: {task.items:,} {unit} of {task.tokens} tokens{often}{beside}"


def _workers(config: RunConfig, task: Task, machine: Machine) -> int:
    served = task.kind == "generation" and config.generation.backend != "huggingface"
    return 1 if served or task.kind == "embedding" else machine.workers


def _too_large(
    config: RunConfig, tasks: Sequence[Task], shapes: Shapes, machine: Machine
) -> list[Finding]:
    """Work that does not fit into this machine's memory: a line for each model and kind of work,
    with the key that says how large it is."""
    worst = dict[tuple[str, str], tuple[int, Task, set[str]]]()
    for task in tasks:
        shape = shapes.get(task.model)
        if shape is None or elsewhere(config, task):
            continue
        need = memory(task, shape, machine.device, _workers(config, task, machine))
        if need <= machine.memory:
            continue
        most, which, stages = worst.get((task.model, task.kind), (0, task, set()))
        stages |= {task.stage}
        worst[(task.model, task.kind)] = (
            (need, task, stages) if need > most else (most, which, stages)
        )
    found = list[Finding]()
    for need, task, stages in worst.values():
        shape = shapes[task.model]
        alone = memory(replace(task, batch=1), shape, machine.device) if shape else need
        way = f"lower {task.key}" if task.key and alone <= machine.memory else (
            f"choose a smaller models.{task.model}"
        )  # fmt: skip
        found.append(
            Finding(
                f"{task.kind} by models.{task.model} ({', '.join(sorted(stages))}) needs about "
                f"{_gib(need)} of memory, and {machine.device} has {_gib(machine.memory)} here: "
                f"{way}, or run it where there is more"
            )
        )
    return found


def disk_of(
    config: RunConfig, shapes: Shapes, models: Sequence[ModelPlan], exchange: Exchange | None
) -> dict[str, int]:
    """Bytes on disk: models to fetch, the run folder, and the cache of a simulation."""
    run, cache, data = 0, 0, config.data
    embedder, generator = shapes.get("embedder"), shapes.get("generator")
    if config.updates:
        length, down = trained(config, shapes.get(config.trained))
        run += KEPT_MODELS * (down or 0)
        if config.trusts_aggregator and config.ftrl.mechanism == "blt":
            run += 8 * config.ftrl.buffers * (length or 0)
    if config.measures:  # until it is answered, the question is kept
        run += (exchange and exchange.down) or 0
    elif not config.trains and embedder is not None:
        if baseline(config) is None and not config.updates:
            size = recipe_of(config).length(config)
            run += config.rounds * size * (embedder.dimension + 12)
        run += recipe_of(config).texts(config) * data.sample_words * WORD_BYTES
        if not is_deployment(config):
            cache += 4 * embedder.dimension * data.users * data.samples_per_user
        if recipe_of(config).retrieves(config):
            cache += 4 * embedder.dimension * data.public_pool
    if config.uses("popri") and generator is not None:
        own = config[PopriConfig]
        run += config.rounds * own.epochs * 4 * generator.lora(own.lora_rank)
        text = recipe_of(config).length(config) * data.sample_words * WORD_BYTES
        run += config.rounds * text
    fetched = sum({model.name: model.download or 0 for model in models}.values())
    return {"models": fetched, "run_folder": run, "cache": cache}


def _data(config: RunConfig) -> list[Finding]:
    """Data sets of the hub that are not in its cache, and texts that are read in part."""
    data, found = config.data, list[Finding]()
    for key, place in (("data.source", data.source), ("data.public-path", data.public_path)):
        name = place.removeprefix(HUB).partition("@")[0].partition("#")[0]
        here = in_hub_cache(name, "datasets") or Path(name).is_dir()
        if place.startswith(HUB) and not here:
            found.append(
                Finding(
                    f"{key} = {place!r} is not in the cache of the hub: the run fetches it, and "
                    "its size is not known here",
                    fatal=False,
                )
            )
    return [*found, *long_texts(config)]


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
