"""Private evaluation in somebody else's ClientApp: one decorator under Flower's `@app.evaluate()`.

The function stays what it is under Flower's FedAvg: parameters in, metrics out. Like a train
function under `private_training` it no longer meets the server. Of its metrics the node makes one
bounded vector for each user (`queries.metrics`), and only their noisy sum comes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, overload

import numpy as np
from flwr.app import Message

from privsyn_flower.client_apps.answers import Kind, Participants
from privsyn_flower.client_apps.dropin.question import (
    Arrays,
    Ask,
    alone,
    check_round,
    malformed,
    read_list,
    read_parameters,
)
from privsyn_flower.client_apps.dropin.training import (
    EVALUATED,
    EVALUATION_CHECKS,
    Handler,
    Users,
    Weight,
    answering,
)
from privsyn_flower.client_apps.node.device import Node, UserTexts
from privsyn_flower.common.arrays import I64
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.protocol.question import METRICS, Query
from privsyn_flower.queries.metrics import (
    LARGEST_COUNT,
    app_metrics_bound,
    check_bounds,
    shard_app_metrics,
)

EXAMPLES = "num-examples"  # the metric that Flower's FedAvg weights clients by


@overload
def private_evaluation(function: Handler) -> Handler: ...
@overload
def private_evaluation(
    *, users: Users | None = None, weight: Weight | None = None, check: Handler | None = None
) -> Callable[[Handler], Handler]: ...
def private_evaluation(
    function: Handler | None = None,
    *,
    users: Users | None = None,
    weight: Weight | None = None,
    check: Handler | None = None,
) -> Handler | Callable[[Handler], Handler]:
    """An evaluate function of Flower's whose metrics only ever leave the node in a private sum.

    Below `@app.evaluate()`, with or without arguments, in an app whose train function is under
    `private_training`, with the same `users` and `weight`. function(message, context) -> Message
    gets the model as the ArrayRecord "arrays", and the ConfigRecord "config" with
    `evaluate_config` and "server-round"; its reply holds one MetricRecord. The server must ask by
    `start(..., evaluation=PrivateEvaluation(...))`: any other evaluate message is refused.

    Of the reply only the metrics that the server names count, cut to its public bounds, and
    "num-examples" where it weights users by it. A user whose function raises, returns NaN or lacks
    one of these counts as zeros, and so does one with "num-examples" of 0. How long the function
    takes is seen by the server. check: as of `private_training`, a function like the evaluate
    function on made-up data; its reply must have the metrics that the server names. It is called
    before the first round of a training of the same module, so that nothing is paid for yet.
    """

    def decorated(function: Handler) -> Handler:
        kind: Callable[[Ask], Kind] = lambda one: Kind(check_metrics, _vectors(one))  # noqa: E731
        EVALUATED.add(function.__module__)
        if check is not None:
            EVALUATION_CHECKS[function.__module__] = check, _read_reply
        return answering(function, users, weight, kind, check, _read_reply, trains=False)

    return decorated if function is None else decorated(function)


def check_metrics(query: Query, node: Node) -> None:
    """Refuse a question that makes no sense, before the function sees it."""
    if query.kind != "evaluation":
        raise malformed(f"{query.kind!r} is not for an evaluate function")
    check_round(query)
    _max_examples(query)
    names, _ = _metrics(query)
    bound = app_metrics_bound(len(names))
    if query.length != 1 + len(names) or not math.isclose(bound, query.bound, rel_tol=1e-6):
        raise malformed(
            f"{len(names)} metrics with an answer of {query.length} numbers and a bound of "
            f"{query.bound}, not {bound}"
        )
    if query.rows.size or query.extra:  # else this is the head alone
        read_parameters(query)


def _metrics(query: Query) -> tuple[list[str], list[tuple[float, float]]]:
    """The metrics' names and bounds, in the vector's order. Raises WireError."""
    names: list[str] = []
    pairs: list[tuple[float, float]] = []
    for item in read_list(query, METRICS):
        if not isinstance(item, list) or len(item) != 3 or not isinstance(item[0], str):
            raise malformed(f"option {METRICS!r} is no list of [name, low, high]")
        if any(type(value) not in (int, float) for value in item[1:]):  # a boolean is no number
            raise malformed(f"the bounds of metric {item[0]!r} are no numbers")
        names.append(item[0])
        pairs.append((item[1], item[2]))
    try:
        app_metrics_bound(len(names))
        # JSON's whole numbers have no largest one.
        bounds = [(float(low), float(high)) for low, high in pairs]
        check_bounds(bounds)
    except (ValueError, OverflowError) as error:
        raise malformed(str(error)) from None
    if "" in names or len(set(names)) != len(names):
        raise malformed(f"the metrics {names} are not distinct names")
    return names, bounds


def _max_examples(query: Query) -> int:
    most = query.options.get("max-examples")
    if type(most) is not int or not 0 <= most <= LARGEST_COUNT:
        raise malformed(f"max-examples = {most!r} is no whole number from 0 to {LARGEST_COUNT}")
    return most


def _vectors(evaluate: Ask) -> Callable[..., I64]:
    """What makes the sum of the encoded vectors (1 + metrics,), PRIVATE, of those sampled.

    evaluate(query, arrays, user): the function's reply for one user.
    """

    def vectors(
        query: Query, users: UserTexts, participants: Participants, plan: IntegerPlan, node: Node
    ) -> I64:
        arrays, most = read_parameters(query), _max_examples(query)
        names, bounds = _metrics(query)
        asked = [
            user for user, is_asked in zip(users, participants.eligible, strict=True) if is_asked
        ]
        rows = np.full((len(asked), 1 + len(names)), np.nan)
        for row, user in zip(rows, asked, strict=True):
            with alone(node, "evaluate"):  # who fails stays NaN, which counts nothing
                row[:] = _numbers(evaluate(query, arrays, user), names, weighted=most > 0)
        return shard_app_metrics(
            rows[:, 0],
            rows[:, 1:],
            bounds=bounds,
            max_examples=most,
            plan=plan,
            sampled=participants.sampled[participants.eligible],
        )

    return vectors


def _read_reply(query: Query, arrays: Arrays, answer: Message) -> object:
    """What the node takes from a reply. Raises as `_numbers`."""
    return _numbers(answer, _metrics(query)[0], weighted=_max_examples(query) > 0)


def _numbers(answer: Message, names: list[str], *, weighted: bool) -> list[float]:
    """[examples, metrics] of a function's reply. Raises ValueError, KeyError, OverflowError."""
    records = list(answer.content.metric_records.values())
    if len(records) != 1:
        raise ValueError(
            f"the evaluate function returned {len(records)} MetricRecords, expected one"
        )
    found: dict[str, Any] = dict(records[0])
    if not weighted:
        found.setdefault(EXAMPLES, 1)
    missing = [name for name in (EXAMPLES, *names) if name not in found]
    if missing:
        raise KeyError(f"the evaluate function's metrics {sorted(found)} lack {missing}")
    lists = [name for name in (EXAMPLES, *names) if not isinstance(found[name], int | float)]
    if lists:
        raise ValueError(f"the evaluate function's metrics {lists} are no numbers")
    numbers = [float(found[name]) for name in (EXAMPLES, *names)]
    if not np.isfinite(numbers).all():
        raise ValueError(f"the evaluate function returned {found}: not all are finite")
    return numbers
