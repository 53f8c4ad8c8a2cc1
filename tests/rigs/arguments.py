"""What several tests share about arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Message

from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import HELLO, Hello, answer_hello
from privsyn_flower.protocol.question import Query
from privsyn_flower.strategies import SynthesisStrategy


class Voting:
    """A node that answers votes with zeros."""

    def __init__(self, weight: int, partition: int) -> None:
        self.facts = Hello(weight, partition, deployed=False)

    def __call__(self, message: Message) -> Message:
        if message.metadata.message_type == HELLO:
            return answer_hello(message, self.facts)
        query, ticket, noise = wire.read_ask(message, self.facts.weight)
        zeros = np.zeros(query.length, dtype=np.int64)
        return wire.answer(message, ticket, to_modulus(zeros, noise.bits), noise.bits)


class Zeros(SynthesisStrategy):
    """Votes for nothing in particular."""

    def __init__(self, rounds: int = 1) -> None:
        self.rounds, self.seeds = rounds, list[str]()

    def ask(self, rnd: int) -> Query:
        return Query.votes(np.eye(4, dtype=np.float32), bound=1.0, model="m")

    def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...
