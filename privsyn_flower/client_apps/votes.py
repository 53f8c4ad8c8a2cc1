"""The answer to a vote query: nearest-neighbour votes of the node's users, clipped and noised.

Causes that depend on a user's data never leave the node: whatever goes wrong there becomes a
zero vector plus the node's noise, and is explained in the node's local log only (rule 7).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Callable
from typing import cast, get_args

import numpy as np
from flwr.app import Context, Message

from privsyn_flower.client_apps.node import Node, UserTexts, open_node
from privsyn_flower.data import EmbeddingCache
from privsyn_flower.privacy.noise import node_noise
from privsyn_flower.queries.nearest import Metric
from privsyn_flower.queries.votes import Clip, shard_votes
from privsyn_flower.randomness import seeded
from privsyn_flower.text import embedder_fingerprint, load_embedder
from privsyn_flower.wire import (
    Floats,
    Noise,
    Query,
    Refusal,
    Ticket,
    WireError,
    answer,
    read_ask,
    refuse,
)

logger = logging.getLogger("privsyn_flower")


def votes(message: Message, context: Context) -> Message:
    """ClientApp handler for `query.votes`."""
    return guarded(message, lambda: answer_votes(message, open_node(context)))


def answer_votes(message: Message, node: Node) -> Message:
    """Check the query, vote for each user separately, add the node's noise share."""
    query, ticket, noise = read_ask(message, node.facts.weight)
    check_votes(query, node)
    vector = _votes_or_zero(query, node)
    return answer(message, ticket, vector + share(query, ticket, noise, node))


def check_votes(query: Query, node: Node) -> None:
    """Refuse what this node must not or cannot answer, before any private text is opened."""
    options = query.options
    known = options.get("clip") in get_args(Clip) and options.get("metric") in get_args(Metric)
    whole = all(isinstance(options.get(key), int) for key in ("neighbors", "samples-cap"))
    if not known or not whole or query.length != len(query.rows):
        raise WireError(Refusal.MALFORMED, "the vote query's options are not known here")
    if not 1 <= int(options["neighbors"]) <= query.length or int(options["samples-cap"]) < 1:
        raise WireError(Refusal.MALFORMED, "neighbors or samples-cap is out of range")
    if node.facts.deployed and not node.allow_plain:
        raise WireError(Refusal.POLICY, "plain aggregation needs allow-plain=true on this node")
    try:
        fingerprint = embedder_fingerprint(node.embedder)
        if not query_embedder_installed(node.embedder):
            raise ImportError("sentence-transformers is not installed")
    except Exception as error:
        raise WireError(
            Refusal.MODEL, f"embedder {node.embedder!r} is not available: {error}"
        ) from error
    if fingerprint != query.model:
        raise WireError(
            Refusal.EMBEDDER, f"the query is about {query.model}, this node has {fingerprint}"
        )


def _votes_or_zero(query: Query, node: Node) -> Floats:
    """Whatever the users' data raises ends here, memory and Rust panics included: a refusal, or
    silence, would tell the server something about the data."""
    try:
        with contextlib.suppress(Exception):  # a full disk must not change the answer
            node.log()
        return user_votes(query, node.load(), node)
    except (WireError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:
        with contextlib.suppress(Exception):
            node.log().exception("the users' votes failed; a zero vector is sent instead")
        return np.zeros(query.length, dtype=np.float64)


def query_embedder_installed(name: str) -> bool:
    """Whether the library behind the embedder is there (data-independent, loads nothing)."""
    if name.startswith("ngram-"):
        return True
    return importlib.util.find_spec("sentence_transformers") is not None


def user_votes(query: Query, users: UserTexts, node: Node) -> Floats:
    """users' texts (PRIVATE) -> sum over users of each one's clipped votes (length,)."""
    cache = EmbeddingCache(node.cache / "embeddings", query.model)
    rows, owner = cache.get(
        users, lambda texts: load_embedder(node.embedder, node.device, progress=False).embed(texts)
    )
    options = query.options
    return shard_votes(
        rows,
        owner,
        query.question(),
        clip=cast(Clip, options["clip"]),
        bound=query.bound,
        samples_cap=int(options["samples-cap"]),
        neighbors=int(options["neighbors"]),
        metric=cast(Metric, options["metric"]),
    )


def share(query: Query, ticket: Ticket, noise: Noise, node: Node) -> Floats:
    """The node's noise for all users it stands for, whoever of them took part."""
    rng = None
    if node.noise_seed is not None:  # simulation only; announced, and marked in the ledger
        rng = seeded(node.noise_seed, ticket.round, "noise", node.facts.partition)
    return node_noise(query.length, node.facts.weight, noise.std, noise.min_weight, rng)


def guarded(message: Message, handler: Callable[[], Message]) -> Message:
    """Run a handler so that only refusal codes leave the node, never an error text."""
    try:
        return handler()
    except WireError as error:
        # Set-up and protocol only, never user data: the operator's own log may explain it.
        logger.warning("refused: %s", error)
        return refuse(message, error.code)
    except MemoryError:
        return refuse(message, Refusal.MEMORY)
    except Exception as error:
        # Users' data was dealt with before; still, only the error's type is worth the risk.
        logger.warning("refused: %s", type(error).__name__)
        return refuse(message, Refusal.SETUP)
