"""Given models measured on the users' text, all in one release: a table of accuracies.

Table 3 of Wu et al. 2024 ("Prompt public LLMs to synthesize data for private on-device
applications", section 4.1), whose figures are three aggregates of metrics without noise. Here one
noisy sum is released for all models together, and each figure has the interval of its noise. The
models share one base, the one that nodes have: a node's answer names it by its hash, and only what
differs from it travels.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.evaluation.drawing import draw_intervals
from privsyn_flower.privacy.plan import EVALUATIONS, Phase
from privsyn_flower.queries.metrics import TooNoisyError, metrics_bound
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.curve import gains
from privsyn_flower.server_apps.methods.recipe import Recipe, sampler_of
from privsyn_flower.server_apps.methods.stages import Task, models_to_make, scoring
from privsyn_flower.server_apps.selection import check_sequences, figures
from privsyn_flower.strategies.evaluation.config import MeasureConfig
from privsyn_flower.strategies.evaluation.strategy import Caps, evaluate
from privsyn_flower.text.models.lm_metrics import base_folder
from privsyn_flower.text.models.parameters import ParametersError, read_model
from privsyn_flower.text.models.pretrained import ModelUnavailableError, same_tokens

logger = logging.getLogger("privsyn_flower")

MEASURED, PICTURE = "measured", "accuracy.png"
CONFIDENCE = 0.95  # of the intervals of all models together, for each figure
Folders = dict[str, Path]


class Evaluation(Recipe[Folders]):
    """K models, one question, nothing else.

    base: what the nodes have, `models.downstream`. measured: the figures, once they are there.
    """

    libraries = ("torch", "transformers", "matplotlib")
    length_keys = "measure.models"
    base: Path
    measured: dict[str, Any]

    # Of a configuration ------------------------------------------------------------------

    @classmethod
    def phases(cls, config: RunConfig) -> list[Phase]:
        asked = Phase(EVALUATIONS, 1, config.spare_rounds, sampler_of(config), evaluates=True)
        return [asked.with_multiplier(config.noise_multiplier)]

    @classmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        return "evaluation", {"bound": metrics_bound(max(1, len(config[MeasureConfig].named)))}

    @classmethod
    def length(cls, config: RunConfig) -> int:
        return 1 + 2 * len(config[MeasureConfig].named)

    @classmethod
    def asks_with(cls, config: RunConfig, *, released: bool) -> Sequence[str]:
        """The base of the models, and how they are measured."""
        return ["evaluation", "models.downstream", "models.generator"]

    @classmethod
    def candidates(cls, config: RunConfig) -> int:
        return 0

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        return {"downstream"} | config[MeasureConfig].kinds

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        if not config[MeasureConfig].named:
            yield (
                "measure.models is empty: method = 'evaluation' measures 1 to 16 models, as in "
                "'before=runs/a/model, after=runs/b/model'"
            )

    @classmethod
    def work(cls, config: RunConfig) -> list[Task]:
        models = len(config[MeasureConfig].named)
        return [
            *models_to_make(config, cls.loads(config)),
            scoring(config, "evaluation", models, config[MeasureConfig].tokens(config)),
        ]

    # Of a run ----------------------------------------------------------------------------

    def begin(self) -> Folders:
        for fault in self.faults(self.config):
            raise ConfigError(fault)
        with self.run.clock("models"):
            self.base = base_folder(self.models.folder("downstream"))
            check_sequences(self.config, self.base, evaluates=True)
            return self.strategy(self.folder)

    def strategy(self, folder: RunFolder) -> Folders:
        """The models' folders by name, each of which fits the base. Raises ConfigError."""
        return {
            name: self._checked(name, model)
            for name, model in self.config[MeasureConfig].named.items()
        }

    def _checked(self, name: str, model: str) -> Path:
        kinds = self.config[MeasureConfig].kinds
        try:
            folder = base_folder(self.models.folder(model) if model in kinds else model)
            read_model(folder, self.base)
            if not same_tokens(folder, self.base):
                raise ParametersError(f"{folder} has another tokenizer than its base {self.base}")
        except (ParametersError, ModelUnavailableError) as error:
            raise ConfigError(
                f"measure.models: {name} = {model!r} cannot be measured beside the others, which "
                f"all are changes of models.downstream: {error}"
            ) from None
        return folder

    def evaluate(self, strategy: Folders) -> None:
        with self.run.clock("evaluation"):
            stored: dict[str, Any] | None = self.folder.load_value(MEASURED)
            if stored is None:
                stored = self._query(strategy)
                self.folder.save_value(MEASURED, stored)
            self.measured = stored

    def _query(self, strategy: Folders) -> dict[str, Any]:
        """Every model's figures, and what it is better by than the first."""
        own = self.config[MeasureConfig]
        caps = Caps(
            max_tokens=own.tokens(self.config),
            max_loss=own.max_loss,
            sequence_length=self.config.evaluation.sequence_length,
            gap=own.gap,
            special_tokens=self.config.evaluation.special_tokens,
        )
        try:
            found = evaluate(
                dict(strategy),
                base=self.base,
                session=self.run.session,
                caps=caps,
                # Bonferroni: whoever looks for the best looks at all of them.
                confidence=1 - (1 - CONFIDENCE) / len(strategy),
            )
        except TooNoisyError as error:  # it is paid for, and no other answer will come
            logger.warning("the evaluation says nothing: %s", error)
            return {"failed": str(error)}
        first, *others = found
        return {
            "models": {name: figures(estimate) for name, estimate in found.items()},
            "against": first,
            "together": len(found),
            "gained": {name: gains(found[name], found[first]) for name in others},
        }

    def result(self, strategy: Folders) -> int:
        rows = {
            name: [found[key] for key in ("accuracy", "accuracy_low", "accuracy_high")]
            for name, found in self.measured.get("models", {}).items()
        }
        if rows:
            path = self.folder.path / PICTURE
            draw_intervals(rows, "accuracy on users' text", path, caption=self.run.caption)
        return 0

    def figures(self, strategy: Folders) -> dict[str, Any]:
        return {MEASURED: self.measured}


RECIPE = Evaluation
