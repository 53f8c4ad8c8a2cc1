"""An instruction model asked many single questions: streamed, kept, and gone on with after a kill.

What filters, writes and converts public text (Wu et al. 2024, section 3) is one question for each
text, or a chain in which an answer leads to further questions. No stage waits for another: the next
request goes out when an answer comes in, so that the server's batch stays full. Answers are kept in
one SQLite file by what was asked, so that what is paid for once is not asked again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import DataError
from privsyn_flower.text.protocols import Answering, Reply, Sampling
from privsyn_flower.text.serving.http_client import RETRIED, ServerError

FILE = "answers.sqlite"
LOCK_SECONDS = 60.0  # that another process's write is waited for


class AnswerStore:
    """Replies by key, in `folder`/answers.sqlite; safe to use from several threads.

    Raises DataError for a file that is no such store, or is damaged.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = sqlite3.connect(
            self.path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            # Written ahead: a commit is one append without an fsync, and no kill leaves half of it.
            self._run("PRAGMA journal_mode = WAL")
            self._run("PRAGMA synchronous = NORMAL")
            self._run(
                "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, text TEXT NOT NULL, "
                "prompt_tokens INTEGER, tokens INTEGER)"
            )
            self._run("SELECT key, text, prompt_tokens, tokens FROM answers LIMIT 1")
        except BaseException:
            self.close()
            raise

    def get(self, key: bytes) -> Reply | None:
        """The reply under a key, if there is one."""
        found = self._run("SELECT text, prompt_tokens, tokens FROM answers WHERE key = ?", key)
        return Reply(*found[0]) if found else None

    def put(self, key: bytes, reply: Reply) -> None:
        """Keep a reply with a text; after `close` nothing is kept."""
        if self._database is not None:
            self._run(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)",
                key, reply.text, reply.prompt_tokens, reply.tokens,
            )  # fmt: skip

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._database is None:
                return []  # closed meanwhile: a thread of a stream that was left
            try:
                return self._database.execute(statement, values).fetchall()
            except sqlite3.OperationalError as error:
                raise OSError(f"{self.path}: {error}") from error
            except sqlite3.DatabaseError as error:
                raise DataError(
                    f"{self.path} cannot be read ({error}): move it away, and what it held is "
                    "asked for again"
                ) from error


logger = logging.getLogger("privsyn_flower")

AHEAD = 2  # requests under way for each that the model answers at once: so many are held
TRIES = 2  # of a request, each with the client's own retries
REFUSED = frozenset({400, 413, 422})  # of one request: too long, or not to the server's liking
LEAST_FAILURES = 3  # in a row, before a server counts as down
LEAST_REFUSALS = 8  # before the first answer, before every request counts as refused
GOES_ON = "what was answered is kept: the same call goes on after it"
FORMAT = 1  # of the keys


