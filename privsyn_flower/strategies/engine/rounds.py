"""The round engine: the same order of steps for every method, because the order is the guarantee.

draw the cohort -> write the query -> reserve the charge -> send -> collect -> too few: stop
-> write the release -> commit the charge -> learn -> checkpoint. A charge is on disk before
anything is revealed, and a round with a stored release is never asked again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.serverapp import Grid

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.evaluation.verdict import excess_of, warn_if_drowned
from privsyn_flower.privacy.ledger import BudgetExceeded, Charge, Ledger, LedgerError
from privsyn_flower.privacy.plan import ROUNDS
from privsyn_flower.privacy.release import TooFewSurvivors, release
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import (
    Aggregation,
    Attempt,
    Refused,
    SecureAggregation,
)
from privsyn_flower.strategies.engine.callbacks import Callbacks, Question
from privsyn_flower.strategies.engine.cohort import Cohort, RoundPlan, check_enough
from privsyn_flower.strategies.engine.mechanisms import Mechanism, NodeNoise, is_trusted

logger = logging.getLogger("privsyn_flower")

# Attempts that end before a node was asked to unmask cost no privacy, but they do cost time. So
# they are counted for each start alone: what made them fail may have been mended since.
MOST_ABORTS = 3
LOST = "the simulation lost workers"


class NothingLearned(RuntimeError):
    """A round says nothing usable; a run that has learned before ends with what it has."""


class NoRelease(RuntimeError):
    """Not one round was released, so there is nothing to learn from."""


class WorkersLost(RuntimeError):
    """Processes of a simulation are gone, and with them whatever is sent to them from now on."""


class Method(Protocol):
    """A method: two functions around the release, and its state for resume."""

    rounds: int

    def ask(self, rnd: int) -> Query:
        """The public question of round `rnd` (1-based)."""

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """Use the noisy sum; returns public metrics. All of it is post-processing."""

    def state(self) -> dict[str, Any]:
        """JSON state after the last `learn`."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""


