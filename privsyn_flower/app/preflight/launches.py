"""The processes that a run would start beside Flower's, dry: environment and command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.readiness import used_models
from privsyn_flower.text.preference.launched import launch_command, launch_environment
from privsyn_flower.text.serving.vllm_server import default_python, max_lora_rank, server_command

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
