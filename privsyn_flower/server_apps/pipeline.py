"""One run from configuration to summary: data, models, rounds, expansion, benchmark, result.

Every stage leaves its result in the run folder, so that a resumed run goes on where it was.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.progress import ProgressLog
from privsyn_flower.randomness import seeded
from privsyn_flower.runs import RunFolder, StageClock, read_jsonl, write_json, write_jsonl
from privsyn_flower.server_apps.parts import (
    AGGREGATIONS,
    Models,
    is_deployment,
    noise_multiplier,
    open_ledger,
    public_text,
    statement,
)
from privsyn_flower.strategies.pretext import PrEText
from privsyn_flower.strategies.cohort import RoundPlan
from privsyn_flower.strategies.rounds import NothingSurvived, Rounds
from privsyn_flower.strategies.synthesis import run_id
from privsyn_flower.text.prompts import expand

logger = logging.getLogger("privsyn_flower")


class Pipeline:
    """The stages of one run over one run folder (which the caller holds locked)."""

    def __init__(self, config: RunConfig, grid: Grid, folder: RunFolder) -> None:
        self.config = config
        self.grid = grid
        self.folder = folder
        self.clock = StageClock(folder)
        self.progress = ProgressLog(folder.path / "progress.jsonl")
        self.multiplier = noise_multiplier(config)
        self.statement = statement(config, self.multiplier)
        logger.info("privacy: %s", self.statement.sentence())
        if config.simulation_seeded_noise:
            logger.warning("simulation-seeded-noise = true: the noise is not private")

    def run(self) -> None:
        """All stages; the summary is written last and marks the run as complete."""
        with self.clock("data"):
            self.public = public_text(self.config, self.progress)
        self.models = Models(self.config, self.public, self.progress)
        with self.clock("models"):
            strategy = self.models.strategy()
        with self.clock("rounds"):
            done = self._rounds(strategy)
        with self.clock("expansion"):
            synthetic = self._expand("synthetic", strategy.seeds)
        benchmark = None
        if self.config.benchmark:
            benchmark = self._benchmark(strategy.seeds, synthetic)
        write_json(self.folder.path / "summary.json", self._summary(done, synthetic, benchmark))

    def plan(self) -> RoundPlan:
        """The public numbers of the rounds."""
        config = self.config
        return RoundPlan(
            run=run_id(self.folder),
            users=config.data.users,
            noise_multiplier=self.multiplier,
            spare_rounds=config.spare_rounds,
            min_surviving_weight=config.min_surviving_weight,
            colluding_weight=config.colluding_weight,
            nodes=config.nodes,
            round_timeout=config.round_timeout,
            stage_timeout=config.stage_timeout,
            node_timeout=config.node_timeout,
            kind="deployed" if is_deployment(config) else "simulated",
            seeded_noise=config.simulation_seeded_noise,
            sampling_rate=config.sampling_rate,
            cohort_nodes=config.cohort_nodes,
            seed=config.seed,
        )

    def _rounds(self, strategy: PrEText) -> int:
        ledger = open_ledger(self.config, self.folder)
        plan = self.plan()
        with ledger.exclusive():
            engine = Rounds(
                self.grid,
                strategy,
                plan,
                self.folder,
                ledger,
                AGGREGATIONS[self.config.aggregation](),
                self.progress,
            )
            try:
                done = engine.run()
            finally:  # a failed run has charges too
                if ledger.path != self.folder.path / "ledger.jsonl":
                    ledger.export(plan.run, self.folder.path / "ledger.jsonl")
            self.ledger_epsilon = ledger.spent_epsilon()
            self.ledger_total = ledger.header.total_epsilon
        return done

    def _expand(self, name: str, seeds: list[str]) -> list[str]:
        """Seeds -> synthetic texts in NAME.jsonl (post-processing: costs no privacy)."""
        path = self.folder.path / f"{name}.jsonl"
        if path.exists():
            return [row["text"] for row in read_jsonl(path)]
        options = self.config.expand
        texts = list(seeds) if options.include_seeds or not options.samples else []
        if options.samples:
            texts += expand(
                seeds,
                self.models.generator(),
                samples=options.samples,
                seeds_per_prompt=options.seeds_per_prompt,
                rng=seeded(self.config.seed, name, "expand"),
                min_words=options.min_words,
                progress=self.progress,
            )
        write_jsonl(path, ({"text": text} for text in texts))
        return texts

    def _control(self) -> tuple[list[str], list[str]]:
        """The identical pipeline on pure noise of the same variance: what votes are worth.

        The noise lies around the mean of the released votes of the same round, as if every
        candidate had been equally popular; around zero hardly any would pass the threshold, and
        the comparison would be with next to nothing. Opens nothing private; returns the
        control's seeds and synthetic texts.
        """
        strategy, size = self.models.strategy(), self.config.pretext.population
        stored = self.folder.load_value("control")
        if stored is None:
            for row in self.folder.metrics():
                rnd, std = row["round"], row["noise_std"]
                rng = seeded(self.config.seed, rnd, "control")
                votes = row["released_votes"] / size + rng.normal(0.0, std, size)
                try:
                    strategy.learn(rnd, votes, std)
                except NothingSurvived:
                    logger.warning("control: no candidate above the threshold in round %d", rnd)
                self.progress("control rounds", rnd, strategy.rounds)
            self.folder.save_value("control", strategy.state())
        else:
            strategy.restore(stored)
        return strategy.seeds, self._expand("control", strategy.seeds)

    def _benchmark(self, seeds: list[str], synthetic: list[str]) -> dict[str, Any]:
        """Figures on private and held-out users; simulation only, not covered by epsilon."""
        stored: dict[str, Any] | None = self.folder.load_value("benchmark")
        if stored is not None:
            return stored
        federation = self.public.federation
        if federation is None:  # public_text refused this already
            raise ConfigError("benchmark = true needs a simulated federation")
        with self.clock("control"):
            control_seeds, control = self._control()
        from privsyn_flower.evaluation.benchmark import Texts, run_benchmark
        from privsyn_flower.evaluation.pictures import draw_accuracy, draw_rounds

        with self.clock("benchmark"):
            result = run_benchmark(
                self.config,
                federation,
                embedder=self.models.embedder(),
                downstream=self.models.folder("downstream"),
                record=self.folder,
                texts=Texts(seeds, synthetic, control_seeds, control),
                progress=self.progress,
            )
            path = self.folder.path
            draw_rounds(result.candidates, result.held_out, path / "candidates.png")
            accuracy = {
                name: [value, *result.summary["accuracy_interval"][name]]
                for name, value in result.summary["accuracy"].items()
            }
            draw_accuracy(accuracy, path / "accuracy.png")
        self.folder.save_value("benchmark", result.summary)
        return result.summary

    def _summary(
        self, done: int, synthetic: list[str], benchmark: dict[str, Any] | None
    ) -> dict[str, Any]:
        config, metrics = self.config, self.folder.metrics()
        data = config.data
        source = data.private_packages if data.source == "docstrings" else data.path
        down = max((row["bytes_down_per_node"] for row in metrics), default=0)
        up = max((row["bytes_up_per_node"] for row in metrics), default=0)
        nodes = sum(row["nodes_answered"] for row in metrics)
        summary: dict[str, Any] = {
            "method": config.method,
            "dataset": f"{data.source}:{source}" if source else data.source,
            "users": data.users,
            "rounds": done,
            "unit": self.statement.unit,
            "adjacency": self.statement.adjacency,
            "threat_model": self.statement.threat_model,
            "epsilon": self.statement.epsilon,
            "delta": self.statement.delta,
            "accountant": self.statement.accountant,
            "noise_multiplier": self.multiplier,
            "epsilon_ledger": self.ledger_epsilon,
            "epsilon_ledger_total": self.ledger_total,
            "privacy": self.statement.sentence(),
            "synthetic_samples": len(synthetic),
            "bytes_up_per_user_round": up,
            "bytes_down_per_user_round": down,
            "bytes_up_all_nodes": up * nodes,
            "bytes_down_all_nodes": down * nodes,
            "wall_seconds": round(sum(self.clock.seconds.values()), 1),
            "stage_seconds": self.clock.seconds,
        }
        if benchmark is not None:
            summary["benchmark"] = benchmark
        return summary
