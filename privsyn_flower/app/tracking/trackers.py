"""The trackers of a run: public numbers, appended to one file that a process of each reads.

    run: checkpoints/tracked.jsonl <- {"begin": ...}, {"log": ...}, {"end": ...}
    a tracker's process: reads on from where it was, which its notes (tracked-NAME.json) say

Libraries that report to a service start threads and processes, hold on to an exiting process, ask
on a terminal, and import for seconds. Here a run has none of it: it appends lines, and waits for
`patience` seconds at its end alone (`Trackers`). Whatever ends the run, a kill too, ends the pipe
to the processes: they then read what is left and end themselves (`main`).
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from privsyn_flower.app.tracking.public import (
    STAGE,
    Value,
    is_line,
    public_facts,
    public_result,
    public_row,
    public_settings,
    public_stage,
)
from privsyn_flower.common.files import write_atomic
from privsyn_flower.common.python_path import finding_us
from privsyn_flower.common.terminal import without_logins
from privsyn_flower.config.checks import TRACKERS
from privsyn_flower.strategies.engine.callbacks import Callback, Row, RunStart

logger = logging.getLogger("flwr")  # the log that Flower shows in every app; run.log has it, too

PATIENCE = 30.0  # seconds for all trackers at the end
EVENTS = "checkpoints/tracked.jsonl"
START = "import sys; from privsyn_flower.app.tracking.trackers import main; main(*sys.argv[1:])"
NOTED = 3  # exit code of a process that has noted an error
FINISHED = ("finished", "ended early")


class TrackerUnavailable(ValueError):
    """A tracker's library is not installed, or there is no tracker of that name."""


def fault(name: str) -> str:
    """Why a tracker cannot be had here, with what to do; "" when it can. Nothing is imported."""
    if name not in TRACKERS:
        return f"trackers: {name!r} is unknown; there are {', '.join(TRACKERS)}"
    if importlib.util.find_spec(name) is None:
        return (
            f"trackers: {name} is not installed: pip install 'privsyn-flower[{name}]', or leave it "
            "out"
        )
    return ""


def notes(folder: Path, name: str) -> Path:
    """Where a tracker's process notes how far it has read."""
    return folder / "checkpoints" / f"tracked-{name}.json"


class Trackers(Callback):
    """An observer that tells named trackers. Raises TrackerUnavailable before anything is begun."""

    def __init__(self, names: Iterable[str], *, patience: float = PATIENCE) -> None:
        if isinstance(names, str):
            raise TrackerUnavailable(f"trackers = {names!r}: give a list, as in [{names!r}]")
        self.names, self.patience = list(dict.fromkeys(names)), patience
        for why in filter(None, map(fault, self.names)):
            raise TrackerUnavailable(why)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._known: set[tuple[str, str, int]] = set()
        self._rounds, self._over, self._untimed = 0, True, False

    def run_started(self, start: RunStart) -> None:
        """Tell of it and of the rounds that no earlier start has told; nothing after a result."""
        if not self.names:
            return
        self._folder, self._over = start.folder, False
        # There, times tell how many users were sampled.
        one = {"nodes": 1, "aggregation": "plain", "sampler": "poisson"}
        self._untimed = one.items() <= dict(start.settings).items()
        self._rounds = len(start.rows.get("rounds", ()))
        if self._resumed(start.run):
            self._over, size = True, (start.folder / EVENTS).stat().st_size
            late = [
                one for one in self.names if read_notes(start.folder, one).get("offset") != size
            ]
            self._processes = {name: self._started(name) for name in late}
            return
        begin = {"run": start.run, "name": start.folder.name, "facts": public_facts(start.facts)}
        self._append({"begin": {**begin, "settings": public_settings(start.settings)}})
        for phase, rows in start.rows.items():
            for row in rows:
                self.round_ended(phase, row)
        self._processes = {name: self._started(name) for name in self.names}

    def round_ended(self, phase: str, row: Row) -> None:
        """`rounds/NAME` at the round, once."""
        step = int(row["round"])
        self._rounds = max(self._rounds, step) if phase == "rounds" else self._rounds
        self._log(phase, "", public_row(row), step)

    def stage(self, name: str, seconds: float) -> None:
        """`stage_seconds/NAME`, once for each number of rounds: a resumed stage counts on. Raises
        nothing: the stage's own error must not be lost behind a full disk."""
        try:
            self._log("stage_seconds", name, public_stage(name, seconds), self._rounds)
        except OSError as error:
            logger.warning("trackers: %s: %s; the run goes on", type(error).__name__, error)

    def run_ended(self, summary: Row) -> None:
        """`result/NAME`, and the sentence that goes with it."""
        self._log("result", "", public_result(summary), self._rounds)
        short = summary.get("privacy_short")
        status = FINISHED[1 if summary.get("ended_early") else 0]
        self._end(status, str(short) if is_line(short) else "")

    def run_failed(self, error: str, stopped: bool) -> None:
        """An error, or somebody's stop."""
        self._end("stopped" if stopped else "failed", "")

    def _log(self, group: str, part: str, values: Mapping[str, Value], step: int) -> None:
        if self._untimed:
            values = {name: value for name, value in values.items() if not name.endswith("seconds")}
        if (
            self._over
            or not values
            or (self._untimed and group == "stage_seconds")
            or (group, part, step) in self._known
            or not STAGE.fullmatch(group)
        ):
            return
        self._known.add((group, part, step))
        self._append({"log": {"group": group, "part": part, "values": values, "step": step}})

    def _end(self, status: str, short: str) -> None:
        """Returns when every process has read all of it, or after `patience` seconds."""
        if not self._over:
            self._append({"end": {"status": status, "privacy_short": short}})
        self._over, deadline = True, time.monotonic() + self.patience
        processes, self._processes = self._processes, {}
        for process in processes.values():
            if process.stdin is not None:
                process.stdin.close()
        for name, process in processes.items():
            if why := _awaited(process, deadline) or read_notes(self._folder, name).get("error"):
                logger.warning(
                    "tracker %s: %s; the run went on without it (docs/tracking.md)", name, why
                )

    def _resumed(self, run: str) -> bool:
        """Read what earlier starts have told; whether a result was among it."""
        path = self._folder / EVENTS
        told = [event for event, _ in read_events(path, 0)] if path.exists() else []
        if told and told[0].get("begin", {}).get("run") != run:  # another run's
            path.unlink()
            for name in TRACKERS:
                notes(self._folder, name).unlink(missing_ok=True)
            told = []
        elif path.exists() and not path.read_bytes().endswith(b"\n"):  # half a line of a kill
            with path.open("ab") as file:
                file.write(b"\n")
        logs = [event["log"] for event in told if "log" in event]
        self._known = {(log["group"], log["part"], log["step"]) for log in logs}
        return any(event.get("end", {}).get("status") in FINISHED for event in told)

    def _append(self, event: Mapping[str, Any]) -> None:
        path = self._folder / EVENTS
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(f"{json.dumps(event, allow_nan=False)}\n".encode())

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            # -P: nothing of the folder that it is started in.
            [sys.executable, "-P", "-c", START, name, str(self._folder)],
            env=finding_us(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # what libraries print is nobody's
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not its business
        )


