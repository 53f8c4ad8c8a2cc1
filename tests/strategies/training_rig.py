"""Nodes that train a little model by hand, without Flower, torch or noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from safetensors.numpy import load

from privsyn_flower.common.arrays import I64
from privsyn_flower.config import AveragingConfig, FtrlConfig
from privsyn_flower.privacy.encoding.dense import rotate
from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise, integer_plan, matrix_of
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.queries.updates import shard_updates
from privsyn_flower.strategies import DPFTRL
from privsyn_flower.training import Layout

Arrays = Mapping[str, np.ndarray[Any, Any]]

WEIGHTS = {"b": np.float32([0.5, -1.0]), "w": np.arange(6, dtype=np.float32).reshape(2, 3) / 8}


def record(arrays: Arrays = WEIGHTS) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def ftrl(
    clip_norm: float = 1.0,
    server_optimizer: Any = "fedavgm",
    *,
    schedule: Any = "nodes",
    seed: int = 0,
    noise: Any = "aggregator",
    **keys: Any,
) -> DPFTRL:
    """DP-FTRL by the papers' momentum, whose nodes take turns: each test node is one user's.

    keys: of `[ftrl]`.
    """
    config = AveragingConfig(clip_norm=clip_norm, server_optimizer=server_optimizer, noise=noise)
    return DPFTRL(config, FtrlConfig(schedule=schedule, **keys), seed=seed)


class Trainer:
    """A node of users who each pull the model a share of the way to a target of their own.

    Its sums are exact up to rounding to the grid, carry no noise, and are the same bits for the
    same question, so that runs can be compared.
    """

    def __init__(self, partition: int, targets: list[float], *, rate: float = 0.5) -> None:
        self.facts = Hello(len(targets), partition, deployed=False)
        self.targets, self.rate = targets, rate
        self.asked: list[tuple[Ticket, Query, Noise]] = []
        self.greeted: list[str] = []
        self.silent = False
        self.past: dict[int, I64] = {}

    def deltas(self, arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        vector = Layout.of(arrays).flatten(arrays)
        return [self.rate * (target - vector) for target in self.targets]

    def __call__(self, message: Message) -> Message | None:
        if greeting.is_hello(message):
            self.greeted.append(message.metadata.message_type)
            return greeting.answer_hello(message, self.facts)
        query, ticket, noise = wire.read_ask(message, self.facts.weight)
        self.asked.append((ticket, query, noise))
        if self.silent:
            return None
        total = self.row(query, ticket, noise)
        return wire.answer(message, ticket, to_modulus(total, noise.bits), noise.bits)

    def row(self, query: Query, ticket: Ticket, noise: Noise) -> I64:
        """The integers of an answer: where there is a matrix, its row of all rounds so far."""
        matrix = matrix_of(query)
        if matrix is None:
            return self.total(query, noise)
        if ticket.round not in self.past:
            self.past[ticket.round] = self.total(query, noise)
        found = matrix.row(ticket.round, self.past.get)
        assert found is not None
        return found

    def total(self, query: Query, noise: Noise) -> I64:
        """What the users say in this round."""
        arrays = load(query.extra["parameters"].tobytes())
        plan = integer_plan(query, noise)

        def encode(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
            return np.rint(rotate(vector, query.rotation) * plan.scale).astype(np.int64)

        return shard_updates(
            self.deltas(arrays),
            length=query.length,
            clip_norm=float(query.options["clip-norm"]),
            indicator=float(query.options["indicator"]),
            encode=encode,
        )


def trainers(nodes: int = 4, users: int = 1, **options: Any) -> dict[int, Trainer]:
    """Nodes by id; the targets of all users lie around 1."""
    targets = np.linspace(0.5, 1.5, nodes * users)
    return {
        100 + i: Trainer(i, [float(t) for t in targets[i * users : (i + 1) * users]], **options)
        for i in range(nodes)
    }
