"""The answer to an update query: what training on each user's texts changes, clipped and summed.

The question brings named parameters for a base model that the node has itself (see
`text/models/parameters.py`), the numbers of the local training and maybe conditions of the texts
(see `training/conditions.py`). All of it is checked before a private text is opened. Users are
trained one after another on one resident model, which starts from the round's parameters for each
of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from flwr.app import Context, Message

from privsyn_flower.client_apps.answers import Kind, Participants, guarded, reply
from privsyn_flower.client_apps.node.device import (
    Node,
    UserTexts,
    alone,
    base_model,
    check_ends,
    open_node,
)
from privsyn_flower.client_apps.node.embedder import check_dimension, check_embedder
from privsyn_flower.client_apps.node.policy import check_model
from privsyn_flower.client_apps.votes import user_rows
from privsyn_flower.common.arrays import F32, F64, I64
from privsyn_flower.common.randomness import seeded
from privsyn_flower.privacy.encoding.dense import DensePlan, encode_dense
from privsyn_flower.protocol.greeting import answer_hello, is_hello
from privsyn_flower.protocol.noise import MATRIX
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.queries.updates import shard_updates, update_bound
from privsyn_flower.text.models.parameters import (
    Parameters,
    ParametersError,
    base_shapes,
    longest_sequence,
    unpack_parameters,
)
from privsyn_flower.text.models.pretrained import classes_in, encodes
from privsyn_flower.training.conditions import ROWS, ConditionOptions, Conditions
from privsyn_flower.training.layout import LocalTraining, trained_layout
from privsyn_flower.training.low_rank import factor_targets, linear_weights
from privsyn_flower.training.models import LoadedLM, load_model

T = TypeVar("T")


def update(message: Message, context: Context) -> Message:
    """ClientApp handler for `train`: the greeting, or an update query."""
    if is_hello(message):
        return guarded(message, lambda: answer_hello(message, open_node(context).facts), context)
    return guarded(message, lambda: reply(message, context, open_node(context), UPDATE), context)


def check_update(query: Query, node: Node) -> None:
    """Refuse what this node cannot answer, before any private text is opened."""
    clipping(query)
    try:
        if not query.dense or not query.rotation:
            raise ValueError(f"encoding = {query.options.get('encoding')!r} is not dense")
        options = LocalTraining.from_options(query.options)
        asked = ConditionOptions.from_options(query.options)
    except ValueError as error:
        raise WireError(Refusal.MALFORMED, str(error)) from None
    folder = base_model(query, node)
    if query.rows.size or query.extra:  # else this is the head alone
        _shipped(query, folder, options)
        query.once(_conditions)
        if options.special_tokens == "bos-eos" and (asked is not None or classes_in(folder)):
            raise WireError(Refusal.MALFORMED, "special-tokens is for next tokens alone")
        check_ends(folder, options.special_tokens)
    if asked is not None and asked.topics:
        if node.policy is not None:
            check_model(node.policy, asked.embedder)
        check_embedder(_about(query, asked.embedder), node)
        if ROWS in query.extra:
            check_dimension(ROWS, query.extra[ROWS].shape[1], node)


def _about(query: Query, embedder: str) -> Query:
    """The question as one about texts' embeddings, for whoever looks at nothing else of it."""
    return replace(query, model=embedder)


def _conditions(query: Query) -> Conditions | None:
    """What a question that passed `check_update` conditions texts on. Raises WireError."""
    try:
        return Conditions.from_query(query.options, query.extra)
    except ValueError as error:
        raise WireError(Refusal.MALFORMED, f"the conditions: {error}") from None


def clipping(query: Query) -> tuple[float, float]:
    """clip-norm and indicator of an update query, which must give its bound. Raises WireError."""
    values = [query.options.get(key) for key in ("clip-norm", "indicator")]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise WireError(Refusal.MALFORMED, f"clip-norm, indicator = {values} are not numbers")
    clip_norm, indicator = (float(value) for value in values)  # type: ignore[arg-type]
    try:
        bound = update_bound(clip_norm, indicator)
    except ValueError as error:
        raise WireError(Refusal.MALFORMED, str(error)) from None
    if not math.isclose(bound, query.bound, rel_tol=1e-6):
        raise WireError(
            Refusal.MALFORMED, f"bound = {query.bound}, but clip-norm = {clip_norm} has {bound}"
        )
    return clip_norm, indicator


def _shipped(query: Query, folder: Path, options: LocalTraining) -> Parameters:
    """The question's parameters, which fit the base and the length of the answer."""
    asked = ConditionOptions.from_options(query.options)
    own, longest_source = (asked.arrays, asked.max_source) if asked else (set[str](), 0)
    if query.rows.size or set(query.extra) != {"parameters", *own}:
        raise WireError(
            Refusal.MALFORMED, f"the question's arrays are not {sorted({'parameters', *own})} alone"
        )
    try:
        shapes, linear = base_shapes(folder), linear_weights(folder)
        longest = longest_sequence(folder)
    except Exception as error:
        raise WireError(Refusal.MODEL, f"{folder} is no language model: {error}") from error
    try:
        parameters = unpack_parameters(query.extra["parameters"], shapes)
        layout = trained_layout(parameters, query.options)
    except (ParametersError, ValueError) as error:
        raise WireError(Refusal.MALFORMED, f"the parameters do not fit: {error}") from None
    odd = sorted(factor_targets(parameters, shapes) - set(linear))
    if odd:
        raise WireError(Refusal.MALFORMED, f"low-rank factors of {odd[:5]}: no linear layers")
    if query.length != layout.length + (clipping(query)[1] > 0):
        raise WireError(
            Refusal.MALFORMED,
            f"{layout.length} trained parameters with an answer of {query.length} coordinates",
        )
    if asked is not None and classes_in(folder):
        raise WireError(Refusal.MALFORMED, f"{folder} tells classes, and reads no conditions")
    encoder = encodes(folder)
    if encoder and asked is None:
        raise WireError(Refusal.MALFORMED, f"{folder} reads conditions, and there are none")
    # An encoder has the condition to itself; else the text comes after it.
    both = (longest_source, options.sequence_length)
    if (max(both) if encoder else sum(both)) > longest:
        with_source = f" with condition.max-source = {longest_source}" if asked else ""
        raise WireError(
            Refusal.MALFORMED,
            f"sequence-length = {options.sequence_length}{with_source} is above the "
            f"base's {longest}",
        )
    return parameters


