"""Who is asked: the plan's public numbers, and the nodes that are present with their weights."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
from flwr.serverapp import Grid

from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.protocol.greeting import HELLO, PRIVATE, Hello, NoFacts, greet
from privsyn_flower.protocol.messaging import Absence, tally
from privsyn_flower.runs import RunFolder
from privsyn_flower.secagg import LEAST_NODES

logger = logging.getLogger("privsyn_flower")

GREETING_SECONDS, GREETING_EACH = 30.0, 0.5  # for all, and for each: the SuperLink takes 0.1 s
SETTLE_SECONDS = 3.0  # without a newcomer: nobody else is about to come


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

    sampling_rate: each user takes part in a round with this probability, by client-side
    Poisson sampling; the node works for those left out, too.
    cohort_nodes: the server draws this many nodes for a round (0: all). W is theirs then, but
    the colluders of the whole population (colluding_users) may all be among them, and no
    amplification is claimed.
    distance: total variation that one release's integer noise may be from Gaussian noise.
    cycle: a rota: the node at place i of the enrolment is asked in rounds with (rnd - 1 - i) %
    cycle == 0 (0: every round), with W as for a draw. greetings: message types of the hello, all of
    which a node must answer (PRIVATE has those of somebody else's app). group: nodes of these
    `resources` alone are asked ("": all), and users, nodes and the weights are theirs.
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
    greetings: tuple[str, ...] = (HELLO,)
    cycle: int = 0
    distance: float = 1.0
    group: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError when no cohort could ever carry the guaranteed noise."""
        if self.cycle < 0 or (self.cycle and self.cohort_nodes):
            raise ValueError(
                f"cycle = {self.cycle} with cohort-nodes = {self.cohort_nodes}: a rota and a draw "
                "exclude each other, and a cycle has at least 1 round (0: no rota)"
            )
        whose = f"{self.group} nodes' " if self.group else ""
        if self.min_weight + self.colluding > self.users:
            raise ValueError(
                f"min-surviving-weight = {self.min_surviving_weight} and colluding-weight = "
                f"{self.colluding_weight} need {self.min_weight} + {self.colluding} of "
                f"{self.users} {whose}users: lower one of them"
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


def check_enough(nodes: int, aggregation: str) -> None:
    """Raises TooFewNodes where no sum can be made of so few, whatever they weigh."""
    if aggregation == "secure" and nodes < LEAST_NODES:
        raise TooFewNodes(
            f"secure aggregation needs at least {LEAST_NODES} nodes, {nodes} would be asked: start "
            "more SuperNodes (in Flower's simulation: num-supernodes, which is 2 unless set; with "
            "privsyn run: nodes) and count them in users and nodes"
        )


@dataclass
class Cohort:
    """The nodes of a run: every one that is connected, or a draw of a fixed size a round."""

    grid: Grid
    plan: RoundPlan
    folder: RunFolder
    progress: Progress = silent
    nodes: dict[int, Hello] = field(default_factory=dict)
    beyond: dict[int, Hello] = field(default_factory=dict)  # once without room, which was said

    def __post_init__(self) -> None:
        self._waited = bool(self.nodes)  # for those who are missing; once a run
        self._tried: dict[int, float] = {}  # when a node answered its greeting with no facts
        self._absent: dict[int, Absence] = {}
        self._changed: dict[int, Absence] = {}  # nodes of another weight than when they were asked
        self._here: set[int] = set()
        self._grown = time.monotonic()  # when a node came last
        self._noted: tuple[int, ...] = ()
        self._places: dict[str, int] = {}  # of a rota
        self._missed = ""  # the greeting that was answered without facts, the last one

    def enrol(self) -> None:
        """Fix the weights and places of who is known on disk, for resumes: they are about to be
        asked. What was only greeted binds nobody: the next start may have other nodes."""
        own = {"weights": self._weights(), "places": self._places, "resources": self._resources()}
        for name, found in own.items():
            if found and found != self.folder.load_value(name):
                self.folder.save_value(name, found)

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
        places = self._places = self._places or self.folder.load_value("places") or {}
        for node, facts in present.items():
            places.setdefault(_name(node, facts), len(places))
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

        The first time it waits for all nodes, node_timeout at most; later it goes on without who
        is missing, as long as the weight suffices. Raises TooFewNodes when it does not, when all
        nodes fail or refuse, or when the first weights exceed the declared users.
        """
        # A draw brings its own W_min: here it needs its nodes, not the population's weight.
        size = self.plan.cohort_nodes or self.plan.cycle
        needed = 1 if size else self.plan.min_weight + self.plan.colluding
        start = time.monotonic()
        while True:
            here = set(self.grid.get_node_ids())
            self._greet_new(here)
            cohort = self._within(here)
            weight = sum(facts.weight for facts in cohort.values())
            complete = len(cohort) >= self.plan.nodes or weight == self.plan.users
            waited = time.monotonic() - start
            late = waited > self.plan.node_timeout or self._nobody_else(here)
            enough = weight >= needed and len(cohort) >= size
            if enough and (complete or late or self._waited):
                self._waited = True
                self._note_missing(cohort, weight, needed)
                return dict(sorted(cohort.items(), key=lambda item: (item[1].partition, item[0])))
            if late:
                raise TooFewNodes(self._too_few(cohort, weight, needed, waited))
            self._note_waiting(cohort, weight, needed, waited)
            time.sleep(0.2)

    def _within(self, here: set[int]) -> dict[int, Hello]:
        """The plan's nodes that are here, as many as stand for `users` at most: once a run has its
        cohort, in a resume too, whoever was asked first goes before. Raises TooFewNodes earlier."""
        self.nodes |= {node: facts for node, facts in self.beyond.items() if node in here}
        found = {node: facts for node, facts in self._mine().items() if node in here}
        weight, most = sum(facts.weight for facts in found.values()), self.plan.users
        if weight <= most:
            return found
        if not self._waited and not self.folder.load_value("weights"):
            raise TooFewNodes(self._too_many(found, weight))
        place, room = {name: number for number, name in enumerate(self._weights())}, most
        for node, facts in sorted(found.items(), key=lambda item: place[_name(*item)]):
            if facts.weight <= room:
                room -= facts.weight
                continue
            if node not in self.beyond:
                text = f"its weight {facts.weight} is above the {room} left of users = {most}"
                logger.warning("%s is not asked: %s", _name(node, facts), text)
            self.beyond[node] = facts
            del found[node], self.nodes[node]
        return found

    def _too_many(self, found: dict[int, Hello], weight: int) -> str:
        heaviest = sorted(found.items(), key=lambda item: -item[1].weight)[:5]
        named = ", ".join(f"{_name(*item)}: {item[1].weight}" for item in heaviest)
        share = " or change resource-adaptive.weak-users" if self.plan.group else ""
        return (
            f"the {self.plan.group or 'connected'} nodes stand for {weight} users (the "
            f"heaviest: {named}), the declared population is {self.plan.users}: raise data.users, "
            f"lower the nodes' weights{share}"
        )

    def _greet_new(self, here: set[int]) -> None:
        """Greet who is new or came back; while a run waits for its first cohort, also those again
        who gave no facts. Raises TooFewNodes when nobody ever does."""
        if here - self._here:
            self._grown = time.monotonic()
        self._here = here
        self._tried = {node: at for node, at in self._tried.items() if node in here}
        self._absent = {node: why for node, why in self._absent.items() if node in here}
        self._changed = {node: why for node, why in self._changed.items() if node in here}
        for node in self.beyond.keys() - here:  # it may come back with a weight that has room
            del self.beyond[node]
        now, again = time.monotonic(), math.inf if self._waited else GREETING_SECONDS
        strangers = sorted(here - {*self.nodes, *self._changed, *self.beyond})
        new = [node for node in strangers if now - self._tried.get(node, -math.inf) >= again]
        if new:
            # One silent node must not hold up the others for the whole node-timeout.
            patience = GREETING_SECONDS + GREETING_EACH * len(new)
            self._greet(new, min(patience, self.plan.node_timeout))
            if self._absent:
                logger.warning("greeting: %s", tally(self._absent, len(here)))
        failed = [not why.code for why in self._absent.values()]
        everybody = len(failed) == len(here) and (all(failed) or len(here) >= self.plan.nodes)
        if here and not self.nodes and everybody and self._settled():
            raise TooFewNodes(self._nobody())

    def _settled(self) -> bool:
        return time.monotonic() - self._grown > min(SETTLE_SECONDS, self.plan.node_timeout)

    def _nobody_else(self, here: set[int]) -> bool:
        """Whether it is no use to wait: a simulation's nodes are all there from the start."""
        simulated = not any(facts.deployed for facts in self.nodes.values())
        known = {*self.nodes, *self._changed, *self.beyond}
        return bool(known) and here <= known and simulated and self._settled()

    def _nobody(self) -> str:
        """What is wrong when no node gives its facts."""
        told = tally(self._absent, len(self._here))
        if any(why.code for why in self._absent.values()):
            return f"{told}: the nodes' own logs say why (docs/deployment.md)"
        if decorator := PRIVATE.get(self._missed):
            return (
                f"{told}: their {self._missed} function is not private. Put {decorator} below "
                f"@app.{self._missed}() in the ClientApp; or the function has an action name, as "
                f'in @app.{self._missed}("fit"), or the ClientApp has mods that read messages, '
                "such as clipping: take those out (docs/dropin.md)"
            )
        return (
            f"{told}: the app's ClientApp must be privsyn_flower.client_apps.main:app, and its "
            "packages must be installed on the nodes (docs/deployment.md)"
        )

    def _too_few(self, cohort: dict[int, Hello], weight: int, needed: float, waited: float) -> str:
        group = self.plan.group
        whose = f" of {group} nodes; node-config resources says which a node is" if group else ""
        text = (
            f"{len(cohort)} nodes of weight {weight} answered within {waited:.0f} s, but a sum "
            f"needs weight {needed:g} (min-surviving-weight x data.users{whose})"
        )
        if self._changed:
            return (
                f"{text}; {tally(self._changed, len(self._here))}: start as many nodes as then, or "
                "choose another folder for a new run"
            )
        text += ": start more nodes"
        if cohort and not any(facts.deployed for facts in cohort.values()):
            text += " (in Flower's simulation: num-supernodes, which is 2 unless set)"
        else:
            text += " or raise node-timeout"
        over = Absence(f"would exceed users = {self.plan.users}")
        absent = self._absent | dict.fromkeys(self.beyond.keys() & self._here - cohort.keys(), over)
        return text + (f"; {tally(absent, len(self._here))}" if absent else "")

    def _note_waiting(
        self, cohort: dict[int, Hello], weight: int, needed: float, waited: float
    ) -> None:
        """Say once for each number of nodes for how many more the run waits, and for whom."""
        if self._noted == (len(cohort),):
            return
        self._noted = (len(cohort),)
        known = (self.folder.load_value("weights") or {}).keys()
        others = self.nodes.items() - self._mine().items()
        gone = sorted(known - {_name(*node) for node in (*cohort.items(), *others)})
        note = (
            f"waiting for {max(1, self.plan.nodes - len(cohort))} more of {self.plan.nodes} nodes "
            f"(weight {weight}, {needed:g} needed; {self.plan.node_timeout - waited:.0f} s at most)"
        )
        note += f": {', '.join(gone[:3])}" if gone else ""
        self.progress("nodes", len(cohort), max(self.plan.nodes, len(cohort) + 1), note)

    def _note_missing(self, cohort: dict[int, Hello], weight: int, needed: float) -> None:
        """Say once who of the enrolled is not there."""
        gone = tuple(sorted(self._mine().keys() - cohort.keys()))
        if gone and gone != self._noted:
            names = ", ".join(_name(node, self.nodes[node]) for node in gone[:3])
            text = f"{len(gone)} nodes ({names}): weight {weight} is there, {needed:g} needed"
            logger.warning("going on without %s", text)
        self._noted = gone

    def _greet(self, nodes: list[int], timeout: float) -> None:
        """Ask new nodes for their public facts; their weight is fixed for the run from here."""
        arrived = partial(self.progress, "nodes")
        told = greet(self.grid, nodes, self.plan.greetings, timeout, arrived)
        for node in nodes:
            if node in told or self._waited:  # the silent are waited for once, too
                self._tried[node] = time.monotonic()
        for node, facts in sorted(told.items(), key=lambda item: item[0]):
            if isinstance(facts, NoFacts):
                self._missed, self._absent[node] = facts.message_type, facts.absence
                logger.info("node %d %s", node, facts.absence.text)
                continue
            try:
                self._check_kind(facts)
            except WrongNode as error:
                if not self._waited:
                    raise
                self._absent[node] = Absence(f"are not asked: {error}")
                continue
            self._absent.pop(node, None)
            self._take(node, facts)

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

    def _take(self, node: int, facts: Hello) -> None:
        """A node's weight is fixed for the run when it is first seen; with another it is left, and
        so it is with another group where there are groups: nobody's users are in two."""
        name = _name(node, facts)
        weight = self._weights().setdefault(name, facts.weight)
        resources = self._resources().setdefault(name, facts.resources)
        text = f"are not enrolled: their weight {facts.weight} was {weight} when the run began"
        if self.plan.group and not facts.resources:
            logger.warning("%s: its node config names no resources, it is not asked", name)
        if weight == facts.weight:
            if resources == facts.resources or not self.plan.group:
                self.nodes[node] = facts
                return
            text = f"are not enrolled: {facts.resources!r} now, they began as {resources!r}"
        self._changed[node] = Absence(text)
        logger.warning("%s: %s", name, text)

    def _weights(self) -> dict[str, int]:
        """The weight of every node that was asked, in that order, or is known now."""
        asked = self.folder.load_value("weights") or {}
        known = {_name(node, facts): facts.weight for node, facts in self.nodes.items()}
        return asked | known | asked

    def _resources(self) -> dict[str, str]:
        """The group of every node, in a run that has groups."""
        if not self.plan.group:
            return {}
        named = {n: facts for n, facts in self.nodes.items() if facts.resources}
        known = {_name(node, facts): facts.resources for node, facts in named.items()}
        return known | (self.folder.load_value("resources") or {})

    def _mine(self) -> dict[int, Hello]:
        """The nodes that the plan is about."""
        group = self.plan.group
        return {n: facts for n, facts in self.nodes.items() if group in ("", facts.resources)}


def _name(node: int, facts: Hello) -> str:
    """What a node is called in the run folder."""
    # Flower numbers simulated nodes anew in every run; their partition stays the same.
    return f"node {node}" if facts.deployed else f"partition {facts.partition}"
