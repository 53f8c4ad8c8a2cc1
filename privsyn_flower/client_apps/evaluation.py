"""The answer to an evaluation query: how well public models predict the users' texts.

The question brings parameters for a base model that the node has itself: one uint8 array of
safetensors bytes for each model, `model-a`, `model-b` and so on. `text/models/parameters.py` says
what is in them; they are checked before a private text is opened.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

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
from privsyn_flower.common.arrays import I64
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.queries.metrics import shard_metrics
from privsyn_flower.text.models.batches import SpecialTokens
from privsyn_flower.text.models.lm_metrics import BATCH_TOKENS, load_scorer
from privsyn_flower.text.models.parameters import (
    MOST_MODELS,
    Parameters,
    ParametersError,
    base_shapes,
    longest_sequence,
    model_names,
    unpack_parameters,
)

FAILED = "one user's evaluation failed; that user counts nothing"
MOST_TOKENS = 1 << 20  # of one user: beyond it a question is no honest one


def evaluation(message: Message, context: Context) -> Message:
    """ClientApp handler for `query.evaluation`."""
    return guarded(
        message, lambda: reply(message, context, open_node(context), EVALUATION), context
    )


def check_evaluation(query: Query, node: Node) -> None:
    """Refuse what this node cannot answer, before any private text is opened."""
    options = query.options
    models, counts = options.get("models"), ("models", "max-tokens", "sequence-length")
    # A boolean is an int to Python, and no number to us.
    if not all(type(options.get(key)) is int for key in counts):
        raise WireError(Refusal.MALFORMED, f"{counts} must be whole numbers")
    if not 1 <= int(models or 0) <= MOST_MODELS or query.length != 1 + 2 * int(models or 0):
        raise WireError(
            Refusal.MALFORMED, f"models = {models} with an answer of {query.length} coordinates"
        )
    length, tokens = int(options["sequence-length"]), int(options["max-tokens"])
    # Longer sequences would need memory that depends on how long a user's texts are.
    if not (2 <= length <= BATCH_TOKENS and 1 <= tokens <= MOST_TOKENS):
        raise WireError(Refusal.MALFORMED, "max-tokens or sequence-length is out of range")
    most, gap = options.get("max-loss"), options.get("gap")
    if not isinstance(most, int | float) or not 0 < most < math.inf:
        raise WireError(Refusal.MALFORMED, f"max-loss = {most!r} is not a positive number")
    if not isinstance(gap, int | float) or not 0 <= gap <= 1:
        raise WireError(Refusal.MALFORMED, f"gap = {gap!r} is not a number from 0 to 1")
    ends = special_tokens(query)
    folder = base_model(query, node)
    if query.rows.size or query.extra:
        _shipped(query, folder)
        check_ends(folder, ends)


def special_tokens(query: Query) -> SpecialTokens:
    """What stands around a text, in any evaluation query. Raises WireError."""
    for known in get_args(SpecialTokens):
        if query.options.get("special-tokens") == known:
            ends: SpecialTokens = known
            return ends
    raise WireError(Refusal.MALFORMED, "special-tokens is not one of the known")


def _shipped(query: Query, folder: Path) -> list[Parameters]:
    """The models of the question, each of which fits the base."""
    names = model_names(int(query.options["models"]))
    if query.rows.size or sorted(query.extra) != sorted(names):
        raise WireError(Refusal.MALFORMED, f"the question's arrays are not {names}")
    try:
        shapes, longest = base_shapes(folder), longest_sequence(folder)
    except Exception as error:
        raise WireError(Refusal.MODEL, f"{folder} is no causal language model: {error}") from error
    if int(query.options["sequence-length"]) > longest:
        raise WireError(Refusal.MALFORMED, f"sequence-length is above the base's {longest}")
    try:
        return [unpack_parameters(query.extra[name], shapes) for name in names]
    except ParametersError as error:
        raise WireError(Refusal.MALFORMED, f"a shipped model does not fit: {error}") from error


def rehearse_evaluation(query: Query, node: Node) -> None:
    """One batch of made-up tokens. Raises WireError(MEMORY)."""
    try:
        scorer = load_scorer(base_model(query, node), node.device)
        scorer.rehearse(int(query.options["sequence-length"]))
    except Exception as error:  # nobody's text was opened: the cause is the question's size
        raise WireError(Refusal.MEMORY, f"a batch of {BATCH_TOKENS} tokens failed") from error


def user_evaluations(
    query: Query, users: UserTexts, participants: Participants, plan: IntegerPlan, node: Node
) -> I64:
    """users' texts (PRIVATE) -> sum of the encoded vectors (1 + 2 models,) of those sampled.

    One user after the other goes through the model, alone in its batches, so that no user's
    numbers depend on another's text; whatever goes wrong with one user makes that user zeros.
    """
    folder, options = base_model(query, node), query.options
    models = _shipped(query, folder)
    scorer = load_scorer(folder, node.device)
    max_tokens, max_loss = int(options["max-tokens"]), float(options["max-loss"])
    length, ends = int(options["sequence-length"]), special_tokens(query)
    rows: list[list[list[int]]] = []
    for texts, asked in zip(users.values(), participants.eligible, strict=True):
        rows.append([])
        with alone(node, FAILED):
            if asked:
                rows[-1] = scorer.encode(
                    texts, max_tokens=max_tokens, length=length, special_tokens=ends
                )
    tokens = np.array([sum(len(row) - 1 for row in own) for own in rows], dtype=np.float64)
    correct, loss = np.full((2, len(rows), len(models)), np.nan)
    for number, parameters in enumerate(models):
        with scorer.with_parameters(parameters):
            for user in np.flatnonzero(tokens):
                with alone(node, FAILED):
                    sums = scorer.sums(rows[user], max_loss)
                    correct[user, number], loss[user, number] = sums
    return shard_metrics(
        tokens,
        correct,
        loss,
        max_tokens=max_tokens,
        max_loss=max_loss,
        bound=query.bound,
        gap=float(options["gap"]),
        plan=plan,
        sampled=participants.sampled,
    )


def evaluation_tokens(query: Query) -> int:
    """Most tokens of one user, over all models of the question."""
    return int(query.options["models"]) * int(query.options["max-tokens"])


EVALUATION = Kind(check_evaluation, user_evaluations, evaluation_tokens, rehearse_evaluation)
