"""What several tests share about rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.rounds import Rounds


class Counting:
    """A strategy that adds up what it learns; its candidates are fixed."""

    def __init__(self, rounds: int = 3) -> None:
        self.rounds = rounds
        self.asked: list[int] = []
        self.learned: dict[str, list[float]] = {}
        self.stds: list[float] = []
        self.crash_in: int | None = None

    def ask(self, rnd: int) -> Query:
        self.asked.append(rnd)
        return Query.votes(np.eye(4, dtype=np.float32) * rnd, bound=1.0, model="m")

    def learn(self, rnd: int, released: np.ndarray[Any, Any], noise_std: float) -> dict[str, Any]:
        if self.crash_in == rnd:
            raise RuntimeError("crash")
        self.learned[str(rnd)] = released.tolist()
        self.stds.append(noise_std)
        return {"total": float(released.sum())}

    def state(self) -> dict[str, Any]:
        return {"learned": self.learned}

    def restore(self, state: dict[str, Any]) -> None:
        self.learned = dict(state["learned"])


class VotingNode:
    """Answers ones, as a node of `weight` users; can be told to misbehave."""

    def __init__(self, weight: int, partition: int, *, deployed: bool = False) -> None:
        self.facts = Hello(weight, partition, deployed)
        self.seen: list[tuple[Ticket, Noise]] = []
        self.mode = "ok"
        self.before_answer: Any = None

    def __call__(self, message: Message) -> Message | None:
        if message.metadata.message_type == greeting.HELLO:
            return greeting.answer_hello(message, self.facts)
        query, ticket, noise = wire.read_ask(message, self.facts.weight)
        self.seen.append((ticket, noise))
        if self.before_answer:
            self.before_answer(ticket)
        if self.mode == "silent":
            return None
        if self.mode == "raise":
            raise RuntimeError("my diary says")
        if self.mode == "refuse":
            return wire.refuse(message, Refusal.EMBEDDER)
        vector = np.full(query.length, round(noise.sensitivity / query.bound))
        if self.mode == "short":
            vector = vector[:-1]
        if self.mode == "old":
            ticket = Ticket(ticket.run, ticket.query, ticket.round, ticket.attempt + 1)
        bits = 16 if self.mode == "bits" else noise.bits
        return wire.answer(message, ticket, to_modulus(vector, bits), bits)


@pytest.fixture
def nodes() -> dict[int, VotingNode]:
    return {100 + i: VotingNode(25, i) for i in range(4)}


def engine(
    tmp_path: Path, grid: Any, strategy: Counting, *, spare: int = 1, surviving: float = 0.75
) -> Rounds:
    folder = RunFolder(tmp_path / "run")
    # mu^2 = 1 / 25 per release; the total pays for rounds + spare releases and no more
    ledger = Ledger.open(
        tmp_path / "ledger.jsonl",
        population="people",
        total_epsilon=2.0,
        total_delta=1e-5,
    )
    plan = RoundPlan(
        run="r",
        users=100,
        noise_multiplier=5.0,
        spare_rounds=spare,
        min_surviving_weight=surviving,
        nodes=4,
        round_timeout=0.3,
        node_timeout=1.0,
    )
    return Rounds(grid, strategy, plan, folder, ledger, PlainSum())


class Rig:
    """The nodes of a run and its folder; the engine, over a loopback to them."""

    def __init__(self, folder: Path, loopback: Any, nodes: dict[int, Any]) -> None:
        self.folder, self.loopback, self.nodes = folder, loopback, nodes
        self.grid = loopback(nodes)

    def engine(self, strategy: Counting, **options: Any) -> Rounds:
        return engine(self.folder, self.grid, strategy, **options)


@pytest.fixture
def rig(tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode]) -> Rig:
    return Rig(tmp_path, loopback, nodes)


def crash_in(rnd: int, run: Rounds) -> None:
    """Run until the strategy dies learning from this round, whose release is stored by then."""
    run.strategy.crash_in = rnd  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="crash"):
        run.run()
