"""The causal language model of `models.generator`, where `[generation]` says that it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.config import ConfigError, split_list
from privsyn_flower.config.models import GenerationConfig
from privsyn_flower.progress import Progress
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.prompts import HEADING
from privsyn_flower.text.protocols import Sampling
from privsyn_flower.text.serving.http_generator import OpenAIGenerator
from privsyn_flower.text.serving.replicas import ReplicatedGenerator


def open_generator(
    name: str,
    where: GenerationConfig,
    sampling: Sampling,
    *,
    log: Path,
    batch_size: int = 64,
    device: str = "auto",
    stop: Sequence[str] = (HEADING,),
    lora_rank: int = 16,
    seed: int = 0,
    progress: bool | Progress = True,
) -> HuggingFaceGenerator | OpenAIGenerator | ReplicatedGenerator:
    """An AdaptableGenerator that is an Answering too; the caller closes it.

    name: folder or hub name; behind a server, its name for the model. sampling: of `complete`;
    `answer` is told each time. log: what a vLLM server that is started here writes; a second one
    writes beside it, with -2 in the name. batch_size, device: of a model in this process.
    lora_rank, seed: of a vLLM server. Raises ConfigError, and ModelUnavailableError for a model or
    an environment of vLLM that is not there.
    """
    options: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "chat": where.chat,
        "thinking_tag": where.thinking_tag,
        "stop": stop,
        "progress": progress,
    }
    if where.backend == "huggingface":
        return HuggingFaceGenerator(name, **options, batch_size=batch_size, device=device)
    options |= {
        "concurrency": where.concurrency,
        "timeout": where.timeout,
        "retries": where.retries,
        "token_parameter": where.token_parameter.replace("-", "_"),
        "leave_out": split_list(where.leave_out),
    }
    if where.addresses:
        given = [
            OpenAIGenerator(
                address,
                name,
                api_key_env=where.api_key_env,
                adapters=where.backend == "vllm",
                **options,
            )
            for address in where.addresses
        ]
        return _together(given)
    if where.backend == "openai":
        raise ConfigError("generation.backend = 'openai' needs the server: set base-url")
    from privsyn_flower.text.serving.vllm_server import VllmGenerator, VllmServer

    started = [
        VllmGenerator(
            VllmServer(
                name,
                log=log if not at else log.with_stem(f"{log.stem}-{at + 1}"),
                python=Path(where.vllm_python) if where.vllm_python else None,
                lora_rank=lora_rank,
                seed=seed,
                arguments=where.vllm_arguments,
                start_timeout=where.start_timeout,
                gpus=gpus,
            ),
            **options,
        )
        for at, gpus in enumerate(where.gpus)
    ]
    return _together(started)


def _together(servers: Sequence[OpenAIGenerator]) -> OpenAIGenerator | ReplicatedGenerator:
    return servers[0] if len(servers) == 1 else ReplicatedGenerator(servers)
