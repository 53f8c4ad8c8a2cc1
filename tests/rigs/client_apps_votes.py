"""What several tests share about votes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privsyn_flower.client_apps.answers import guarded
from privsyn_flower.client_apps.answers import reply as answered
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.privacy.encoding.quantize import decode
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise, integer_plan
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.text import load_embedder
from tests.conftest import node_context, sentences

TICKET = Ticket("run", "votes", 1, 1)


EMBEDDER = "ngram-64"


USERS = {f"u{i}": sentences(3, i) for i in range(5)}


def node(tmp_path: Path, load: Any = lambda: USERS, **facts: Any) -> Node:
    return Node(
        facts=Hello(weight=5, partition=0, deployed=facts.get("deployed", False)),
        cache=tmp_path / "node",
        embedder=facts.get("embedder", EMBEDDER),
        device="cpu",
        policy=facts.get("policy"),
        noise_seed=facts.get("noise_seed"),
        load=load,
    )


def noise(multiplier: float) -> Noise:
    return Noise(multiplier, 2.0**23, 32, 5.0)


def ask(std: float = 1e-5, ticket: Ticket = TICKET, **options: Any) -> Any:
    embedder = load_embedder(EMBEDDER)
    query = Query.votes(
        embedder.embed(sentences(10, 99)),
        bound=1.0,
        **{"model": embedder.fingerprint, **options},
    )
    return query, wire.ask(query, ticket, noise(std), 1, 5, 60.0)


def reply(message: Any, device: Node) -> Any:
    context = node_context({})
    return guarded(message, lambda: answered(message, context, device, VOTES))


def vector(message: Any, query: Query, ticket: Ticket = TICKET) -> Any:
    """What the server decodes from a plain reply."""
    residues = wire.read_answer(message, ticket, query.length, 32).residues
    return decode(residues, integer_plan(query, noise(1.0)))
