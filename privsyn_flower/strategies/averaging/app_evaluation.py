"""Federated evaluation of somebody else's app: what Flower's FedAvg averages, privately.

The model goes to the app's own evaluate function on the nodes; each user answers with one bounded
vector of the metrics it returns (`queries.metrics`). Each evaluation is one more release of
the run's ledger. How many there are is public and known before the run, so that the noise of all
releases is made for them. An app's records and figures are read and written here as well.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from privsyn_flower.privacy.plan import EVALUATIONS
from privsyn_flower.protocol.question import METRICS, OptionValue, Query
from privsyn_flower.queries.metrics import (
    LARGEST_COUNT,
    MOST_METRICS,
    TooNoisyError,
    app_metrics_bound,
    check_bounds,
    read_app_metrics,
)
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.averaging.generalised_fedavg import EVALUATE, Arrays, Evaluate
from privsyn_flower.strategies.engine.arguments import check_arguments
from privsyn_flower.strategies.engine.cohort import Cohort
from privsyn_flower.strategies.engine.one_question import OneQuestion
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.engine.session import Session
from privsyn_flower.text.models.parameters import pack_parameters

logger = logging.getLogger("flwr")  # shown in every app

RESERVED = "num-examples"  # what users may be weighted by; no metric of its own
FIRST = "evaluation-0000"  # evaluate_fn's figures of the initial arrays
EVALUATION = "evaluation."  # what the metrics of an evaluation on the nodes begin with

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


def logged(evaluate_fn: EvaluateFn) -> Evaluate:
    """An app's evaluate_fn for named arrays; what it finds is in Flower's log. Raises ValueError
    when that is not figures."""

    def evaluate(rnd: int, model: Arrays) -> MetricRecord | None:
        found = evaluate_fn(rnd, array_record(model))
        if found is not None and not _is_figures(found):
            raise ValueError(
                f"evaluate_fn returned {found!r} after round {rnd}: must be a MetricRecord or None"
            )
        logger.info("evaluation on the server after round %d: %s", rnd, found)
        return found

    return evaluate


def _is_figures(found: object) -> bool:
    if not isinstance(found, Mapping):
        return False
    values = [
        v for value in found.values() for v in (value if isinstance(value, list) else [value])
    ]
    return all(isinstance(value, int | float) for value in values)


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


@dataclass(frozen=True)
class PrivateEvaluation:
    """Which metrics of an app's evaluate function are measured on the nodes, and when. All public.

    metrics: name -> (low, high), the bounds to which every user's value is cut. The noise of a mean
    grows with high - low, so take what the metric can be, (0, 1) for an accuracy. every: 0 measures
    the final model only; k the model after every k-th round and the final one. Each evaluation
    costs as much privacy as a round, so all of them, and the training, get more noise.
    max_examples: 0 gives every user the same weight; above 0 it is the number of examples that the
    function returns as "num-examples", at most this many. confidence: of the intervals, which cover
    the noise and nothing else. Raises ValueError, naming the value, on what cannot be asked.
    """

    metrics: Mapping[str, tuple[float, float]]
    every: int = 0
    max_examples: int = 0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        check_arguments(metrics=self.metrics, confidence=self.confidence)
        for name, value, most in (
            ("every", self.every, math.inf),
            ("max_examples", self.max_examples, LARGEST_COUNT),
        ):
            if type(value) is not int or not 0 <= value <= most:
                raise ValueError(
                    f"evaluation: {name} = {value!r} must be a whole number, 0 or more"
                )
        if not 0 < self.confidence < 1:
            raise ValueError(f"evaluation: confidence = {self.confidence} must be between 0 and 1")
        if not 1 <= len(self.metrics) <= MOST_METRICS:
            raise ValueError(
                f"evaluation: {len(self.metrics)} metrics are named, must be 1 to {MOST_METRICS}"
            )
        for name, bounds in self.metrics.items():
            _check_metric(name, bounds)
        keys = [key for name in self.metrics for key in _keys(name)]
        if len(set(keys)) < len(keys):
            raise ValueError(
                f"evaluation: metrics {list(self.metrics)} and their intervals ('-low', '-high') "
                "would have the same names: rename one"
            )

    def rounds(self, num_rounds: int) -> list[int]:
        """The rounds after which the model is measured, when all of them are run."""
        steps = range(self.every, num_rounds, self.every) if self.every else ()
        return [*steps, num_rounds]

    def count(self, num_rounds: int) -> int:
        """The most releases that this adds to a run of so many rounds."""
        return len(self.rounds(num_rounds))

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Of each metric, in order."""
        return [(float(low), float(high)) for low, high in self.metrics.values()]

    @property
    def invariants(self) -> dict[str, Any]:
        """What a run keeps to, as JSON has it."""
        own = {"every": self.every, "max_examples": self.max_examples}
        return {**own, "confidence": self.confidence, "metrics": self._listed()}

    def query(
        self, arrays: Arrays, *, model: str, rnd: int, options: Mapping[str, OptionValue]
    ) -> Query:
        """The question about the model after round `rnd`.

        options: the config of the evaluate function and the arrays' order.
        """
        return Query(
            kind="evaluation",
            rows=np.zeros((0, 0), dtype=np.int8),
            scales=np.zeros(0, dtype=np.float32),
            length=1 + len(self.metrics),
            bound=app_metrics_bound(len(self.metrics)),
            model=model,
            options={**self.options(options), "server-round": rnd},
            extra={"parameters": pack_parameters(arrays)},
        )

    def read(self, question: OneQuestion) -> dict[str, float]:
        """Each metric's mean over the users and its interval. Raises TooNoisyError."""
        z = NormalDist().inv_cdf((1 + self.confidence) / 2)
        found = read_app_metrics(question.released, question.noise_std, bounds=self.bounds, z=z)
        figures: dict[str, float] = {}
        for name, ratio in zip(self.metrics, found, strict=True):
            figures |= zip(_keys(name), (ratio.value, ratio.low, ratio.high), strict=True)
        return figures

    def options(self, query_options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
        """Of the question, but for its round. query_options: as of `query`."""
        listed = json.dumps(self._listed())
        return {**query_options, METRICS: listed, "max-examples": self.max_examples}

    def _listed(self) -> list[list[Any]]:
        return [[name, *pair] for name, pair in zip(self.metrics, self.bounds, strict=True)]


def _keys(name: str) -> tuple[str, str, str]:
    """What a metric's mean and the ends of its interval are called."""
    return name, f"{name}-low", f"{name}-high"


def _check_metric(name: Any, bounds: Any) -> None:
    if not isinstance(name, str) or not name or name == RESERVED:
        raise ValueError(
            f"evaluation: a metric is called {name!r}: it must be a string, not empty and not "
            f"{RESERVED!r} (see max_examples)"
        )
    try:
        low, high = (float(value) for value in bounds)
        check_bounds([(low, high)])
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"evaluation: metrics[{name!r}] = {bounds!r} must be two numbers (low, high): {error}"
        ) from None


