"""Progress: events on disk, so that any terminal can draw them; or a bar here; or nothing.

The ServerApp runs inside Flower's processes, far from the user's terminal; it appends public
events to `progress.jsonl` and logs the coarse ones, and `privsyn run` draws bars from the file.
Library calls draw a bar of their own.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger("privsyn_flower")

BENCHMARK = "benchmark"  # the stage after the result, on a line of its own
PROGRESS = "progress.jsonl"  # the file of the events, in the run folder
LINE_SECONDS = 10.0  # between two lines about one call, where no bar can be drawn
QUIET_BELOW = 300  # items; fewer are done before a bar would be read


class Progress(Protocol):
    """Called with a stage, how far it is, how far it goes, and a short public note."""

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None: ...


def silent(stage: str, done: float, total: float, note: str = "") -> None:
    """No progress shown; the default of library calls."""


def log_rounds(stage: str, done: float, total: float, note: str = "") -> None:
    """Finished rounds, in the log that Flower shows in every app; the default of a `start`."""
    if stage == "rounds":
        logging.getLogger("flwr").info("[ROUND %d/%d] %s", done, total, note)


def stop(progress: Progress, stage: str, step: int, steps: int, note: str = "") -> None:
    """End a stage whose steps are a bound, and say so where it took fewer."""
    early = f"stopped after {step} of at most {steps} steps" if step < steps else ""
    progress(stage, max(1, step), max(1, step), ", ".join(filter(None, (early, note))))


@contextmanager
def bar(progress: bool | Progress, stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields `advance(count)`.

    progress: True draws a tqdm bar on stderr (when tqdm is installed and there is enough to do);
    where stderr is no terminal, the log gets a line every LINE_SECONDS. False shows nothing, and a
    `Progress` is called as progress(stage, done, total).
    """
    done, last = 0, time.monotonic()

    def report(count: int) -> None:
        nonlocal done, last
        done += count
        if not isinstance(progress, bool):
            progress(stage, done, total)
        elif progress and time.monotonic() >= last + LINE_SECONDS:
            last = time.monotonic()
            logger.info("%s: %d of %d", stage, done, total)

    drawable = sys.stderr.isatty() and importlib.util.find_spec("tqdm")
    if progress is not True or total < QUIET_BELOW or not drawable:
        yield report
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=stage, unit="text") as drawn:

        def draw(count: int) -> None:
            drawn.update(count)

        yield draw


class Steps:
    """Several long tasks on one line of progress, each named when it begins.

    Threads may share it.
    """

    def __init__(self, progress: Progress, stage: str, total: int) -> None:
        self.progress, self.stage, self.total = progress, stage, total
        self.done, self._under_way = 0, list[str]()
        self._lock = threading.Lock()

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        """One of them, from its beginning to its end; others may go on beside it."""
        with self._lock:
            self._under_way.append(name)
            self._tell()
        yield
        with self._lock:
            self._under_way.remove(name)
            self.done += 1
            if self._under_way:
                self._tell()

    def _tell(self) -> None:
        *others, last = self._under_way
        note = f"{last}, beside {len(others)} more" if others else last
        self.progress(self.stage, self.done, self.total, note)

    def end(self) -> None:
        """All are done, also where they came to be fewer."""
        self.progress(self.stage, self.total, self.total)


class ProgressLog:
    """Append events to a file (at most ten a second per stage) and log starts and ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: dict[str, float] = {}
        self._seen: set[str] = set()

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        now = time.monotonic()
        finished = done >= total
        if not finished and now - self._last.get(stage, -1.0) < 0.1:
            return
        self._last[stage] = now
        event: dict[str, Any] = {"t": round(time.time(), 2), "stage": stage}
        event |= {"done": round(float(done), 3), "total": round(float(total), 3), "note": note}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event, ensure_ascii=False) + "\n")
        if note or finished or stage not in self._seen:
            logger.info("%s %g/%g %s", stage, done, total, note)
        self._seen.add(stage)


def read_events(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Complete events after byte `offset`, and the offset to go on from."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    end = data.rfind(b"\n") + 1
    events = []
    for line in data[:end].splitlines():
        with suppress(ValueError):  # a kill or a full disk can leave half a line
            events.append(json.loads(line))
    return events, offset + end
