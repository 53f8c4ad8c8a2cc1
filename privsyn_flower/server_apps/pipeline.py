"""One run of any method, from configuration to summary: its stages, in their order.

Every stage leaves its result in the run folder, so that a resumed run goes on where it was. What
a method does in a stage is in its recipe (`methods/`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from privsyn_flower.evaluation.verdict import benchmark_verdict
from privsyn_flower.runs import UNFINISHED, UNUSABLE, write_json
from privsyn_flower.server_apps.changes import ALL_RELEASED, remade, to_remake
from privsyn_flower.server_apps.costs import costs
from privsyn_flower.server_apps.methods import check_controls, recipe_of
from privsyn_flower.server_apps.methods.recipe import Recipe
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.public_text import public_text
from privsyn_flower.server_apps.readiness import try_run
from privsyn_flower.server_apps.run import Run
from privsyn_flower.server_apps.usable import nothing_predicted
from privsyn_flower.strategies.engine.outcome import judged
from privsyn_flower.strategies.engine.record import write_form
from privsyn_flower.strategies.engine.rounds import Method

MADE_OF, BENCHMARK = "made-of", "benchmark"  # in the run folder: after how many rounds; figures


class Pipeline(Run):
    """The stages: data, models, public, what is asked before the rounds, rounds, evaluation,
    result, summary, benchmark. A method that asks nobody has none of those that ask."""

    def run(self) -> None:
        """All stages; the summary marks the result as complete, and then the run."""
        check_controls(self.config)
        with self.tracked():
            self._stages()

    def _stages(self) -> None:
        with self.clock("data"):
            self.public = public_text(self.config, self.progress)
        recipe = recipe_of(self.config)
        models = Models(
            self.config,
            self.public,
            self.folder,
            self.progress,
            retrieves=recipe.retrieves(self.config),
        )
        try:
            method = recipe(self, models)
            self._drop_changed(method)
            strategy = method.begin()
            done = self._asked(method, strategy) if self.asks else 0
            samples, figures = method.result(strategy), method.figures(strategy)
            if left_out := +self.public.left_out:
                figures = {**figures, "public_texts_left_out": left_out}
            if self.asks:
                figures = self._judged(method, figures)
            faults = method.unusable(samples)
            if faults:
                figures = {**figures, UNUSABLE: faults}
            if self.config.benchmark and (samples or not faults):
                # The result stands, whatever becomes of its benchmark.
                found = {**self.summary(done, samples), **figures}
                self._write({**found, UNFINISHED: "benchmark"})
                self.told(found)
                measured = self._benchmark(method, strategy)
                figures = {**figures, "benchmark": measured}
                if why := nothing_predicted(measured):
                    figures[UNUSABLE] = [*faults, why]
        finally:
            models.close()
        result = {**self.summary(done, samples), **figures}
        self._write(result)
        self.told(result)

    def _write(self, summary: Mapping[str, Any]) -> None:
        """The run's summary, and the form that is made of it."""
        write_form(self.folder.path, summary)
        write_json(self.folder.path / "summary.json", summary)

    def _asked(self, method: Recipe[Any], strategy: Method) -> int:
        """The rounds, and what is asked before and after them, on the ledger; how many were
        released."""
        done = 0
        if not self._all_asked():
            with self.clock("models"):
                try_run(self.config, self.folder.path, method, strategy)
        with self.charged():
            method.prepare(strategy)
            if self.has_rounds:
                with self.clock("rounds"):
                    done = self._rounds(method, strategy)
            method.evaluate(strategy)
            self.folder.save_value(ALL_RELEASED, done)
        return done

    def _all_asked(self) -> bool:
        """Whether the run has a result, or at least all its rounds: what it needs is used now."""
        state = self.folder.last_checkpoint()
        rounds = self.has_rounds and state is not None and state["round"] >= self.config.rounds
        return rounds or (self.folder.path / "summary.json").exists()

    def _judged(self, method: Recipe[Any], figures: Mapping[str, Any]) -> Mapping[str, Any]:
        """The method's figures, and the verdict of what was released; public."""
        what, _ = method.question(self.config)
        rows = self.folder.metrics() if self.has_rounds else []
        found = judged(self.folder, self.session.promise, rows, figures, what)
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
        if self._made_of() == done:
            self.folder.save_value(MADE_OF, done)
            return
        self._drop(["summary.json", *method.made()])
        self.folder.save_value(MADE_OF, done)

    def _drop_changed(self, method: Recipe[Any]) -> None:
        """Remove what the run has made by settings that were changed since."""
        what = to_remake(self.folder)
        if what != "nothing":
            self._drop(["summary.json", *(method.made() if what == "text" else [])])
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

    def _made_of(self) -> int | None:
        """The rounds that the files of the run are made of, as far as that is known: a run of an
        earlier version has it in its summary alone."""
        found: int | None = self.folder.load_value(MADE_OF)
        path = self.folder.path / "summary.json"
        if found is None and path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))["rounds"]
        return found

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
