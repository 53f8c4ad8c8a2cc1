"""What several tests share about answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from privsyn_flower.client_apps.answers import guarded
from privsyn_flower.client_apps.answers import reply as answered
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.protocol.greeting import HELLO, Hello, answer_hello
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.secure import stage_of
from privsyn_flower.queries import vote_histogram
from privsyn_flower.text import load_embedder
from tests.conftest import node_context, sentences

EMBEDDER = "ngram-64"


USERS = {i: {f"u{i}-{j}": sentences(2, 10 * i + j) for j in range(5)} for i in range(4)}


class Device:
    """A node of five users behind the real handler; can fall silent from a stage on."""

    def __init__(
        self, folder: Path, index: int, policy: Policy | None = None, weight: int = 5
    ) -> None:
        self.context = node_context({}, node_id=100 + index)
        self.node = Node(
            facts=Hello(weight, index, deployed=policy is not None),
            cache=folder / f"node-{index}",
            embedder=EMBEDDER,
            device="cpu",
            policy=policy,
            noise_seed=None,
            load=lambda: USERS[index],
        )
        self.dies_at = ""
        self.stages: list[str] = []
        self.tamper: Callable[[Message], None] = lambda message: None

    def __call__(self, message: Message) -> Message | None:
        if message.metadata.message_type == HELLO:
            return answer_hello(message, self.node.facts)
        stage = str(stage_of(message))
        self.stages.append(stage)
        if stage == self.dies_at:
            return None
        self.tamper(message)
        return guarded(message, lambda: answered(message, self.context, self.node, VOTES))


def question() -> Query:
    embedder = load_embedder(EMBEDDER)
    return Query.votes(embedder.embed(sentences(10, 99)), bound=1.0, model=embedder.fingerprint)


def expected(query: Query, nodes: list[int]) -> Any:
    want = np.zeros(10)
    for i in nodes:
        for texts in USERS[i].values():
            counts = vote_histogram(load_embedder(EMBEDDER).embed(texts), query.question())
            want += counts / np.linalg.norm(counts)
    return want
