"""`start` of the training methods: in the place of Flower's FedAvg, in any ServerApp.

They are Flower's `Strategy`, of which some is the same and some cannot be (`SecureStrategy`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.files import default_cache
from privsyn_flower.common.progress import Progress, log_rounds
from privsyn_flower.config import AveragingConfig
from privsyn_flower.privacy.accounting.sampling import AggregationName
from privsyn_flower.privacy.plan import Phase, PrivacyPlan
from privsyn_flower.privacy.planning import evaluation_phases, plan_privacy, summed_std
from privsyn_flower.privacy.sentence import PrivacyStatement
from privsyn_flower.protocol.question import TO_COME
from privsyn_flower.protocol.wire import EVALUATE, TRAIN
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.averaging.app_evaluation import (
    EVALUATION,
    FIRST,
    AppEvaluations,
    EvaluateFn,
    PrivateEvaluation,
    app_options,
    array_record,
    evaluation_options,
    logged,
    node_figures,
    server_figures,
)
from privsyn_flower.strategies.averaging.generalised_fedavg import Arrays, GeneralisedFedAvg
from privsyn_flower.strategies.engine.aggregation import Aggregation, aggregation_of
from privsyn_flower.strategies.engine.arguments import (
    Arguments,
    check_arguments,
    log_failure_reason,
    log_settings,
)
from privsyn_flower.strategies.engine.callbacks import Callback, Callbacks
from privsyn_flower.strategies.engine.cohort import check_enough
from privsyn_flower.strategies.engine.node_failures import DROP_IN, NodeFailures
from privsyn_flower.strategies.engine.outcome import observed, write_summary
from privsyn_flower.strategies.engine.rounds import Rounds
from privsyn_flower.strategies.engine.session import FederationSpec, Session
from privsyn_flower.training import Layout


class SecureStrategy(Strategy):
    """A Flower strategy whose rounds are sums under secure aggregation.

    `start` and `summary` are Flower's interface. The four hooks of Flower's own loop raise
    NotImplementedError: they are handed the reply of every node by itself, and only the sum of all
    of them may be read.
    """

    config: AveragingConfig

    def summary(self) -> None:
        """Log the settings that differ from their defaults, as Flower's strategies do."""
        log_settings(self, self.settings())

    def settings(self) -> dict[str, Any]:
        """What `summary` logs: the bound of an update, the server's step, who adds the noise."""
        always = {"clip_norm", "server_optimizer", "server_learning_rate", "noise"}
        shown = always | self.config.model_dump(exclude_defaults=True).keys()
        return {name: value for name, value in self.config.model_dump().items() if name in shown}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("configure_train")

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("aggregate_train")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("configure_evaluate")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("aggregate_evaluate")

    def _refuse(self, hook: str) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__}.{hook} is not supported: a single reply must not be aggregated "
            "outside of the secure sum. Call start(grid, ...), and wrap this strategy in no other "
            "(clipping and noise are its own)"
        )


# The log that Flower shows in every app.
logger = logging.getLogger("flwr")

ORDER = "arrays"  # option: names of the arrays in the app's own order, which files do not keep


