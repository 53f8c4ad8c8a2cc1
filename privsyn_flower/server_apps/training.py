"""One run that trains a model on the nodes: data, models, public, rounds, evaluation, benchmark.

Every stage leaves its result in the run folder, so that a resumed run goes on where it was. There
is no synthetic text: the result is a model, `model/` in the run folder.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.config import ConfigError
from privsyn_flower.evaluation.public import export_model, public_start
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.protocol.question import OptionValue
from privsyn_flower.queries.metrics import TooNoisyError
from privsyn_flower.runs import RunFolder, write_json
from privsyn_flower.server_apps.controls import noise_updates
from privsyn_flower.server_apps.costs import costs
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.parts import public_text
from privsyn_flower.server_apps.promised import training_strategy
from privsyn_flower.server_apps.run import Run
from privsyn_flower.server_apps.selection import evaluation_caps, unused_spares
from privsyn_flower.strategies.averaging.start import EVALUATIONS, TrainingStrategy
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.evaluation import Estimate, better, evaluate
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.lm_metrics import base_folder
from privsyn_flower.text.models.parameters import longest_sequence, pack_parameters
from privsyn_flower.training import LocalTraining

logger = logging.getLogger("privsyn_flower")

Arrays = Mapping[str, npt.NDArray[Any]]

START, FINAL, EVALUATION = "start", "final", "evaluation"
NO_ROWS: npt.NDArray[Any] = np.zeros((0, 0))  # there is no text to draw


class TrainingPipeline(Run):
    """The stages of DP-FedAvg and DP-FTRL."""

    def run(self) -> None:
        """All stages; the summary is written last and marks the run as complete."""
        self.options = self._options()
        with self.clock("data"):
            self.public = public_text(self.config, self.progress)
        with self.clock("models"):
            models = Models(self.config, self.public, self.folder, self.progress)
            self.downstream = base_folder(models.folder("downstream"))
            self._check_length()
        with self.clock("public"):
            self.start = self._public_start()
            strategy = self._strategy(self.folder)
        with self.charged() as ledger:
            with self.clock("rounds"):
                done = self._rounds(strategy)
            final = strategy.parameters()
            self.folder.save_arrays(FINAL, pack_parameters(final).tobytes())
            with self.clock("evaluation"):
                evaluation = self._evaluate(final, ledger)
        model = export_model(self.start, final, self.folder.path / "model")
        summary = self.summary(done, samples=0) | {"parameters": strategy.layout.length}
        if evaluation is not None:
            summary["evaluation"] = evaluation
        if self.config.benchmark:
            summary["benchmark"] = self._benchmark(model)
        write_json(self.folder.path / "summary.json", summary)

    # Before the rounds -------------------------------------------------------------------

    def _options(self) -> dict[str, OptionValue]:
        """What travels with a question about the local training, but for what is trained."""
        training = self.config.training
        try:
            local = LocalTraining(
                optimizer=training.optimizer,
                learning_rate=training.learning_rate,
                momentum=training.momentum,
                weight_decay=training.weight_decay,
                epochs=training.epochs,
                batch_size=training.batch_size,
                max_steps=self.config.local_steps,
                sequence_length=self.config.evaluation.sequence_length,
                seed=self.config.seed,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return dict(local.to_options())

    def _check_length(self) -> None:
        length, longest = self.config.evaluation.sequence_length, longest_sequence(self.downstream)
        if length > longest:
            raise ConfigError(
                f"evaluation.sequence-length = {length}: models.downstream = {self.downstream} "
                f"takes at most {longest} tokens"
            )

    def _public_start(self) -> Path:
        """The base of the private training: nodes have it, and only what is trained travels."""
        if self.public.federation is None:
            if self.config.training.public_steps:
                raise ConfigError(
                    f"training.public-steps = {self.config.training.public_steps}: in deployment "
                    "nodes have their own copy of models.downstream, so tune it before, give "
                    "every node the tuned folder, and set it to 0"
                )
            return self.downstream
        return public_start(self.config, self.public.federation, self.downstream, self.progress)

    def _strategy(self, folder: RunFolder) -> TrainingStrategy:
        """The method at its start, with its files in `folder`."""
        from privsyn_flower.training.initial import initial_parameters, trained_patterns

        training = self.config.training
        kind, factors = training.parameters, training.lora_factors
        try:
            parameters = initial_parameters(
                self.start,
                kind,
                rank=training.lora_rank,
                factors=factors,
                patterns=training.layers,
                seed=self.config.seed,
            )
            trained = trained_patterns(self.start, kind, factors=factors, patterns=training.layers)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        strategy = training_strategy(self.config)
        strategy.begin(
            parameters,
            model=folder_fingerprint(self.start),
            rounds=self.config.rounds,
            users=self.config.data.users,
            options={**self.options, "training.trained": trained},
            noise_multiplier=self.session.promise.main.multiplier,
        )
        strategy.attach(folder)
        return strategy

    # Rounds ------------------------------------------------------------------------------

    def _rounds(self, strategy: TrainingStrategy) -> int:
        engine = self.session.rounds(strategy)
        done = engine.run()
        self.ended_early = engine.ended_early
        return done

    # After the rounds --------------------------------------------------------------------

    def _evaluate(self, final: Arrays, ledger: Ledger) -> dict[str, Any] | None:
        """The final model against the start on the users' text: one paid release, or none."""
        if not self.config.training.evaluate:
            return None
        stored: dict[str, Any] | None = self.folder.load_value("evaluation")
        if stored is not None:
            return stored
        session = self.session
        plan = session.plan()
        noise = session.mechanism(session.promise[EVALUATIONS], EVALUATION)
        try:
            found = evaluate(
                {START: {}, FINAL: final},
                base=self.start,
                grid=self.grid,
                folder=self.folder,
                plan=plan,
                ledger=ledger,
                caps=evaluation_caps(self.config),
                name=EVALUATION,
                spare=0 if noise.trusted else unused_spares(plan, ledger),
                aggregation=session.aggregation,
                progress=self.progress,
                mechanism=noise,
            )
            stored = _facts(found)
        except (NoRelease, TooNoisyError) as error:  # the model is paid for, and stays
            logger.warning("the evaluation on the nodes gave nothing: %s", error)
            stored = {"failed": str(error)}
            noise.close(complete=True)  # nobody asks again: the key of its noise goes now
        self.folder.save_value("evaluation", stored)
        return stored

    def _benchmark(self, model: Path) -> dict[str, Any]:
        """Figures on private and held-out users; simulation only, not covered by epsilon."""
        stored: dict[str, Any] | None = self.folder.load_value("benchmark")
        if stored is None:
            from privsyn_flower.benchmark.benchmark import training_benchmark
            from privsyn_flower.benchmark.pictures import draw_benchmark

            with self.clock("control"):
                models = {"noise_updates": self._control()}
            if self.start != self.downstream:
                models["random_public"] = self.start
            with self.clock("benchmark"):
                stored = training_benchmark(
                    self.config,
                    self.federation(),
                    downstream=self.downstream,
                    models={**models, "trained": model},
                    progress=self.progress,
                )
                draw_benchmark(stored, [], NO_ROWS, self.folder.path)
            stored["costs"] = costs(self.config, self.folder, self.clock.seconds)
            self.folder.save_value("benchmark", stored)
        return stored

    def _control(self) -> Path:
        """The same training on pure noise of the same variance: what the updates are worth."""
        folder = RunFolder(self.folder.path / "control")
        strategy = self._strategy(folder)
        correlation = self.session.promise.main.correlation
        noise_updates(strategy, self.config, self.folder, folder, correlation, self.progress)
        return export_model(self.start, strategy.parameters(), folder.path / "model")


def _facts(found: Mapping[str, Estimate]) -> dict[str, Any]:
    """The figures of an evaluation, as the summary has them: [value, low, high] where intervals."""
    gained = better(found[FINAL], found[START])
    figures = {
        name: {
            key: value
            for key, value in asdict(estimate).items()
            if key.startswith(("accuracy", "loss"))
        }
        for name, estimate in found.items()
    }
    return {
        "estimates": figures,
        "accuracy_gained": list(asdict(gained.accuracy).values()),
        "loss_saved": list(asdict(gained.loss).values()),
    }
