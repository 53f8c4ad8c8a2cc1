"""A check of simulations: what user data raised on the nodes, from their caches on this machine.

A node tells the server nothing of it (rule 7), only its own files: `node.log`, and a row for each
failure in `failures.jsonl`. In a simulation these are the researcher's own files. Nothing here is
called in a run with a deployed node, and nothing that is read changes what a round releases.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.common.arrays import F64
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.strategies.engine.callbacks import (
    Callback,
    CheckFailed,
    Question,
    Row,
    RunStart,
)

FAILURES = "failures.jsonl"
NODES = "nodes"  # folder of the simulated nodes' caches
DROP_IN = f"{NODES}/drop-in"  # of those of somebody else's app
_PLACE = re.compile(r"(\d+)-of-\d+")
_NAME = re.compile(r"[A-Za-z_][\w.]{0,99}")
_MOST = 1 << 22  # bytes of a file that are looked at: its end


class AllNodesFailed(CheckFailed):
    """In a simulation: no node could answer, so the round's release is noise alone."""


class NodeFailures(Callback):
    """Ends a simulation whose nodes all failed. folder: of their caches.

    show: print at the end of the run what failed, on stderr. It may depend on a user's text, so it
    is for the terminal of who runs the simulation, and in no log or file of the run.
    """

    check = True

    def __init__(self, folder: Path, *, show: bool = False) -> None:
        self.folder, self.show = folder, show
        self._run, self._simulated = "", False

    def run_started(self, start: RunStart) -> None:
        """Nothing is known of the nodes yet."""
        self._run, self._simulated = start.run, False

    def question_asked(self, question: Question) -> None:
        """Whether it is a simulation is known from here."""
        self._simulated = question.simulated

    def released(self, question: Question, noisy: F64, noise_std: float) -> None:
        """Raises AllNodesFailed."""
        ticket = question.ticket
        if not question.simulated:
            return
        if failed := all_failed(self.folder, ticket, question.nodes):
            raise AllNodesFailed(
                f"round {ticket.round} released noise alone: {failed}. Mend it and start a new "
                "run; a resume would go on after this round"
            )

    def run_ended(self, summary: Row) -> None:
        """Show what failed."""
        if self.show and self._simulated:
            for line in report(self.folder, self._run):
                print(f"warning: {line}", file=sys.stderr)

    def run_failed(self, error: str, stopped: bool) -> None:
        """Show what failed."""
        self.run_ended({})


@dataclass(frozen=True)
class Failure:
    """A row. users: how many of the `of` that took part; None: the node could not read any."""

    run: str
    round: int
    attempt: int
    users: int | None
    of: int
    cause: str
    partition: int
    log: Path


def all_failed(folder: Path, ticket: Ticket, nodes: Sequence[Hello]) -> str:
    """What all nodes of an attempt failed of, in words; "" unless every one failed for all of its
    users who took part. folder: of the nodes' caches. One that is deployed: ""."""
    places = {facts.partition for facts in nodes if not facts.deployed}
    if not places or len(places) < len(nodes):
        return ""
    asked = (ticket.run, ticket.round, ticket.attempt)
    rows = [
        row
        for row in read_failures(folder)
        if (row.run, row.round, row.attempt) == asked and row.partition in places
    ]
    users = Counter[int]()
    for row in rows:
        users[row.partition] += row.users or 0
    failed = {r.partition: r for r in rows if r.users is None or users[r.partition] >= r.of > 0}
    return _describe(failed, len(places)) if failed.keys() == places else ""


def _describe(failed: Mapping[int, Failure], nodes: int) -> str:
    parts = []
    for cause, count in Counter(row.cause for row in failed.values()).most_common(3):
        log = next(row.log for row in failed.values() if row.cause == cause)
        parts.append(f"{count} of {nodes} nodes failed: {cause} ({log})")
    return "; ".join(parts)


def report(folder: Path, run: str) -> list[str]:
    """A line for each cause of failures in a run, its evaluations included, most users first."""
    users: Counter[str] = Counter()
    places: dict[str, set[Path]] = {}
    for row in read_failures(folder):
        if row.run == run or row.run.startswith(f"{run}-"):
            users[row.cause] += row.users or 1
            places.setdefault(row.cause, set()).add(row.log)
    return [
        f"{cause} on {len(places[cause])} nodes, {count} times: zeros and noise were sent "
        f"({min(places[cause])})"
        for cause, count in users.most_common()
    ]


def read_failures(folder: Path) -> Iterator[Failure]:
    """The rows of all simulated nodes under a folder; whatever is no such row is left out."""
    for path in sorted(folder.glob(f"*-of-*/{FAILURES}")):
        place = _PLACE.fullmatch(path.parent.name)
        if place is None:
            continue
        for line in _tail(path).split(b"\n"):
            row = _row(line)
            if row is not None:
                yield Failure(**row, partition=int(place[1]), log=path.with_name("node.log"))


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST))
            return file.read(_MOST)
    except OSError:
        return b""


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
        kind, at = row["kind"], str(row["at"])
        if kind not in ("users", "answer") or not _NAME.fullmatch(row["error"]):
            return None
        at = at if at.isprintable() and len(at) < 300 else ""
        return {
            "run": str(row["run"]),
            "round": int(row["round"]),
            "attempt": int(row["attempt"]),
            "users": None if kind == "users" else max(0, int(row["users"])),
            "of": int(row["of"]),
            "cause": row["error"] + (f" at {at}" if at else ""),
        }
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
