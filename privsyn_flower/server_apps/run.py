"""One run of any method, from configuration to summary: its guarantee, its stages, its ledger.

Every stage leaves its result in the run folder, so that a resumed run goes on where it was. What
a method does in a stage is in its recipe (`methods/`).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_origin

from flwr.serverapp import Grid

from privsyn_flower.app.benchmark.private import check_classes
from privsyn_flower.app.tracking import Trackers
from privsyn_flower.app.tracking.public import Value
from privsyn_flower.common.files import file_digest
from privsyn_flower.common.progress import PROGRESS, ProgressLog
from privsyn_flower.config import ConfigError, RunConfig, Section, cache_folder, split_list
from privsyn_flower.config.schema import METHODS
from privsyn_flower.data import Federation
from privsyn_flower.evaluation.rows import Work
from privsyn_flower.evaluation.verdict import benchmark_verdict
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.baseline import Baseline
from privsyn_flower.privacy.plan import ROUNDS
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.runs import SYNTHETIC, UNFINISHED, UNUSABLE, RunFolder, StageClock, write_json
from privsyn_flower.server_apps.changes import ALL_RELEASED, changed_keys, remade, to_remake
from privsyn_flower.server_apps.costs import costs
from privsyn_flower.server_apps.methods import check_controls, recipe_of
from privsyn_flower.server_apps.methods.recipe import Recipe
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.privacy_plan import (
    baseline,
    federation_spec,
    invariants,
    privacy_plan,
    statement_fields,
)
from privsyn_flower.server_apps.public_text import (
    PublicText,
    carried_by,
    public_text,
    warn_of_other_text,
)
from privsyn_flower.server_apps.readiness import notes, try_run
from privsyn_flower.strategies.engine.aggregation import AGGREGATIONS
from privsyn_flower.strategies.engine.callbacks import Callbacks
from privsyn_flower.strategies.engine.node_failures import NODES, NodeFailures
from privsyn_flower.strategies.engine.outcome import judged, of_rounds, run_start
from privsyn_flower.strategies.engine.record import claim_record, code, write_form, write_statement
from privsyn_flower.strategies.engine.rounds import Method
from privsyn_flower.strategies.engine.session import Session

logger = logging.getLogger("privsyn_flower")
MADE_OF, BENCHMARK = "made-of", "benchmark"  # in the run folder: after how many rounds; figures


class Run:
    """One run over one run folder, which the caller holds locked. Raises ConfigError for noise that
    does not keep epsilon.

    The stages: data, models, public, what is asked before the rounds, rounds, evaluation, result,
    summary, benchmark. asks: whether the users are sent any query; if not, there is no session, no
    ledger and no stage that asks.
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
        self.carries = carried_by(config, folder)
        claim = baseline(config, self.carries)
        if claim is not None and "benchmark" in changed_keys(folder):
            claim = replace(claim, benchmark=True)  # it was measured all the same
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
            privacy_plan(self.config),
            federation_spec(self.config),
            AGGREGATIONS[self.config.aggregation](),
            statement_fields=self._statement_fields(),
            invariants=invariants(self.config),
            progress=self.progress,
            callbacks=self.callbacks,
        )

    def _statement_fields(self) -> dict[str, Any]:
        """And what the run was measured by before its settings were changed."""
        changed, own = changed_keys(self.folder), self.config.evaluation
        measured = self.config.benchmark or "benchmark" in changed
        rival = measured and bool(own.rival or "evaluation.rival" in changed)
        whole = {**statement_fields(self.config), "benchmark": measured, "rival": rival}
        return {**whole, "changed": tuple(changed), "carries": self.carries}

    @property
    def has_rounds(self) -> bool:
        """Whether the privacy plan pays for rounds, and not only for questions beside them."""
        return self.asks and any(phase.name == ROUNDS for phase in self.session.privacy_plan.phases)

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
        return caption(self.config.method, own.epsilon, own.delta, claimed=held)

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
            "public_text_carries": bool(self.carries),
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
            "privacy_curve": self.session.privacy_plan.curve if self.asks else None,
            "epsilon_ledger": self.ledger_epsilon,
            "epsilon_ledger_total": self.ledger_total,
            "synthetic_samples": samples,
            **({"notes": told} if (told := notes(self.config)) else {}),
            **({"synthetic_sha256": file_digest(text)} if text.is_file() else {}),
            "wall_seconds": round(sum(self.clock.seconds.values()), 1),
            "stage_seconds": self.clock.seconds,
        }

    # The stages, in their order ------------------------------------------------------------

    def run(self) -> None:
        """All stages; the summary marks the result as complete, and then the run. Callbacks are
        told of it, and of its failure if it ends without a result."""
        check_controls(self.config)
        facts = {**self.summary(0, 0), "nodes": self.config.nodes}
        with self.callbacks.run(run_start(self.folder, facts, public_settings(self.config))):
            self._stages()

    def _stages(self) -> None:
        with self.clock("data"):
            self.public = public_text(self.config, self.progress)
            if self.public.federation:
                warn_of_other_text(self.config, self.folder)
            if self.config.benchmark and self.config.classes:
                check_classes(self.config, self.federation())
        recipe = recipe_of(self.config)
        retrieves = recipe.retrieves(self.config)
        models = Models(self.config, self.public, self.folder, self.progress, retrieves=retrieves)
        try:
            method = recipe(self, models)
            self._drop_changed(method)
            strategy = method.begin()
            done = self._query(method, strategy) if self.asks else 0
            samples, figures = method.result(strategy), method.figures(strategy)
            if left_out := +self.public.left_out:
                figures = {**figures, "public_texts_left_out": left_out}
            if self.asks:
                figures = self._judged(method, figures)
            if method.quality:
                figures = {**figures, "quality": method.quality}
            faults = method.unusable(samples)
            if faults:
                figures = {**figures, UNUSABLE: faults}
            if self.config.benchmark and (samples or not faults):
                # The result stands, whatever becomes of its benchmark.
                found = {**self.summary(done, samples), **figures}
                self._write({**found, UNFINISHED: "benchmark"})
                self.callbacks.run_ended(found)
                measured = self._benchmark(method, strategy)
                figures = {**figures, "benchmark": measured}
                if why := nothing_predicted(measured):
                    figures[UNUSABLE] = [*faults, why]
        finally:
            models.close()
        result = {**self.summary(done, samples), **figures}
        self._write(result)
        self.callbacks.run_ended(result)

    def _write(self, summary: Mapping[str, Any]) -> None:
        """The run's summary, and the form that is made of it."""
        write_form(self.folder.path, summary)
        write_json(self.folder.path / "summary.json", summary)

    def _query(self, method: Recipe[Any], strategy: Method) -> int:
        """The rounds, and what is asked before and after them, on the ledger; how many were
        released."""
        done = 0
        if not self._all_released():
            with self.clock("models"):
                try_run(self.config, self.folder.path, method, strategy)
        with self.session.begun() as ledger:
            method.prepare(strategy)
            if self.has_rounds:
                with self.clock("rounds"):
                    done = self._rounds(method, strategy)
            method.evaluate(strategy)
            self.folder.save_value(ALL_RELEASED, done)
            self.ledger_epsilon = ledger.spent_epsilon()
            self.ledger_total = ledger.header.total_epsilon
        return done

    def _all_released(self) -> bool:
        """Whether the run has a result, or at least all its rounds: what it needs is used now."""
        state = self.folder.last_checkpoint()
        rounds = self.has_rounds and state is not None and state["round"] >= self.config.rounds
        return rounds or (self.folder.path / "summary.json").exists()

    def _judged(self, method: Recipe[Any], figures: Mapping[str, Any]) -> Mapping[str, Any]:
        """The method's figures, and the verdict of what was released; public."""
        what, _ = method.question(self.config)
        rows = self.folder.metrics() if self.has_rounds else []
        found = judged(self.folder, self.session.privacy_plan, rows, figures, what)
        return {**figures, "verdict": found}

    def _rounds(self, method: Recipe[Any], strategy: Method) -> int:
        """All rounds; how many were released."""
        engine = self.session.rounds(strategy)
        method.between(strategy, engine.cohort)
        done = engine.run()
        self.ended_early = engine.ended_early
        self._drop_earlier(method, done)
        return done

    def _drop_earlier(self, method: Recipe[Any], done: int) -> None:
        """Remove what the run has made of fewer rounds: it ended early, and then went on.

        The summary goes first: without it the run is not complete, whatever else is there.
        """
        if self.folder.load_value(MADE_OF) == done:
            return
        self._drop(["summary.json", *method.output_paths()])
        self.folder.save_value(MADE_OF, done)

    def _drop_changed(self, method: Recipe[Any]) -> None:
        """Remove what the run has made by settings that were changed since."""
        what = to_remake(self.folder)
        if what != "nothing":
            self._drop(["summary.json", *(method.output_paths() if what == "text" else [])])
        remade(self.folder)

    def _drop(self, names: Sequence[str]) -> None:
        """Files and folders of the run, in this order, and the figures of its benchmark."""
        for name in names:
            path = self.folder.path / name
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        if self.folder.load_value(BENCHMARK) is not None:
            self.folder.save_value(BENCHMARK, None)

    def _benchmark(self, method: Recipe[Any], strategy: Any) -> dict[str, Any]:
        """Figures on private and held-out users; simulation only, not covered by epsilon."""
        stored: dict[str, Any] | None = self.folder.load_value(BENCHMARK)
        if stored is None:
            found = method.benchmark(strategy)
            stored = {
                **found,
                "verdict": [] if nothing_predicted(found) else benchmark_verdict(found),
                "costs": costs(self.config, self.folder, self.clock.seconds),
            }
            self.folder.save_value(BENCHMARK, stored)
        return stored


