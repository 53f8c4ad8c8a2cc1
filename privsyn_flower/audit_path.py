"""A run's nodes as functions in this process, for an audit.

They do what a node's ClientApp does with a message: the stages of the secure sum with their masks,
the devices' own functions, schedule, noise and records. Only Flower's transport is left out.

All trials travel in one sum: the vector is the trials' vectors one after the other, and every
coordinate takes the same path as in a run. Noise and masks are independent by coordinate, so the
trials are independent. Answers that are rotated are rotated for each trial by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Context, Error, Message, RecordDict

from privsyn_flower.client_apps.answers import Kind, Taking, contribution, guarded, reply
from privsyn_flower.client_apps.node import Node, UserTexts
from privsyn_flower.greeting import HELLO, Hello, answer_hello
from privsyn_flower.question import Noise, Query, Ticket, encoded_length
from privsyn_flower.secagg.flower import stage_of

EMBEDDER = "ngram-64"
CANARY = "canary"
COLLUDERS_SEED = 0
LEDGER_EPSILON = 1e4  # no texts of anybody's are audited, so nothing is to be rationed

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Role = Literal["canary", "honest", "colluding", "lost"]
Pair = tuple[Integers, Integers]  # without noise, with the canary and without


class AuditError(ValueError):
    """The audit could not be carried out, so it says nothing."""


@dataclass(frozen=True)
class Case:
    """One kind of query under audit.

    query: the question of one trial. kind: the devices' own functions for it. canary: texts of
    the audited user, whose vector should be as long as the bound allows. neighbour: texts of
    the other user of the same node. crowd: texts of each user of the other nodes. base: folder
    of the nodes' language model, if the question is about one.
    """

    query: Query
    kind: Kind
    canary: Sequence[str]
    neighbour: Sequence[str]
    crowd: Sequence[str]
    base: Path | None = None


@dataclass(frozen=True)
class Seat:
    """A node: what it does, the users it stands for, and its place among the nodes."""

    role: Role
    weight: int
    partition: int


@dataclass
class View:
    """What leaves no node, as the auditor knows it.

    known: round -> partition -> what the node sent without noise, with the canary and without.
    """

    trials: int
    rnd: int = 0
    known: dict[int, dict[int, Pair]] = field(default_factory=dict)
    answers: dict[tuple[int, bytes], Integers] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)


def repeated(case: Case, view: View) -> Kind:
    """The kind with its vectors side by side for all trials: even ones with the canary.

    Absent is zero-out: the canary is there and takes no part.
    """
    length, width = case.query.length, encoded_length(case.query)

    def check(query: Query, node: Node) -> None:
        case.kind.check(replace(query, length=length), node)

    def answer(query: Query, users: UserTexts, taking: Taking, plan: Any, node: Node) -> Integers:
        """Made once: the question is the same in every round."""
        key = (node.facts.partition, taking.asked.tobytes())
        if key not in view.answers:
            short = replace(plan, length=length)
            view.answers[key] = case.kind.vectors(query, users, taking, short, node)
        return view.answers[key]

    def vectors(query: Query, users: UserTexts, taking: Taking, plan: Any, node: Node) -> Integers:
        one = replace(query, length=length)
        rest = np.array([user != CANARY for user in users], dtype=bool)
        others = Taking(taking.asked & rest, taking.counted & rest)
        try:
            pair = tuple(answer(one, users, who, plan, node) for who in (taking, others))
        except Exception as error:
            view.failures.append(error)
            raise
        view.known.setdefault(view.rnd, {})[node.facts.partition] = (pair[0], pair[1])
        whole = np.zeros(encoded_length(query), dtype=np.int64)
        rows = whole[: view.trials * width].reshape(view.trials, width)
        rows[::2], rows[1::2] = pair
        return whole

    return Kind(check, vectors)


def handlers(
    case: Case, seats: Sequence[Seat], folder: Path
) -> dict[int, Callable[[Message], Message]]:
    return {
        seat.partition + 1: _handler(case, seat.role, _node(case, seat, folder)) for seat in seats
    }


def _node(case: Case, seat: Seat, folder: Path) -> Node:
    canary = seat.role == "canary"
    names = (CANARY, "neighbour") if canary else ("first", "second")
    texts = (case.canary, case.neighbour) if canary else (case.crowd, case.crowd)
    users: UserTexts = dict(zip(names[: seat.weight], texts, strict=False))
    return Node(
        facts=Hello(seat.weight, seat.partition, deployed=False),
        cache=folder / f"node-{seat.partition}",
        embedder=EMBEDDER,
        device="cpu",
        policy=None,
        noise_seed=COLLUDERS_SEED if seat.role == "colluding" else None,
        load=lambda: users,
        downstream=lambda: case.base,
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


def colluders_noise(
    case: Case, query: Query, noise: Noise, seats: Sequence[Seat], folder: Path
) -> Integers:
    """What colluders added in round 1: their own code's, from the seed they know."""
    nothing = Kind(lambda *_: None, lambda query, *_: np.zeros(encoded_length(query), np.int64))
    total = np.zeros(encoded_length(query), dtype=np.int64)
    for seat in seats:
        if seat.role == "colluding":
            node = _node(case, seat, folder / "twins")  # a node's own records allow one answer
            total += contribution(query, Ticket("audit", query.kind, 1, 1), noise, node, nothing)
    return total


class Loopback:
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
