"""The answer to a score query: how similar the node's users are to each candidate (POPri)."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray

from privsyn_flower.client_apps.answers import Kind, Participants, guarded, reply
from privsyn_flower.client_apps.node.device import Node, UserTexts, open_node
from privsyn_flower.client_apps.node.embedder import check_dimension, check_embedder
from privsyn_flower.client_apps.votes import EligibleRows, eligible_rows
from privsyn_flower.common.arrays import I64
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.protocol.packing import LARGEST
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.queries.scores import LARGEST_ENTRY, Score, shard_scores

MOST_DIMENSIONS = 8192  # of an embedding; a projection of more would be a bomb


def scores(message: Message, context: Context) -> Message:
    """ClientApp handler for `query.scores`."""
    return guarded(message, lambda: reply(message, context, open_node(context), SCORES), context)


def check_scores(query: Query, node: Node) -> None:
    """Refuse what this node cannot answer, before any private text is opened."""
    cap, dimension = query.options.get("samples-cap"), query.options.get("dimension", 0)
    # A boolean is an int to Python, and no number to us.
    if type(cap) is not int or type(dimension) is not int or cap < 1 or dimension < 0:
        raise _malformed("samples-cap or dimension is not a whole number in range")
    if query.options.get("score") not in get_args(Score):
        raise _malformed("the kind of score is not known here")
    labels = _labels(query)
    if query.rows.size or query.extra:  # else this is the head alone
        _check_arrays(query, dimension, labels)
    check_embedder(query, node)
    if query.rows.size:
        shown = query.extra.get("projection")
        width = query.rows.shape[1] if shown is None else len(shown)
        check_dimension("candidates", width, node)


def _check_arrays(query: Query, dimension: int, labels: list[str]) -> None:
    """The candidates and what belongs to them; nothing less, nothing more, nothing that is odd."""
    expected = ["groups", *(["classes"] if labels else []), *(["projection"] if dimension else [])]
    if len(query.rows) != query.length or sorted(query.extra) != sorted(expected):
        raise _malformed(f"{len(query.rows)} candidates with {sorted(query.extra)}")
    sizes = [
        query.rows.shape[1],
        *(len(a) for name, a in query.extra.items() if name == "projection"),
    ]
    if max(sizes) > MOST_DIMENSIONS:  # before anything is multiplied
        raise _malformed(f"candidates of {max(sizes)} dimensions")
    groups = query.extra["groups"]
    if groups.dtype != np.uint16 or groups.ndim != 1 or not len(groups) or not groups.min():
        raise _malformed("groups are no numbers of candidates")
    if int(groups.sum(dtype=np.int64)) != query.length:
        raise _malformed("groups do not sum to the number of candidates")
    if labels:
        classes = query.extra["classes"]
        if classes.dtype != np.uint16 or classes.shape != groups.shape:
            raise _malformed("classes are not one number for each prompt")
        if int(classes.max()) >= len(labels):
            raise _malformed("a class is not in the list of labels")
    if dimension:
        projection = query.extra["projection"]
        if projection.dtype != np.float16 or projection.shape != (len(projection), dimension):
            raise _malformed("the projection has another shape or type")
        # A direction has one column or two.
        if query.rows.shape[1] != dimension or dimension > 2 * len(projection):
            raise _malformed("the candidates do not have the projection's dimension")
        if query.length * len(projection) > LARGEST:
            raise _malformed(f"{query.length} candidates of {len(projection)} dimensions")
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.abs(query.question()).max(initial=0.0) <= LARGEST_ENTRY:
            raise _malformed("the candidates are not finite, or beyond any embedding")


def _labels(query: Query) -> list[str]:
    """The public class list; empty for a question without classes. Raises WireError."""
    try:
        return query.labels
    except ValueError as error:
        raise _malformed(str(error)) from None


def user_scores(
    query: Query, users: UserTexts, participants: Participants, plan: IntegerPlan, node: Node
) -> I64:
    """users' texts (PRIVATE) -> sum of the encoded scores (length,) of those who are sampled."""
    total = np.zeros(query.length, dtype=np.int64)
    for eligible in eligible_rows(query, users, participants, node, _labels(query)):
        total += scores_of(query, eligible, plan)
    return total


def scores_of(query: Query, eligible: EligibleRows, plan: IntegerPlan | None) -> NDArray[Any]:
    """A block's part of that sum; of floats without a plan."""
    groups, named = query.extra["groups"], query.extra.get("classes")
    return shard_scores(
        eligible.rows,
        eligible.owner,
        query.once(Query.question),
        score=str(query.options["score"]),
        bound=query.bound,
        samples_cap=int(query.options["samples-cap"]),
        groups=groups,
        classes=None if named is None else np.repeat(named.astype(np.intp), groups),
        sample_classes=eligible.classes,
        cosines="projection" not in query.extra,
        plan=plan,
        sampled=eligible.sampled,
    )


def _malformed(text: str) -> WireError:
    return WireError(Refusal.MALFORMED, f"the score query is malformed: {text}")


SCORES = Kind(check_scores, user_scores)