def read_events(path: Path, offset: int) -> list[tuple[dict[str, Any], int]]:
    """Complete events after byte `offset`, each with its end; half a line of a kill is none."""
    found = []
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            with suppress(ValueError):
                if line.endswith(b"\n"):
                    found.append((json.loads(line), offset))
    return found


def read_notes(folder: Path, name: str) -> dict[str, Any]:
    """offset: how much a tracker's process has read of the events. error: what ended it."""
    path = notes(folder, name)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _awaited(process: subprocess.Popen[bytes], deadline: float) -> str:
    """Wait for its end until then; why it did not come to one by itself."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):  # with what the library started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "it did not finish in time"
    return "" if process.returncode in (0, NOTED) else "its process ended"


LONGEST = 300  # characters of an error
EVERY = 0.5  # seconds between two looks at the file
Json = dict[str, Any]


class Library(Protocol):
    """A tracking library, by one start of a run after the other."""

    def begin(
        self, run: str, name: str, facts: Mapping[str, Value], settings: Mapping[str, Value]
    ) -> None:
        """A run begins, or goes on. run: its id. facts: of its privacy plan."""

    def log(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Numbers, to be shown as group/NAME. step: rounds."""

    def end(self, status: str, privacy_short: str) -> None:
        """finished, ended early, failed or stopped. privacy_short: the guarantee as it reads with
        the result; "" without one."""


def follow(path: Path) -> Iterator[tuple[Json, int]]:
    """All events, each with its end, until standard input ends: the run is over then, or gone, and
    little time is left."""
    over, offset = False, 0
    while True:
        if not over and select.select([sys.stdin], [], [], EVERY)[0]:
            over, timer = True, threading.Timer(PATIENCE, os._exit, (1,))
            timer.daemon = True
            timer.start()
        last = over
        events = read_events(path, offset)
        offset = events[-1][1] if events else offset
        yield from events
        if last:
            return


def serve(library: Library, path: Path, note: Path, done: Json) -> None:
    """Tell the library all that it was not told; done: the notes, kept up to date."""
    begun, start = False, dict[str, Any]()
    for event, offset in follow(path):
        start = event.get("begin", start)
        if offset <= done["offset"]:
            continue
        if not begun:  # also where an earlier process failed after it
            library.begin(**start)
            begun = True
        if "log" in event:
            log = event["log"]
            library.log(log["group"], log["values"], log["step"])
        elif "end" in event:
            library.end(**event["end"])
            begun = False
        done["offset"] = offset
        write_atomic(note, json.dumps(done).encode())
        if event.get("end", {}).get("status") in FINISHED:
            return
    if begun:
        library.end("stopped", "")


def main(name: str, folder: str) -> None:
    """Of a tracker's process."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)  # the end of standard input is what ends it
    note, done = notes(Path(folder), name), dict[str, Any]()
    try:
        done = {"offset": read_notes(Path(folder), name).get("offset", 0)}
        module = import_module(f"privsyn_flower.app.tracking.to_{name}")
        serve(module.library(Path(folder)), Path(folder) / EVENTS, note, done)
    except BaseException as error:  # also what a library calls an exit
        told = " ".join(without_logins(f"{type(error).__name__}: {error}").split())[:LONGEST]
        write_atomic(note, json.dumps({**done, "error": told}).encode())
        os._exit(NOTED)
