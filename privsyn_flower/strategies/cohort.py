"""Who is asked: the plan's public numbers, and the nodes that are present with their weights."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from flwr.serverapp import Grid

from privsyn_flower.exchange import exchange
from privsyn_flower.greeting import HELLO, Hello, hello, read_hello
from privsyn_flower.progress import Progress, silent
from privsyn_flower.randomness import seeded
from privsyn_flower.runs import RunFolder
from privsyn_flower.wire import WireError

logger = logging.getLogger("privsyn_flower")

GREETING_SECONDS = 30.0


class WrongNode(RuntimeError):
    """A node of another kind than the run is for: real users are never part of a simulation."""


class TooFewNodes(RuntimeError):
    """The nodes present cannot reach the guaranteed weight, so asking them would be wasted."""


@dataclass(frozen=True)
class RoundPlan:
    """The public numbers of a run that the guarantee rests on.

    users is the declared population W; the nodes' weights (users each stands for) sum to at
    most W. A sum is released only when the survivors' weight minus colluding_weight * W is at
    least min_surviving_weight * W, for which noise_multiplier * bound is the guaranteed std.

    sampling_rate: each user takes part in a round with this probability, by its node's own coin;
    the node works for those left out, too.
    cohort_nodes: the server draws this many nodes for a round (0: all). W is theirs then, but
    the colluders of the whole population (colluding_users) may all be among them, and no
    amplification is claimed.
    cycle: a rota: the node at place i of the enrolment is asked in rounds with (rnd - 1 - i) %
    cycle == 0 (0: every round), with W as for a draw. greeting: message type of the hello, "train"
    for apps that answer nothing else.
    """

    run: str
    users: int
    noise_multiplier: float
    spare_rounds: int = 1
    min_surviving_weight: float = 0.85
    colluding_weight: float = 0.0
    nodes: int = 1
    round_timeout: float = 600.0
    stage_timeout: float = 60.0
    node_timeout: float = 120.0
    kind: Literal["any", "simulated", "deployed"] = "any"
    seeded_noise: bool = False
    sampling_rate: float = 1.0
    cohort_nodes: int = 0
    seed: int = 0
    colluding_users: int | None = None
    greeting: str = HELLO
    cycle: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError when no cohort could ever carry the guaranteed noise."""
        if self.cycle < 0 or (self.cycle and self.cohort_nodes):
            raise ValueError(
                f"cycle = {self.cycle} with cohort-nodes = {self.cohort_nodes}: a rota and a draw "
                "exclude each other, and a cycle has at least 1 round (0: no rota)"
            )
        if self.min_weight + self.colluding > self.users:
            raise ValueError(
                f"min-surviving-weight = {self.min_surviving_weight} and colluding-weight = "
                f"{self.colluding_weight} need {self.min_weight} + {self.colluding} of "
                f"{self.users} users: lower one of them"
            )

    @property
    def min_weight(self) -> int:
        """W_min in whole users, rounded up (weights are whole numbers)."""
        return max(1, math.ceil(self.min_surviving_weight * self.users - 1e-9))

    @property
    def colluding(self) -> int:
        """The weight assumed colluding in whole users, rounded up."""
        if self.colluding_users is not None:
            return self.colluding_users
        return math.ceil(self.colluding_weight * self.users - 1e-9)

    def drawn(self, weight: int) -> RoundPlan:
        """The numbers of a round whose cohort stands for `weight` users."""
        if not self.cohort_nodes and not self.cycle:
            return self
        return replace(self, users=weight, colluding_users=self.colluding)

    def released_std(self, bound: float, weight: float) -> float:
        """Std of the noise in a sum over survivors of `weight`: at least the guaranteed one."""
        return self.noise_multiplier * bound * float(np.sqrt(weight / self.min_weight))


