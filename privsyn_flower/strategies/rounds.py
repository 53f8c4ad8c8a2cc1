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

import numpy as np
from flwr.serverapp import Grid

from privsyn_flower.privacy.ledger import BudgetExceeded, Ledger
from privsyn_flower.privacy.release import TooFewSurvivors, release
from privsyn_flower.progress import Progress, silent
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.aggregation import Aggregation, Collected, PlainSum, exchange
from privsyn_flower.wire import Hello, Noise, Query, Ticket, WireError, hello, read_hello

logger = logging.getLogger("privsyn_flower")

Vector = np.ndarray[Any, np.dtype[np.float64]]


class NothingSurvived(RuntimeError):
    """No candidate had more votes than the threshold: the release says nothing usable."""

    def __init__(self, rnd: int, threshold: float) -> None:
        super().__init__(
            f"round {rnd}: no candidate has more than H = {threshold:g} votes; "
            "lower pretext.threshold, or use more users or fewer candidates (pretext.population)"
        )


class NoRelease(RuntimeError):
    """Not one round was released, so there is nothing to learn from."""


class TooFewNodes(RuntimeError):
    """The nodes present cannot reach the guaranteed weight, so asking them would be wasted."""


class Strategy(Protocol):
    """A method: two functions around the release, and its state for resume."""

    rounds: int

    def ask(self, rnd: int) -> Query:
        """The public question of round `rnd` (1-based)."""

    def learn(self, rnd: int, released: Vector, noise_std: float) -> dict[str, Any]:
        """Use the noisy sum; returns public metrics. All of it is post-processing."""

    def state(self) -> dict[str, Any]:
        """JSON state after the last `learn`."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""


@dataclass(frozen=True)
class RoundPlan:
    """The public numbers of a run that the guarantee rests on.

    users is the declared population W; the nodes' weights (users each stands for) sum to at
    most W. A sum is released only when the survivors' weight minus colluding_weight * W is at
    least min_surviving_weight * W, for which noise_multiplier * bound is the guaranteed std.
    """

    run: str
    users: int
    noise_multiplier: float
    spare_rounds: int = 1
    min_surviving_weight: float = 0.85
    colluding_weight: float = 0.0
    nodes: int = 1
    round_timeout: float = 600.0
    node_timeout: float = 120.0
    allow_deployed: bool = True

    @property
    def min_weight(self) -> float:
        """W_min in users."""
        return self.min_surviving_weight * self.users

    def released_std(self, bound: float, weight: float) -> float:
        """Std of the noise in a sum over survivors of `weight`: at least the guaranteed one."""
        return self.noise_multiplier * bound * float(np.sqrt(weight / self.min_weight))


@dataclass
class Rounds:
    """Drives a strategy through its rounds over a Flower grid."""

    grid: Grid
    strategy: Strategy
    plan: RoundPlan
    folder: RunFolder
    ledger: Ledger
    aggregation: Aggregation = field(default_factory=PlainSum)
    progress: Progress = silent
    nodes: dict[int, Hello] = field(default_factory=dict)

    def run(self) -> int:
        """All rounds, from the last checkpoint on; returns the number of rounds learned from.

        Fewer than strategy.rounds when the spare rounds or the budget are used up: the run then
        ends early with what it has. Raises NoRelease or NothingSurvived when not even one round
        worked, TooFewNodes when the nodes present cannot reach the guaranteed weight.
        """
        checkpoint = self.folder.last_checkpoint()
        done = int(checkpoint["round"]) if checkpoint else 0
        if checkpoint:
            self.strategy.restore(checkpoint["state"])
        for rnd in range(done + 1, self.strategy.rounds + 1):
            start = time.monotonic()
            facts = self._released(rnd)
            if facts is None:
                break
            released = self.folder.load_release(rnd)
            if released is None:  # pragma: no cover - the release was just stored
                raise RuntimeError(f"the release of round {rnd} vanished from {self.folder.path}")
            noise_std = float(facts["noise_std"])
            try:
                learned = self.strategy.learn(rnd, released, noise_std)
            except NothingSurvived as error:
                if done == 0:
                    raise
                logger.warning("%s; the run ends with the %d rounds before", error, done)
                break
            metrics = {"round": rnd, **facts, **learned, **self._privacy()}
            metrics["seconds"] = round(time.monotonic() - start, 3)
            self.folder.save_checkpoint(rnd, self.strategy.state(), metrics)
            done = rnd
            note = f"epsilon so far {metrics['epsilon_so_far']:.3f}"
            alive = learned.get("candidates_alive")
            note += f", {alive} candidates alive" if alive is not None else ""
            self.progress("rounds", rnd, self.strategy.rounds, note)
        if done == 0:
            raise NoRelease(
                "no round was released: too few nodes answered, or the ledger's budget is used up "
                "(the warnings in the log say which); look at the nodes' refusal codes, "
                "round-timeout, spare-rounds, min-surviving-weight and ledger"
            )
        return done

    def _privacy(self) -> dict[str, float]:
        return {"epsilon_so_far": self.ledger.spent_epsilon(run=self.plan.run)}

    def _released(self, rnd: int) -> dict[str, Any] | None:
        """Make sure round `rnd` has a stored release; None when no attempt is left."""
        name = f"round-{rnd:04d}-facts"
        while True:
            open_charge = self._settle(rnd)
            if open_charge:
                return dict(self.folder.load_value(name) or {})
            failed = self._failed_attempts()
            if failed > self.plan.spare_rounds:
                logger.warning(
                    "round %d: %d failed attempts, spare-rounds = %d: the run ends early",
                    rnd,
                    failed,
                    self.plan.spare_rounds,
                )
                return None
            try:
                self._attempt(rnd, name)
            except BudgetExceeded as error:
                logger.warning("round %d is not asked: %s", rnd, error)
                return None
            except TooFewSurvivors as error:
                logger.warning("round %d: %s; nothing was released", rnd, error)

    def _settle(self, rnd: int) -> bool:
        """After a kill: commit the charge of a stored release, void what was never sent."""
        stored = self.folder.load_release(rnd) is not None
        sent = self.folder.load_value("sent") or {}
        for charge in self.ledger.charges(run=self.plan.run):
            if charge.round != rnd or charge.state != "reserved":
                continue
            if (
                stored
                and (self.folder.load_value(f"round-{rnd:04d}-facts") or {}).get("charge")
                == charge.id
            ):
                self.ledger.commit(charge.id)
            elif charge.id not in sent:
                self.ledger.void(charge.id, "the query was never sent")
        return stored

    def _failed_attempts(self) -> int:
        """Charged attempts without a release: what the spare rounds pay for."""
        charged = [c for c in self.ledger.charges(run=self.plan.run) if c.state == "reserved"]
        return len(charged)

    def _attempt(self, rnd: int, name: str) -> None:
        """Ask once. Raises TooFewSurvivors (charged) or BudgetExceeded (nothing was sent)."""
        query = self.folder.load_query(rnd)
        if query is None:
            query = self.strategy.ask(rnd)
            self.folder.save_query(rnd, query)
        cohort = self._cohort()
        charges = [c for c in self.ledger.charges(run=self.plan.run) if c.round == rnd]
        ticket = Ticket(self.plan.run, query.kind, rnd, len(charges) + 1)
        noise = Noise(self.plan.noise_multiplier * query.bound, self.plan.min_weight)
        charge = self.ledger.reserve(
            run=ticket.run,
            query=ticket.query,
            round=ticket.round,
            attempt=ticket.attempt,
            noise_multiplier=self.plan.noise_multiplier,
        )
        # From here on the charge stands: under plain aggregation it is never void once sent.
        sent = self.folder.load_value("sent") or {}
        self.folder.save_value("sent", {**sent, charge: rnd})
        start = time.monotonic()
        collected = self.aggregation.collect(
            self.grid,
            cohort,
            query,
            ticket,
            noise,
            colluding=self.plan.colluding_weight * self.plan.users,
            timeout=self.plan.round_timeout,
            arrived=lambda n, total: self.progress(f"round {rnd}: nodes", n, total),
        )

        seconds = round(time.monotonic() - start, 3)

        def store(released: Vector) -> None:
            facts = self._facts(charge, ticket, query, collected)
            self.folder.save_value(name, {**facts, "exchange_seconds": seconds})
            self.folder.save_release(rnd, released)

        release(collected.total, ledger=self.ledger, charge_id=charge, store=store)

    def _facts(
        self, charge: str, ticket: Ticket, query: Query, collected: Collected
    ) -> dict[str, Any]:
        std = self.plan.released_std(query.bound, collected.total.weight)
        return {
            "charge": charge,
            "attempt": ticket.attempt,
            "candidates": query.length,
            "noise_std": std,
            "guaranteed_noise_std": collected.total.noise_std,
            "nodes_asked": collected.nodes_asked,
            "nodes_answered": collected.nodes_answered,
            "surviving_weight": collected.total.weight,
            "bytes_down_per_node": collected.bytes_down_per_node,
            "bytes_up_per_node": collected.bytes_up_per_node,
        }

    def _cohort(self) -> dict[int, Hello]:
        """Full participation: every connected node, once their weight reaches W_min.

        Raises TooFewNodes after node_timeout, or when the weights exceed the declared users.
        """
        needed = self.plan.min_weight + self.plan.colluding_weight * self.plan.users
        deadline = time.monotonic() + self.plan.node_timeout
        while True:
            present = set(self.grid.get_node_ids())
            new = sorted(present - set(self.nodes))
            if new:
                left = max(1.0, deadline - time.monotonic())
                self._greet(new, left)
            cohort = {node: facts for node, facts in self.nodes.items() if node in present}
            weight = sum(facts.weight for facts in cohort.values())
            if weight > self.plan.users:
                raise TooFewNodes(
                    f"the nodes stand for {weight} users, the declared population is "
                    f"{self.plan.users}: raise data.users or lower the nodes' weights"
                )
            complete = len(cohort) >= self.plan.nodes or weight == self.plan.users
            late = time.monotonic() > deadline
            if weight >= needed and (complete or late):
                order = sorted(cohort, key=lambda node: (cohort[node].partition, node))
                return {node: cohort[node] for node in order}
            if late:
                raise TooFewNodes(
                    f"{len(cohort)} nodes of weight {weight} answered within "
                    f"{self.plan.node_timeout:g} s, but a sum needs weight {needed:g} "
                    "(min-surviving-weight x data.users): start more nodes or raise node-timeout"
                )
            time.sleep(0.2)

    def _greet(self, nodes: list[int], timeout: float) -> None:
        """Ask new nodes for their public facts; their weight is fixed for the run from here."""
        messages = [hello(node, timeout) for node in nodes]
        replies = exchange(
            self.grid,
            messages,
            timeout,
            lambda n, total: self.progress("nodes", n, total),
            poll=0.1,
        )
        for node, reply in replies.items():
            try:
                facts = read_hello(reply)
            except WireError as error:
                logger.warning("node %d is not enrolled: %s", node, error)
                continue
            if facts.deployed and not self.plan.allow_deployed:
                raise TooFewNodes(
                    "a deployed node is connected, but this configuration is for simulation "
                    "only: set benchmark = false and simulation-seeded-noise = false"
                )
            self._enrol(node, facts)

    def _enrol(self, node: int, facts: Hello) -> None:
        """A node's weight is fixed for the run when it is first seen, on disk for resumes."""
        # Flower numbers simulated nodes anew in every run; their partition stays the same.
        name = f"node {node}" if facts.deployed else f"partition {facts.partition}"
        weights = self.folder.load_value("weights") or {}
        if weights.setdefault(name, facts.weight) != facts.weight:
            logger.warning(
                "%s is not enrolled: its weight %d was %d when the run began",
                name,
                facts.weight,
                weights[name],
            )
            return
        self.folder.save_value("weights", weights)
        self.nodes[node] = facts
