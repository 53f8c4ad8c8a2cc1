"""The causal language model of `models.generator`, where `[generation]` says that it runs.

On several servers of one model a request goes to the one with the fewest under way. A server that
is gone is left out, with a warning, and its requests go to the others; a run ends when the last one
is gone. Every prompt carries its own seed, so that which server answers changes no request; what
several GPUs make of a seed can differ in the last bits, as on one server.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from privsyn_flower.common.progress import Progress
from privsyn_flower.config import ConfigError, split_list
from privsyn_flower.config.models import GenerationConfig
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.prompts import HEADING
from privsyn_flower.text.protocols import Reply, Sampling
from privsyn_flower.text.serving.http_client import RETRIED, ServerError
from privsyn_flower.text.serving.http_generator import OpenAIGenerator, complete_all

logger = logging.getLogger("privsyn_flower")
Result = TypeVar("Result")

LOOK_AGAIN = 60.0  # seconds after which a server that was gone is looked for, before new requests


class ReplicatedGenerator:
    """Generators of several servers as one (AdaptableGenerator, Answering).

    Args:
        replicas: at least one, alike in all but their server; closed with this object.
    """

    batched = False  # requests of several threads are answered side by side

    def __init__(self, replicas: Sequence[OpenAIGenerator]) -> None:
        if not replicas:
            raise ValueError("generation: no servers; name them in base-url")
        self.replicas = list(replicas)
        self.chat = self.replicas[0].chat
        self._under_way = [0] * len(replicas)
        self._gone: dict[int, float] = {}  # place -> when it was found gone
        self._adapter: Path | None = None
        self._lock = threading.RLock()
        for at, replica in enumerate(self.replicas):
            replica.moves_on = functools.partial(self._others, at)

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        """As `OpenAIGenerator`, over all servers; ServerError when the last one fails."""
        first = self.replicas[0]
        result = complete_all(
            self, prompts, n, rng,
            at_once=sum(replica.concurrency for replica in self.replicas), progress=first.progress,
        )  # fmt: skip
        first.look_for_copies(result)
        for replica in self.replicas:
            replica.tell_unusable()
        return result

    def complete_one(self, prompt: str, n: int, seed: int) -> list[str]:
        """n completions of one prompt, by one server."""
        return self._somewhere(lambda replica: replica.complete_one(prompt, n, seed))

    def answer(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Reply]:
        """As `OpenAIGenerator`, by one server."""
        return self._somewhere(lambda replica: replica.answer(prompts, sampling, seeds))

    def reach(self) -> None:
        """Find or start every server; ServerError if none is there."""
        self._each(lambda replica: replica.reach())

    def try_one_token(self) -> None:
        """As `OpenAIGenerator`, of every server."""
        self._each(lambda replica: replica.try_one_token())

    def ready(self) -> None:
        """Every server awake; those that were gone are looked for from time to time."""
        for at, since in list(self._gone.items()):
            if time.monotonic() - since >= LOOK_AGAIN:
                self._look_for(at)
        self._each(lambda replica: replica.ready())

    def use_adapter(self, folder: Path | None) -> None:
        """The adapter on every server. Raises AdapterError, and ServerError when none takes it."""
        self._each(lambda replica: replica.use_adapter(folder))
        self._adapter = folder

    def rest(self) -> None:
        """Send every server to sleep."""
        self._each(lambda replica: replica.rest())

    def close(self) -> None:
        """End what was started, and all connections."""
        for replica in self.replicas:
            replica.close()

    def _others(self, at: int) -> bool:
        """Whether any other server is there."""
        with self._lock:
            return any(i != at and i not in self._gone for i in range(len(self.replicas)))

    def _somewhere(self, ask: Callable[[OpenAIGenerator], Result]) -> Result:
        """What `ask` makes of the least busy server, or of another one when that fails."""
        while True:
            with self._lock:
                here = [i for i in range(len(self.replicas)) if i not in self._gone]
                at = min(here, key=self._under_way.__getitem__)
                self._under_way[at] += 1
            try:
                return ask(self.replicas[at])
            except ServerError as error:
                if not self._leave_out(at, error):
                    raise
            finally:
                with self._lock:
                    self._under_way[at] -= 1

    def _leave_out(self, at: int, error: ServerError) -> bool:
        """Whether others can do what this server failed at; then it gets no more requests.

        A refusal (400, 401, 404, ...) would be the others' too.
        """
        if (error.status and error.status not in RETRIED) or self.replicas[at].client.closed:
            return False
        with self._lock:  # of servers that fail together the last one stays, with its error
            if not self._others(at):
                return False
            known = at in self._gone
            self._gone[at] = time.monotonic()
            left = len(self.replicas) - len(self._gone)
        if not known:
            logger.warning("%s; its requests go to the %d other server(s)", error, left)
        return True

    def _each(self, act: Callable[[OpenAIGenerator], None]) -> None:
        """Let every server that is there do something, side by side; ServerError if none can."""
        with self._lock:
            here = [i for i in range(len(self.replicas)) if i not in self._gone]
        with ThreadPoolExecutor(len(here), thread_name_prefix="servers") as pool:
            doing = {at: pool.submit(act, self.replicas[at]) for at in here}
        for at, done in doing.items():
            try:
                done.result()
            except ServerError as error:
                if not self._leave_out(at, error):
                    raise

    def _look_for(self, at: int) -> None:
        """Take a server back that answers again, with the adapter that the others have."""
        replica = self.replicas[at]
        try:
            replica.forget_adapter()
            replica.reach()
            replica.use_adapter(self._adapter)
        except ServerError:
            self._gone[at] = time.monotonic()
            return
        logger.info("%s answers again", replica.client.base_url)
        with self._lock:
            self._gone.pop(at, None)


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
