"""Membership by an auxiliary model: one that is fine-tuned on the published text, and then knows
its users' texts better than it did before.

What the text tells of its users, the model tells (arXiv 2606.10481, section 4; the data-based
attack of Meeus et al. 2025, arXiv 2502.14921, with a neural model in the place of its n-grams).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from privsyn_flower.app.inspect.attacks import NotMeasured, Scores
from privsyn_flower.app.inspect.texts import Texts, Users
from privsyn_flower.common.arrays import F64
from privsyn_flower.common.files import DataError
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.config import ConfigError, RunConfig, split_list
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.public import downstream_of, tuning_of
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.public_text import public_text
from privsyn_flower.text.models.lm_metrics import base_folder
from privsyn_flower.text.models.pretrained import ModelUnavailableError

EPOCHS = 3  # of the auxiliary model over the published text
AUXILIARY_STEPS = 1000  # at most


def auxiliary(texts: Texts, progress: Progress = silent) -> Scores:
    """By `models.downstream`, fine-tuned on the published text: three epochs, the highest of
    `evaluation.learning-rates`."""
    if not texts.published:
        raise NotMeasured("the run wrote no text to train an auxiliary model on")
    folder, config = run_of(texts)
    base = base_of(config, folder, "downstream", progress)
    before, after = downstream_of(config, base), downstream_of(config, base)
    rows = after.encode(texts.published)
    if not rows:
        raise NotMeasured("no published text is long enough to train an auxiliary model on")
    rate = max(map(float, split_list(config.evaluation.learning_rates)))
    tuning = replace(tuning_of(config), learning_rate=rate, epochs=EPOCHS, texts=True)
    if tuning.steps_of(len(rows)) > AUXILIARY_STEPS:
        tuning = replace(tuning, epochs=0, steps=AUXILIARY_STEPS)
    after.fine_tune(rows, tuning, progress, "auxiliary model")
    return gains(before, after)


def run_of(texts: Texts) -> tuple[Path, RunConfig]:
    """The run's folder and configuration. Raises NotMeasured."""
    if texts.run is None:
        raise NotMeasured("there is no run folder")
    return texts.run


def base_of(config: RunConfig, folder: Path, kind: str, progress: Progress) -> Path:
    """The folder of the run's model of this kind. Raises NotMeasured."""
    try:
        models = Models(config, public_text(config, progress), RunFolder(folder), progress)
        return base_folder(models.folder(kind))
    except (ConfigError, DataError, ModelUnavailableError) as error:
        raise NotMeasured(f"models.{kind} is not at hand: {error}") from None


def gains(before: Downstream, after: Downstream) -> Scores:
    """Nats a token by which `after` knows a user's texts better than `before`; 0 without tokens."""

    def losses(model: Downstream, users: Users) -> F64:
        sums = model.user_sums({user: model.encode(own) for user, own in users.items()})
        means: F64 = sums[:, 0] / np.maximum(sums[:, 2], 1)
        return means

    return lambda users: losses(before, users) - losses(after, users)
