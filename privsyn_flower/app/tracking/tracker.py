"""Trackers are told of a run, and the run never waits for them.

Each has a thread of its own with a bounded queue. One that raises, or that is too slow for its
queue, is a single warning; at the end of a run all together have `PATIENCE` seconds.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from privsyn_flower.app.tracking.events import (
    FACTS,
    WORDS,
    Ended,
    Event,
    NotPublic,
    RoundReleased,
    RunStarted,
    Stage,
    Status,
    Value,
    picked,
)
from privsyn_flower.terminal import without_logins

logger = logging.getLogger("flwr")  # the log that Flower shows in every app; run.log has it, too

WAITING = 10_000  # events that a tracker may lag behind: a resumed run tells its rounds at once
LONGEST = 300  # characters of an error
PATIENCE = 30.0  # seconds for all trackers at the end
CALLS: dict[type[Event], str] = {
    RunStarted: "run_started",
    RoundReleased: "round_released",
    Stage: "stage",
    Ended: "ended",
}


class Tracker(Protocol):
    """Called in the order of the run, on a thread of its own; what a method raises ends it.

    After a resume, rounds and stages that it was told before do not come again.
    """

    def run_started(self, event: RunStarted) -> None:
        """A run begins, or goes on."""

    def round_released(self, event: RoundReleased) -> None:
        """A noisy sum is public now, and has been learned from."""

    def stage(self, event: Stage) -> None:
        """A stage is over."""

    def ended(self, event: Ended) -> None:
        """Nothing more comes of this start: write what is left."""


def tell(tracker: Tracker, event: Event) -> None:
    """Call the method that the event is for."""
    getattr(tracker, CALLS[type(event)])(event)


def told_of(error: BaseException) -> str:
    """What a library raised, on one line: its URLs without logins, which HTTP libraries repeat."""
    return " ".join(without_logins(f"{type(error).__name__}: {error}").split())[:LONGEST]


class Tracking:
    """A run's trackers. A context: an exception that leaves it is told as `failed` or `stopped`.

    names: of the trackers, for warnings.
    """

    def __init__(
        self, trackers: Mapping[str, Tracker] | None = None, *, patience: float = PATIENCE
    ) -> None:
        self._lines = [_Line(name, one) for name, one in (trackers or {}).items()]
        self.patience = patience
        self._done, self._over = 0, False

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended("failed" if kind is not None and issubclass(kind, Exception) else "stopped")

    def run_started(
        self,
        run: str,
        name: str,
        facts: Mapping[str, Any],
        settings: Mapping[str, Value],
        released: int,
    ) -> None:
        """Once for each start of the run. facts: what is not in FACTS and WORDS stays here."""
        self._done = released
        told = {**picked(facts, FACTS), **{key: facts[key] for key in WORDS if facts.get(key)}}
        self._tell(lambda: RunStarted(run, name, told, settings, released))

    def released(self, phase: str, rows: Sequence[Mapping[str, Any]], *, main: bool) -> None:
        """Rows of metrics.jsonl, old and new. main: whether they are the run's rounds."""
        for row in rows:
            self._done = max(self._done, int(row["round"])) if main else self._done
            self._tell(lambda row=row: RoundReleased.of(phase, row))  # type: ignore[misc]

    def stage(self, name: str, seconds: float) -> None:
        """A stage is over, after so many seconds in all starts."""
        self._tell(lambda: Stage(name, seconds, self._done))

    def ended(self, status: Status, found: Mapping[str, Any] | None = None) -> None:
        """The result is there, or never comes; said once, and what is told later is dropped.

        Returns when every tracker has written all it was told, or after `patience` seconds.
        found: a summary.
        """
        self._tell(lambda: Ended.of(status, self._done, found or {}))
        self._over = True
        lines, self._lines = self._lines, []
        deadline = time.monotonic() + self.patience
        for line in lines:
            line.put(None)
        for line in lines:
            line.close(deadline)

    def _tell(self, make: Callable[[], Event]) -> None:
        """What must not be told is a warning, and is not told."""
        if self._over or not self._lines:
            return
        try:
            event = make()
        except NotPublic as error:
            logger.warning("trackers are not told: %s", error)
            return
        for line in self._lines:
            line.put(event)


class _Line:
    """One tracker's queue and thread."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name, self.tracker = name, tracker
        self.waiting: queue.Queue[Event | None] = queue.Queue(WAITING)
        self.failed = False
        self._warned = threading.Lock()
        self.thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self.thread.start()

    def put(self, event: Event | None) -> None:
        """At once; None: the last. Dropped, with a warning, when the tracker is too far behind."""
        if self.failed:
            return
        try:
            self.waiting.put_nowait(event)
        except queue.Full:
            self._give_up(f"it is {WAITING} events behind")

    def close(self, deadline: float) -> None:
        """Wait for it until then."""
        if not self.failed:
            self.thread.join(max(0.0, deadline - time.monotonic()))
            if self.thread.is_alive():
                self._give_up("it did not finish in time")
        abandon = getattr(self.tracker, "abandon", None)
        if abandon is not None:
            abandon()

    def _work(self) -> None:
        while (event := self.waiting.get()) is not None and not self.failed:
            try:
                tell(self.tracker, event)
            except BaseException as error:  # also what a library calls an exit
                self._give_up(told_of(error))
                return

    def _give_up(self, why: str) -> None:
        """One warning; the run goes on without it."""
        if self._warned.acquire(blocking=False):
            self.failed = True
            logger.warning(
                "tracker %s: %s; the run goes on without it (docs/tracking.md)", self.name, why
            )
