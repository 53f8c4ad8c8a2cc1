"""Between a Flower app and a training run: its records, its figures, its privacy plan."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from privsyn_flower.protocol.question import OptionValue
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.averaging.generalised_fedavg import EVALUATE, Arrays, Evaluate

# The log that Flower shows in every app.
logger = logging.getLogger("flwr")

FIRST = "evaluation-0000"  # evaluate_fn's figures of the initial arrays
EVALUATION = "evaluation."  # what the metrics of an evaluation on the nodes begin with

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


def logged(evaluate_fn: EvaluateFn) -> Evaluate:
    """An app's evaluate_fn for named arrays; what it finds is in Flower's log."""

    def evaluate(rnd: int, model: Arrays) -> MetricRecord | None:
        found = evaluate_fn(rnd, array_record(model))
        logger.info("evaluation on the server after round %d: %s", rnd, found)
        return found

    return evaluate


def log_rounds(stage: str, done: float, total: float, note: str = "") -> None:
    """Progress as Flower's strategies log it: finished rounds."""
    if stage == "rounds":
        logger.info("[ROUND %d/%d] %s", done, total, note)


def array_record(arrays: Arrays) -> ArrayRecord:
    """Named arrays as Flower's record, copies."""
    return ArrayRecord({name: Array(np.array(array)) for name, array in arrays.items()})


def app_options(config: ConfigRecord | None, argument: str) -> dict[str, OptionValue]:
    """An app's config as options of the question. Raises ValueError on what cannot travel.

    argument: of `start`, for the error.
    """
    options: dict[str, OptionValue] = {}
    for key, value in (config or {}).items():
        # Flower cannot count the bytes of an empty string.
        if not isinstance(value, str | int | float) or value == "":
            raise ValueError(
                f"{argument}[{key!r}] = {value!r} must be a number, true or false, or a string "
                "that is not empty"
            )
        options[f"config.{key}"] = value
    return options


def server_figures(run: RunFolder) -> dict[int, MetricRecord]:
    """The stored figures of evaluate_fn, by round."""
    first = {"round": 0, **(run.load_value(FIRST) or {})}
    return _figures([first, *run.metrics()], EVALUATE)


def node_figures(run: RunFolder) -> dict[int, MetricRecord]:
    """The stored figures of the evaluations on the nodes, by round."""
    return _figures(run.metrics(), EVALUATION)


def _figures(rows: list[dict[str, Any]], prefix: str) -> dict[int, MetricRecord]:
    found = {}
    for row in rows:
        own = {key.removeprefix(prefix): row[key] for key in row if key.startswith(prefix)}
        if own:
            figures = {key: math.nan if value is None else value for key, value in own.items()}
            found[int(row["round"])] = MetricRecord(figures)
    return found