def evaluation_options(
    config: ConfigRecord | None, evaluation: PrivateEvaluation | None
) -> dict[str, OptionValue]:
    """An evaluate_config as options of the question. Raises ValueError when nobody pays for it."""
    if not isinstance(evaluation, PrivateEvaluation | None):
        raise ValueError(f"evaluation = {evaluation!r} must be a PrivateEvaluation")
    if config is not None and evaluation is None:
        raise ValueError(
            "evaluate_config: an evaluation on the nodes costs privacy: name its metrics and "
            "their bounds in evaluation=PrivateEvaluation(metrics=...), or leave evaluate_config "
            "out and use evaluate_fn on public data"
        )
    return app_options(config, "evaluate_config")


@dataclass
class AppEvaluations:
    """The evaluations of one run, made when their round comes.

    session: the run's, whose plan has them. cohort: of its rounds. rounds: how many. model,
    options: as `PrivateEvaluation.query` has them.
    """

    settings: PrivateEvaluation
    session: Session
    cohort: Cohort
    rounds: int
    model: str
    options: Mapping[str, OptionValue]

    def after(self, rnd: int, arrays: Arrays, *, last: bool = False) -> dict[str, float]:
        """The figures of the model after round `rnd`; {} when none are due, or on failure.

        last: no round follows. One that was made before is read from disk. What goes wrong on the
        nodes is told in the log: the training has been paid for, and goes on.
        """
        if not last and rnd not in self.settings.rounds(self.rounds):
            return {}
        name = f"{EVALUATIONS}-{rnd:04d}"
        begun = self.session.query_names(EVALUATIONS) - {name}
        if len(begun) >= self.settings.count(self.rounds):
            logger.warning(
                "no evaluation after round %d: the %d paid for are used", rnd, len(begun)
            )
            return {}
        query = self.settings.query(arrays, model=self.model, rnd=rnd, options=self.options)
        question = OneQuestion(query, list(self.settings.metrics))
        last = last or rnd == self.rounds
        try:
            self.session.ask(question, EVALUATIONS, name=name, last=last, cohort=self.cohort)
            figures = self.settings.read(question)
        except (NoRelease, TooNoisyError) as error:
            logger.warning("the evaluation after round %d gave nothing: %s", rnd, error)
            return {}
        logger.info("evaluation on the nodes after round %d: %s", rnd, MetricRecord(dict(figures)))
        return figures
