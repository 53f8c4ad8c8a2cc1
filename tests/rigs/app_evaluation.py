"""What several tests share about app evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Message

from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.noise import integer_plan
from privsyn_flower.protocol.question import Query
from privsyn_flower.queries.metrics import shard_app_metrics
from privsyn_flower.strategies import DPFedAvg, PrivateEvaluation, TrainingResult
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.engine.aggregation import PlainSum
from tests.strategies.training_rig import Trainer, record

DELTA = 1e-5


ACCURACY = PrivateEvaluation({"accuracy": (0, 1)})


class Measured(Trainer):
    """A node whose users also have an accuracy each: a function of the model, without noise."""

    def __init__(self, partition: int, users: int) -> None:
        targets = [0.5 + (partition * users + user) / 10 for user in range(users)]
        super().__init__(partition, targets)
        self.measured: list[wire.Ticket] = []
        self.queries: list[Query] = []
        self.failing = 0  # evaluations that it keeps silent about, from now on

    def __call__(self, message: Message) -> Message | None:
        if greeting.is_hello(message):
            return super().__call__(message)
        query, ticket, noise = wire.read_ask(message, self.facts.weight)
        self.queries.append(query)
        if message.metadata.message_type != "evaluate":
            return super().__call__(message)
        self.measured.append(ticket)
        if self.failing:
            self.failing -= 1
            return None
        values = [[accuracy(int(query.options["server-round"]))]] * len(self.targets)
        total = shard_app_metrics(
            [1] * len(values),
            values,
            bounds=[(0.0, 1.0)],
            max_examples=0,
            plan=integer_plan(query, noise),
        )
        return wire.answer(message, ticket, to_modulus(total, noise.bits), noise.bits)


def accuracy(rnd: int) -> float:
    return 1 - 0.5**rnd


def nodes_of(count: int = 2, users: int = 50) -> dict[int, Measured]:
    return {100 + number: Measured(number, users) for number in range(count)}


def train(
    grid: Any, folder: Path, strategy: TrainingStrategy | None = None, **options: Any
) -> TrainingResult:
    settings = {
        "num_rounds": 3,
        "epsilon": 8.0,
        "delta": DELTA,
        "users": 100,
        "nodes": 2,
        "folder": folder / "run",
        "noise_keys": folder / "keys",
        "aggregation": PlainSum(),
        "timeout": 0.2,
        "node_timeout": 0.3,
        "evaluation": ACCURACY,
        **options,
    }
    return (strategy or DPFedAvg()).start(grid, record(), **settings)
