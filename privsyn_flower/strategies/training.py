"""`start` of the training methods: in the place of Flower's FedAvg, in any ServerApp."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from privsyn_flower.config import ledger_folder
from privsyn_flower.privacy.accounting import Mechanism as NoiseName
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.sentence import PrivacyStatement
from privsyn_flower.progress import Progress
from privsyn_flower.question import OptionValue
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.aggregation import Aggregation, SecureAggregation
from privsyn_flower.strategies.cohort import RoundPlan
from privsyn_flower.strategies.generalised_fedavg import (
    EVALUATE,
    Arrays,
    Evaluate,
    GeneralisedFedAvg,
)
from privsyn_flower.strategies.mechanisms import Mechanism
from privsyn_flower.strategies.rounds import Rounds
from privsyn_flower.strategies.synthesis import run_id, simulated
from privsyn_flower.training import Layout

# The log that Flower shows in every app.
logger = logging.getLogger("flwr")

PROMISED = "promised"  # what the run's noise is for, and what is said of it
FIRST = "evaluation-0000"  # evaluate_fn's figures of the initial arrays
ORDER = "arrays"  # option: names of the arrays in the app's own order, which files do not keep

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class Terms:
    """How a run's noise is made, what it costs, and what may be said of it; all public.

    mechanism: run's name -> who adds the noise. ledger: the kind of noise that the run's ledger is
    for; order: of its filter. plan, statement: what belongs into RoundPlan and PrivacyStatement.
    """

    noise_multiplier: float
    mechanism: Callable[[str], Mechanism]
    ledger: NoiseName
    order: int | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    statement: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, repr=False)
class TrainingResult(Result):
    """Flower's result, with what was promised for it.

    arrays: the final model, public. epsilon, delta: the run's guarantee, which
    `statement.sentence()` puts into words; spent: what was charged so far (no guarantee). rounds:
    releases learned from. metrics: a row for each of them. evaluate_metrics_serverapp: what
    evaluate_fn returned; the clients' metrics of Flower's result stay empty, because none leave a
    node.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    rounds: int
    spent: float
    statement: PrivacyStatement
    metrics: list[dict[str, Any]]