def nothing_predicted(benchmark: Mapping[str, Any]) -> str:
    """Why a benchmark tells nothing; "" where it does."""
    accuracies = benchmark.get("accuracy", {})
    if not accuracies or any(accuracies.values()):
        return ""
    return (
        f"the benchmark's accuracy is 0 for all {len(accuracies)} models, before and after: "
        "models.downstream learns nothing of this text"
    )


def public_settings(config: RunConfig) -> dict[str, Value]:
    """What a tracker may be told, by a key's type, never by its value.

    Key -> value of the numbers, switches and choices, in the tables that the method uses.
    A key whose value is any text (a path, a prompt, a model, a list) is left out.
    """
    shared = {name for entry in METHODS.values() for name in entry.tables}  # not by all methods
    found = _plain(config, "")
    for name in type(config).model_fields:
        table = getattr(config, name)
        if isinstance(table, Section) and (name not in shared or config.uses(name)):
            found |= _plain(table, f"{name.replace('_', '-')}.")
    return found


def _plain(table: Section, prefix: str) -> dict[str, Value]:
    plain = {}
    for name, field in type(table).model_fields.items():
        chosen = get_origin(field.annotation) is Literal and getattr(table, name) != ""
        if chosen or field.annotation in (bool, int, float):
            plain[prefix + name.replace("_", "-")] = getattr(table, name)
    return plain


def caption(method: str, epsilon: float, delta: float, *, claimed: bool = True) -> str:
    """What stands above each picture of a run. claimed: False where its statement claims none."""
    if math.isinf(epsilon):
        return f"{method}: NO PRIVACY, epsilon is infinite"
    warning = "" if claimed else " (NO PRIVACY IS CLAIMED)"
    return f"{method}: epsilon = {at_most(epsilon)}, delta = {delta:g}{warning}"
