"""How the nodes' answers become one noisy sum: a narrow interface and the plain version.

`PlainSum` is a TRUSTED aggregator: it sees every node's noisy vector, and the guarantee is
against those who see the released sum, not against the server (the privacy sentence says so).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from privsyn_flower.privacy.release import NoisySum
from privsyn_flower.wire import (
    Answer,
    Hello,
    Noise,
    Query,
    Ticket,
    WireError,
    ask,
    read_answer,
    record_bytes,
)

logger = logging.getLogger("privsyn_flower")

Arrived = Callable[[int, int], None]


@dataclass(frozen=True)
class Collected:
    """What came back: the sum (PRIVATE until released) and public facts about the exchange."""

    total: NoisySum
    nodes_asked: int
    nodes_answered: int
    bytes_down_per_node: int
    bytes_up_per_node: int


class Aggregation(Protocol):
    """Puts one query to the cohort and returns the noisy sum of the answers."""

    name: str

    def collect(
        self,
        grid: Grid,
        cohort: Mapping[int, Hello],
        query: Query,
        ticket: Ticket,
        noise: Noise,
        *,
        colluding: float,
        timeout: float,
        arrived: Arrived,
    ) -> Collected: ...


def exchange(
    grid: Grid, messages: list[Message], timeout: float, arrived: Arrived, poll: float
) -> dict[int, Message]:
    """Send messages, wait for all replies or `timeout` seconds; destination node -> reply.

    Replies are matched by message id, because an expired message is answered by Flower itself
    under another node id.
    """
    destination = dict(
        zip(
            grid.push_messages(messages),
            (message.metadata.dst_node_id for message in messages),
            strict=True,
        )
    )
    waiting = {key: node for key, node in destination.items() if key}
    replies: dict[int, Message] = {}
    deadline = time.monotonic() + timeout
    while waiting and time.monotonic() < deadline:
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                replies[node] = reply
                arrived(len(replies), len(messages))
        if waiting:
            time.sleep(poll)
    return replies


class PlainSum:
    """The trusted aggregator: add up what the nodes send, in the cohort's fixed order."""

    name = "plain"

    def collect(
        self,
        grid: Grid,
        cohort: Mapping[int, Hello],
        query: Query,
        ticket: Ticket,
        noise: Noise,
        *,
        colluding: float,
        timeout: float,
        arrived: Arrived,
    ) -> Collected:
        """One message per node; nodes that fail, refuse or stay silent are left out."""
        messages = [
            ask(query, ticket, noise, node, facts.weight, timeout) for node, facts in cohort.items()
        ]
        deployed = any(facts.deployed for facts in cohort.values())
        replies = exchange(grid, messages, timeout, arrived, poll=1.0 if deployed else 0.05)
        answers: dict[int, Answer] = {}
        for node, reply in replies.items():
            try:
                answers[node] = read_answer(reply, ticket, query.length)
            except WireError as error:
                logger.warning("round %d: node %d left out: %s", ticket.round, node, error)
        # A fixed order of addition, so that seeded simulations repeat to the last bit.
        order = sorted(answers, key=lambda node: (cohort[node].partition, node))
        vector = np.zeros(query.length, dtype=np.float64)
        for node in order:
            vector += answers[node].vector
        total = NoisySum(
            vector=vector,
            bound=query.bound,
            noise_std=noise.std,
            weight=float(sum(cohort[node].weight for node in order)),
            colluding=colluding,
            min_weight=noise.min_weight,
        )
        return Collected(
            total=total,
            nodes_asked=len(messages),
            nodes_answered=len(order),
            bytes_down_per_node=record_bytes(messages[0].content) if messages else 0,
            bytes_up_per_node=max((answers[node].bytes_up for node in order), default=0),
        )
