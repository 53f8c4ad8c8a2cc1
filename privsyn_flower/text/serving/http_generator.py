"""Completions by an OpenAI-compatible server: vLLM, `transformers serve`, or a hosted one.

Same prompts, same cut at the stop strings and same meaning of seeds as in process: every prompt
has one integer from the caller's numpy generator, so that equal generators send equal requests.
What a server makes of a seed is its own affair; texts of two backends differ.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from privsyn_flower.common.progress import Progress, bar
from privsyn_flower.common.terminal import one_line
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.text.models.decoding import check_sampling
from privsyn_flower.text.prompts import HEADING, THINKING
from privsyn_flower.text.protocols import Reply, Sampling
from privsyn_flower.text.serving.completions import (
    CHATS,
    COMPLETES,
    Completion,
    Usability,
    choices_of,
    completions_of,
    count,
    refused_parameter,
    reply_of,
)
from privsyn_flower.text.serving.http_client import (
    ABSENT,
    AdapterSlot,
    JsonClient,
    ServerError,
    adapter_name,
)

logger = logging.getLogger("privsyn_flower")

AGAIN = 4  # completions of one prompt for each that is wanted, until some are left empty
SEEDS = 2**31  # seeds are below: some servers keep them in 32 signed bits


class OpenAIGenerator:
    """A causal language model behind /v1/completions, or chat (AdaptableGenerator, Answering).

    Args:
        base_url: `http://host:port/v1`.
        model: the name under which the server knows the model.
        api_key_env: environment variable with the API key; unset or empty: no key is sent.
        api_key: the key itself, instead.
        temperature, top_p, top_k: of the sampling. top_k is sent above 0 alone: hosted services
            may not know it.
        max_tokens: new tokens in a completion.
        stop: a completion ends before the first of these strings (at most four, as in the API).
        concurrency: requests under way at once.
        timeout: seconds for one request.
        retries: of a request that failed for a passing reason.
        adapters: the server is a vLLM that may be told to load adapters and to sleep.
        chat: a prompt is a user's turn, sent to /v1/chat/completions.
        thinking_tag: of what a reasoning model writes for itself, which is left out; "": it stays.
        token_parameter: the server's name for max_tokens.
        leave_out: parameters that the server refuses.
        extra: more fields of each request that this server understands.
        progress: True for a bar on stderr in long calls, or a function to call.
    """

    batched = False  # requests of several threads are answered side by side

    @named_as_arguments
    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        api_key: str = "",
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        max_tokens: int = 85,
        stop: Sequence[str] = (HEADING,),
        concurrency: int = 16,
        timeout: float = 300.0,
        retries: int = 4,
        adapters: bool = False,
        chat: bool = False,
        thinking_tag: str = THINKING,
        token_parameter: str = "max_tokens",
        leave_out: Sequence[str] = (),
        extra: Mapping[str, Any] | None = None,
        progress: bool | Progress = True,
    ) -> None:
        check_sampling("expand", temperature, top_p, top_k)
        if max_tokens < 1:
            raise ValueError(f"expand.max-tokens = {max_tokens}: must be at least 1")
        if concurrency < 1 or retries < 0 or not timeout > 0:
            raise ValueError(
                f"generation: {concurrency=} must be at least 1, {retries=} at least 0, "
                f"{timeout=} above 0"
            )
        if isinstance(stop, str) or not all(stop) or len(stop) > 4:
            raise ValueError(f"stop = {stop!r}: must be a sequence of up to 4 non-empty strings")
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self.max_tokens = max_tokens
        self.model, self.stop, self.concurrency = model, tuple(stop), concurrency
        self.adapters, self.extra, self.progress = adapters, dict(extra or {}), progress
        self.chat, self.thinking_tag = chat, thinking_tag
        self.token_parameter, self.leave_out = token_parameter, frozenset(leave_out)
        key = api_key or os.environ.get(api_key_env, "").strip()
        self.client = JsonClient(
            base_url, api_key=key, timeout=timeout, retries=retries, lost=self._lost
        )
        self._context: int | None = None  # of the model, in tokens; None: not asked, 0: not known
        self._most = 1 << 30  # completions that the server gives to one request
        self.usability = Usability(self.client.base_url)
        self._slot = AdapterSlot(self.client)
        self._asleep, self._sleeps = False, adapters
        # Whether another server can take this one's requests (`replicas`): then none waits for it.
        self.moves_on: Callable[[], bool] = lambda: False

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        """m prompts -> m lists of n completions each, ending before the first stop string.

        Prompts go out unchanged. Raises ServerError when the server fails for good.
        """
        result = complete_all(
            self, prompts, n, rng, at_once=self.concurrency, progress=self.progress
        )
        self.look_for_copies(result)
        self.tell_unusable()
        return result

    def reach(self) -> None:
        """Start the server if it is this object's own; raise ServerError if none is there."""
        self.ready()
        self._models()

    def try_one_token(self) -> None:
        """Ask for one token: whether the server knows the model and takes such requests. What it
        says is not looked at. Raises ServerError."""
        self._post(
            "Hello", 1, 0, Sampling(1), (), lambda found: choices_of(found, self.client.base_url)
        )

    def answer(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Reply]:
        """n prompts -> n replies, uncut, one request after another (an Answering).

        Raises ServerError for the first that fails.
        """

        def read(answer: Any) -> Reply:
            return reply_of(answer, self.client.base_url, self.chat, self.thinking_tag)

        return [
            self._post(prompt, 1, seed, sampling, (), read)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def use_adapter(self, folder: Path | None) -> None:
        """Generate with the adapter of a PEFT folder, which the server must be able to read.

        The server keeps one adapter of ours. Raises AdapterError for a folder that is no
        adapter, and ServerError when the server cannot load it.
        """
        if folder is not None and not self.adapters:
            raise ServerError(
                f"{self.client.base_url}: adapters cannot be loaded into a server of "
                f'generation.backend = "openai": set it to "vllm" or "huggingface"'
            )
        wanted = (folder, adapter_name(folder)) if folder is not None else None
        if (wanted and wanted[1]) != self._slot.name():
            self.ready()
            self._slot.put(wanted)

    def rest(self) -> None:
        """Send a vLLM server to sleep: its weights leave the GPU, its caches are dropped."""
        if not self._sleeps or self._asleep:
            return
        try:
            self.client.post("/sleep?level=1", {}, root=True)
        except ServerError as error:
            if error.status not in ABSENT:
                raise
            self._sleeps = False
            logger.warning(
                "%s does not offer /sleep and keeps its memory while others train: start it with "
                "VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode", self.client.base_url
            )  # fmt: skip
        else:
            self._asleep = True

    def close(self) -> None:
        """Let go of the adapter and the connections; a server that was given goes on."""
        if self.client.closed:
            return
        try:
            self._slot.take_off()
        except ServerError as error:
            logger.warning("the server keeps an adapter of this run: %s", error)
        self.client.close()

    def forget_adapter(self) -> None:
        """The server was away: nobody knows what it has."""
        self._slot.current = None

    def _lost(self, problem: ServerError) -> None:
        """A connection failed; the next attempt follows, unless another server can have it."""
        if self.moves_on():
            raise problem

    def ready(self) -> None:
        """Before requests: wake the server, with the adapter it had; learn its prompt length."""
        if self._asleep:
            self.client.post("/wake_up", {}, root=True)
            self._asleep = False
            self._slot.put_back()  # an adapter's weights may not survive the sleep
        if self._context is None:
            self._context = self._served_context()
        if 0 < self._context <= self.max_tokens:
            raise ValueError(
                f"expand.max-tokens = {self.max_tokens}: must be below the server's context of "
                f"{self._context} tokens"
            )

    def _served_context(self) -> int:
        """Tokens of a prompt and its completion, where a vLLM server says so; 0: not known."""
        for card in self._models():
            if card.get("id") == self.model and card.get("owned_by") == "vllm":
                return count(card.get("max_model_len")) or 0
        return 0

    def _models(self) -> list[dict[str, Any]]:
        """What the server lists under /v1/models; empty where it has no such list."""
        try:
            answer = self.client.get("/models")
        except ServerError as error:
            if error.status in {0, 401, 403}:
                raise
            return []
        cards = answer.get("data") if isinstance(answer, dict) else None
        return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []

    def complete_one(self, prompt: str, n: int, seed: int) -> list[str]:
        """n completions of one prompt, in as many requests as the server makes of it.

        One that is of no use is asked for again; "" after AGAIN of them. Raises ServerError, also
        where most are of no use.
        """
        texts: list[str] = []
        received = 0
        while len(texts) < n and received < AGAIN * n:
            asked = min(n - len(texts), self._most)
            # Later requests go on where vLLM's seeds of the copies would: seed, seed + 1, ...
            found = self._request(prompt, asked, (seed + received) % SEEDS)
            if len(found) < asked and self._most > len(found):
                self._most = len(found)
                logger.warning(
                    "%s gave %d completions where n = %d were asked for: prompts are repeated",
                    self.client.base_url, len(found), asked,
                )  # fmt: skip
            received += len(found)
            texts += [self._cut(one.text) for one in found if one.text is not None]
        return texts + [""] * (n - len(texts))

    def _request(self, prompt: str, n: int, seed: int) -> list[Completion]:
        """One request -> between 1 and n completions, counted."""
        sampling = Sampling(self.max_tokens, self.temperature, self.top_p, self.top_k)
        found: list[Completion] = self._post(
            prompt, n, seed, sampling, self.stop,
            lambda answer: completions_of(
                answer, n, self.client.base_url, self.chat, self.thinking_tag
            ),
        )  # fmt: skip
        self.usability.add(found, self.max_tokens)
        return found

    def _post(
        self,
        prompt: str,
        n: int,
        seed: int,
        sampling: Sampling,
        stop: Sequence[str],
        read: Callable[[Any], Any],
    ) -> Any:
        """One request for n completions -> what `read` makes of the answer."""
        body: dict[str, Any] = {
            "model": self._slot.name() or self.model,
            "n": n,
            "seed": seed,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self.token_parameter: sampling.max_tokens,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if stop:
            body["stop"] = list(stop)
        body = {name: value for name, value in body.items() if name not in self.leave_out}
        if self.chat:  # the server writes the template, and cuts nothing
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self._context and not self.chat:
            # A prompt that is too long loses its beginning, as in process.
            room = self._context - sampling.max_tokens
            body |= {"truncate_prompt_tokens": room, "truncation_side": "left"}
        place = "/chat/completions" if self.chat else "/completions"
        try:
            return self.client.post(place, body | self.extra, spread=seed, read=read)
        except ServerError as error:
            raise self._explain(error) from error

    def _explain(self, error: ServerError) -> ServerError:
        """The same error with the key that it is about; or one that lists the server's models when
        ours is not among them."""
        if error.status not in {400, 404, 405, 422, 501}:
            return error
        if hint := refused_parameter(str(error), self.leave_out, self.token_parameter):
            return ServerError(f"{error}; {hint}", error.status)
        names = [one_line(str(card.get("id"))) for card in self._models()]
        wanted = self._slot.name() or self.model
        if names and one_line(wanted) not in names:
            return ServerError(
                f"{self.client.base_url} does not have the model {wanted!r}; it has "
                f"{', '.join(names[:8])}: set models.generator to one of them, or start the server "
                f"with --served-model-name ({error})",
                error.status,
            )
        absent = error.status in ABSENT
        if self.chat:
            return ServerError(f"{error}; {COMPLETES}", error.status) if absent else error
        chats = absent or "chat" in str(error).lower()
        return ServerError(f"{error}; {CHATS}", error.status) if chats else error

    def _cut(self, text: str) -> str:
        """Before the first stop string: some servers leave it in, or stop at some only."""
        return text[: min([text.find(s) for s in self.stop if s in text], default=len(text))]

    def tell_unusable(self) -> None:
        """Warn of completions that were of no use since the last time."""
        if news := self.usability.new_problems():
            logger.warning("%s; they were asked for again", news)

    def look_for_copies(self, result: Sequence[Sequence[str]]) -> None:
        """Warn when a server seems to take the likeliest token whatever the temperature."""
        several = [texts for texts in result if len(texts) > 1]
        if len(several) >= 4 and all(len(set(texts)) == 1 for texts in several):
            logger.warning(
                "%s gave the same completion every time to each of %d prompts: does it sample? "
                "expand.temperature is %g", self.client.base_url, len(several), self.temperature
            )  # fmt: skip


class Completing(Protocol):
    """What `complete_all` asks: one server, or several."""

    def ready(self) -> None:
        """Before requests."""

    def complete_one(self, prompt: str, n: int, seed: int) -> list[str]:
        """n completions of one prompt."""


def complete_all(
    where: Completing,
    prompts: Sequence[str],
    n: int,
    rng: np.random.Generator,
    *,
    at_once: int,
    progress: bool | Progress,
) -> list[list[str]]:
    """m prompts -> m lists of n completions, `at_once` prompts under way.

    rng: of one seed for each prompt, whatever order they are answered in. Raises ValueError for an
    n below 1, and what `where` raises.
    """
    if n < 1:
        raise ValueError(f"n = {n}: at least one completion per prompt")
    seeds = rng.integers(SEEDS, size=len(prompts)).tolist()
    if not len(prompts):
        return []
    where.ready()
    result: list[list[str]] = [[] for _ in prompts]
    with bar(progress, "generating", len(prompts) * n) as advance, _workers(at_once) as pool:
        under_way = {
            pool.submit(where.complete_one, prompt, n, seed): i
            for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
        }
        for done in as_completed(under_way):
            result[under_way[done]] = done.result()
            advance(n)
    return result


@contextmanager
def _workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads; after an error the calls that did not start yet never do."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="completions")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
