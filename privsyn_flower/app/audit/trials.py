"""Many trials of a run's releases through the path that a run takes, in this process.

The engine (`strategies.engine.rounds`) asks nodes that are functions here (`audit.path`), with its
hello, its secure sum, the noise of a trusted aggregator, the ledger and the release. Models are
tiny, because what a text's embedding or gradient is does not enter any bound.

A sum of rotated answers is decoded as in a run and then rotated back, which changes no length and
no noise: the trials lie side by side again.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.serverapp import Grid

from privsyn_flower.app.audit.path import (
    AuditError,
    Case,
    Loopback,
    Seat,
    Sent,
    View,
    colluders_noise,
    handlers,
    repeated,
)
from privsyn_flower.common.arrays import F64, I64, Bools
from privsyn_flower.privacy.encoding.dense import padded_length, rotate
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.protocol.messaging import in_process
from privsyn_flower.protocol.noise import Noise, encoded_length, integer_plan, matrix_of
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import Aggregation
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import Mechanism
from privsyn_flower.strategies.engine.rounds import NoRelease, Rounds

RUN = "run"  # the run folder, in that of the audit


@dataclass(frozen=True)
class Setting:
    """Who answers, in how many rounds, and who adds what noise.

    mechanism: folder of the audit -> the noise. ledger: what the run's is made with.
    """

    plan: RoundPlan
    seats: Sequence[Seat]
    aggregation: Aggregation
    mechanism: Callable[[Path], Mechanism]
    ledger: Mapping[str, Any]
    rounds: int = 1


@dataclass(frozen=True)
class Trials:
    """What an adversary sees who knows every text, which others are sampled, and the
    colluders' noise; and what the auditor knows of the canary.

    noise (R, T, L): what R rounds are learned from in T trials, less all that users put into it.
    shifts (k, R, L): what the canary changes without noise when it is sampled, in units of the
    bound, with its neighbour sampled and without; zeros in rounds that are not its
    turn. which (T,): the way that it was. present (T,): whether the canary took part. put (T,):
    how much of its shift is in the sums: 1 when it was sampled, else 0. draws (T, U): which users
    were sampled in the first round. numbers: what is charged. spent: epsilon of all rounds,
    by the ledger.
    """

    noise: F64
    shifts: F64
    which: I64
    present: Bools
    put: F64
    draws: Bools
    numbers: Noise
    spent: float


def run_trials(case: Case, setting: Setting, trials: int) -> Trials:
    """`trials` independent runs of `case`, the canary in every other one.

    Colluders' noise, known to them, is taken off. Raises AuditError when a round is not released
    or the canary had no part in any.
    """
    view = View(trials, copies=trials if setting.plan.sampling_rate < 1 else 1)
    query = _side_by_side(case.query, trials)
    asked = replace(case, kind=repeated(case, view))
    with tempfile.TemporaryDirectory(prefix="privsyn-audit-") as name, in_process():
        folder = Path(name)
        mechanism = _OneTrial(setting.mechanism(folder), case.query)
        released, spent = _released(asked, query, setting, mechanism, view, folder)
        noise = mechanism.noises[0]
        foreign = colluders_noise(asked, query, noise, setting.seats, folder, setting.rounds)
    if view.failures:
        raise AuditError(f"a node's answer failed: {view.failures[0]}") from view.failures[0]
    scale, width = integer_plan(query, noise).scale, encoded_length(case.query)
    lost = {seat.partition for seat in setting.seats if seat.role == "lost"}
    left = np.empty((setting.rounds, trials, width))
    known = _decorrelated(query, foreign)
    for at, vector in enumerate(released):
        flat = rotate(vector, query.rotation) if query.dense else vector
        flat = flat - known[at] / scale
        left[at] = flat[: trials * width].reshape(trials, width)
        sent = [node for place, node in view.known[at + 1].items() if place not in lost]
        left[at] -= sum(node.vectors() for node in sent) / scale
    place = next(seat.partition for seat in setting.seats if seat.role == "canary")
    first = view.known[1]
    return Trials(
        left,
        *_canary([view.known[rnd + 1].get(place) for rnd in range(setting.rounds)], scale),
        np.concatenate([node.sampled[node.which] for node in first.values()], axis=1),
        noise,
        spent,
    )


def _decorrelated(query: Query, rows: Sequence[I64]) -> list[F64]:
    """Noise that was added to rows, as it is in what a round is learned from."""
    matrix, found = matrix_of(query), list[F64]()
    for rnd, row in enumerate(rows, start=1):
        own = row.astype(np.float64)
        if matrix is not None:
            own = matrix.decorrelate(rnd, own / matrix.unit, lambda past: found[past - 1])
        found.append(own)
    return found


def _canary(sent: list[Sent | None], scale: float) -> tuple[F64, I64, Bools, F64]:
    """shifts, which, present and put of `Trials`, by what the canary's node sent in each round.

    None: it was not asked, because it was not its turn.
    """
    asked = next(node for node in sent if node)
    silent = np.zeros_like(asked.fell)
    shifts = np.stack([node.shifts if node else silent for node in sent], axis=1) / scale
    if not shifts.any():
        raise AuditError("the canary's vector is zero: there is nothing to distinguish")
    fell = np.stack([node.fell - node.without if node else silent for node in sent], axis=1)
    squares = np.square(shifts).sum(axis=(1, 2))
    put = (fell * shifts).sum(axis=(1, 2)) / scale / np.where(squares > 0, squares, 1.0)
    which = asked.which
    present = np.arange(len(which)) % 2 == 0
    put = put[which] * present
    if not put.any():
        raise AuditError("the canary was never sampled: raise --trials or sampling-rate")
    return shifts, which, present, put


def _side_by_side(query: Query, trials: int) -> Query:
    """The question whose answer is the answers of all trials; whole blocks where it is rotated."""
    length = trials * encoded_length(query)
    return replace(query, length=padded_length(length) if query.dense else length)


def _released(
    case: Case,
    query: Query,
    setting: Setting,
    mechanism: _OneTrial,
    view: View,
    folder: Path,
) -> tuple[list[F64], float]:
    """All rounds of the real engine: what each of them releases (length,), and their epsilon."""
    strategy = _Same(query, setting.rounds, view)
    ledger = Ledger.open(folder / "ledger.jsonl", population="audit", **setting.ledger)
    engine = Rounds(
        cast(Grid, Loopback(handlers(case, setting.seats, folder, view.copies))),
        strategy,
        setting.plan,
        RunFolder(folder / RUN),
        ledger,
        setting.aggregation,
        mechanism=cast(Mechanism, mechanism),
    )
    with _warnings() as warnings:
        try:
            engine.run()
        except NoRelease:
            raise AuditError(f"nothing was released: {'; '.join(warnings())}") from None
        if len(strategy.released) < setting.rounds:
            done = len(strategy.released)
            raise AuditError(f"only {done} rounds were released: {'; '.join(warnings())}")
    return strategy.released, ledger.spent_epsilon()


class _OneTrial:
    """A mechanism with the encoding of one trial's vector, and its charge: a longer one is rounded
    otherwise, and its noise is further from Gaussian."""

    def __init__(self, mechanism: Mechanism, query: Query) -> None:
        self._mechanism, self._query = mechanism, query
        self.noises: list[Noise] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def noise(self, plan: RoundPlan, query: Query) -> Noise:
        """The numbers of a round, kept in `noises`."""
        # An aggregator's stream is as long as its sums; what nodes add is that of one trial.
        noise = self._mechanism.noise(plan, query if self._mechanism.trusted else self._query)
        one = self._mechanism.encoding(plan, self._query)
        # The largest of many more draws is a little larger; a rotated sum spreads out instead.
        bits = one.bits if query.dense else min(56, one.bits + 8)
        noise = replace(noise, sensitivity=one.sensitivity, bits=bits)
        if query.dense:
            noise = replace(noise, scale=one.scale)
        self.noises.append(noise)
        return noise

    def charge(self, query: Query, noise: Noise, rnd: int, **attempt: bool) -> dict[str, Any]:
        """What a round of one trial costs."""
        return self._mechanism.charge(self._query, noise, rnd, **attempt)


@contextmanager
def _warnings() -> Iterator[Callable[[], list[str]]]:
    """The package's first warnings, kept and not printed: a node is lost on purpose."""
    logger, handler = logging.getLogger("privsyn_flower"), BufferingHandler(1000)
    passed_on = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False

    def first() -> list[str]:
        return list(dict.fromkeys(record.getMessage() for record in handler.buffer))[:3]

    try:
        yield first
    finally:
        logger.removeHandler(handler)
        logger.propagate = passed_on


class _Same:
    """A strategy that asks one question in every round and keeps what is released."""

    def __init__(self, query: Query, rounds: int, view: View) -> None:
        self.query, self.rounds, self.view = query, rounds, view
        self.released: list[F64] = []

    def ask(self, rnd: int) -> Query:
        self.view.rnd = rnd
        return self.query

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        self.released.append(released)
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing is kept: an audit is not resumed."""
