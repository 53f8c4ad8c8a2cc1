"""The answer to a vote query: nearest-neighbour votes of the node's users (PrE-Text)."""

from __future__ import annotations

import importlib.util
from typing import cast, get_args

from flwr.app import Context, Message

from privsyn_flower.arrays import F32, I32, I64
from privsyn_flower.client_apps.answers import Kind, Taking, guarded, reply
from privsyn_flower.client_apps.node.device import Node, UserTexts, open_node
from privsyn_flower.data import EmbeddingCache
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.queries.nearest import Metric
from privsyn_flower.queries.votes import Clip, shard_votes
from privsyn_flower.text import embedder_fingerprint, load_embedder


def votes(message: Message, context: Context) -> Message:
    """ClientApp handler for `query.votes`."""
    return guarded(message, lambda: reply(message, context, open_node(context), VOTES))


def check_votes(query: Query, node: Node) -> None:
    """Refuse what this node cannot answer, before any private text is opened."""
    options = query.options
    known = options.get("clip") in get_args(Clip) and options.get("metric") in get_args(Metric)
    whole = all(isinstance(options.get(key), int) for key in ("neighbors", "samples-cap"))
    if not known or not whole or len(query.rows) not in (0, query.length):
        raise WireError(Refusal.MALFORMED, "the vote query's options are not known here")
    if not 1 <= int(options["neighbors"]) <= query.length or int(options["samples-cap"]) < 1:
        raise WireError(Refusal.MALFORMED, "neighbors or samples-cap is out of range")
    check_embedder(query, node)


def check_embedder(query: Query, node: Node) -> None:
    """Refuse a question about another embedder than this node's, or one that is not there."""
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


def query_embedder_installed(name: str) -> bool:
    """Whether the library behind the embedder is there (data-independent, loads nothing)."""
    if name.startswith("ngram-"):
        return True
    return importlib.util.find_spec("sentence_transformers") is not None


def user_rows(query: Query, users: UserTexts, node: Node) -> tuple[F32, I32]:
    """users' texts -> embeddings (n, d) and the user of each (n,), both PRIVATE, from the cache.

    Of all users, whoever takes part: the cache keeps exactly those it is shown.
    """

    def embed(texts: list[str]) -> F32:
        try:
            return load_embedder(node.embedder, node.device, progress=False).embed(texts)
        except BaseException as error:  # of one user: the cache goes on without
            node.failures.add("answer", error, 1)
            raise

    return EmbeddingCache(node.cache / "embeddings", query.model).get(users, embed)


def user_votes(
    query: Query, users: UserTexts, taking: Taking, plan: IntegerPlan, node: Node
) -> I64:
    """users' texts (PRIVATE) -> sum of the encoded votes (length,) of those who are counted."""
    rows, owner = user_rows(query, users, node)
    kept = taking.asked[owner]
    options = query.options
    return shard_votes(
        rows[kept],
        owner[kept],
        query.question(),
        clip=cast(Clip, options["clip"]),
        bound=query.bound,
        samples_cap=int(options["samples-cap"]),
        neighbors=int(options["neighbors"]),
        metric=cast(Metric, options["metric"]),
        plan=plan,
        counted=taking.counted,
    )


VOTES = Kind(check_votes, user_votes)
