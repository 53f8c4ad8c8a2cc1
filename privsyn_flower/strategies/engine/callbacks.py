"""Callbacks: what is told of a run while it goes on, public values only.

    run_started -> (question_asked -> released -> round_ended) for each round -> run_ended
                                                                    or at any time run_failed

There are two kinds. An *observer* (every `Callback`) changes nothing: what it raises is logged
once, counted, and swallowed. A *check* (`check = True`) may end the run by raising: before anything
is asked, before a question is charged, and after its release was committed. Neither is called
between the reservation of a charge and its commit, so that no callback can leave a charge without
its release, and what one raises is never taken for an error of the engine.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.terminal import without_logins
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.question import Query, Ticket

logger = logging.getLogger("flwr")  # the log that Flower shows in every app; run.log has it, too

LONGEST = 300  # characters of an error in the log
Row = Mapping[str, Any]


class CheckFailed(RuntimeError):
    """A check ends the run; what was released stands."""


@dataclass(frozen=True)
class RunStart:
    """A run begins, or goes on.

    run: its id, the same after a resume. folder: of the run. facts: the claim's words and numbers
    (`record.claim_record`), method, users, nodes and rounds_planned. settings: of the
    configuration; none with `start`. rows: the metrics of rounds that ended in earlier starts, by
    phase: "rounds", or the name of a question beside them.
    """

    run: str
    folder: Path
    facts: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """One attempt to ask. nodes: the public facts of those that are asked. simulated: no node of
    the run is a device."""

    phase: str
    ticket: Ticket
    query: Query
    nodes: tuple[Hello, ...]
    simulated: bool


class Callback:
    """An observer of a run, or with `check = True` a check; override what is of interest.

    Arrays are read-only. Calls are made one after the other, on the thread of the run, which waits
    for them. Questions and releases are those of this start alone.
    """

    check: ClassVar[bool] = False

    def run_started(self, start: RunStart) -> None:
        """Nothing was asked in this start."""

    def question_asked(self, question: Question) -> None:
        """It is charged and sent next, unless the ledger refuses."""

    def released(self, question: Question, noisy: F64, noise_std: float) -> None:
        """The noisy sum is on disk and its charge committed; nothing was learned from it yet."""

    def round_ended(self, phase: str, row: Row) -> None:
        """A round was learned from and has a checkpoint. row: of metrics.jsonl."""

    def run_ended(self, summary: Row) -> None:
        """The run has its result. summary: as in summary.json, without figures of a benchmark."""

    def run_failed(self, error: str, stopped: bool) -> None:
        """The run ends without a result. error: the name of the exception's class, and no more: an
        exception leads to the values of the run. stopped: by somebody, not by an error."""


class Callbacks:
    """All callbacks of a run, called in their order. Raises TypeError for another object."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = list(callbacks)
        for one in self._callbacks:
            if not isinstance(one, Callback):
                raise TypeError(
                    f"callbacks: {type(one).__name__} is no Callback; subclass "
                    "privsyn_flower.Callback (docs/tracking.md)"
                )
        self._errors: Counter[int] = Counter()
        self._over = False

    def observers(self) -> Callbacks:
        """Without the checks."""
        found = Callbacks(one for one in self._callbacks if not one.check)
        found._errors = self._errors
        return found

    @contextmanager
    def run(self, start: RunStart) -> Iterator[dict[str, Any]]:
        """From `run_started` to `run_ended` or `run_failed`.

        Yields the summary that the block fills in, unless it calls `run_ended` itself.
        """
        summary: dict[str, Any] = {}
        try:
            self._call("run_started", start)
            yield summary
        except BaseException as error:
            self._end("run_failed", type(error).__name__, not isinstance(error, Exception))
            raise
        self._end("run_ended", summary)

    def question_asked(self, question: Question) -> None:
        """Raises CheckFailed; before the question is charged."""
        self._call("question_asked", _read_only(question))

    def released(self, question: Question, noisy: F64, noise_std: float) -> None:
        """Raises CheckFailed; after the commit."""
        self._call("released", _read_only(question), _view(noisy), noise_std)

    def round_ended(self, phase: str, row: Row) -> None:
        """Raises CheckFailed; the round has its checkpoint."""
        self._call("round_ended", phase, row)

    def run_ended(self, summary: Row) -> None:
        """Once; what comes later, such as a benchmark, is told to nobody."""
        self._end("run_ended", summary)

    def _end(self, event: str, *values: object) -> None:
        """Raises nothing, of checks either: the run is over."""
        if self._over:
            return
        self._over = True
        self._call(event, *values, ending=True)
        for one in self._callbacks:
            if (count := self._errors[id(one)]) > 1:
                logger.warning("callback %s: %d calls raised an error", type(one).__name__, count)

    def _call(self, event: str, *values: object, ending: bool = False) -> None:
        for one in self._callbacks:
            try:
                getattr(one, event)(*values)
            except Exception as error:
                if one.check and not ending:
                    if isinstance(error, CheckFailed):
                        raise
                    name = type(one).__name__
                    raise CheckFailed(f"{name}: {type(error).__name__}: {error}") from error
                self._note(one, event, error)

    def _note(self, one: Callback, event: str, error: Exception) -> None:
        """The first error of a callback is logged, its URLs without logins; all are counted."""
        self._errors[id(one)] += 1
        if self._errors[id(one)] == 1:
            told = " ".join(without_logins(f"{type(error).__name__}: {error}").split())[:LONGEST]
            name = type(one).__name__
            logger.warning("callback %s.%s: %s; the run goes on", name, event, told)


def _view(array: np.ndarray[Any, Any]) -> Any:
    found = array.view()
    found.flags.writeable = False
    return found


def _read_only(question: Question) -> Question:
    query = question.query
    extra = {name: _view(array) for name, array in query.extra.items()}
    arrays = {"rows": _view(query.rows), "scales": _view(query.scales), "extra": extra}
    return replace(question, query=replace(query, options=dict(query.options), **arrays))