@dataclass(kw_only=True, repr=False)
class TrainingResult(Result):
    """Flower's result, with its privacy plan.

    arrays: the final model, public. epsilon, delta: the run's guarantee, which
    `statement.sentence()` puts into words; spent: what was charged so far (no guarantee). rounds:
    releases learned from; ended_early: why they are fewer than asked for, or "". metrics: a row
    for each of them. evaluate_metrics_serverapp: what evaluate_fn returned, by round.
    evaluate_metrics_clientapp: of each evaluation on the nodes that gave something, by round, NAME,
    NAME-low and NAME-high for each metric: the noisy mean over users and its interval.
    train_metrics_clientapp stays empty: none leave a node.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    rounds: int
    spent: float
    statement: PrivacyStatement
    metrics: list[dict[str, Any]]
    ended_early: str = ""


class Evaluations(Protocol):
    """Paid evaluations of a run on the nodes, each made when its round comes."""

    def after(self, rnd: int, arrays: Arrays, *, last: bool = False) -> dict[str, float]:
        """Figures of the model after round `rnd`, after which nothing follows when it is the
        last; {} when none are due. What fails on the nodes leaves the training alone."""


class TrainingStrategy(Arguments, GeneralisedFedAvg, SecureStrategy):
    """A training method that `start` runs over a Flower grid, as a strategy of Flower's.

    evaluations: of the run, when it has some. method: what `privsyn run` calls it.
    """

    method: ClassVar[str] = ""
    evaluations: Evaluations | None = None

    def phase(self, rounds: int, spare_rounds: int = 1, *, nodes: int = 0) -> Phase:
        """The rounds, as they are asked and accounted. nodes: those the run waits for.

        Raises ValueError for numbers that exclude each other.
        """
        raise NotImplementedError

    def phases(
        self, rounds: int, spare_rounds: int = 1, *, nodes: int = 0, evaluations: int = 0
    ) -> list[Phase]:
        """The rounds and, as costly for a user as one of them each, so many evaluations."""
        main = self.phase(rounds, spare_rounds, nodes=nodes)
        return [main, *evaluation_phases(main, evaluations)]

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """One server step, and the evaluation on the nodes that is due after it."""
        metrics = super().learn(rnd, released, noise_std)
        if self.evaluations is not None:
            found = self.evaluations.after(rnd, self.parameters())
            metrics |= {EVALUATION + key: value for key, value in found.items()}
        return metrics

    @log_failure_reason
    def start(  # type: ignore[override]  # a budget has no default
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        evaluation: PrivateEvaluation | None = None,
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
        ledger_epsilon: float = 0.0,
        aggregation: AggregationName | Aggregation = "secure",
        noise_keys: str | Path = "",
        stage_timeout: float = 60.0,
        node_timeout: float = 120.0,
        progress: Progress | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> TrainingResult:
        """Train over `grid`; calling again with the same `folder` goes on where it was.

        The arguments up to evaluate_fn are those of Flower's strategies. timeout: seconds that a
        round waits for the nodes. train_config: travels to the nodes as the config of their train
        function, evaluate_config as that of their evaluate function, which is called only with
        `evaluation`. evaluate_fn: measures the model on the server, on public data, before round 1
        and after each round.

        evaluation: measures the model on the nodes, by metrics of their evaluate function under
        `private_evaluation`; a node without one takes no part. users: the declared population
        (public); the noise is the smallest that keeps (epsilon, delta) for num_rounds +
        spare_rounds releases and those of `evaluation`. nodes: to wait for; 0: as many as users.
        population_name: declared; all runs that declare it share one ledger (`ledger`, or a file of
        that name in the user's data folder) with the total ledger_epsilon (0: epsilon). Without it
        the run has a ledger of its own, and epsilon covers this run alone. node_keys: declared,
        what the nodes check each other's keys against. noise_keys: folder, outside `folder`, for
        the key of an aggregator's noise; "" for the user's own.
        progress: told how far the run is; None writes finished rounds to Flower's log, where
        noise that leaves nothing of so many users' updates, and a delta of 1 / users or more, are
        warnings. callbacks: told of each question, release and round (docs/tracking.md).
        aggregation: "plain" trusts the server with every node's noisy answer.
        Raises ValueError on values out of bounds, on arrays with NaN, on a config value that cannot
        travel, and on arguments with other invariants than those that `folder` was begun with.
        """
        check_arguments(**locals() | {"nodes": nodes or 1})
        asked = evaluation_options(evaluate_config, evaluation)
        how, waited = aggregation_of(aggregation), nodes or users
        extra = evaluation.count(num_rounds) if evaluation else 0
        phases = self.phases(num_rounds, spare_rounds, nodes=waited, evaluations=extra)
        check_enough(phases[0].sampler.nodes or waited, how.name)
        self._check_config()
        made = plan_privacy(epsilon, delta, phases, ledger_epsilon=ledger_epsilon)
        spec = FederationSpec(
            users,
            min_surviving_weight,
            colluding_weight,
            node_keys,
            nodes=waited,
            round_timeout=timeout,
            stage_timeout=stage_timeout,
            node_timeout=node_timeout,
            ledger=ledger,
            population_name=population_name,
            seed=self.seed,
        )
        failures = NodeFailures(default_cache() / DROP_IN, show=True)
        session = Session(
            grid,
            RunFolder(folder),
            made,
            spec,
            how,
            statement_fields={"data": "data", "adaptive_clipping": self.clipping is not None},
            invariants={
                "evaluation": evaluation.invariants if evaluation else None,
                **self.invariants(made),
            },
            keys=Path(noise_keys) if noise_keys else None,
            greetings=(TRAIN, EVALUATE) if evaluation else (TRAIN,),
            progress=progress or log_rounds,
            callbacks=Callbacks([failures, *callbacks]),
            arguments=self.arguments,
        )
        self.summary()
        logger.info("privacy: %s", session.statement.sentence())
        self.warn_if_infeasible(session)
        name = type(self).__name__
        with session.folder.lock(), session.begun(), observed(session, name) as summary:
            self._begin(session, initial_arrays, num_rounds, train_config, evaluate_fn)
            with session.running(self) as engine:
                self.evaluations = None
                if evaluation is not None:
                    asked[ORDER] = self.options[ORDER]
                    self.options[TO_COME] = json.dumps(evaluation.options(asked))
                    self.evaluations = AppEvaluations(
                        evaluation, session, engine.cohort, num_rounds, self.model, asked
                    )
                done = engine.run()
                found = self._measured(session.folder, done)
            summary |= write_summary(session, engine, self.method or name, done)
        return self._result(session, engine, done, found)

    def _measured(self, run: RunFolder, done: int) -> dict[int, MetricRecord]:
        """The figures of all evaluations on the nodes; a run that ended early has one to make."""
        found = node_figures(run)
        if self.evaluations is not None and done not in found:
            figures = self.evaluations.after(done, self.parameters(), last=True)
            found |= {done: MetricRecord(dict(figures))} if figures else {}
        return found

    def _result(
        self, session: Session, engine: Rounds, done: int, found: dict[int, MetricRecord]
    ) -> TrainingResult:
        run, statement = session.folder, session.statement
        return TrainingResult(
            arrays=array_record(self.parameters()),
            evaluate_metrics_clientapp=found,
            evaluate_metrics_serverapp=server_figures(run),
            epsilon=session.privacy_plan.target,
            delta=statement.delta,
            noise_multiplier=statement.noise_multiplier,
            rounds=done,
            spent=engine.ledger.spent_epsilon(engine.plan.run, statement.delta),
            statement=statement,
            metrics=run.metrics(),
            ended_early=engine.ended_early,
        )

    def _check_config(self) -> None:
        """An app trains in its own way: keys of the shipped training would change nothing."""
        foreign = sorted(self.config.model_fields_set - AveragingConfig.model_fields.keys())
        if foreign:
            raise ValueError(
                f"{foreign[0]} is a key of the training that `privsyn run` does, and the app's own "
                "does not read it: give an AveragingConfig, and what the app needs in train_config"
            )

    def warn_if_infeasible(self, session: Session) -> None:
        """Warn of numbers that cannot give much: a model is the sum of its rounds."""
        main, users = session.privacy_plan.main, session.spec.users
        answers = self.expected_users(users, session.spec.nodes) * main.rounds
        summed = f"the sum of all {main.rounds} rounds"
        session.warn_if_infeasible(summed_std(main), answers, summed=summed)

    def invariants(self, plan: PrivacyPlan) -> dict[str, Any]:
        """What must not change while a run lasts, beside its privacy plan."""
        kept: dict[str, Any] = {
            "turns": "users" if self.schedule.get("cycle") else f"nodes {plan.main.cycle}"
        }
        # An adaptive one is a number of the model, which a resume finds again.
        return kept if self.clipping else {**kept, "clip_norm": self.clip_norm}

    def _begin(
        self,
        session: Session,
        initial: ArrayRecord,
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
            users=session.spec.users,
            options={**app_options(config, "train_config"), ORDER: json.dumps(list(arrays))},
            noise_multiplier=session.privacy_plan.main.equivalent,
            nodes=session.spec.nodes,
        )
        run = session.folder
        self.attach(run)
        if evaluate_fn is not None:
            self.evaluate = logged(evaluate_fn)
            if run.load_value(FIRST) is None:
                run.save_value(FIRST, self.evaluated(0))