def rehearse_update(query: Query, node: Node) -> None:
    """One step on made-up tokens, once for each size. Raises WireError(MEMORY)."""
    folder, conditions = base_model(query, node), query.once(_conditions)
    options = LocalTraining.from_options(query.options)
    parameters = _shipped(query, folder, options)
    try:
        with load_model(folder, node.device).load(parameters, options.trained) as model:
            model.rehearse(options, conditions.max_source if conditions else 0)
    except Exception as error:  # nobody's text was opened: the cause is the question's size
        raise WireError(Refusal.MEMORY, f"a step on made-up tokens failed: {error}") from error


def user_updates(
    query: Query, users: UserTexts, participants: Participants, plan: DensePlan, node: Node
) -> I64:
    """users' texts (PRIVATE) -> sum of the encoded updates (padded_length,) of those sampled.

    No user's update depends on another's texts, nor on who was trained before; whatever goes
    wrong with one user makes that user zeros.
    """
    folder = base_model(query, node)
    options = LocalTraining.from_options(query.options)
    parameters = _shipped(query, folder, options)
    clip_norm, indicator = clipping(query)
    conditions = query.once(_conditions)
    with load_model(folder, node.device).load(parameters, options.trained) as model:
        return shard_updates(
            _deltas(query, users, participants, model, options, node, conditions),
            sampled=participants.sampled[participants.eligible],
            length=query.length,
            clip_norm=clip_norm,
            indicator=indicator,
            encode=lambda vector: encode_dense(vector, plan, query.rotation),
        )


def _deltas(
    query: Query,
    users: UserTexts,
    participants: Participants,
    model: LoadedLM,
    options: LocalTraining,
    node: Node,
    conditions: Conditions | None,
) -> Iterator[F64 | None]:
    """The delta (d,) of each user asked, PRIVATE, one after another; None where there is none.

    Where the local training is one plain SGD step, several users' are computed at once.
    """
    asking = (query, users, participants, options, node, conditions)
    group = model.group(options, conditions.max_source if conditions else 0)
    if group is None:
        return _each(model.train, *asking)
    return group.deltas(_each(model.rows, *asking))


def _each(
    work: Callable[..., T | None],
    query: Query,
    users: UserTexts,
    participants: Participants,
    options: LocalTraining,
    node: Node,
    conditions: Conditions | None,
) -> Iterator[T | None]:
    """What `work` makes of each asked user's texts, PRIVATE; None where that fails.

    The order of a user's texts is drawn for the seed, the round (by its rotation, which is the
    whole run's where answers are rows of a matrix) and the user.
    """
    rnd = f"{participants.round} " if MATRIX in query.options else ""
    everyone = _owned(query, users, node, conditions)
    for user, own, asked in zip(users, everyone, participants.eligible, strict=True):
        if not asked:
            continue
        made = None
        with alone(node, "one user's training failed; that user counts nothing"):
            rng = seeded(options.seed, rnd + query.rotation.hex(), "order", user)
            if conditions is None:
                made = work(own.texts, options, rng)
            else:
                told = conditions.pairs(own.texts, own.rows)
                made = work(told[0], options, rng, told[1], conditions.max_source)
        yield made


class _Own(NamedTuple):
    """One user's texts, and their embeddings (n, d) where topics are asked for; PRIVATE."""

    texts: Sequence[str]
    rows: F32


def _owned(
    query: Query, users: UserTexts, node: Node, conditions: Conditions | None
) -> Iterator[_Own]:
    """Each user's own, from the cache of embeddings, which embeds one user at a time."""
    if conditions is None or conditions.topics is None:
        for texts in users.values():
            yield _Own(texts, np.zeros((0, 0), dtype=np.float32))
        return
    for block in user_rows(_about(query, conditions.topics.embedder), users, node):
        ends = np.searchsorted(block.owner, np.arange(len(block.users)), side="right").tolist()
        for first, last, user in zip([0, *ends[:-1]], ends, block.users, strict=True):
            yield _Own(users[user], block.rows[first:last])


def update_tokens(query: Query) -> int:
    """Most tokens of one user, over all steps of the local training, conditions included."""
    options = LocalTraining.from_options(query.options)
    asked = ConditionOptions.from_options(query.options)
    source = asked.max_source if asked else 0
    return options.max_steps * options.batch_size * (options.sequence_length + source)


UPDATE = Kind(check_update, user_updates, update_tokens, rehearse_update)
