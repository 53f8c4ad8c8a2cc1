"""Many trials of one release through the path that a run takes, in this process, for an audit.

The engine (`strategies.rounds`) asks nodes that are functions here: hello, the stages of the
secure sum with their masks, the devices' own query functions, noise and records, the ledger, the
release. Only Flower's transport is left out, and the embedder is the hashed one, because what a
text's embedding is does not enter any bound.

All trials travel in one sum: the vector is the trials' vectors one after the other, and every
coordinate takes the same path as in a run. Noise and masks are independent by coordinate, so the
trials are independent.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from privsyn_flower.client_apps.answers import Kind, contribution, guarded, reply
from privsyn_flower.client_apps.node import Node, UserTexts
from privsyn_flower.exchange import in_process
from privsyn_flower.greeting import HELLO, Hello, answer_hello
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.quantize import IntegerPlan
from privsyn_flower.question import Noise, Query, Ticket, integer_plan
from privsyn_flower.runs import RunFolder
from privsyn_flower.secagg.flower import stage_of
from privsyn_flower.strategies.aggregation import Aggregation
from privsyn_flower.strategies.cohort import RoundPlan
from privsyn_flower.strategies.rounds import NoRelease, Rounds, integer_noise

EMBEDDER = "ngram-64"
HONEST_NODES = 6  # of two users each; every one of them survives
CANARY = "canary"
COLLUDERS_SEED = 0
LEDGER_EPSILON = 1e4  # no texts of anybody's are audited, so nothing is to be rationed

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Role = Literal["canary", "honest", "colluding", "lost"]
# Partition -> what its node sent without noise, with the canary and without: (L,) each.
Known = dict[int, tuple[Integers, Integers]]


class AuditError(ValueError):
    """The audit could not be carried out, so it says nothing."""


@dataclass(frozen=True)
class Case:
    """One kind of query under audit.

    query: the question of one trial. kind: the devices' own functions for it. canary: texts of
    the audited user, whose vector should be as long as the bound allows. neighbour: texts of
    the other user of the same node. crowd: texts of each user of the other nodes.
    """

    query: Query
    kind: Kind
    canary: Sequence[str]
    neighbour: Sequence[str]
    crowd: Sequence[str]


@dataclass(frozen=True)
class Trials:
    """What an adversary sees who knows every text and the colluders' noise.

    released (T, L): the noisy sums. present (T,): whether the canary took part. shift (L,): what
    the canary changes without noise, in units of the bound. residue (T, L): the noisy sums less
    what the nodes' users put into them. noise: the numbers that are charged.
    """

    released: Floats
    present: Bools
    shift: Floats
    residue: Floats
    noise: Noise


def run_trials(case: Case, plan: RoundPlan, aggregation: Aggregation, trials: int) -> Trials:
    """`trials` independent releases of `case`, the canary in every other one.

    The honest survivors weigh exactly W_min, so the noise is what is charged and no more: the
    plan's spare weight is lost after masking, and the colluders' noise, known to them, is taken
    off. Raises AuditError when nothing is released or the canary had no part in it.
    """
    query = replace(case.query, length=case.query.length * trials)
    known: Known = {}
    failures: list[Exception] = []
    roles = _roles(plan)
    repeated = replace(case, kind=_repeated(case.kind, trials, known, failures))
    released = _released(repeated, query, plan, aggregation, roles)
    if failures:
        raise AuditError(f"a node's answer failed: {failures[0]}") from failures[0]
    sums = [known[at] for at, (role, _) in enumerate(roles) if role != "lost"]
    with_canary, without = (np.sum([both[i] for both in sums], axis=0) for i in (0, 1))
    if not (with_canary != without).any():
        raise AuditError("the canary's vector is zero: there is nothing to distinguish")
    noise = integer_noise(plan, query)
    scale = integer_plan(query, noise).scale
    rows, present = released.reshape(trials, -1), np.arange(trials) % 2 == 0
    return Trials(
        released=rows,
        present=present,
        shift=(with_canary - without) / scale,
        residue=rows - np.where(present[:, None], with_canary, without) / scale,
        noise=noise,
    )


def _released(
    case: Case,
    query: Query,
    plan: RoundPlan,
    aggregation: Aggregation,
    roles: Sequence[tuple[Role, int]],
) -> Floats:
    """One round of the real engine: the release (length,) without the colluders' noise."""
    strategy, noise = _Once(query), integer_noise(plan, query)
    handlers, known_noise = {}, np.zeros(query.length, dtype=np.int64)
    with tempfile.TemporaryDirectory(prefix="privsyn-audit-") as name, in_process():
        folder = RunFolder(Path(name) / "run")
        for at, (role, weight) in enumerate(roles):
            node = _node(case, role, weight, at, Path(name))
            handlers[at + 1] = _handler(case, role, node)
            if role == "colluding":
                known_noise += _noise_of(node, query, noise)
        ledger = Ledger.open(
            Path(name) / "ledger.jsonl",
            population="audit",
            total_epsilon=LEDGER_EPSILON,
            total_delta=1e-9,
            mechanism="skellam",
        )
        engine = Rounds(
            cast(Grid, _Loopback(handlers)), strategy, plan, folder, ledger, aggregation
        )
        with _warnings() as warnings:
            try:
                engine.run()
            except NoRelease:
                raise AuditError(f"nothing was released: {'; '.join(warnings())}") from None
    return strategy.released - known_noise / integer_plan(query, noise).scale


