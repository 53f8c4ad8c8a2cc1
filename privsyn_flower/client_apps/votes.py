"""The answer to a vote query: nearest-neighbour votes of the node's users (PrE-Text)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray

from privsyn_flower.client_apps.answers import Kind, Participants, guarded, reply
from privsyn_flower.client_apps.node.device import Node, UserTexts, open_node
from privsyn_flower.client_apps.node.embedder import check_dimension, check_embedder
from privsyn_flower.common.arrays import F32, I32, I64, Bools, Ints
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.queries.votes import (
    Clip,
    Metric,
    Question,
    nearest_candidates,
    prepare,
    shard_votes,
)

if TYPE_CHECKING:  # three of the five stages of a secure sum load nothing of data
    from privsyn_flower.data.caches import Block


def votes(message: Message, context: Context) -> Message:
    """ClientApp handler for `query.votes`."""
    return guarded(message, lambda: reply(message, context, open_node(context), VOTES), context)


def check_votes(query: Query, node: Node) -> None:
    """Refuse what this node cannot answer, before any private text is opened."""
    options = query.options
    known = options.get("clip") in get_args(Clip) and options.get("metric") in get_args(Metric)
    # A boolean is an int to Python, and no number to us.
    whole = all(type(options.get(key)) is int for key in ("neighbors", "samples-cap"))
    try:
        labels = query.labels
    except ValueError as error:
        raise _malformed(str(error)) from None
    if not known or not whole:
        raise _malformed("its options are not known here")
    if not 1 <= int(options["neighbors"]) <= query.length or int(options["samples-cap"]) < 1:
        raise _malformed("neighbors or samples-cap is out of range")
    here = bool(query.rows.size or query.extra)  # else this is the head alone
    if here:
        _check_candidates(query, labels)
    check_embedder(query, node)
    if here:
        check_dimension("candidates", query.rows.shape[1], node)


def _check_candidates(query: Query, labels: list[str]) -> None:
    """As many as the answer has room for, and the class of each, where that is asked."""
    neighbors, size = int(query.options["neighbors"]), len(query.rows)
    topics, scales = query.extra.get("topics"), query.extra.get("topic-scales")
    named = [] if topics is None else ["topic-scales", "topics"]
    if sorted(query.extra) not in ([], ["classes", *named]):  # a projection changes their size
        raise _malformed(f"it comes with {sorted(query.extra)}")
    if not query.extra:
        if size * max(1, len(labels)) != query.length or neighbors > size:
            raise _malformed(f"{size} candidates, {len(labels)} classes and {query.length} votes")
        return
    classes = query.extra["classes"]
    if classes.dtype != np.uint16 or classes.shape != (size,) or size != query.length:
        raise _malformed("classes are not one number for each candidate")
    if topics is not None and scales is not None:
        fine = (topics.dtype, scales.dtype) == (np.int8, np.float32) and not labels
        fine = fine and topics.ndim == 2 and topics.shape[1] == query.rows.shape[1]
        if not fine or scales.shape != topics.shape[:1] or not (np.abs(scales) <= 1).all():
            raise _malformed("its topics are not a row and a scale each")
    if int(classes.max()) >= (len(labels) if topics is None else len(topics)):
        raise _malformed("a class is not in the list of labels")
    counts = np.bincount(classes)
    if int(counts[counts > 0].min()) < neighbors:
        raise _malformed(f"a class has fewer candidates than neighbors = {neighbors}")


def user_rows(query: Query, users: UserTexts, node: Node) -> Iterator[Block]:
    """users' texts -> embeddings, PRIVATE, from the cache, a block of users after the other.

    Of all users, whoever takes part: the cache keeps exactly those it is shown. What a node holds
    at once is bounded by its memory, and no sum depends on where a block ends: a user is in one
    block, and a block's sum is one of integers.
    """
    from privsyn_flower.data import EmbeddingCache
    from privsyn_flower.text.embedders import load_embedder

    def embed(texts: list[str]) -> F32:
        try:
            return load_embedder(node.embedder, node.device, progress=False).embed(texts)
        except BaseException as error:  # of one user: the cache goes on without
            node.failures.add("answer", error, 1)
            raise

    return EmbeddingCache(node.cache / "embeddings", query.model, node.memory).blocks(users, embed)


class EligibleRows(NamedTuple):
    """A block's rows of those who are asked, PRIVATE.

    rows: (n, d). owner: (n,), the user of each. sampled: (u,) whether each of the block's users is
    summed. classes: (n,) of each row, -1 outside the list; None for a question without classes.
    """

    rows: F32
    owner: I32
    sampled: Bools
    classes: I64 | None


def eligible_rows(
    query: Query, users: UserTexts, participants: Participants, node: Node, labels: list[str]
) -> Iterator[EligibleRows]:
    """`user_rows` of those who are asked, block by block. labels: the public class list."""
    from privsyn_flower.data.caches import classes_of
    from privsyn_flower.data.findings import NODE_LOG

    cap = int(query.options["samples-cap"])
    for block in user_rows(query, users, node):
        if beyond := int(np.maximum(np.bincount(block.owner) - cap, 0).sum()):
            NODE_LOG.warning("%d texts are beyond the question's samples-cap = %d", beyond, cap)
        here = slice(block.first, block.first + len(block.users))
        kept = participants.eligible[here][block.owner]  # (n,)
        classes = None
        if labels:
            texts = (users[user] for user in block.users)
            classes = classes_of(texts, block.owner, len(block.users), labels)
        if kept.all():  # the usual case: no copy of the embeddings
            yield EligibleRows(block.rows, block.owner, participants.sampled[here], classes)
        else:
            own = None if classes is None else classes[kept]
            yield EligibleRows(block.rows[kept], block.owner[kept], participants.sampled[here], own)


def user_votes(
    query: Query, users: UserTexts, participants: Participants, plan: IntegerPlan, node: Node
) -> I64:
    """users' texts (PRIVATE) -> sum of the encoded votes (length,) of those who are sampled."""
    total = np.zeros(query.length, dtype=np.int64)
    for eligible in eligible_rows(query, users, participants, node, query.labels):
        total += votes_of(query, eligible, plan)
    return total


