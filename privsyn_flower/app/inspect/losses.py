"""Membership attacks by loss: how much better a model knows a user's texts than it did before.

The model is one that the run trained on its users (DP-FedAvg, DP-FTRL, CTCL's generator), or, where
the run published text alone, a small one that is fine-tuned on that text here: what the text tells
of its users, the auxiliary model tells (arXiv 2606.10481, section 4; the data-based attack of Meeus
et al. 2025, arXiv 2502.14921, with a neural model in the place of its n-grams).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from privsyn_flower.app.inspect.attacks import NotMeasured, Scores
from privsyn_flower.app.inspect.texts import Texts, Users
from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.common.files import DataError
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.config import ConfigError, RunConfig, split_list
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.public import downstream_of, tuning_of
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.proximity import start_of
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.public_text import public_text
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.synthesis.topic_writing import MODEL, TOPICS
from privsyn_flower.text.conditions import Pair
from privsyn_flower.text.models.lm_metrics import Scorer, base_folder
from privsyn_flower.text.models.pretrained import ModelUnavailableError
from privsyn_flower.text.topics import load_topics
from privsyn_flower.training.conditions import Conditions

EPOCHS = 3  # of the auxiliary model over the published text
AUXILIARY_STEPS = 1000  # at most


def auxiliary(texts: Texts, progress: Progress = silent) -> Scores:
    """By `models.downstream`, fine-tuned on the published text: three epochs, the highest of
    `evaluation.learning-rates`."""
    if not texts.published:
        raise NotMeasured("the run wrote no text to train an auxiliary model on")
    folder, config = _run_of(texts)
    base = _base(config, folder, "downstream", progress)
    before, after = downstream_of(config, base), downstream_of(config, base)
    rows = after.encode(texts.published)
    if not rows:
        raise NotMeasured("no published text is long enough to train an auxiliary model on")
    rate = max(map(float, split_list(config.evaluation.learning_rates)))
    tuning = replace(tuning_of(config), learning_rate=rate, epochs=EPOCHS, texts=True)
    if tuning.steps_of(len(rows)) > AUXILIARY_STEPS:
        tuning = replace(tuning, epochs=0, steps=AUXILIARY_STEPS)
    after.fine_tune(rows, tuning, progress, "auxiliary model")
    return _gains(before, after)


def trained(texts: Texts, progress: Progress = silent) -> Scores:
    """By the run's own model, beside the one that its training began with."""
    folder, config = _run_of(texts)
    if not (folder / MODEL).is_dir() or not config.updates:
        raise NotMeasured("the run trained no model on its users")
    if not config.trains:
        return _conditional(texts, folder, config, progress)
    start = start_of(RunFolder(folder))
    if start is None:
        raise NotMeasured("the model that the training began with is not there any more")
    return _gains(downstream_of(config, start), downstream_of(config, folder / MODEL))


def _conditional(texts: Texts, folder: Path, config: RunConfig, progress: Progress) -> Scores:
    """CTCL's generator knows a text by the condition that a node gives it, which the run's public
    topics make."""
    embedder, own = texts.load_embedder(), config[CtclConfig]
    by_topic = (folder / TOPICS).is_dir()
    topics = load_topics(folder / TOPICS, embedder.fingerprint) if by_topic else None
    asked = Conditions(topics, own.document_type, tuple(config.classes), own.max_source)
    length = config.evaluation.sequence_length
    start, device = _base(config, folder, "conditional", progress), config.models.device
    before, after = Scorer(start, device), Scorer(folder / MODEL, device)

    def gain(user: Sequence[str], rows: F32) -> float:
        kept, told = asked.pairs(user, rows)
        pairs = [Pair(*one) for one in zip(told, kept, strict=True)]
        encoded = before.encode_pairs(pairs, length=length, max_source=asked.max_source)
        return before.mean_loss(encoded) - after.mean_loss(encoded) if encoded else 0.0

    def score(users: Users) -> F64:
        rows = embedder.embed([text for own in users.values() for text in own])
        ends = np.cumsum([len(own) for own in users.values()])
        parts = np.split(rows, ends[:-1])
        return np.array([gain(*one) for one in zip(users.values(), parts, strict=True)])

    return score


def _run_of(texts: Texts) -> tuple[Path, RunConfig]:
    if texts.run is None:
        raise NotMeasured("there is no run folder")
    return texts.run


def _base(config: RunConfig, folder: Path, kind: str, progress: Progress) -> Path:
    try:
        models = Models(config, public_text(config, progress), RunFolder(folder), progress)
        return base_folder(models.folder(kind))
    except (ConfigError, DataError, ModelUnavailableError) as error:
        raise NotMeasured(f"models.{kind} is not at hand: {error}") from None


def _gains(before: Downstream, after: Downstream) -> Scores:
    """Nats a token by which `after` knows a user's texts better than `before`; 0 without tokens."""

    def losses(model: Downstream, users: Users) -> F64:
        sums = model.user_sums({user: model.encode(own) for user, own in users.items()})
        means: F64 = sums[:, 0] / np.maximum(sums[:, 2], 1)
        return means

    return lambda users: losses(before, users) - losses(after, users)
