"""What a run of any method needs around its rounds: the guarantee, the ledger, the summary."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flwr.serverapp import Grid

from privsyn_flower.app.tracking import Trackers
from privsyn_flower.config import ConfigError, RunConfig, cache_folder, split_list
from privsyn_flower.data import Federation
from privsyn_flower.evaluation.drawing import caption
from privsyn_flower.evaluation.work import Work
from privsyn_flower.files import file_digest
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.baseline import Baseline
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.promise import ROUNDS
from privsyn_flower.progress import PROGRESS, ProgressLog
from privsyn_flower.runs import SYNTHETIC, RunFolder, StageClock
from privsyn_flower.server_apps.changes import changed_keys
from privsyn_flower.server_apps.promised import baseline, kept, promised, said, terms
from privsyn_flower.server_apps.public_text import PublicText, carried_by
from privsyn_flower.server_apps.settings import public_settings
from privsyn_flower.strategies.engine.aggregation import AGGREGATIONS
from privsyn_flower.strategies.engine.callbacks import Callbacks
from privsyn_flower.strategies.engine.node_failures import NODES, NodeFailures
from privsyn_flower.strategies.engine.outcome import of_rounds, run_start
from privsyn_flower.strategies.engine.record import claim_record, code, write_statement
from privsyn_flower.strategies.engine.session import Session

logger = logging.getLogger("privsyn_flower")


class Run:
    """One run over one run folder (which the caller holds locked); the methods' pipelines are
    its subclasses. Raises ConfigError for noise that does not keep epsilon.

    asks: whether the users are asked anything; if not, there is no session and no ledger.
    """

    public: PublicText
    ledger_epsilon: float | None = None
    ledger_total: float | None = None

    def __init__(self, config: RunConfig, grid: Grid, folder: RunFolder) -> None:
        self.config = config
        self.grid = grid
        self.folder = folder
        self.progress = ProgressLog(folder.path / PROGRESS)
        self.tracking = Trackers(split_list(config.trackers))
        failures = NodeFailures(cache_folder(config) / NODES)
        self.callbacks = Callbacks([failures, self.tracking])
        self.clock = StageClock(folder, self.tracking.stage)
        self.ended_early = ""
        claim = baseline(config)
        if claim is not None and "benchmark" in changed_keys(
            folder
        ):  # it was measured all the same
            claim = replace(claim, benchmark=True)
        self.asks = claim is None
        self.statement: Baseline | PrivacyStatement = claim or self.session.statement
        write_statement(folder.path, self.statement, self.known())
        logger.info("privacy: %s", self.statement.sentence())
        if config.simulation_seeded_noise:
            logger.warning("simulation-seeded-noise = true: the noise is not private")

    @functools.cached_property
    def session(self) -> Session:
        """Of a run that asks its users. Raises ConfigError for one that does not."""
        return Session(
            self.grid,
            self.folder,
            promised(self.config),
            terms(self.config),
            AGGREGATIONS[self.config.aggregation](),
            said=self._said(),
            kept=kept(self.config),
            progress=self.progress,
            callbacks=self.callbacks,
        )

    def _said(self) -> dict[str, Any]:
        """And what the run was measured by before its settings were changed."""
        changed, own = changed_keys(self.folder), self.config.evaluation
        measured = self.config.benchmark or "benchmark" in changed
        rival = measured and bool(own.rival or "evaluation.rival" in changed)
        whole = {**said(self.config), "benchmark": measured, "rival": rival}
        return {**whole, "changed": tuple(changed)}

    @property
    def has_rounds(self) -> bool:
        """Whether the promise pays for rounds, and not only for questions beside them."""
        return self.asks and any(phase.name == ROUNDS for phase in self.session.promise.phases)

    def run(self) -> None:
        """All stages; the summary marks the run as complete."""
        raise NotImplementedError

    @contextmanager
    def charged(self) -> Iterator[Ledger]:
        """The run's ledger, held; what it says is noted at the end, whatever happened."""
        with self.session.begun() as ledger:
            yield ledger
            self.ledger_epsilon = ledger.spent_epsilon()
            self.ledger_total = ledger.header.total_epsilon

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Tell the run's callbacks of it, and of its failure if it ends without a result."""
        facts = {**self.summary(0, 0), "nodes": self.config.nodes}
        with self.callbacks.run(run_start(self.folder, facts, public_settings(self.config))):
            yield

    def told(self, result: Mapping[str, Any]) -> None:
        """The result is on disk: the callbacks are told of that, and of no benchmark."""
        self.callbacks.run_ended(result)

    def federation(self) -> Federation:
        """The simulated one."""
        if self.public.federation is None:  # public_text refused this already
            raise ConfigError("benchmark = true needs a simulated federation")
        return self.public.federation

    def work(self) -> Work:
        """What the benchmark of this run has finished: in the cache, not in a folder that may be
        published."""
        own = hashlib.sha256(str(self.folder.path.resolve()).encode()).hexdigest()[:24]
        return Work(cache_folder(self.config) / "benchmark" / f"work-{own}")

    @property
    def caption(self) -> str:
        """What stands above the run's pictures."""
        own = self.statement
        held = not own.threat_model.startswith("none")
        return caption(self.config.method, own.epsilon, own.delta, promised=held)

    def known(self) -> dict[str, Any]:
        """What a summary says that is known before anything is asked."""
        data = self.config.data
        source = data.private_packages if data.source == "docstrings" else data.path
        changed = changed_keys(self.folder)
        return {
            **code(),
            "method": self.config.method,
            "dataset": f"{data.source}:{source}" if source else data.source,
            "users": data.users,
            "public_text_carries": bool(carried_by(self.config)),
            **({"changed": changed} if changed else {}),
            **claim_record(self.statement),
        }

    def summary(self, done: int, samples: int) -> dict[str, Any]:
        """What summary.json holds for every method. done: rounds. samples: synthetic texts."""
        planned = self.config.rounds if self.has_rounds else 0
        text = self.folder.path / SYNTHETIC
        return {
            **self.known(),
            **of_rounds(self.folder, done, planned, self.ended_early),
            "participations_per_user": min(done, self.statement.most_participations),
            "privacy_curve": self.session.promise.curve if self.asks else None,
            "epsilon_ledger": self.ledger_epsilon,
            "epsilon_ledger_total": self.ledger_total,
            "synthetic_samples": samples,
            **({"synthetic_sha256": file_digest(text)} if text.is_file() else {}),
            "wall_seconds": round(sum(self.clock.seconds.values()), 1),
            "stage_seconds": self.clock.seconds,
        }