@dataclass(frozen=True)
class Request:
    """One question. prompt: a user's turn. max_tokens: of its answer. note: the caller's own."""

    prompt: str
    max_tokens: int
    note: Any = None


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    text None: the server gave none to this one request, and may be asked again another time.
    tokens, prompt_tokens: what it cost when it was asked; None where the server did not tell.
    cached: it was asked before, by this process or an earlier one.
    """

    request: Request
    text: str | None
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached: bool = False


@dataclass
class Counts:
    """Answers given so far: to requests that were asked, found in the cache, or that failed; and
    the tokens of those that were asked, as far as the server told."""

    sent: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    tokens: int = 0


@dataclass(eq=False)
class _Job:
    """A request on its way. tries: how often it failed; began: what the model had said by then."""

    request: Request
    depth: int
    key: bytes = b""
    tries: int = 0
    began: int = 0


class _Pool:
    """Threads that answer jobs, up to `width` of equal max_tokens at once (a context manager).

    work: jobs -> a reply to each; what it raises is the result of all of them. When the block is
    left, jobs that no thread has begun are dropped, and nobody waits for the others.
    """

    def __init__(
        self, work: Callable[[Sequence[_Job]], Sequence[Reply]], threads: int, width: int
    ) -> None:
        self._work, self._width = work, width
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="asking")
        self._todo, self._lock = deque[_Job](), threading.Lock()
        self._done: queue.SimpleQueue[tuple[_Job, Reply | BaseException]] = queue.SimpleQueue()

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def put(self, job: _Job) -> None:
        """Have a job done when a thread is free, in the order of the calls."""
        self._todo.append(job)
        self._executor.submit(self._run)

    def take(self) -> tuple[_Job, Reply | BaseException]:
        """Wait for a job that is done; with its result."""
        return self._done.get()

    def _run(self) -> None:
        """The first of the jobs and those like it that follow it; none, where others took them."""
        jobs: list[_Job] = []
        with self._lock:
            while self._todo and len(jobs) < self._width:
                if jobs and self._todo[0].request.max_tokens != jobs[0].request.max_tokens:
                    break
                jobs.append(self._todo.popleft())
        if jobs:
            results: Sequence[Reply | BaseException]
            try:
                results = self._work(jobs)
            except BaseException as error:
                results = [error] * len(jobs)
            for pair in zip(jobs, results, strict=True):
                self._done.put(pair)


class Asker:
    """Asks a model, and keeps every answer in `folder` under what was asked (a context manager).

    Args:
        model: a server's generator, or one in this process (`text.opening.open_generator`). It
            remains the caller's, who closes it.
        folder: of the answers; one may serve several askers, also of several processes.
        name: the model, as keys of answers name it.
        temperature, top_k, top_p: of the sampling. temperature 0: the likeliest answer.
        concurrency: requests that the model answers at once.

    Equal requests to equal models with equal sampling have one answer: it is asked for once.
    """

    def __init__(
        self,
        model: Answering,
        folder: Path,
        *,
        name: str,
        temperature: float,
        top_k: int = 0,
        top_p: float = 1.0,
        concurrency: int,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"generation.concurrency = {concurrency}: must be at least 1")
        Sampling(1, temperature, top_p, top_k)  # raises
        self.model, self.name, self.concurrency = model, name, concurrency
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.counts = Counts()
        self._store = AnswerStore(folder)
        self._base = hashlib.sha256(
            json.dumps([FORMAT, name, model.chat, temperature, top_k, top_p]).encode()
        )
        self._reached = False
        self._given = self._refused = 0  # answers of the model, and requests that it refused
        self._in_a_row = 0  # requests that failed since it said anything

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the answers' file; the model goes on."""
        self._store.close()

    def ask(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """An answer to each request, in the order in which they come.

        Requests are taken as they are needed: at most AHEAD x concurrency are under way, however
        many there are. A request that fails for good has an answer without a text. Raises
        ServerError when the server does: it is down, refuses the key or does not know the model.
        """
        return self.grow(requests, lambda answer: ())

    def grow(
        self, first: Iterable[Request], more: Callable[[Answer], Iterable[Request]]
    ) -> Iterator[Answer]:
        """As `ask`, and an answer leads to more requests, which are taken before earlier ones.

        Deepest first, so that chains end soon after they began: what waits is bounded by the
        requests under way and the chains' depth, not by `first`. more: called once for each
        answer, those without a text and those from the cache among them, before it is given out;
        what it returns is taken as needed.
        """
        waiting = _Waiting(first)
        # A server's batch is made of many requests, one in this process of many prompts.
        threads, width = (1, self.concurrency) if self.model.batched else (self.concurrency, 1)
        with _Pool(self._answer, threads, width) as pool:
            for job, reply, cached in self._replies(waiting, pool):
                answer = self._count(job.request, reply, cached)
                waiting.add(more(answer), job.depth + 1)
                yield answer

    def _replies(self, waiting: _Waiting, pool: _Pool) -> Iterator[tuple[_Job, Reply, bool]]:
        """Jobs with their replies, and whether those were there already."""
        same = dict[bytes, list[_Job]]()  # under way, by key
        under_way = 0
        while True:
            job = waiting.next() if under_way < AHEAD * self.concurrency else None
            if job is not None:
                job.key = self._key(job.request)
                known = self._store.get(job.key)
                if known is not None:
                    yield job, known, True
                    continue
                under_way += 1
                others = same.setdefault(job.key, [])
                others.append(job)
                if len(others) == 1:
                    self._put(job, pool)
            elif under_way:
                done, result = pool.take()
                reply = self._settled(done, result)
                if reply is None:
                    pool.put(done)
                    continue
                jobs = same.pop(done.key)
                under_way -= len(jobs)
                for number, one in enumerate(jobs):
                    yield one, reply, number > 0
            else:
                return

    def _put(self, job: _Job, pool: _Pool) -> None:
        if not self._reached:
            self.model.reach()
            self._reached = True
        job.began = self._given + self._refused
        pool.put(job)

    def _answer(self, jobs: Sequence[_Job]) -> list[Reply]:
        """In a thread: replies to jobs of one kind, on disk when this returns."""
        sampling = Sampling(jobs[0].request.max_tokens, self.temperature, self.top_p, self.top_k)
        seeds = [int.from_bytes(job.key[:4]) >> 1 for job in jobs]
        replies = self.model.answer([job.request.prompt for job in jobs], sampling, seeds)
        for job, reply in zip(jobs, replies, strict=True):
            if reply.text is not None:
                self._store.put(job.key, reply)
        return replies

    def _settled(self, job: _Job, result: Reply | BaseException) -> Reply | None:
        """The reply to give for a result; None: once more. Raises what ends the whole job."""
        if isinstance(result, Reply):
            self._given += 1
            self._in_a_row = 0
            return result
        if not isinstance(result, ServerError):
            raise result
        if result.status in REFUSED:
            self._in_a_row = 0
            return self._refuse(result)
        if result.status and result.status not in RETRIED:
            raise result
        job.tries += 1
        self._in_a_row += 1
        if self._in_a_row >= max(LEAST_FAILURES, self.concurrency):
            raise ServerError(
                f"{self._in_a_row} requests in a row failed, the last with: {result}; {GOES_ON}",
                result.status,
            ) from result
        if job.tries < TRIES:
            return None
        if self._given + self._refused == job.began:
            self.model.reach()  # is it this request, or the server? raises if it is the server
        logger.warning("a request is left out, which failed %d times: %s", job.tries, result)
        return Reply(None)

    def _refuse(self, error: ServerError) -> Reply:
        """A request that the server does not take; every one since the beginning: ServerError."""
        self._refused += 1
        none_taken = not self._given and not self.counts.cached
        if none_taken and self._refused >= max(LEAST_REFUSALS, self.concurrency):
            raise ServerError(
                f"each of the first {self._refused} requests was refused, the last with: {error}",
                error.status,
            ) from error
        level = logging.WARNING if self._refused == 1 else logging.INFO
        logger.log(level, "a request is left out, which was refused: %s", error)
        return Reply(None)

    def _count(self, request: Request, reply: Reply, cached: bool) -> Answer:
        counts = self.counts
        if reply.text is None:
            counts.failed += 1
        elif cached:
            counts.cached += 1
        else:
            counts.sent += 1
            counts.prompt_tokens += reply.prompt_tokens or 0
            counts.tokens += reply.tokens or 0
        return Answer(request, reply.text, reply.tokens, reply.prompt_tokens, cached)

    def _key(self, request: Request) -> bytes:
        """Names what is asked, of which model and how."""
        state = self._base.copy()
        state.update(b"%d " % request.max_tokens)
        state.update(request.prompt.encode("utf-8", "surrogatepass"))
        return state.digest()


class _Waiting:
    """Requests that are still to be asked, deepest first; each group is read as it is needed."""

    def __init__(self, first: Iterable[Request]) -> None:
        self._groups: list[deque[Iterator[Request]]] = [deque([iter(first)])]

    def add(self, requests: Iterable[Request], depth: int) -> None:
        """More requests, of chains that have come so deep."""
        if depth == len(self._groups):
            self._groups.append(deque())
        self._groups[depth].append(iter(requests))

    def next(self) -> _Job | None:
        """The next of the deepest; None: there is none."""
        for depth in reversed(range(len(self._groups))):
            groups = self._groups[depth]
            while groups:
                request = next(groups[0], None)
                if request is not None:
                    return _Job(request, depth)
                groups.popleft()
        return None
