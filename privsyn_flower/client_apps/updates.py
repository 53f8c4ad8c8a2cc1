"""The answer to an update query: what training on each user's texts changes, clipped and summed.

The question brings named parameters for a base model that the node has itself (see
`text/models/parameters.py`), and the numbers of the local training. All of it is checked before a
private text is opened. Users are trained one after another on one resident model, which starts
from the round's parameters for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from flwr.app import Context, Message

from privsyn_flower.arrays import F64, I64
from privsyn_flower.client_apps.answers import Kind, Taking, guarded, reply
from privsyn_flower.client_apps.node.device import Node, UserTexts, alone, base_model, open_node
from privsyn_flower.privacy.encoding.dense import DensePlan, encode_dense
from privsyn_flower.protocol.greeting import answer_hello, is_hello
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.queries.updates import shard_updates, update_bound
from privsyn_flower.randomness import seeded
from privsyn_flower.text.models.parameters import (
    Parameters,
    ParametersError,
    base_shapes,
    longest_sequence,
    unpack_parameters,
)
from privsyn_flower.training.layout import trained_layout
from privsyn_flower.training.low_rank import factor_targets, linear_weights
from privsyn_flower.training.models import LocalModel, load_model
from privsyn_flower.training.options import LocalTraining


def update(message: Message, context: Context) -> Message:
    """ClientApp handler for `train`: the greeting, or an update query."""
    if is_hello(message):
        return guarded(message, lambda: answer_hello(message, open_node(context).facts))
    return guarded(message, lambda: reply(message, context, open_node(context), UPDATE))


def check_update(query: Query, node: Node) -> None:
    """Refuse what this node cannot answer, before any private text is opened."""
    clipping(query)
    try:
        if not query.dense or not query.rotation:
            raise ValueError(f"encoding = {query.options.get('encoding')!r} is not dense")
        options = LocalTraining.from_options(query.options)
    except ValueError as error:
        raise WireError(Refusal.MALFORMED, str(error)) from None
    folder = base_model(query, node)
    if query.rows.size or query.extra:  # else this is the head alone
        _shipped(query, folder, options)


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
    if query.rows.size or set(query.extra) != {"parameters"}:
        raise WireError(Refusal.MALFORMED, "the question's arrays are not its parameters alone")
    try:
        shapes, linear = base_shapes(folder), linear_weights(folder)
        longest = longest_sequence(folder)
    except Exception as error:
        raise WireError(Refusal.MODEL, f"{folder} is no causal language model: {error}") from error
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
    if options.sequence_length > longest:
        raise WireError(
            Refusal.MALFORMED,
            f"training.sequence-length = {options.sequence_length} is above the base's {longest}",
        )
    return parameters


def user_updates(
    query: Query, users: UserTexts, taking: Taking, plan: DensePlan, node: Node
) -> I64:
    """users' texts (PRIVATE) -> sum of the encoded updates (padded_length,) of who is counted.

    No user's update depends on another's texts, nor on who was trained before; whatever goes
    wrong with one user makes that user zeros.
    """
    folder = base_model(query, node)
    options = LocalTraining.from_options(query.options)
    parameters = _shipped(query, folder, options)
    clip_norm, indicator = clipping(query)
    with load_model(folder, node.device).load(parameters, options.trained) as model:
        try:
            model.rehearse(options)
        except Exception as error:  # nobody's text was opened: the cause is the question's size
            raise WireError(Refusal.MEMORY, f"a step on made-up tokens failed: {error}") from error
        return shard_updates(
            _deltas(query, users, taking, model, options, node),
            counted=taking.counted[taking.asked],
            length=query.length,
            clip_norm=clip_norm,
            indicator=indicator,
            encode=lambda vector: encode_dense(vector, plan, query.rotation),
        )


def _deltas(
    query: Query,
    users: UserTexts,
    taking: Taking,
    model: LocalModel,
    options: LocalTraining,
    node: Node,
) -> Iterator[F64 | None]:
    """The delta (d,) of each user asked, PRIVATE, one after another; None where there is none.

    The order of a user's texts is drawn for the seed, the round (by its rotation) and the user.
    """
    for (user, texts), asked in zip(users.items(), taking.asked, strict=True):
        if not asked:
            continue
        delta = None
        with alone(node, "one user's training failed; that user counts nothing"):
            rng = seeded(options.seed, query.rotation.hex(), "order", user)
            delta = model.train(texts, options, rng)
        yield delta


def update_tokens(query: Query) -> int:
    """Most tokens of one user, over all steps of the local training."""
    return LocalTraining.from_options(query.options).most_tokens


UPDATE = Kind(check_update, user_updates, update_tokens)
