"""A question of each kind and the node that answers it, with users of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message

from privsyn_flower.client_apps import answers, private_evaluation, private_training
from privsyn_flower.client_apps.answers import Kind
from privsyn_flower.client_apps.evaluation import EVALUATION
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.scores import SCORES
from privsyn_flower.client_apps.updates import UPDATE
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.privacy.encoding.quantize import from_modulus
from privsyn_flower.privacy.noise.integer_noise import LEAST_STD
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from tests.conftest import node_context, sentences
from tests.rigs import answers as answers_rig
from tests.rigs import conditional_updates as conditional_updates_rig
from tests.rigs import dropin as dropin_rig
from tests.rigs import dropin_evaluation as dropin_evaluation_rig
from tests.rigs import evaluation as evaluation_rig
from tests.rigs import scores as scores_rig
from tests.rigs import updates as updates_rig

KINDS = ["votes", "scores", "evaluation", "update", "plain step", "drop-in", "drop-in evaluation"]
FINE = 2.0**26  # of an encoding: noise of 1e-6 of it is still many integers
NAMES = [f"u{number}" for number in range(6)]
USERS: dict[str, Sequence[str]] = {name: sentences(3, n) for n, name in enumerate(NAMES)}
Users = Mapping[str, Sequence[str]]

KINDS.insert(4, "pairs")  # updates on texts with their topics' keywords


@dataclass
class Asked:
    """One question to one node, which stands for six users, in plain aggregation."""

    query: Query
    answering: Callable[[Message, Users], Message]
    rate: float = 1.0

    @property
    def noise(self) -> Noise:
        """What the nodes are asked to add: hardly any, in integers as coarse as can be."""
        noise = Noise(1.0, FINE, 32, 6.0, sampling_rate=self.rate)
        if self.query.dense:
            given = {"source": "nodes", "sampling_rate": self.rate}
            noise = replace(updates_rig.noise(self.query), **given)
        return replace(noise, multiplier=1.05 * LEAST_STD / noise.sensitivity)

    def message(self, rnd: int) -> Message:
        ticket = Ticket("run", self.query.kind, rnd, 1)
        return wire.ask(self.query, ticket, self.noise, 1, 6, 60.0)

    def answer(self, message: Message, users: Users = USERS) -> Message:
        return self.answering(message, users)

    def integers(self, reply: Message, rnd: int) -> Any:
        """What the reply's residues stand for: (length,) int64."""
        ticket = Ticket("run", self.query.kind, rnd, 1)
        length, bits = answers.encoded_length(self.query), self.noise.bits
        return from_modulus(wire.read_answer(reply, ticket, length, bits).residues, bits)


def asked(kind: str, folder: Path, base: Path) -> Asked:
    """base: of the language model that evaluations and updates are about."""
    if kind == "pairs":
        return Asked(conditional_updates_rig.about(base), _handler(UPDATE, folder, base))
    if kind == "votes":
        return Asked(answers_rig.question(), _handler(VOTES, folder))
    if kind == "scores":
        return Asked(scores_rig.question(), _handler(SCORES, folder))
    if kind == "evaluation":
        return Asked(evaluation_rig.question(base), _handler(EVALUATION, folder, base))
    if kind == "update":
        return Asked(updates_rig.question(base), _handler(UPDATE, folder, base))
    if kind == "plain step":  # several users at once
        options = replace(updates_rig.OPTIONS, max_steps=1)
        return Asked(updates_rig.question(base, options=options), _handler(UPDATE, folder, base))
    if kind == "drop-in":
        return Asked(dropin_rig.question(), _train)
    return Asked(dropin_evaluation_rig.evaluation(), _evaluate)


def bare(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """From here on nodes draw no noise; what they ask of it is in the list. No random rounding."""
    drawn: list[tuple[Any, ...]] = []

    def nothing(length: int, *numbers: Any) -> Any:
        drawn.append((length, *numbers))
        return np.zeros(length, dtype=np.int64)

    monkeypatch.setattr(answers, "node_noise_integers", nothing)
    monkeypatch.setattr(
        "privsyn_flower.privacy.encoding.dense._uniform", lambda size: np.float32(0.5)
    )
    return drawn


def _handler(
    kind: Kind, folder: Path, base: Path | None = None
) -> Callable[[Message, Users], Message]:
    def answering(message: Message, users: Users) -> Message:
        node = Node(
            facts=Hello(6, 0, deployed=False),
            cache=folder / "node",
            embedder="ngram-64",
            device="cpu",
            policy=None,
            noise_seed=None,
            load=lambda: users,
            downstream=lambda: base,
        )
        return answers.reply(message, node_context({}), node, kind)

    return answering


def _named(message: Message) -> str:
    return str(message.content.config_records["config"]["user"])


def _train(message: Message, users: Users) -> Message:
    """A user's texts say how far its change goes."""

    @private_training(users=lambda context: list(users), weight=lambda context: 6)
    def function(message: Message, context: Any) -> Message:
        texts = users[_named(message)]
        if any("raise" in text for text in texts):
            raise ValueError(texts)
        far = dropin_rig.plus(math.nan if "nan" in texts else sum(map(len, texts)) / 100)
        reply = dropin_rig.answered(message, far)
        if "empty" in texts:
            reply.content.array_records["arrays"]["first"] = Array(np.zeros(0, np.float32))
        return reply

    return function(message, dropin_rig.context())


def _evaluate(message: Message, users: Users) -> Message:
    @private_evaluation(users=lambda context: list(users), weight=lambda context: 6)
    def function(message: Message, context: Any) -> Message:
        texts = users[_named(message)]
        if any("raise" in text for text in texts):
            raise ValueError(texts)
        loss = math.nan if "nan" in texts else float(sum(map(len, texts)))
        given = {"num-examples": len(texts), "loss": loss}
        return dropin_evaluation_rig.found(message, **{**dropin_evaluation_rig.GOOD, **given})

    return function(message, dropin_rig.context())