def smallest_population(min_surviving_weight: float) -> int:
    """Users that the audit's nodes need to host two each within W_min."""
    return math.ceil(2 * HONEST_NODES / min_surviving_weight)


def _roles(plan: RoundPlan) -> list[tuple[Role, int]]:
    """Nodes by what they do, and their weights; the honest ones weigh W_min together."""
    honest = _split(plan.min_weight, HONEST_NODES)
    # No heavier than an honest node: the threshold assumes as many colluders as could fit.
    colluding = _split(plan.colluding, math.ceil(plan.colluding / honest[-1]))
    lost = plan.users - plan.min_weight - plan.colluding
    roles: list[tuple[Role, int]] = [("canary", honest[0])]
    roles += [("honest", weight) for weight in honest[1:]]
    roles += [("colluding", weight) for weight in colluding]
    return [*roles, ("lost", lost)] if lost else roles


def _split(total: int, parts: int) -> list[int]:
    """Whole numbers that differ by 1 at most, the largest first."""
    return [total // parts + (at < total % parts) for at in range(parts)]


def _repeated(kind: Kind, trials: int, known: Known, failures: list[Exception]) -> Kind:
    """The kind with its vectors side by side for all trials: even ones with the canary.

    Absent is zero-out: the canary is there and takes no part. known and failures are the
    auditor's view of what leaves no node.
    """

    def check(query: Query, node: Node) -> None:
        kind.check(replace(query, length=query.length // trials), node)

    def vectors(
        query: Query, users: UserTexts, taking: Bools, plan: IntegerPlan, node: Node
    ) -> Integers:
        one = replace(query, length=query.length // trials)
        short = replace(plan, length=one.length)
        others = taking & np.array([user != CANARY for user in users], dtype=bool)
        try:
            pair = tuple(kind.vectors(one, users, who, short, node) for who in (taking, others))
        except Exception as error:
            failures.append(error)
            raise
        known[node.facts.partition] = (pair[0], pair[1])
        return np.stack([pair[trial % 2] for trial in range(trials)]).reshape(-1)

    return Kind(check, vectors)


def _node(case: Case, role: Role, weight: int, at: int, folder: Path) -> Node:
    names = (CANARY, "neighbour") if role == "canary" else ("first", "second")
    texts = (case.canary, case.neighbour) if role == "canary" else (case.crowd, case.crowd)
    users: UserTexts = dict(zip(names[:weight], texts, strict=False))
    return Node(
        facts=Hello(weight, at, deployed=False),
        cache=folder / f"node-{at}",
        embedder=EMBEDDER,
        device="cpu",
        policy=None,
        noise_seed=COLLUDERS_SEED if role == "colluding" else None,
        load=lambda: users,
    )


def _handler(case: Case, role: Role, node: Node) -> Callable[[Message], Message]:
    """What a node's ClientApp does with a message."""
    name = node.facts.partition + 1
    context = Context(run_id=0, node_id=name, node_config={}, state=RecordDict(), run_config={})

    def handle(message: Message) -> Message:
        if message.metadata.message_type == HELLO:
            return answer_hello(message, node.facts)
        answered = guarded(message, lambda: reply(message, context, node, case.kind))
        if role == "lost" and stage_of(message) in (None, "mask"):
            return Message(Error(0, "the answer is lost"), reply_to=message)
        return answered

    return handle


def _noise_of(node: Node, query: Query, noise: Noise) -> Integers:
    """The noise that a colluder adds in round 1: its own code's, from the seed it knows."""
    nothing = Kind(lambda *_: None, lambda query, *_: np.zeros(query.length, dtype=np.int64))
    twin = replace(node, cache=node.cache / "twin")  # the node's own records allow one answer
    return contribution(query, Ticket("audit", query.kind, 1, 1), noise, twin, nothing)


@contextmanager
def _warnings() -> Iterator[Callable[[], list[str]]]:
    """The package's warnings, kept and not printed: a node is lost on purpose."""
    logger, handler = logging.getLogger("privsyn_flower"), BufferingHandler(1000)
    passed_on = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield lambda: [record.getMessage() for record in handler.buffer]
    finally:
        logger.removeHandler(handler)
        logger.propagate = passed_on


class _Once:
    """A strategy of one round that keeps what was released."""

    rounds = 1

    def __init__(self, query: Query) -> None:
        self.query = query
        self.released: Floats = np.zeros(query.length)

    def ask(self, rnd: int) -> Query:
        return self.query

    def learn(self, rnd: int, released: Floats, noise_std: float) -> dict[str, Any]:
        self.released = released
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing is kept: an audit is not resumed."""


class _Loopback:
    """A grid whose nodes are functions message -> reply."""

    def __init__(self, nodes: Mapping[int, Callable[[Message], Message]]) -> None:
        self.nodes = nodes
        self.replies: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(message.metadata.message_id)
            self.replies[ids[-1]] = self.nodes[message.metadata.dst_node_id](message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(key) for key in list(message_ids) if key in self.replies]
