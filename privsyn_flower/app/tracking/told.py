"""What a tracker was told of a run, kept in the run folder: a resume repeats nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from privsyn_flower.app.tracking.events import Ended, RoundReleased, RunStarted, Stage
from privsyn_flower.app.tracking.tracker import Tracker
from privsyn_flower.files import write_atomic

FINISHED = ("finished", "ended early")


class Remembering:
    """A tracker that is told each round once, and after its run's result nothing.

    path: of the notes, JSON. One is made after the tracker took an event: a kill between the two
    may repeat that one event, and loses none.
    """

    def __init__(self, tracker: Tracker, path: Path) -> None:
        self.tracker, self.path = tracker, path
        self.rounds: dict[str, int] = {}
        self.over = False
        self.run = ""

    def run_started(self, event: RunStarted) -> None:
        """Go on with what the notes say of this run; another run's are none."""
        stored: dict[str, Any] = {}
        if self.path.exists():
            stored = json.loads(self.path.read_text(encoding="utf-8"))
        if stored.get("run") == event.run:
            self.rounds, self.over = dict(stored["rounds"]), bool(stored["over"])
        self.run = event.run
        if not self.over:
            self.tracker.run_started(event)

    def round_released(self, event: RoundReleased) -> None:
        """Passed on once."""
        if self._new(event.phase, event.round):
            self.tracker.round_released(event)
            self._note(event.phase, event.round)

    def stage(self, event: Stage) -> None:
        """Passed on once for each number of rounds released: a resumed stage counts on."""
        name = f"stage {event.name}"
        if self._new(name, event.round + 1):
            self.tracker.stage(event)
            self._note(name, event.round + 1)

    def ended(self, event: Ended) -> None:
        """Passed on unless an earlier start had the result."""
        if not self.over:
            self.tracker.ended(event)
            self.over = event.status in FINISHED
            self._write()

    def _new(self, name: str, count: int) -> bool:
        return not self.over and count > self.rounds.get(name, 0)

    def _note(self, name: str, count: int) -> None:
        self.rounds[name] = count
        self._write()

    def _write(self) -> None:
        notes = {"run": self.run, "rounds": self.rounds, "over": self.over}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, json.dumps(notes, indent=2).encode() + b"\n")