@dataclass
class Cohort:
    """The nodes of a run: every one that is connected, or a draw of a fixed size a round."""

    grid: Grid
    plan: RoundPlan
    folder: RunFolder
    progress: Progress = silent
    nodes: dict[int, Hello] = field(default_factory=dict)

    def draw(self, rnd: int, attempt: int) -> dict[int, Hello]:
        """The nodes of this attempt: all who are there, whose turn it is, or a draw of them."""
        present = self.present()
        if self.plan.cycle:
            return self._due(rnd, present)
        size = self.plan.cohort_nodes
        if not size:
            return present
        if len(present) < size:
            raise TooFewNodes(
                f"{len(present)} nodes are connected, cohort-nodes = {size} are drawn: start more "
                "nodes or lower cohort-nodes"
            )
        self._check_lightest(present, size)
        order = list(present)
        chosen = seeded(self.plan.seed, rnd, f"cohort {attempt}").choice(
            len(order), size, replace=False
        )
        return {order[i]: present[order[i]] for i in sorted(chosen)}

    def _due(self, rnd: int, present: dict[int, Hello]) -> dict[int, Hello]:
        """The nodes of the rota whose turn it is. Raises TooFewNodes when a turn is too light.

        A node keeps its place for the run, whoever else comes or goes: its users count the
        rounds between two turns.
        """
        cycle = self.plan.cycle
        places = self.folder.load_value("places") or {}
        for node, facts in present.items():
            places.setdefault(_name(node, facts), len(places))
        self.folder.save_value("places", places)
        turns: list[dict[int, Hello]] = [{} for _ in range(cycle)]
        for node, facts in present.items():
            turns[places[_name(node, facts)] % cycle][node] = facts
        for turn in turns:
            weight = sum(facts.weight for facts in turn.values())
            try:
                self.plan.drawn(weight)
            except ValueError as error:
                raise TooFewNodes(
                    f"a turn of the rota (cycle = {cycle}) stands for {weight} users: start more "
                    f"nodes, or lower cycle, colluding-weight or min-surviving-weight ({error})"
                ) from None
        return turns[(rnd - 1) % cycle]

    def _check_lightest(self, present: dict[int, Hello], size: int) -> None:
        """No draw is too light for its own conditions. Raises TooFewNodes before any is made."""
        lightest = sum(sorted(facts.weight for facts in present.values())[:size])
        try:
            self.plan.drawn(lightest)
        except ValueError as error:
            raise TooFewNodes(
                f"a draw of cohort-nodes = {size} may stand for {lightest} users only, and all "
                f"{self.plan.colluding} users assumed colluding may be among them: raise "
                f"cohort-nodes, or lower colluding-weight or min-surviving-weight ({error})"
            ) from None

    def present(self) -> dict[int, Hello]:
        """Every connected node with its facts, once their weight reaches W_min.

        Raises TooFewNodes after node_timeout, or when the weights exceed the declared users.
        """
        # A draw brings its own W_min: here it needs its nodes, not the population's weight.
        size = self.plan.cohort_nodes or self.plan.cycle
        needed = 1 if size else self.plan.min_weight + self.plan.colluding
        deadline = time.monotonic() + self.plan.node_timeout
        while True:
            present = set(self.grid.get_node_ids())
            new = sorted(present - set(self.nodes))
            if new:
                # One silent node must not hold up the others for the whole node-timeout.
                self._greet(new, min(GREETING_SECONDS, self.plan.node_timeout))
            cohort = {node: facts for node, facts in self.nodes.items() if node in present}
            weight = sum(facts.weight for facts in cohort.values())
            if weight > self.plan.users:
                raise TooFewNodes(
                    f"the nodes stand for {weight} users, the declared population is "
                    f"{self.plan.users}: raise data.users or lower the nodes' weights"
                )
            complete = len(cohort) >= self.plan.nodes or weight == self.plan.users
            late = time.monotonic() > deadline
            if weight >= needed and len(cohort) >= size and (complete or late):
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
        messages = [hello(node, timeout, self.plan.greeting) for node in nodes]
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
            self._check_kind(facts)
            self._enrol(node, facts)

    def _check_kind(self, facts: Hello) -> None:
        """Real users never meet a simulation's settings. Raises WrongNode."""
        kind = "deployed" if facts.deployed else "simulated"
        if self.plan.kind not in ("any", kind):
            raise WrongNode(
                f"a {kind} node is connected to a {self.plan.kind} run: a deployment has "
                "data.source = 'files' and an empty data.path, and its nodes name their own data"
            )
        if facts.seeded != self.plan.seeded_noise:
            raise WrongNode(
                f"a node's noise is {'' if facts.seeded else 'not '}drawn from the seed, this "
                f"run's simulation-seeded-noise is {str(self.plan.seeded_noise).lower()}"
            )

    def _enrol(self, node: int, facts: Hello) -> None:
        """A node's weight is fixed for the run when it is first seen, on disk for resumes."""
        name = _name(node, facts)
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


def _name(node: int, facts: Hello) -> str:
    """What a node is called in the run folder."""
    # Flower numbers simulated nodes anew in every run; their partition stays the same.
    return f"node {node}" if facts.deployed else f"partition {facts.partition}"
