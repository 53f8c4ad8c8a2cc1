"""Work that threads do side by side, handed in and taken out one piece at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class Lanes(Generic[Job, Result]):
    """`count` threads that do jobs, up to `width` of one kind at once; none starts before a job.

    work: jobs -> a result for each; what it raises is the result of all of them. kind: jobs of
    different kinds are not worked on together. When the block is left, jobs that no thread has
    begun are dropped, and nobody waits for the others.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Job]], Sequence[Result | BaseException]],
        *,
        count: int,
        width: int = 1,
        kind: Callable[[Job], object] = lambda job: None,
    ) -> None:
        self._work, self._width, self._kind = work, width, kind
        self._count, self._started, self._ended = count, False, threading.Event()
        self._todo: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Job, Result | BaseException]] = queue.SimpleQueue()

    def __enter__(self) -> Lanes[Job, Result]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        for _ in range(self._count if self._started else 0):
            self._todo.put(None)

    def put(self, job: Job) -> None:
        """Have a job done when a thread is free, in the order of the calls."""
        self._todo.put(job)
        if not self._started:
            self._started = True
            for number in range(self._count):
                # Daemons: a request of minutes does not hold up the end of the process.
                threading.Thread(target=self._run, name=f"asking-{number}", daemon=True).start()

    def take(self) -> tuple[Job, Result | BaseException]:
        """Wait for a job that is done; with its result."""
        return self._done.get()

    def _run(self) -> None:
        job = self._todo.get()
        while job is not None and not self._ended.is_set():
            jobs, following = self._together(job)
            try:
                results = self._work(jobs)
            except BaseException as error:
                results = [error] * len(jobs)
            for pair in zip(jobs, results, strict=True):
                self._done.put(pair)
            job = following or self._todo.get()

    def _together(self, job: Job) -> tuple[list[Job], Job | None]:
        """Jobs of the first one's kind that wait behind it, and the next one of another kind."""
        jobs = [job]
        while len(jobs) < self._width:
            try:
                following = self._todo.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._todo.put(None)
                break
            if self._kind(following) != self._kind(job):
                return jobs, following
            jobs.append(following)
        return jobs, None
