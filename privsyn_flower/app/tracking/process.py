"""A named tracker in a process of its own, told by a pipe.

Libraries that report to a service start threads and processes, hold on to an exiting process, ask
on a terminal, and import for seconds. Here a run has none of it, and whatever ends the run, a kill
too, ends the pipe: the tracker's process then writes what it has, and ends itself.

    run's process: thread of one tracker -> {"call": ..., "event": {...}} -> tracker's process
                                         <- {"ok": true} or {"error": "..."}
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from privsyn_flower.app.tracking.events import Ended, Event, RoundReleased, RunStarted, Stage
from privsyn_flower.app.tracking.named import adapter, notes
from privsyn_flower.app.tracking.told import Remembering
from privsyn_flower.app.tracking.tracker import CALLS, PATIENCE, tell, told_of
from privsyn_flower.python_path import finding_us

START = "import sys; from privsyn_flower.app.tracking.process import main; main(*sys.argv[1:])"
EVENTS = {call: kind for kind, call in CALLS.items()}


class TrackerFailed(RuntimeError):
    """What the tracker's process says of its end."""


class TrackerProcess:
    """The side of the run; called on the tracker's own thread, and waits for each answer."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.process: subprocess.Popen[str] | None = None

    def run_started(self, event: RunStarted) -> None:
        """Start the process."""
        self.process = subprocess.Popen(
            # -P: nothing of the folder that it is started in.
            [sys.executable, "-P", "-c", START, self.name, str(self.folder)],
            env=finding_us(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is not its business
        )
        self._ask(event)

    def round_released(self, event: RoundReleased) -> None:
        """Pass it on."""
        self._ask(event)

    def stage(self, event: Stage) -> None:
        """Pass it on."""
        self._ask(event)

    def ended(self, event: Ended) -> None:
        """Pass it on, and wait for the process' end."""
        self._ask(event)
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()

    def abandon(self) -> None:
        """End what is left of it."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):  # with what the library started
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _ask(self, event: Event) -> None:
        """Raises TrackerFailed when it answers with an error, or no more."""
        process = self.process
        if process is None or process.stdin is None or process.stdout is None:
            raise TrackerFailed("it was told of no run")
        with suppress(BrokenPipeError):
            message = {"call": CALLS[type(event)], "event": asdict(event)}
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        answer = json.loads(process.stdout.readline() or '{"error": "its process ended"}')
        if "error" in answer:
            raise TrackerFailed(answer["error"])


def serve(name: str, folder: Path, answers: IO[str]) -> None:
    """The side of the tracker: until the pipe ends, which says that the run was stopped."""
    told: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(told,), daemon=True).start()
    tracker: Remembering | None = None
    done = 0
    while line := told.get():
        message: dict[str, Any] = json.loads(line)
        try:
            event = EVENTS[message["call"]](**message["event"])
            if tracker is None:
                tracker = Remembering(adapter(name, folder), notes(folder, name))
            tell(tracker, event)
        except BaseException as error:
            _answer(answers, {"error": told_of(error)})
            raise
        done = max(done, _round(event))
        _answer(answers, {"ok": True})
        if isinstance(event, Ended):
            return
    if tracker is not None:
        tracker.ended(Ended("stopped", done))


def _round(event: Event) -> int:
    """Rounds released, as far as an event says."""
    if isinstance(event, RunStarted):
        return event.released
    main = not isinstance(event, RoundReleased) or event.phase == "rounds"
    return event.round if main else 0


def _read(told: queue.Queue[str]) -> None:
    """Lines of the pipe; at its end the process has little time left."""
    for line in sys.stdin:
        told.put(line)
    told.put("")
    timer = threading.Timer(PATIENCE, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _answer(answers: IO[str], value: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        answers.write(json.dumps(value) + "\n")
        answers.flush()


def main(name: str, folder: str) -> None:
    """Of a tracker's process. What libraries print is nobody's."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)  # the pipe's end is what ends it
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(name, Path(folder), answers)
    except BaseException:  # it was told
        os._exit(1)
