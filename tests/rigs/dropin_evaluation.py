"""What several tests share about dropin evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict

from privsyn_flower.privacy.encoding.sizing import plan_histogram
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.noise import Noise, decode_sum
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.strategies import PrivateEvaluation
from privsyn_flower.training import Layout
from tests.rigs.dropin import (
    ARRAYS,
    home,  # noqa: F401
)

SETTINGS = PrivateEvaluation({"accuracy": (0, 1), "loss": (0.0, 4.0)})


def evaluation(settings: PrivateEvaluation = SETTINGS, **changes: Any) -> Query:
    options = {"arrays": json.dumps(list(ARRAYS)), "config.batch": 8}
    more = changes.pop("options", {})
    query = settings.query(ARRAYS, model=Layout.of(ARRAYS).digest(), rnd=3, options=options)
    kept = {key: value for key, value in (dict(query.options) | more).items() if value is not None}
    return replace(query, **{"options": kept, **changes})


def found(message: Message, **metrics: Any) -> Message:
    """An ordinary evaluate function's reply."""
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


GOOD = {"accuracy": 0.75, "loss": 1.0, "num-examples": 10}
TICKET = Ticket("run-evaluation-0003", "evaluation", 1, 1)


def noise(query: Query, weight: int = 1) -> Noise:
    """None on the node: what comes out is what the users said."""
    plan = plan_histogram(
        query.bound, query.length, noise_multiplier=0.0, weight=weight, min_weight=weight
    )
    return Noise(1.0, plan.sensitivity, plan.bits, weight, source="aggregator")


def ask(query: Query, weight: int = 1, ticket: Ticket = TICKET) -> Message:
    return wire.ask(query, ticket, noise(query, weight), 1, weight, 60.0)


def decoded(reply: Message, query: Query, weight: int = 1, ticket: Ticket = TICKET) -> Any:
    """What the server makes of a plain reply (1 + metrics,)."""
    used = noise(query, weight)
    residues = wire.read_answer(reply, ticket, query.length, used.bits).residues
    return decode_sum(residues, query, used)


def told(**metrics: Any) -> Callable[[Message, Any], Message]:
    return lambda message, context: found(message, **metrics)
