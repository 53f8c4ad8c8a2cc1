"""A run's nodes as functions in this process, for an audit.

They do what a node's ClientApp does with a message: the stages of the secure sum with their masks,
the devices' own functions, schedule, noise and records. Only Flower's transport is left out.

All trials travel in one sum: the vector is the trials' vectors one after the other, and every
coordinate takes the same path as in a run. Noise and masks are independent by coordinate, so the
trials are independent. Answers that are rotated are rotated for each trial by itself.

Where users are sampled, a node has users of its own for every trial: it samples all of them at
once, as it does in a run, and each stretch of the vector is the answer of its own trial's users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Context, Error, Message, RecordDict

from privsyn_flower.client_apps.answers import Kind, Participants, contribution, guarded, reply
from privsyn_flower.client_apps.node.device import Node, UserTexts
from privsyn_flower.common.arrays import I64, Bools
from privsyn_flower.protocol.greeting import HELLO, Hello, answer_hello
from privsyn_flower.protocol.noise import Noise, encoded_length
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.secure import stage_of

EMBEDDER = "ngram-64"
CANARY = "canary"
COLLUDERS_SEED = 0

Role = Literal["canary", "honest", "colluding", "lost"]


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


@dataclass(frozen=True)
class Sent:
    """What a node sent in one round without noise, for each way in which its users were sampled.

    sampled (k, u): who was sampled. fell, without (k, L): what the node sends then, and without
    the canary. up (k, L): what it would send had the canary been sampled as well. which (T,):
    the way that it was in each trial.
    """

    sampled: Bools
    fell: I64
    without: I64
    up: I64
    which: I64

    def vectors(self) -> I64:
        """(T, L): in even trials with the canary, in odd ones without."""
        found = self.fell[self.which]
        found[1::2] = self.without[self.which[1::2]]
        return found

    @property
    def shifts(self) -> I64:
        """(k, L): what the canary changes when it is sampled."""
        return self.up - self.without


@dataclass
class View:
    """What leaves no node, as the auditor knows it.

    copies: users of a node for each one in the case; 1, or the trials where users are sampled.
    known: round -> partition -> what the node sent.
    """

    trials: int
    copies: int = 1
    rnd: int = 0
    known: dict[int, dict[int, Sent]] = field(default_factory=dict)
    answers: dict[tuple[int, bytes], I64] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)


def repeated(case: Case, view: View) -> Kind:
    """The kind with its vectors side by side for all trials: even ones with the canary.

    Absent is zero-out: the canary is there and takes no part, sampled or not.
    """
    length, width = case.query.length, encoded_length(case.query)

    def check(query: Query, node: Node) -> None:
        case.kind.check(replace(query, length=length), node)

    def answer(
        query: Query, users: UserTexts, participants: Participants, plan: Any, node: Node
    ) -> I64:
        """Made once: the question is the same in every round."""
        key = (
            node.facts.partition,
            participants.eligible.tobytes() + participants.sampled.tobytes(),
        )
        if key not in view.answers:
            short = replace(plan, length=length)
            view.answers[key] = case.kind.vectors(query, users, participants, short, node)
        return view.answers[key]

    def sent(
        query: Query, users: UserTexts, participants: Participants, plan: Any, node: Node
    ) -> Sent:
        some = dict(islice(users.items(), len(users) // view.copies))
        canary = np.array([user == CANARY for user in some], dtype=np.bool_)
        draws = np.stack([participants.eligible, participants.sampled]).reshape(2, view.copies, -1)
        ways, which = np.unique(draws.swapaxes(0, 1), axis=0, return_inverse=True)
        eligible, sampled = ways[:, 0], ways[:, 1]

        def table(eligible: Bools, sampled: Bools) -> I64:
            participant_sets = map(Participants, eligible, sampled)
            return np.array(
                [answer(query, some, participants, plan, node) for participants in participant_sets]
            )

        return Sent(
            sampled,
            fell=table(eligible, sampled),
            without=table(eligible & ~canary, sampled & ~canary),
            up=table(eligible, sampled | (eligible & canary)),
            # Without sampling there is one way, and all trials are alike.
            which=np.broadcast_to(which.ravel(), view.trials),
        )

    def vectors(
        query: Query, users: UserTexts, participants: Participants, plan: Any, node: Node
    ) -> I64:
        try:
            known = sent(replace(query, length=length), users, participants, plan, node)
        except Exception as error:
            view.failures.append(error)
            raise
        view.known.setdefault(view.rnd, {})[node.facts.partition] = known
        whole = np.zeros(encoded_length(query), dtype=np.int64)
        whole[: view.trials * width] = known.vectors().ravel()
        return whole

    return Kind(check, vectors)


def handlers(
    case: Case, seats: Sequence[Seat], folder: Path, copies: int = 1
) -> dict[int, Callable[[Message], Message]]:
    """Node id -> what the node does with a message. copies: as in `View`."""
    return {
        seat.partition + 1: _handler(case, seat.role, _node(case, seat, folder, copies))
        for seat in seats
    }


def _node(case: Case, seat: Seat, folder: Path, copies: int = 1) -> Node:
    canary = seat.role == "canary"
    names = (CANARY, "neighbour") if canary else ("first", "second")
    texts = (case.canary, case.neighbour) if canary else (case.crowd, case.crowd)
    some = dict(zip(names[: seat.weight], texts, strict=False))
    users: UserTexts = some | {
        f"{name} {trial}": own for trial in range(1, copies) for name, own in some.items()
    }
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
    case: Case, query: Query, noise: Noise, seats: Sequence[Seat], folder: Path, rounds: int
) -> list[I64]:
    """What colluders added in each round: their own code's, from the seed they know."""
    nothing = Kind(lambda *_: None, lambda query, *_: np.zeros(encoded_length(query), np.int64))
    totals = [np.zeros(encoded_length(query), dtype=np.int64) for _ in range(rounds)]
    for seat in seats:
        if seat.role == "colluding":
            node = _node(case, seat, folder / "twins")  # a node's own records allow one answer
            for rnd, total in enumerate(totals, start=1):
                ticket = Ticket("audit", query.kind, rnd, 1)
                total += contribution(query, ticket, noise, node, nothing)
    return totals


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
