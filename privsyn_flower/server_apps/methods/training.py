"""What the training methods share in a run: a model trained on the nodes, from a public start.

There is no synthetic text: the result is a model, `model/` in the run folder.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.app.benchmark.benchmark import training_benchmark
from privsyn_flower.app.benchmark.names import METHODS, PUBLIC_CONTROLS, RANDOM_PUBLIC, steps_of
from privsyn_flower.app.benchmark.pictures import draw_benchmark
from privsyn_flower.common.progress import Steps
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.config.section import config_errors
from privsyn_flower.evaluation.drawing import draw_curve
from privsyn_flower.evaluation.public import export_model, public_start
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.privacy.planning import evaluation_phases
from privsyn_flower.queries.metrics import TooNoisyError
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.controls import noise_updates
from privsyn_flower.server_apps.methods import recipe_of, stages
from privsyn_flower.server_apps.methods.curve import FINAL, START, Curve, drawable, facts
from privsyn_flower.server_apps.methods.proximity import (
    ALL,
    ANEW,
    filtered_pool,
    own_pool,
    planned,
    remember_start,
    sets_of,
    text_counts,
    train_anew,
)
from privsyn_flower.server_apps.methods.recipe import NOISE, Recipe, RunContext
from privsyn_flower.server_apps.methods.stages import Task
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.public_text import is_deployment
from privsyn_flower.server_apps.selection import check_sequences, evaluation_caps
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.engine.cohort import Cohort
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.evaluation.strategy import evaluate
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.lm_metrics import base_folder
from privsyn_flower.text.models.parameters import pack_parameters
from privsyn_flower.text.models.pretrained import classes_in
from privsyn_flower.training import LocalTraining

logger = logging.getLogger("privsyn_flower")

Arrays = Mapping[str, npt.NDArray[Any]]

EARLIER = "the evaluation that was paid for is of an earlier model: the training went on after it"
NO_ROWS: npt.NDArray[Any] = np.zeros((0, 0))  # there is no text to draw


class Updating(ABC):
    """A recipe whose rounds ask for changes of a model."""

    @classmethod
    @abstractmethod
    def algorithm(cls, config: RunConfig) -> TrainingStrategy:
        """The strategy of the rounds as the configuration has it; nothing is trained yet."""


class Training(Updating, Recipe[TrainingStrategy]):
    """Both training methods: they differ in their noise and in who is eligible.

    downstream, start: the base, and the base tuned on public text, where the training begins.
    model: the trained one. curve: what is measured on the nodes between the rounds. proximity: the
    figures of the public text that it keeps, if asked for.
    """

    controls = (NOISE, *PUBLIC_CONTROLS)
    downstream: Path
    start: Path
    model: Path
    curve: Curve
    evaluation: dict[str, Any] | None = None
    proximity: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def phases(cls, config: RunConfig) -> list[Phase]:
        """The rounds, and evaluations that cost a user as much as one of them each.

        Raises ConfigError for numbers that make no such noise.
        """
        with noise_errors(config):
            rounds = cls.algorithm(config).phase(
                config.rounds, config.spare_rounds, nodes=config.nodes
            )
        rounds = rounds.with_multiplier(config.noise_multiplier)
        return [rounds, *evaluation_phases(rounds, config.training.evaluations)]

    @classmethod
    def statement_fields(cls, config: RunConfig) -> dict[str, Any]:
        return {
            "adaptive_clipping": config.training.adaptive_clipping,
            "chooses_text": config.proximity.filter,
        }

    @classmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        return "update", {}

    @classmethod
    def asks_with(cls, config: RunConfig, *, released: bool) -> Sequence[str]:
        """The start is tuned as the benchmark's models are, and the result is a change of it."""
        return ["evaluation", "models.downstream"]

    @classmethod
    def candidates(cls, config: RunConfig) -> int:
        return 0

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        return {"downstream"}

    @classmethod
    def work(cls, config: RunConfig) -> list[Task]:
        """The public start, the users' local steps, the choice of text, and the benchmark's
        fine-tunings."""
        compared = stages.fine_tunings(config, []) if config.benchmark else []
        start, measured = stages.start_tuning(config, "public"), _evaluations(config)
        known = stages.models_to_make(config, {"downstream"})
        after = [*stages.choosing(config), *stages.lstms_anew(config)]
        return [*known, *start, local_steps(config), *measured, *after, *compared]

    def __init__(self, run: RunContext, models: Models) -> None:
        super().__init__(run, models)
        self.options = dict(local_training(self.config).to_options())

    # Before the rounds -------------------------------------------------------------------

    def begin(self) -> TrainingStrategy:
        with self.run.clock("models"):
            self.downstream = base_folder(self.models.folder("downstream"))
            evaluates = self.config.training.evaluations > 0
            check_sequences(self.config, self.downstream, evaluates=evaluates)
        with self.run.clock("public"):
            self.start = self._public_start()
            remember_start(self.folder, self.start)
            self.curve = Curve(self.config, self.run.session, self.start)
            return self.strategy(self.folder)

    def _public_start(self) -> Path:
        """The base of the private training: nodes have it, and only what is trained travels."""
        federation = self.models.public.federation
        if federation is None or not self.config.training.classifies:
            self._check_classes(self.downstream)
        if federation is None:
            if self.config.evaluation.start == "converged":
                raise ConfigError(
                    "evaluation.start = 'converged': in deployment nodes have their own copy of "
                    "models.downstream, so tune it before, give every node the tuned folder, and "
                    "set it to 'base'"
                )
            if self.config.training.public_steps:
                raise ConfigError(
                    f"training.public-steps = {self.config.training.public_steps}: in deployment "
                    "nodes have their own copy of models.downstream, so tune it before, give "
                    "every node the tuned folder, and set it to 0"
                )
            return self.downstream
        return public_start(self.config, federation, self.downstream, self.run.progress)

    def _check_classes(self, start: Path) -> None:
        """A classifier of `training.labels`, or a language model where there are none."""
        wanted, there = tuple(self.config.classes), classes_in(start)
        if wanted != there:
            raise ConfigError(
                f"models.downstream = {str(self.downstream)!r} has the classes {list(there)}, and "
                f"training.labels are {list(wanted)}: name another model. In deployment server "
                "and nodes have one that privsyn_flower.evaluation.public.save_classifier wrote"
            )

    def strategy(self, folder: RunFolder) -> TrainingStrategy:
        from privsyn_flower.training.low_rank import initial_parameters, trained_patterns

        training = self.config.training
        kind, factors = training.parameters, training.lora_factors
        with config_errors():
            parameters = initial_parameters(
                self.start,
                kind,
                rank=training.lora_rank,
                factors=factors,
                patterns=training.layers,
                seed=self.config.seed,
            )
            trained = trained_patterns(self.start, kind, factors=factors, patterns=training.layers)
        strategy = self.algorithm(self.config)
        strategy.begin(
            parameters,
            model=folder_fingerprint(self.start),
            rounds=self.config.rounds,
            users=self.config.data.users,
            options={**self.options, "training.trained": trained},
            noise_multiplier=self.run.session.privacy_plan.main.multiplier,
            nodes=self.config.nodes,
        )
        strategy.attach(folder)
        return strategy

    def ready(self, strategy: TrainingStrategy) -> None:
        """There is public text for the trained model to choose from, if it is to."""
        if self.config.proximity.filter:
            own_pool(self.config, self.models.public)

    # Beside the rounds -------------------------------------------------------------------

    def prepare(self, strategy: TrainingStrategy) -> None:
        if self.curve.rounds:
            with self.run.clock("evaluation"):
                self.curve.before()

    def between(self, strategy: TrainingStrategy, cohort: Cohort) -> None:
        self.curve.cohort = cohort
        strategy.evaluations = self.curve

    def evaluate(self, strategy: TrainingStrategy) -> None:
        final = strategy.parameters()
        packed = pack_parameters(final).tobytes()
        self.folder.save_arrays(FINAL, packed)
        with self.run.clock("evaluation"):
            if not self.config.training.evaluate:
                return
            model, stored = hashlib.sha256(packed).hexdigest(), self.folder.load_value("evaluation")
            if stored is None:
                stored = {"model": model, "found": self._evaluated(final)}
                self.folder.save_value("evaluation", stored)
            # A run that ended early and was killed before its summary may go on with its rounds.
            self.evaluation = stored["found"] if stored["model"] == model else {"failed": EARLIER}

    def _evaluated(self, final: Arrays) -> dict[str, Any]:
        """The final model against the start on the users' text: one paid release."""
        session = self.run.session
        try:
            found = evaluate(
                {START: {}, FINAL: final},
                base=self.start,
                session=session,
                caps=evaluation_caps(self.config),
                last=True,
            )
            return facts(found)
        except (NoRelease, TooNoisyError) as error:  # the model is paid for, and stays
            logger.warning("the evaluation on the nodes gave nothing: %s", error)
            return {"failed": str(error)}

    def result(self, strategy: TrainingStrategy) -> int:
        self.model = export_model(self.start, strategy.parameters(), self.folder.path / "model")
        path = self.folder.path / "evaluation_curve.png"
        draw_curve(**drawable(self._points()), path=path, caption=self.run.caption)
        self.proximity = filtered_pool(self.run, self.start, self.model)
        return 0

    def output_paths(self) -> list[str]:
        return [*super().output_paths(), ANEW]

    def figures(self, strategy: TrainingStrategy) -> dict[str, Any]:
        told: dict[str, Any] = {} if self.evaluation is None else {"evaluation": self.evaluation}
        if self.curve.rounds:
            told["evaluation_curve"] = self._points()
        return {"parameters": strategy.layout.length, **told, **self.proximity}

    def _points(self) -> list[dict[str, Any]]:
        """Of the curve, the final model's among them; none where the rounds have none."""
        if not self.curve.rounds:
            return []
        checkpoint = self.folder.last_checkpoint() or {"round": 0}
        return self.curve.points(int(checkpoint["round"]), self.evaluation)

    # The benchmark -----------------------------------------------------------------------

    def benchmark(self, strategy: TrainingStrategy) -> dict[str, Any]:
        models, compares = dict[str, Path](), self.config.evaluation.compares
        goes_on = self.config.evaluation.start == "converged"  # (a) does, as others' models
        goes_on |= self.config.training.classifies  # its start has read no text
        if compares(RANDOM_PUBLIC) and self.start != self.downstream and not goes_on:
            models["random_public"] = self.start
        made = ["noise_updates"] if compares(NOISE) else []
        anew = planned(self.config, self.start)
        steps = steps_of(self.config, self.run.progress, [*made, *anew], [*made, *anew, *models])
        for name in made:
            with steps.task(f"model {METHODS[name]}"), self.run.clock("control"):
                models[name] = self._control()
        told, own = self._anew(models.get("noise_updates"), steps) if anew else ({}, {})
        models |= own
        with self.run.clock("benchmark"):
            found = training_benchmark(
                self.config,
                self.run.federation(),
                downstream=self.downstream,
                models={**models, "trained": self.model},
                start=self.start,
                progress=self.run.progress,
                steps=steps,
                work=self.run.work(),
                keep=self.folder.path,
            )
            draw_benchmark(
                {**found, **told}, [], NO_ROWS, self.folder.path, caption=self.run.caption
            )
        return {**found, **told}

    def _anew(self, noise: Path | None, steps: Steps) -> tuple[dict[str, Any], dict[str, Path]]:
        """LSTMs trained anew on what the filter kept and on what it is compared with: figures of
        their texts, and their folders."""
        folder, models = self.folder.path / ANEW, dict[str, Path]()
        with self.run.clock("control"):
            sets = sets_of(self.run, self.start, noise)
            for name in (name for name in sets if name != ALL):
                with steps.task(f"model {METHODS[name]}"):
                    models[name] = train_anew(
                        self.config, self.start, sets[name], folder / name, self.run.progress
                    )
        return {"proximity": text_counts(sets)}, models

    def _control(self) -> Path:
        """The same training on pure noise of the same variance: what the updates are worth."""
        folder = RunFolder(self.folder.path / "control")
        strategy = self.strategy(folder)
        correlation = self.run.session.privacy_plan.main.factorization
        noise_updates(strategy, self.config, self.folder, folder, correlation, self.run.progress)
        return export_model(self.start, strategy.parameters(), folder.path / "model")


