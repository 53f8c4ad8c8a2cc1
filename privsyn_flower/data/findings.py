"""What is odd in a file of users: line by line for its owner, or counted by kind.

Findings hold no text and no user id; their counts are PRIVATE all the same. They belong to the
file's owner, a node's local log, or the terminal of a simulation, never to a server.

`NODE_LOG` is the node's local log, for everything that is derived from private text (rule 7).
Nothing said there reaches stderr or Flower's log, which a server may read: without a handler it
is dropped. A node attaches the file handler of its own log (`node.log`, mode 0600).
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import Counter
from dataclasses import dataclass, field

from .values import ROUNDED

NODE_LOG = logging.getLogger("privsyn_flower.node")
NODE_LOG.propagate = False
NODE_LOG.addHandler(logging.NullHandler())  # else Python's last resort prints to stderr

FIRST = 5  # lines named of a kind
# What is read all the same, if not as it stands; every other advice is about a row that is not.
LONG, UNICODE, UTF8 = "split long texts into several rows", "save valid Unicode", "save it as UTF-8"
LABEL = "write a label as text or a number; texts without one are of no class"
ALIKE = "if two such ids are one person's, write them alike: each id is protected as one person"
REPAIRED = {LONG, UNICODE, UTF8, ROUNDED, LABEL, ALIKE}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a file that is skipped or repaired; line 0 concerns the whole file."""

    line: int
    problem: str
    advice: str


@dataclass(slots=True)
class Kind:
    """Findings with one advice. problem: of the first; alike: whether another's differs. lines: the
    first FIRST in the file, which is not always the order in which they are found."""

    problem: str
    advice: str
    count: int = 0
    alike: bool = False
    lines: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        """The problem, how often and where; no advice."""
        lines = ", ".join(str(line) for line in self.lines if line)
        more = ", ..." if self.count > len(self.lines) else ""
        where = f" ({'lines' if self.count > 1 else 'line'} {lines}{more})" if lines else ""
        alike = ", or the like" * self.alike
        return f"{self.count:,} x {self.problem}{alike}{where}"


class Tally:
    """Counts findings by kind; an instance's `report` is a `reading.Report`."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def report(self, line: int, problem: str, advice: str) -> None:
        """One more finding of its kind."""
        kind = self._kinds.setdefault(advice, Kind(problem, advice))
        kind.count += 1
        kind.alike = kind.alike or problem != kind.problem
        if len(kind.lines) < FIRST or line < kind.lines[-1]:
            insort(kind.lines, line)
            del kind.lines[FIRST:]

    @property
    def kinds(self) -> list[Kind]:
        """The most frequent first; of equally frequent ones, what is first in the file."""
        return sorted(self._kinds.values(), key=lambda kind: (-kind.count, kind.lines[0]))

    @property
    def skipped(self) -> list[Kind]:
        """Those of rows that are not read."""
        return [kind for kind in self.kinds if kind.advice not in REPAIRED]


class LeftOut(Counter[str]):
    """How many texts that were read are no sample, by cause. PRIVATE where the texts are."""

    def summary(self, where: str) -> str:
        """A line for a terminal."""
        ranked = sorted(self.items(), key=lambda item: (-item[1], item[0]))
        causes = (f"{count:,} x {cause}" for cause, count in ranked if count)
        return f"{where}: left out: {'; '.join(causes)}"
