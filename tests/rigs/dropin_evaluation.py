"""What several tests share about dropin evaluation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict

from privsyn_flower.protocol.question import Query
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