def noise_errors(config: RunConfig) -> AbstractContextManager[None]:
    """Numbers that make no such noise are told as a ConfigError, after the mechanism's key."""
    return config_errors(
        f"ftrl.mechanism = {config.ftrl.mechanism!r}: " if config.uses("ftrl") else ""
    )


def training_strategy(config: RunConfig) -> TrainingStrategy:
    """The configured method's algorithm. Raises ConfigError for a method that trains nothing."""
    recipe = recipe_of(config)
    if not config.updates or not issubclass(recipe, Updating):
        raise ConfigError(f"method = {config.method!r} trains no model")
    return recipe.algorithm(config)


def local_steps(config: RunConfig) -> Task:
    """What the users' training on their nodes computes, in all rounds.

    Users are sampled, but a node trains all who are eligible (`client_apps.answers.Participants`):
    1 / q times as many as are in the sum. The one node of a central run, on the server's own
    machine, trains the sampled users alone.
    """
    training = config.training
    users = training_strategy(config).expected_users(config.round_users, config.nodes)
    central = config.nodes == 1 and config.aggregation == "plain" and not is_deployment(config)
    whose = "the drawn users" if central and config.sampling_rate < 1 else "all users"
    if not central:
        users /= config.sampling_rate
    return Task(
        "rounds", f"local steps of {whose} on their nodes", "fine-tuning", config.trained,
        round(users * config.local_steps * training.batch_size),
        stages.sequence_tokens(config), config.rounds, nodes=True,
    )  # fmt: skip


def _evaluations(config: RunConfig) -> list[Task]:
    """What the paid evaluations compute on the nodes: two models each."""
    times, tokens = config.training.evaluations, evaluation_caps(config).max_tokens
    return [stages.scoring(config, "evaluation", 2, tokens, times)] if times else []


def local_training(config: RunConfig) -> LocalTraining:
    """One user's steps on a device, but for what is trained. Raises ConfigError."""
    training = config.training
    with config_errors():
        return LocalTraining(
            optimizer=training.optimizer,
            learning_rate=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            epochs=training.epochs,
            batch_size=training.batch_size,
            max_steps=config.local_steps,
            sequence_length=config.evaluation.sequence_length,
            special_tokens=config.evaluation.special_tokens,
            seed=config.seed,
        )
