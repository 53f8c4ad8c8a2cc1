"""What the synthesis strategies share: starting over a grid, and the result."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from flwr.serverapp import Grid

from privsyn_flower.common.files import default_cache
from privsyn_flower.common.progress import Progress, log_rounds
from privsyn_flower.config.section import Section
from privsyn_flower.privacy.accounting.sampling import AggregationName
from privsyn_flower.privacy.plan import ROUNDS, Phase, PrivacyPlan
from privsyn_flower.privacy.planning import plan_privacy
from privsyn_flower.privacy.sentence import PrivacyStatement
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import Aggregation, aggregation_of
from privsyn_flower.strategies.engine.arguments import (
    Arguments,
    check_arguments,
    log_failure_reason,
    log_settings,
)
from privsyn_flower.strategies.engine.callbacks import Callback, Callbacks
from privsyn_flower.strategies.engine.node_failures import NODES, NodeFailures
from privsyn_flower.strategies.engine.outcome import observed, write_summary
from privsyn_flower.strategies.engine.rounds import Method
from privsyn_flower.strategies.engine.session import FederationSpec, Session
from privsyn_flower.text.prompts import LabelledText

logger = logging.getLogger("flwr")  # the log that Flower shows in every app


@dataclass(frozen=True)
class SynthesisResult:
    """seeds: differentially private texts; `data.LabelledText`s where there are classes.
    epsilon, delta: the run's guarantee, which `statement.sentence()` puts into words; spent: what
    was charged so far (no guarantee). texts: written by the method's own generator, if it has one;
    as private as the seeds.
    ended_early: why there are fewer rounds than asked for; "" when there are not."""

    seeds: list[str]
    rounds: int
    epsilon: float
    delta: float
    noise_multiplier: float
    spent: float
    statement: PrivacyStatement
    texts: list[LabelledText] = field(default_factory=list)
    ended_early: str = ""


class SynthesisStrategy(Arguments, Method):
    """A strategy that ends with a list of texts; `start` runs it in any Flower ServerApp.

    noise_keys: folder for the key of an aggregator's noise, where a method has such noise. method:
    what `privsyn run` calls it.
    """

    method: ClassVar[str] = ""
    seeds: list[str]
    noise_keys: Path | None = None

    def summary(self) -> None:
        """Log the rounds and the settings that differ from their defaults, as DPFedAvg does."""
        config = getattr(self, "config", None)
        own = config.model_dump(exclude_defaults=True) if isinstance(config, Section) else {}
        log_settings(self, {"rounds": self.rounds, **own})

    def attach(self, folder: RunFolder) -> None:
        """Where the strategy may keep files of its own; called before the first round."""

    def phases(self, spare_rounds: int = 1, *, nodes: int = 0) -> list[Phase]:
        """What is asked of the users: the method's rounds, with noise of the nodes. nodes: those
        the run waits for."""
        return [Phase(ROUNDS, self.rounds, spare_rounds)]

    def statement_fields(self) -> dict[str, Any]:
        """What else the statement says (`PrivacyStatement`)."""
        return {}

    def invariants(self, plan: PrivacyPlan) -> dict[str, Any]:
        """What must not change while a run lasts, beside its privacy plan."""
        return {}

    def ready(self, session: Session) -> None:
        """Before anything is asked: warn of numbers that cannot give much, attach files, and try
        the models."""
        session.warn_if_infeasible(session.privacy_plan.main.equivalent, answers=session.spec.users)
        self.attach(session.folder)
        state = session.folder.last_checkpoint()
        if state is None or state["round"] < self.rounds:
            self.try_models()

    def try_models(self) -> None:
        """Use, on public text, what the rounds and the result need of models; before anything is
        asked. Raises what they raise: nothing is paid for yet."""

    def prepare(self, session: Session) -> None:
        """What is asked once, before the rounds; a run that goes on finds the answer."""

    def write_seeds(self, folder: RunFolder) -> None:
        """The texts that the answers found, in the run folder; nothing where there are none."""

    @log_failure_reason
    def start(
        self,
        grid: Grid,
        *,
        folder: str | Path,
        users: int,
        epsilon: float,
        delta: float,
        nodes: int = 1,
        spare_rounds: int = 1,
        min_surviving_weight: float = 0.85,
        colluding_weight: float = 0.0,
        node_keys: Literal["first-use", "roster"] = "first-use",
        ledger: str | Path = "",
        population_name: str = "",
        ledger_epsilon: float = 0.0,
        aggregation: AggregationName | Aggregation = "secure",
        round_timeout: float = 600.0,
        stage_timeout: float = 60.0,
        node_timeout: float = 120.0,
        progress: Progress | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> SynthesisResult:
        """Run all rounds over `grid` and return the seeds; calling again resumes `folder`.

        users is the declared population (public); the noise is the smallest that keeps
        (epsilon, delta) for rounds + spare_rounds releases. population_name: declared; all runs
        that declare it share one ledger (`ledger`, or a file of that name in the user's data
        folder) with the total ledger_epsilon (0: epsilon). Without it the run has a ledger of its
        own, and epsilon covers this run alone. node_keys: declared, what the nodes check each
        other's keys against (it goes into the statement). aggregation: "plain" trusts the server
        with every node's noisy answer. Raises ValueError on values out of bounds, and on arguments
        that have other invariants than those that `folder` was begun with. progress: told how far
        the run is; None writes finished rounds to Flower's log, where noise that leaves nothing
        of so many users' answers, and a delta of 1 / users or more, are warnings.
        callbacks: told of each question, release and round (docs/tracking.md).
        """
        check_arguments(**locals())
        how = aggregation_of(aggregation)
        phases = self.phases(spare_rounds, nodes=nodes)
        made = plan_privacy(epsilon, delta, phases, ledger_epsilon=ledger_epsilon)
        spec = FederationSpec(
            users,
            min_surviving_weight,
            colluding_weight,
            node_keys,
            nodes=nodes,
            round_timeout=round_timeout,
            stage_timeout=stage_timeout,
            node_timeout=node_timeout,
            ledger=ledger,
            population_name=population_name,
        )
        failures = NodeFailures(default_cache() / NODES, show=True)
        session = Session(
            grid,
            RunFolder(folder),
            made,
            spec,
            how,
            statement_fields=self.statement_fields(),
            invariants=self.invariants(made),
            keys=self.noise_keys,
            progress=progress or log_rounds,
            callbacks=Callbacks([failures, *callbacks]),
            arguments=self.arguments,
        )
        self.summary()
        logger.info("privacy: %s", session.statement.sentence())
        name = type(self).__name__
        with (
            session.folder.lock(),
            session.begun() as charged,
            observed(session, name) as summary,
        ):
            self.ready(session)
            self.prepare(session)
            with session.running(self) as engine:
                done = engine.run()
            self.write_seeds(session.folder)
            spent = charged.spent_epsilon(run=engine.plan.run)
            method, texts = self.method or name, len(self.seeds)
            summary |= write_summary(session, engine, method, done, samples=texts)
        return SynthesisResult(
            list(self.seeds),
            done,
            epsilon,
            delta,
            made.main.equivalent,
            spent,
            session.statement,
            ended_early=engine.ended_early,
        )