def votes_of(query: Query, eligible: EligibleRows, plan: IntegerPlan | None) -> NDArray[Any]:
    """A block's part of that sum; of floats without a plan."""
    options, classes = query.options, eligible.classes
    return shard_votes(
        eligible.rows,
        eligible.owner,
        query.once(Query.question),
        clip=cast(Clip, options["clip"]),
        bound=query.bound,
        samples_cap=int(options["samples-cap"]),
        neighbors=int(options["neighbors"]),
        metric=cast(Metric, options["metric"]),
        plan=plan,
        sampled=eligible.sampled,
        classes=max(1, len(query.labels)),
        sample_classes=_topics_of(eligible.rows, query) if "topics" in query.extra else classes,
        candidate_classes=query.extra.get("classes"),
    )


def _topics_of(rows: F32, query: Query) -> Ints:
    """(n,) each row's nearest topic, PRIVATE; -1 for a row that is not finite. As of candidates, a
    function of that row and of public topics alone."""
    nearest, finite = nearest_candidates(rows, None, query.once(_topics))
    found = np.full(len(rows), -1)
    found[finite] = nearest[:, 0]
    return found


def _topics(query: Query) -> Question:
    rows = query.extra["topics"].astype(np.float32) * query.extra["topic-scales"][:, None]
    return prepare(rows.astype(np.float32), 1, "cosine")


def _malformed(text: str) -> WireError:
    return WireError(Refusal.MALFORMED, f"the vote query is malformed: {text}")


VOTES = Kind(check_votes, user_votes)
