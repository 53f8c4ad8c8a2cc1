"""The answer to a vote query: nearest-neighbour votes of the node's users (PrE-Text)."""

from __future__ import annotations

from typing import cast, get_args

from flwr.app import Context, Message

from privsyn_flower.arrays import F32, I32, I64
from privsyn_flower.client_apps.answers import Kind, Taking, guarded, reply
from privsyn_flower.client_apps.labels import classes_of, labels_of
from privsyn_flower.client_apps.node.device import Node, UserTexts, open_node
from privsyn_flower.client_apps.node.embedder import check_dimension, check_embedder
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.queries.nearest import Metric
from privsyn_flower.queries.votes import Clip, shard_votes


def votes(message: Message, context: Context) -> Message:
    """ClientApp handler for `query.votes`."""
    return guarded(message, lambda: reply(message, context, open_node(context), VOTES))


def check_votes(query: Query, node: Node) -> None:
    """Refuse what this node cannot answer, before any private text is opened."""
    options = query.options
    known = options.get("clip") in get_args(Clip) and options.get("metric") in get_args(Metric)
    whole = all(isinstance(options.get(key), int) for key in ("neighbors", "samples-cap"))
    try:
        size, odd = divmod(query.length, max(1, len(labels_of(query))))
    except ValueError as error:
        raise WireError(Refusal.MALFORMED, f"the vote query is malformed: {error}") from None
    if not known or not whole or odd or len(query.rows) not in (0, size):
        raise WireError(Refusal.MALFORMED, "the vote query's options are not known here")
    if not 1 <= int(options["neighbors"]) <= size or int(options["samples-cap"]) < 1:
        raise WireError(Refusal.MALFORMED, "neighbors or samples-cap is out of range")
    if query.extra:  # a projection would make another size of them
        raise WireError(Refusal.MALFORMED, f"a vote query with {sorted(query.extra)}")
    check_embedder(query, node)
    if query.rows.size:  # else this is the head alone
        check_dimension("candidates", query.rows.shape[1], node)


def user_rows(query: Query, users: UserTexts, node: Node) -> tuple[F32, I32]:
    """users' texts -> embeddings (n, d) and the user of each (n,), both PRIVATE, from the cache.

    Of all users, whoever takes part: the cache keeps exactly those it is shown.
    """
    from privsyn_flower.data import EmbeddingCache
    from privsyn_flower.text.embedders import load_embedder

    def embed(texts: list[str]) -> F32:
        try:
            return load_embedder(node.embedder, node.device, progress=False).embed(texts)
        except BaseException as error:  # of one user: the cache goes on without
            node.failures.add("answer", error, 1)
            raise

    return EmbeddingCache(node.cache / "embeddings", query.model).get(users, embed)


def asked_rows(query: Query, users: UserTexts, taking: Taking, node: Node) -> tuple[F32, I32, I32]:
    """`user_rows` of those who are asked (n, d) and (n,), and the user of every row (all,)."""
    rows, owner = user_rows(query, users, node)
    if taking.asked.all():  # the usual case: no copy of all embeddings
        return rows, owner, owner
    kept = taking.asked[owner]
    return rows[kept], owner[kept], owner


def user_votes(
    query: Query, users: UserTexts, taking: Taking, plan: IntegerPlan, node: Node
) -> I64:
    """users' texts (PRIVATE) -> sum of the encoded votes (length,) of those who are counted."""
    rows, owner, of_all = asked_rows(query, users, taking, node)
    options, labels, own = query.options, labels_of(query), None
    if labels:
        own = classes_of(users, of_all, labels)[taking.asked[of_all]]
    return shard_votes(
        rows,
        owner,
        query.question(),
        clip=cast(Clip, options["clip"]),
        bound=query.bound,
        samples_cap=int(options["samples-cap"]),
        neighbors=int(options["neighbors"]),
        metric=cast(Metric, options["metric"]),
        plan=plan,
        counted=taking.counted,
        classes=max(1, len(labels)),
        sample_classes=own,
    )


VOTES = Kind(check_votes, user_votes)
