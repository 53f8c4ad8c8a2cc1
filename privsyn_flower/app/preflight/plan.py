"""`privsyn plan`: what a run will guarantee, exchange, compute and need, before anything is begun.

Privacy is read from the privacy plan, findings from the other checks of this package, times from
`forecast`. What is not known is said to be unknown."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.app.preflight import check_ready
from privsyn_flower.app.preflight.data import left_out, long_texts
from privsyn_flower.app.preflight.exchange import (
    Exchange,
    exchange_of,
    past_bytes,
    trained,
    weak_vote,
)
from privsyn_flower.app.preflight.findings import Finding
from privsyn_flower.app.preflight.machine import in_hub_cache
from privsyn_flower.app.preflight.numbers import Signal, signal_of, weak
from privsyn_flower.app.preflight.sizes import model_files, size_of
from privsyn_flower.app.preflight.speeds import Machine, Stage, forecast, memory_needed, too_large
from privsyn_flower.config import RunConfig
from privsyn_flower.data.hub import HUB
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.baseline import Baseline
from privsyn_flower.privacy.plan import Phase, PrivacyPlan
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.privacy_plan import baseline, privacy_plan, statement
from privsyn_flower.server_apps.public_text import is_deployment
from privsyn_flower.server_apps.readiness import used_models
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.text.models.gguf import packaged
from privsyn_flower.text.preference.launched import launch_command, launch_environment
from privsyn_flower.text.serving.vllm_server import default_python, max_lora_rank, server_command

HALVED = ("meta-llama/", "sentence-transformers/sentence-t5")  # published in 16 bits an entry
WORD_BYTES = 7  # of a synthetic text, with the space
STORED_MODELS = 4  # parameters of a training in its folder: start, question, state and model/


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
class Plan:
    """Everything about one configuration on one machine.

    memory: bytes of weights and optimiser, by key in `[models]`. privacy_plan, signal,
    exchange: None for a baseline without client queries.
    """

    config: RunConfig
    privacy_plan: PrivacyPlan | None
    machine: Machine
    signal: Signal | None
    exchange: Exchange | None
    models: list[ModelPlan]
    stages: list[Stage]
    memory: dict[str, int]
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
        """Of the privacy plan; none without one."""
        return self.privacy_plan.phases if self.privacy_plan else ()

    def group_of(self, phase: Phase) -> dict[str, Any]:
        """The users and nodes of a phase that asks one group of them."""
        if not phase.group:
            return {}
        users, nodes = self.config.own.groups(self.config)[phase.group]
        return {"group": phase.group, "users": users, "nodes": nodes}

    def _weak_vote(self) -> dict[str, Any] | None:
        vote = weak_vote(self.config)
        if vote is None:
            return None
        signal, down, up = vote
        return {**asdict(signal), "ratio": signal.ratio, "down": down, "up": up}

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        phases = [
            {
                "name": phase.name,
                "rounds": phase.rounds,
                "spare": phase.releases - phase.rounds,
                "noise_multiplier": phase.multiplier,
                "sampling_rate": phase.rate,
                "noise_of": phase.source,
                "participations": phase.most,
                **self.group_of(phase),
            }
            for phase in self.phases
        ]
        return {
            "method": self.config.method,
            "ready": self.ready,
            "privacy": {
                "epsilon": self.privacy_plan.epsilon if self.privacy_plan else self.claim.epsilon,
                "epsilon_asked": self.privacy_plan.target if self.privacy_plan else None,
                "delta": self.claim.delta,
                "releases": releases(self.phases),
                "phases": phases,
                "sentence": self.trust,
            },
            "signal": self.signal and {**asdict(self.signal), "ratio": self.signal.ratio},
            "device": self.exchange and asdict(self.exchange),
            "weak_vote": self._weak_vote(),
            "models": [asdict(model) for model in self.models],
            "stages": [asdict(stage) for stage in self.stages],
            "memory": self.memory,
            "disk": {**self.disk, "free": self.free},
            "machine": asdict(self.machine) | {"summary": self.machine.summary()},
            "findings": [asdict(finding) for finding in self.findings],
            "processes": [asdict(one) for one in self.launches],
        }


def releases(phases: Sequence[Phase]) -> int:
    """Sums that leave the users with noise, spare ones included."""
    return sum(phase.releases for phase in phases)


def plan_of(config: RunConfig, folder: Path, machine: Machine) -> Plan:
    """The plan of a run in `folder`, with absolute paths; raises ConfigError and ValueError for
    numbers from which no privacy plan can be computed."""
    made = None if baseline(config) else privacy_plan(config)
    models = [_model(config, kind, name) for kind, name in used_models(config).items()]
    deployed = is_deployment(config)  # real nodes do their own work
    tasks = [one for one in recipe_of(config).work(config) if not (one.nodes and deployed)]
    length, _ = trained(config, size_of(config.trained, config)) if config.updates else (None, None)
    signal = signal_of(config, length) if made else None
    exchange = exchange_of(config, machine) if made else None
    disk, needed = disk_of(config, models, exchange), memory_needed(config, tasks, machine.device)
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    ready = check_ready(config, folder)
    found = [
        *ready,
        *([] if any(finding.fatal for finding in ready) else left_out(config)),
        *_data(config),
        *too_large(needed, machine),
        *_disk(sum(disk.values()), free),
        *(weak(config, signal, length) if signal else ()),
    ]
    begun, stages = launches(config, machine.device), forecast(config, tasks, machine)
    return Plan(
        config, made, machine, signal, exchange, models, stages,
        {model: size for model, (size, _) in needed.items()}, disk, free, found, begun,
    )  # fmt: skip


def _model(config: RunConfig, kind: str, name: str) -> ModelPlan:
    size = size_of(kind, config)
    served = kind == "generator" and config.generation.base_url
    here = bool(served) or model_files(kind, name, config) is not None or bool(size and size.here)
    if size is None:
        source = "unknown: the model is not here, and no table has its size"
        return ModelPlan(f"models.{kind}", name, None, source, here, None)
    download = 0 if here else size.parameters * (2 if name.startswith(HALVED) else 4)
    return ModelPlan(f"models.{kind}", name, size.parameters, size.source, here, download)


def disk_of(
    config: RunConfig, models: Sequence[ModelPlan], exchange: Exchange | None
) -> dict[str, int]:
    """Bytes on disk: models to fetch, the run folder, and the cache of a simulation."""
    run, cache, data, recipe = 0, 0, config.data, recipe_of(config)
    embedder, generator = size_of("embedder", config), size_of("generator", config)
    if config.updates:
        length, down = trained(config, size_of(config.trained, config))
        run += STORED_MODELS * (down or 0)
        run += config.rounds * 8 * (length or 0)  # the releases
        if config.trusts_aggregator and config.ftrl.mechanism == "blt":
            run += 8 * config.ftrl.buffers * (length or 0)
        past = past_bytes(config, length)
        run += 2 * past  # what the server makes of them, 8 bytes each
        cache += 0 if is_deployment(config) else config.nodes * past
    if config.measures:  # until it is answered, the question is kept
        run += (exchange and exchange.down) or 0
    elif not config.trains and embedder is not None:
        if baseline(config) is None and not config.updates:
            run += config.rounds * recipe.length(config) * (embedder.dimension + 12)
        run += recipe.texts(config) * data.sample_words * WORD_BYTES
        if not is_deployment(config):
            cache += 4 * embedder.dimension * data.users * data.samples_per_user
        if recipe.retrieves(config):
            cache += 4 * embedder.dimension * data.public_pool
    if config.uses("popri") and generator is not None:
        own = config[PopriConfig]
        run += config.rounds * own.epochs * 4 * generator.adapter(own.lora_rank)
        run += config.rounds * recipe.length(config) * data.sample_words * WORD_BYTES
    conditional = size_of("conditional", config)
    if config.updates and packaged("conditional", config.models.conditional) and conditional:
        cache += 2 * conditional.parameters  # tuned, in half precision
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


PORT, WORK = "PORT", "WORK"  # stand for what is chosen when the process is started


@dataclass(frozen=True)
class Launch:
    """One process, or several that one command starts."""

    what: str
    environment: dict[str, str]
    command: list[str]

    def shown(self) -> str:
        """As one would type it."""
        names = [f"{name}={value}" for name, value in self.environment.items()]
        return f"{self.what}: {' '.join([*names, shlex.join(self.command)])}"


def launches(config: RunConfig, device: str) -> list[Launch]:
    """vLLM's servers and the launcher of preference training; empty where a run has neither.

    device: that of this machine, which decides whether vLLM gets GPUs.
    """
    return [*_servers(config, device), *_training(config, device)]


def _servers(config: RunConfig, device: str) -> Iterator[Launch]:
    where, cuda = config.generation, device.startswith("cuda")
    if where.backend != "vllm" or where.addresses or "generator" not in used_models(config):
        return
    python = Path(where.vllm_python) if where.vllm_python else default_python()
    for at, gpus in enumerate(where.gpus):
        command = server_command(
            python, config.models.generator, port=PORT, seed=config.seed,
            lora_rank=max_lora_rank(config.lora_rank), gpus=gpus if cuda else None, cuda=cuda,
            arguments=shlex.split(where.vllm_arguments),
        )  # fmt: skip
        places = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if cuda and gpus else {}
        yield Launch(f"vLLM server {at + 1} of {len(where.gpus)}", places, command)


def _training(config: RunConfig, device: str) -> Iterator[Launch]:
    count = config.models.training_processes
    if count == 1 or not config.teaches_generator:
        return
    command = launch_command(WORK, count, shlex.split(config.models.accelerate_arguments))
    yield Launch(f"training on pairs, {count} processes", launch_environment(device), command)