@dataclass
class Rounds:
    """Drives a strategy through its rounds over a Flower grid.

    callbacks: told of questions, releases and rounds, under the name `phase`.
    whole: name of the run whose charges make epsilon so far, those of all its questions; "": the
    plan's.
    ended_early: why rounds are missing, once `run` is over; "" when none are.
    """

    grid: Grid
    strategy: Method
    plan: RoundPlan
    folder: RunFolder
    ledger: Ledger
    aggregation: Aggregation = field(default_factory=SecureAggregation)
    progress: Progress = silent
    mechanism: Mechanism = field(default_factory=NodeNoise)
    callbacks: Callbacks = field(default_factory=Callbacks)
    phase: str = ROUNDS
    whole: str = ""
    ended_early: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._last = ""  # how the last attempt ended
        self.cohort = Cohort(self.grid, self.plan, self.folder, self.progress)
        self._void_before = 0  # attempts of earlier starts that cost nothing
        self._lost = 0  # workers of the simulation, in the last attempt

    def run(self) -> int:
        """All rounds, from the last checkpoint on; returns the number of rounds learned from.

        Fewer than strategy.rounds when the spare rounds or the budget are used up, or the nodes
        refuse: the run then ends early with what it has, and `ended_early` says why. Raises
        NoRelease or NothingLearned when not even one round worked, WorkersLost after a round that
        a simulation's processes did not outlive, TooFewNodes when the nodes
        present cannot reach the guaranteed weight, LedgerError when folder and ledger do not tell
        of the same releases, CheckFailed as a callback does.
        """
        charges = self.ledger.charges(run=self.plan.run)
        self._check_ledger(charges)
        self._void_before = sum(charge.state == "void" for charge in charges)
        checkpoint = self.folder.last_checkpoint()
        done = int(checkpoint["round"]) if checkpoint else 0
        if checkpoint:
            self.strategy.restore(checkpoint["state"])
        complete = False
        try:
            self._begin(done)
            done = self._run_from(done)
            complete = done == self.strategy.rounds
        finally:  # whatever ended the rounds: others may have the key of the noise
            self.mechanism.close(complete=complete)
        if done == 0:
            raise NoRelease(f"no round was released: {self.ended_early}")
        if not complete:
            rounds = self.strategy.rounds
            logger.warning("ended early after %d of %d rounds: %s", done, rounds, self.ended_early)
        return done

    def _run_from(self, done: int) -> int:
        """The rounds after `done`, as far as they go; returns the last one learned from."""
        if done < self.strategy.rounds:
            self.progress("rounds", done, self.strategy.rounds)
        for rnd in range(done + 1, self.strategy.rounds + 1):
            start = time.monotonic()
            try:
                facts = self._ensure_released(rnd)
                if facts is None:
                    break
                learned = self._learn(rnd, float(facts["noise_std"]))
            except NothingLearned as error:
                if done == 0:
                    raise
                self.ended_early = str(error)
                break
            metrics = {"round": rnd, **facts, **learned, **self._privacy()}
            metrics["seconds"] = round(time.monotonic() - start, 3)
            self.folder.save_checkpoint(rnd, self.strategy.state(), metrics)
            self.callbacks.round_ended(self.phase, dict(metrics))
            done = rnd
            note = f"epsilon so far {at_most(metrics['epsilon_so_far'])}"
            alive = learned.get("candidates_alive")
            note += f", {alive} candidates alive" if alive is not None else ""
            self.progress("rounds", rnd, self.strategy.rounds, note)
        return done

    def _begin(self, done: int) -> None:
        """Make the noise ready, unless every round has its release."""
        released = done + self.folder.has_release(done + 1)
        if released < self.strategy.rounds:
            charges = self.ledger.charges(run=self.plan.run)
            fresh = released == 0 and all(charge.state == "void" for charge in charges)
            self.mechanism.begin(self.strategy.rounds, released, fresh=fresh)
            if is_trusted(self.mechanism):  # before `_settle_charges` gives a charge back
                facts = self.folder.load_value(f"round-{released + 1:04d}-facts") or {}
                charge, attempt = str(facts.get("charge", "")), int(facts.get("attempt", 0))
                self.mechanism.check_claim(released, charge, attempt)

    def _learn(self, rnd: int, noise_std: float) -> dict[str, Any]:
        released = self.mechanism.learned(rnd, self.folder)
        if released is None:  # pragma: no cover - the release was just stored
            raise RuntimeError(f"the release of round {rnd} vanished from {self.folder.path}")
        query = self.folder.load_query(rnd)
        found = excess_of(query, released, noise_std) if query is not None else None
        signal = {"excess": found.value, "excess_degrees": found.degrees} if found else {}
        if found and query and query.kind != "update" and rnd == 1:
            warn_if_drowned(f"{self.phase}, round 1: the {query.kind}", found)
        return {**signal, **self.strategy.learn(rnd, released, noise_std)}

    def _privacy(self) -> dict[str, float]:
        return {"epsilon_so_far": self.ledger.spent_epsilon(run=self.whole or self.plan.run)}

    def _ensure_released(self, rnd: int) -> dict[str, Any] | None:
        """Make sure round `rnd` has a stored release; None when no attempt is left."""
        name = f"round-{rnd:04d}-facts"
        while True:
            stored = self._settle_charges(rnd)
            if stored:
                return dict(self.folder.load_value(name) or {})
            if not self._attempt_left(rnd):
                return None
            self._check_workers(rnd)
            try:
                self._attempt(rnd, name)
            except BudgetExceeded as error:
                logger.warning("round %d is not asked: %s", rnd, error)
                name = self.ledger.header.population
                self.ended_early = f"the ledger of population {name} is used up"
                return None
            except Refused as error:
                self.ended_early = f"round {rnd}: {error}"
                return None
            except TooFewSurvivors as error:
                logger.warning("round %d: %s; nothing was released", rnd, error)
                self._last = f"; the last, of round {rnd}: {error}"

    def _settle_charges(self, rnd: int) -> bool:
        """After a kill: commit the charge of a stored release, void what was never sent."""
        stored = self.folder.has_release(rnd)
        if not stored:  # the same noise may come again: half a file must not stay beside it
            self.folder.drop_unfinished_release(rnd)
        paid = (self.folder.load_value(f"round-{rnd:04d}-facts") or {}).get("charge")
        for charge in self.ledger.charges(run=self.plan.run):
            if charge.round != rnd or charge.state != "reserved":
                continue
            if stored and charge.id == paid:
                self.ledger.commit(charge.id)
            elif not charge.sent:
                self.ledger.void(charge.id, "the query was never sent")
        return stored

    def _attempt_left(self, rnd: int) -> bool:
        """Whether the calibration pays for one more attempt, and it would say something."""
        charges = self.ledger.charges(run=self.plan.run)
        once = self.mechanism.last_once and rnd == self.strategy.rounds
        if once and any(c.round == rnd and c.sent for c in charges):
            why = "failed after nodes may have erased earlier rounds: it is not asked again"
            self.ended_early = f"round {rnd}, the last, {why}{self._last}"
            return False
        aborted = sum(c.state == "void" for c in charges) - self._void_before
        if aborted >= self.strategy.rounds + MOST_ABORTS:
            self.ended_early = f"{aborted} attempts ended before anything was unmasked{self._last}"
            return False
        charged = [c for c in charges if c.state != "void"]
        failed = sum(c.state == "reserved" for c in charged)
        spare = self.plan.spare_rounds
        if failed <= spare and len(charged) < self.strategy.rounds + spare:
            return True
        self.ended_early = (
            f"{len(charged)} attempts are charged, {failed} of them without a release, with "
            f"spare-rounds = {spare}{self._last}"
        )
        return False

    def _check_ledger(self, charges: list[Charge]) -> None:
        """Every release in the folder is charged, and every charged one is in the folder.

        Raises LedgerError for another ledger than the run's, and for a folder that is behind its
        ledger: to go on there would release again what another copy of it has released.
        """
        states = {(charge.id, charge.round): charge.state for charge in charges}
        for rnd in range(1, self.strategy.rounds + 1):
            facts = self.folder.load_value(f"round-{rnd:04d}-facts")
            if facts and (facts["charge"], rnd) not in states:
                raise LedgerError(
                    f"{self.ledger.path} has no charge {facts['charge']} for round {rnd} of this "
                    "run: it is not the ledger the run began with (key ledger)"
                )
            stored = self.folder.has_release(rnd)
            if stored and (not facts or states[facts["charge"], rnd] == "void"):
                raise LedgerError(
                    f"the release of round {rnd} in {self.folder.path} has no charge in "
                    f"{self.ledger.path}: another copy of this run folder went on without it; go "
                    "on with that one, or start a new run in another folder"
                )
        for charge in charges:
            if charge.state == "committed" and not self.folder.has_release(charge.round):
                raise LedgerError(
                    f"round {charge.round} was released (charge {charge.id} in {self.ledger.path}),"
                    f" but its release is missing in {self.folder.path}: the folder was put back, "
                    "or another copy of it went on; go on with that one, or restore the run "
                    "folder, or start a new run in another folder"
                )

    def _attempt(self, rnd: int, name: str) -> None:
        """Ask once. Raises TooFewSurvivors (charged) or BudgetExceeded (nothing was sent)."""
        charges = [c for c in self.ledger.charges(run=self.plan.run) if c.round == rnd]
        query = self.folder.load_query(rnd)
        if query is None:
            if not self.cohort.nodes:  # too few of them are told before there is work
                check_enough(len(self.cohort.draw(rnd, len(charges) + 1)), self.aggregation.name)
            query = self.strategy.ask(rnd).only_for(self.plan.group)
            self.folder.save_query(rnd, query)
        ticket = Ticket(self.plan.run, query.kind, rnd, len(charges) + 1)
        cohort = self.cohort.draw(rnd, ticket.attempt)
        check_enough(len(cohort), self.aggregation.name)
        plan = self.plan.drawn(sum(facts.weight for facts in cohort.values()))
        noise = self.mechanism.noise(plan, query)
        question = self._question(ticket, query, tuple(cohort.values()))
        self.callbacks.question_asked(question)
        repeated = any(charge.state != "void" for charge in charges)
        charge = self.ledger.reserve(
            run=ticket.run,
            query=ticket.query,
            round=ticket.round,
            attempt=ticket.attempt,
            **self.mechanism.charge(query, noise, rnd, repeated=repeated),
            group=self.plan.group and f"{self.whole or ticket.run}/{self.plan.group}",
        )
        self.cohort.enrol()
        start = time.monotonic()
        attempt = Attempt(
            self.grid,
            cohort,
            query,
            ticket,
            noise,
            timeout=self.plan.round_timeout,
            stage_timeout=self.plan.stage_timeout,
            arrived=lambda n, total: self.progress(f"round {rnd}: nodes", n, total),
            revealing=lambda: self._revealing(charge),
        )
        try:
            collected = self.aggregation.collect(attempt)
            total = self.mechanism.finish(rnd, collected.total, repeated=repeated)
        except TooFewSurvivors as error:
            if not self.ledger.charge(charge).sent:
                self.ledger.void(charge, f"nothing was revealed: {error}")
            raise
        finally:
            self._lost = sum(absence.lost for absence in attempt.absent.values())
        seconds = round(time.monotonic() - start, 3)

        std = self.mechanism.released_std(rnd, plan, query, noise, total.weight)

        def store(released: F64) -> None:
            facts = {"charge": charge, "mechanism": self.mechanism.name, "noise_std": std}
            facts |= collected.facts(ticket, query)
            facts["guaranteed_noise_std"] = self.mechanism.guaranteed_std(rnd, query, noise)
            self.folder.save_value(name, {**facts, "exchange_seconds": seconds})
            if is_trusted(self.mechanism):
                self.mechanism.claim(rnd, charge, ticket.attempt)
            self.folder.save_release(rnd, released)
            self.mechanism.bind(rnd)

        released = release(total, ledger=self.ledger, charge_id=charge, store=store)
        learned = self.mechanism.learned(rnd, self.folder)
        self.callbacks.released(question, released if learned is None else learned, std)

    def _question(self, ticket: Ticket, query: Query, nodes: tuple[Hello, ...]) -> Question:
        """As callbacks are told of it; one device among the nodes, and it is no simulation."""
        devices = any(facts.deployed for facts in (*self.cohort.nodes.values(), *nodes))
        return Question(self.phase, ticket, query, nodes, simulated=not devices)

    def _check_workers(self, rnd: int) -> None:
        """Flower 1.41 goes on giving messages to a worker that is gone, first of all: it answers
        at once, with an error. So no question of a simulation is asked again before a new start,
        which has workers where there still are machines. Raises WorkersLost."""
        simulated = not any(facts.deployed for facts in self.cohort.nodes.values())
        if self._lost and simulated:
            raise WorkersLost(
                f"{LOST} in mid-round: {self._lost} nodes' workers are gone (a machine of the Ray "
                "cluster, or the memory for them). What was released stands; start it again, from "
                f"round {rnd} on, with privsyn run --resume {self.folder.path}"
            )

    def _revealing(self, charge: str) -> None:
        """From here on the charge stands, but for a trusted aggregator: it gives nothing away
        before the release is on disk, and a round without one has cost nothing."""
        if not self.mechanism.trusted:
            self.ledger.mark_sent(charge)
