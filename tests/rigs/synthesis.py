"""What several tests share about synthesis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import HELLO, Hello, answer_hello
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies import SynthesisStrategy


class Counting(SynthesisStrategy):
    """One round of votes for nothing in particular."""

    rounds = 1

    def __init__(self) -> None:
        self.seeds: list[str] = []
        self.attached: list[Path] = []

    def attach(self, folder: RunFolder) -> None:
        self.attached.append(folder.path)

    def ask(self, rnd: int) -> Query:
        assert self.attached, "attached before the first question"
        return Query.votes(np.eye(4, dtype=np.float32), bound=1.0, model="m")

    def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


def grid_of(loopback: Any, deployed: list[bool]) -> Any:
    """Nodes of 25 users that answer zeros and say what they are."""

    def node(number: int, real: bool) -> Any:
        facts = Hello(25, number, real)

        def handle(message: Message) -> Message:
            if message.metadata.message_type == HELLO:
                return answer_hello(message, facts)
            query, ticket, noise = wire.read_ask(message, facts.weight)
            zeros = np.zeros(query.length, dtype=np.int64)
            return wire.answer(message, ticket, to_modulus(zeros, noise.bits), noise.bits)

        return handle

    return loopback({number: node(number, real) for number, real in enumerate(deployed, start=1)})