class TrainingStrategy(GeneralisedFedAvg):
    """A training method that `start` runs over a Flower grid."""

    def terms(
        self,
        epsilon: float,
        delta: float,
        rounds: int,
        spare_rounds: int,
        *,
        nodes: int,
        keys: Path,
    ) -> Terms:
        """The noise that keeps (epsilon, delta) over `rounds` releases, spare ones paid for.

        nodes: those the run waits for. keys: folder for the key of an aggregator's noise.
        """
        raise NotImplementedError

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        epsilon: float,
        delta: float,
        users: int,
        folder: str | Path,
        nodes: int = 0,
        spare_rounds: int = 1,
        min_surviving_weight: float = 0.85,
        colluding_weight: float = 0.0,
        node_keys: Literal["first-use", "roster"] = "first-use",
        ledger: str | Path = "",
        population_name: str = "",
        aggregation: Aggregation | None = None,
        noise_keys: str | Path = "",
        stage_timeout: float = 60.0,
        node_timeout: float = 120.0,
        progress: Progress | None = None,
    ) -> TrainingResult:
        """Train over `grid`; calling again with the same `folder` goes on where it was.

        The arguments up to evaluate_fn are those of Flower's strategies. timeout: seconds that a
        round waits for the nodes. train_config: travels to the nodes as the config of their train
        function. evaluate_config: there is no evaluation on the nodes here, so it must be None.
        evaluate_fn: measures the model on the server, on public data, before round 1 and after
        each round.

        users: the declared population (public); the noise is the smallest that keeps (epsilon,
        delta) for num_rounds + spare_rounds releases. nodes: to wait for; 0: as many as users.
        Without `ledger` the run has a ledger of its own in `folder`, and epsilon covers this run
        alone. node_keys: declared, what the nodes check each other's keys against. noise_keys:
        folder, outside `folder`, for the key of an aggregator's noise; "" for the user's own.
        progress: told how far the run is; None writes finished rounds to Flower's log.
        Raises ValueError on arrays with NaN, on a train_config value that cannot travel, and on
        arguments that promise something else than those that `folder` was begun with.
        """
        if evaluate_config is not None:
            raise ValueError(
                "evaluate_config: nodes answer no evaluation here, because each costs privacy: "
                "leave it out, use evaluate_fn on public data, or strategies.evaluate"
            )
        how, run = aggregation or SecureAggregation(), RunFolder(folder)
        keys = Path(noise_keys) if noise_keys else noise_key_folder()
        waited = nodes or users
        terms = self.terms(epsilon, delta, num_rounds, spare_rounds, nodes=waited, keys=keys)
        shared = {
            "noise_multiplier": terms.noise_multiplier,
            "spare_rounds": spare_rounds,
            "min_surviving_weight": min_surviving_weight,
            "colluding_weight": colluding_weight,
        }
        promised: dict[str, Any] = {
            "aggregation": how.name,
            "keys": node_keys,
            "ledger_scope": "population" if population_name else "run",
        }
        promised |= {"epsilon": epsilon, "delta": delta, "rounds": num_rounds}
        statement = PrivacyStatement(**{**shared, **promised, **terms.statement})
        logger.info("privacy: %s", statement.sentence())
        with run.lock():
            waits = {"stage_timeout": stage_timeout, "node_timeout": node_timeout}
            waits |= {"round_timeout": timeout, "nodes": waited}
            public = {"users": users, "greeting": "train", "seed": self.seed}
            plan = RoundPlan(run=run_id(run), **{**shared, **waits, **public, **terms.plan})
            mechanism = terms.mechanism(plan.run)
            whole = self._promised(statement, plan, mechanism, population_name)
            _check_promise(run, whole)
            book = Ledger.open(
                Path(ledger) if ledger else run.path / "ledger.jsonl",
                population=population_name or f"run {run.path.name}",
                total_epsilon=epsilon,
                total_delta=delta,
                mechanism=terms.ledger,
                order=terms.order,
            )
            self._begin(run, initial_arrays, plan, num_rounds, train_config, evaluate_fn)
            run.save_value(PROMISED, whole)
            engine = Rounds(grid, self, plan, run, book, how, progress or _log_rounds, mechanism)
            with book.exclusive():
                done, spent = engine.run(), book.spent_epsilon(run=plan.run)
            return TrainingResult(
                arrays=array_record(self.parameters()),
                evaluate_metrics_serverapp=_evaluations(run),
                epsilon=epsilon,
                delta=delta,
                noise_multiplier=terms.noise_multiplier,
                rounds=done,
                spent=spent,
                statement=replace(statement, simulated=simulated(run, engine)),
                metrics=run.metrics(),
            )

    def _promised(
        self,
        statement: PrivacyStatement,
        plan: RoundPlan,
        mechanism: Mechanism,
        population_name: str,
    ) -> dict[str, Any]:
        """What must not change while a run lasts: the noise is for it, or the sentence says it."""
        promised = asdict(statement)
        del promised["simulated"]  # known when the nodes have answered
        promised |= {"users": plan.users, "cohort_nodes": plan.cohort_nodes}
        promised |= {"population_name": population_name, "noise": mechanism.promise}
        promised["turns"] = "users" if self.schedule.get("cycle") else f"nodes {plan.cycle}"
        # An adaptive one is a number of the model, which a resume finds again.
        return promised if self.clipping else {**promised, "clip_norm": self.clip_norm}

    def _begin(
        self,
        run: RunFolder,
        initial: ArrayRecord,
        plan: RoundPlan,
        rounds: int,
        config: ConfigRecord | None,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        """`begin` and `attach` for arrays of somebody else's app; measures them, once."""
        arrays = {name: array.numpy() for name, array in initial.items()}
        self.begin(
            arrays,
            model=Layout.of(arrays).digest(),
            rounds=rounds,
            users=plan.users,
            options={**app_options(config), ORDER: json.dumps(list(arrays))},
            noise_multiplier=plan.noise_multiplier,
        )
        self.attach(run)
        if evaluate_fn is not None:
            self.evaluate = _logged(evaluate_fn)
            if run.load_value(FIRST) is None:
                run.save_value(FIRST, self.evaluated(0))


def _check_promise(run: RunFolder, promised: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the values, unless the run was begun with the same ones."""
    stored = run.load_value(PROMISED) or promised
    changed = [
        f"{key} = {promised.get(key)!r} was {stored.get(key)!r}"
        for key in sorted({*promised, *stored})
        if promised.get(key) != stored.get(key)
    ]
    if changed:
        raise ValueError(
            f"{run.path} was begun with other values: {', '.join(changed)}; its noise is made for "
            "those: restore them, or choose another folder"
        )


def _logged(evaluate_fn: EvaluateFn) -> Evaluate:
    def evaluate(rnd: int, model: Arrays) -> MetricRecord | None:
        found = evaluate_fn(rnd, array_record(model))
        logger.info("evaluation on the server after round %d: %s", rnd, found)
        return found

    return evaluate


def _log_rounds(stage: str, done: float, total: float, note: str = "") -> None:
    if stage == "rounds":
        logger.info("[ROUND %d/%d] %s", done, total, note)


def array_record(arrays: Arrays) -> ArrayRecord:
    """Named arrays as Flower's record, copies."""
    return ArrayRecord({name: Array(np.array(array)) for name, array in arrays.items()})


def app_options(config: ConfigRecord | None) -> dict[str, OptionValue]:
    """A train_config as options of the question. Raises ValueError on what cannot travel."""
    options: dict[str, OptionValue] = {}
    for key, value in (config or {}).items():
        # Flower cannot count the bytes of an empty string.
        if not isinstance(value, str | int | float) or value == "":
            raise ValueError(
                f"train_config[{key!r}] = {value!r} must be a number, true or false, or a string "
                "that is not empty"
            )
        options[f"config.{key}"] = value
    return options


def noise_key_folder() -> Path:
    """Where keys of an aggregator's noise lie by default: PRIVATE, outside of any run folder."""
    return ledger_folder().parent / "noise-keys"


def _evaluations(run: RunFolder) -> dict[int, MetricRecord]:
    """The stored figures of evaluate_fn, by round."""
    rows = [{"round": 0, **(run.load_value(FIRST) or {})}, *run.metrics()]
    found = {}
    for row in rows:
        own = {key.removeprefix(EVALUATE): row[key] for key in row if key.startswith(EVALUATE)}
        if own:
            figures = {key: math.nan if value is None else value for key, value in own.items()}
            found[int(row["round"])] = MetricRecord(figures)
    return found
