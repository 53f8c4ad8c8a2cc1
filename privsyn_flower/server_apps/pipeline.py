"""One run from configuration to summary: data, models, rounds, expansion, benchmark, result.

Every stage leaves its result in the run folder, so that a resumed run goes on where it was.
"""

from __future__ import annotations

import logging
from typing import Any

from privsyn_flower.benchmark.private import Private
from privsyn_flower.data import LabelledText as UserText
from privsyn_flower.runs import RunFolder, write_json
from privsyn_flower.server_apps.controls import noise_control, pretext_rival, synthesise
from privsyn_flower.server_apps.costs import costs
from privsyn_flower.server_apps.models import Method, Models
from privsyn_flower.server_apps.parts import public_text
from privsyn_flower.server_apps.run import Run
from privsyn_flower.server_apps.selection import check_selection, select_round
from privsyn_flower.strategies.popri import POPri
from privsyn_flower.strategies.pretext import PrEText
from privsyn_flower.strategies.synthesis.checkpoints import Distance
from privsyn_flower.text.prompts import LabelledText

logger = logging.getLogger("privsyn_flower")


class Pipeline(Run):
    """The stages of a run that ends with synthetic text."""

    def run(self) -> None:
        """All stages; the summary is written last and marks the run as complete."""
        with self.clock("data"):
            self.public = public_text(self.config, self.progress)
        self.models = Models(self.config, self.public, self.folder, self.progress)
        try:
            with self.clock("models"):
                strategy = self.models.strategy(self._private_distance())
                strategy.attach(self.folder)
                if self.config.method == "popri" and self.config.popri.select == "federated":
                    check_selection(self.models, self.config)
            with self.clock("rounds"):
                done = self._rounds(strategy)
            self.selected = strategy.selected_round() if isinstance(strategy, POPri) else None
            with self.clock("expansion"):
                synthetic = self._synthesise("synthetic", strategy)
            benchmark = self._benchmark(strategy, synthetic) if self.config.benchmark else None
        finally:
            self.models.close()
        write_json(
            self.folder.path / "summary.json", self._summary(done, len(synthetic), benchmark)
        )

    def _rounds(self, strategy: Method) -> int:
        self.selection: dict[str, Any] | None = None
        with self.charged() as ledger:
            engine = self.session.rounds(strategy)
            done = engine.run()
            self.ended_early = engine.ended_early
            if isinstance(strategy, POPri) and self.config.popri.select == "federated":
                self.selection = select_round(
                    strategy,
                    self.models,
                    self.config,
                    self.folder,
                    grid=self.grid,
                    plan=engine.plan,
                    ledger=ledger,
                    aggregation=self.session.aggregation,
                )
        return done

    def _synthesise(self, name: str, strategy: Method) -> list[LabelledText]:
        path = self.folder.path / f"{name}.jsonl"
        return synthesise(strategy, self.models, self.config, path, name)

    def _private_distance(self) -> Distance | None:
        """The paper's choice of checkpoints, by text that epsilon does not cover."""
        if self.config.method != "popri" or self.config.popri.checkpoint != "private":
            return None
        logger.warning("popri.checkpoint = 'private': epsilon does not cover the selection")
        from privsyn_flower.benchmark.private import distance_to_development

        return distance_to_development(self.config, self.federation(), self.models.embedder())

    def _control(self, strategy: Method) -> Method:
        """The identical pipeline on pure noise of the same variance: what answers are worth.

        No evaluation is paid for it: it ends with the round that was selected for the run.
        """
        folder = RunFolder(self.folder.path / "control")
        noise_control(strategy, self.config, self.folder, folder, self.progress)
        if isinstance(strategy, POPri) and self.selection is not None:
            strategy.choose(min(int(self.selection["round"]), len(strategy.candidates())))
        return strategy

    def _rival(self, private: Private) -> PrEText:
        """PrE-Text at the run's noise multiplier and number of rounds."""
        folder = RunFolder(self.folder.path / "rival")
        strategy = self.models.pretext()
        std = self.session.promise.main.multiplier * self.config.pretext.vote_bound
        pretext_rival(strategy, private, std, folder, self.progress)
        return strategy

    def _comparisons(
        self, strategy: Method, private: Private
    ) -> tuple[dict[str, list[LabelledText]], dict[str, list[str]]]:
        """Synthetic texts, and seeds, of the controls by their names in the benchmark."""
        with self.clock("control"):
            control = self._control(self.models.strategy(self._private_distance()))
            texts = self._synthesise("control", control)
        if isinstance(strategy, PrEText):
            return {"noise_votes": texts}, {"seeds": strategy.seeds, "noise_votes": control.seeds}
        sets = {"noise_scores": texts}
        with self.clock("unaligned"):
            base = self.models.strategy(self._private_distance())
            base.attach(RunFolder(self.folder.path / "unaligned"))
            if isinstance(base, POPri):
                base.choose(0)
            sets["unaligned"] = self._synthesise("unaligned", base)
        if self.config.evaluation.rival == "pretext":
            with self.clock("rival"):
                sets["pretext"] = self._synthesise("rival", self._rival(private))
        return sets, {}

    def _benchmark(self, strategy: Method, synthetic: list[LabelledText]) -> dict[str, Any]:
        """Figures on private and held-out users; simulation only, not covered by epsilon."""
        stored: dict[str, Any] | None = self.folder.load_value("benchmark")
        if stored is not None:
            return stored
        from privsyn_flower.benchmark.benchmark import run_benchmark
        from privsyn_flower.benchmark.pictures import draw_benchmark

        private = Private(self.config, self.federation(), self.models.embedder())
        sets, seeds = self._comparisons(strategy, private)
        labelled = {"synthetic": synthetic, **sets}
        with self.clock("benchmark"):
            result = run_benchmark(
                self.config,
                private,
                downstream=self.models.folder("downstream"),
                record=self.folder,
                synthetic={name: _with_labels(found) for name, found in labelled.items()},
                seeds=seeds,
                progress=self.progress,
            )
            draw_benchmark(result.summary, result.candidates, result.held_out, self.folder.path)
        found = costs(self.config, self.folder, self.clock.seconds)
        summary = result.summary | {"costs": found}
        self.folder.save_value("benchmark", summary)
        return summary

    def _summary(self, done: int, samples: int, benchmark: dict[str, Any] | None) -> dict[str, Any]:
        summary = self.summary(done, samples)
        if self.selected is not None:
            summary["selected_round"] = self.selected
        if self.selection is not None:
            summary["selection"] = self.selection
        if benchmark is not None:
            summary["benchmark"] = benchmark
        return summary


def _with_labels(texts: list[LabelledText]) -> list[str]:
    """The texts as the benchmark reads private ones: a label comes with its text."""
    return [UserText(one.text, one.label) if one.label else one.text for one in texts]
