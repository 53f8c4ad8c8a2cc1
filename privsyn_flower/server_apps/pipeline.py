"""One run of any method, from configuration to summary: its stages, in their order.

Every stage leaves its result in the run folder, so that a resumed run goes on where it was. What
a method does in a stage is in its recipe (`methods/`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.runs import write_json
from privsyn_flower.server_apps.budget import aggregator_budget
from privsyn_flower.server_apps.costs import costs
from privsyn_flower.server_apps.methods import check_controls, recipe_of
from privsyn_flower.server_apps.methods.recipe import Recipe
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.parts import public_text
from privsyn_flower.server_apps.run import Run
from privsyn_flower.strategies.averaging.start import noise_key_folder
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import Mechanism, NodeNoise
from privsyn_flower.strategies.engine.rounds import Rounds, Strategy
from privsyn_flower.strategies.engine.run_ledger import run_id


class Pipeline(Run):
    """The stages: data, models, public, rounds, evaluation, result, benchmark, summary."""

    def run(self) -> None:
        """All stages; the summary is written last and marks the run as complete."""
        check_controls(self.config)
        with self.clock("data"):
            self.public = public_text(self.config, self.progress)
        models = Models(self.config, self.public, self.folder, self.progress)
        try:
            method = recipe_of(self.config)(self, models)
            strategy = method.begin()
            with self.charged() as ledger:
                mechanism = self.mechanism()
                with self.clock("rounds"):
                    done = self._rounds(strategy, ledger, mechanism)
                method.evaluate(strategy, ledger, mechanism)
            samples, figures = method.result(strategy), method.figures(strategy)
            if self.config.benchmark:
                figures = {**figures, "benchmark": self._benchmark(method, strategy)}
        finally:
            models.close()
        write_json(self.folder.path / "summary.json", {**self.summary(done, samples), **figures})

    def plan(self) -> RoundPlan:
        """The public numbers of the rounds; nodes take turns when ftrl.schedule says so."""
        ftrl = self.config.ftrl
        turns = ftrl.schedule == "nodes" and ftrl.min_separation > 1
        plan = replace(super().plan(), noise_multiplier=self.statement.noise_multiplier)
        return replace(plan, cycle=ftrl.min_separation) if turns else plan

    def mechanism(self) -> Mechanism:
        """Who adds the noise."""
        if not self.config.trusts_aggregator:
            return NodeNoise()
        return aggregator_budget(self.config).noise(noise_key_folder(), run_id(self.folder))

    def _rounds(self, strategy: Strategy, ledger: Ledger, mechanism: Mechanism) -> int:
        """All rounds; how many were released."""
        engine = Rounds(
            self.grid,
            strategy,
            self.plan(),
            self.folder,
            ledger,
            self.aggregation,
            self.progress,
            mechanism,
            self.node_caches,
        )
        done = engine.run()
        self.ended_early = engine.ended_early
        return done

    def _benchmark(self, method: Recipe[Any], strategy: Strategy) -> dict[str, Any]:
        """Figures on private and held-out users; simulation only, not covered by epsilon."""
        stored: dict[str, Any] | None = self.folder.load_value("benchmark")
        if stored is None:
            found = method.benchmark(strategy)
            stored = {**found, "costs": costs(self.config, self.folder, self.clock.seconds)}
            self.folder.save_value("benchmark", stored)
        return stored
