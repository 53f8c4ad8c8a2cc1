"""The process of one tracker: reads a run's events until the result, or the run's own end."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from privsyn_flower.app.tracking.public import Value
from privsyn_flower.app.tracking.trackers import (
    EVENTS,
    FINISHED,
    NOTED,
    PATIENCE,
    notes,
    read_events,
    read_notes,
)
from privsyn_flower.common.files import write_atomic
from privsyn_flower.common.terminal import without_logins

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
