"""Membership attacks by models: by what a run trained on its users (DP-FedAvg, DP-FTRL, CTCL), and
by one that is fine-tuned on the published text, and then knows its users' texts better.

auxiliary: what the text tells of its users, that model tells (arXiv 2606.10481, section 4; the
data-based attack of Meeus et al. 2025, arXiv 2502.14921, with a neural model in the place of its
n-grams). loss: how much better the trained model knows a user's texts than the one that its
training began with. update: how far it moved the way that a user's own texts would move it: a
matched filter, because the noise is of one size in every direction (Andrew et al. 2024, arXiv
2302.03098, with the update that the user's own device would send in the place of a random one).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from privsyn_flower.app.inspect.attacks import NotMeasured, Scores
from privsyn_flower.app.inspect.texts import Texts, Users
from privsyn_flower.common.arrays import F64
from privsyn_flower.common.files import DataError
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, RunConfig, split_list
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.public import downstream_of, tuning_of
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.proximity import start_of
from privsyn_flower.server_apps.methods.training import local_training
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.public_text import public_text
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.synthesis.topic_texts import MODEL, TOPICS
from privsyn_flower.text.conditions import Pair
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.lm_metrics import Scorer, base_folder, load_scorer
from privsyn_flower.text.models.parameters import read_model
from privsyn_flower.text.models.pretrained import ModelUnavailableError
from privsyn_flower.text.protocols import Embedder
from privsyn_flower.text.topics import load_topics
from privsyn_flower.training.conditions import Conditions
from privsyn_flower.training.low_rank import initial_parameters
from privsyn_flower.training.models import CausalLM

GONE = "the model that the training began with is not there any more"
Read = tuple[Sequence[str], Sequence[str] | None]  # texts, and what each is conditioned on


@dataclass(frozen=True)
class Trained:
    """A run's model beside the one that it began with. conditions: CTCL's, which the run's
    public topics make; None for texts by themselves."""

    config: RunConfig
    start: Path
    model: Path
    conditions: Conditions | None
    embedder: Callable[[], Embedder]

    def read(self, users: Users) -> Iterator[Read]:
        """Each user's texts as a node reads them."""
        if self.conditions is None:
            yield from ((own, None) for own in users.values())
            return
        rows = self.embedder().embed([text for own in users.values() for text in own])
        parts = np.split(rows, np.cumsum([len(own) for own in users.values()])[:-1])
        for own, part in zip(users.values(), parts, strict=True):
            yield self.conditions.pairs(own, part)


def trained_of(texts: Texts, progress: Progress) -> Trained:
    """What the run trained. Raises NotMeasured."""
    folder, config = run_of(texts)
    if not (folder / MODEL).is_dir() or not config.updates:
        raise NotMeasured("the run trained no model on its users")
    if config.training.classifies:
        raise NotMeasured("the run trained a classifier, and the attacks are about language models")
    if config.trains:
        start = start_of(RunFolder(folder))
        if start is None:
            raise NotMeasured(GONE)
        return Trained(config, start, folder / MODEL, None, texts.load_embedder)
    own, start = config[CtclConfig], base_of(config, folder, "conditional", progress)
    kept = RunFolder(folder).last_checkpoint() or {"state": {}}
    if kept["state"].get("model") != folder_fingerprint(start):  # tuned again, for another cache
        raise NotMeasured(GONE)
    by_topic = (folder / TOPICS).is_dir()
    topics = load_topics(folder / TOPICS, texts.load_embedder().fingerprint) if by_topic else None
    conditions = Conditions(topics, own.document_type, tuple(config.classes), own.max_source)
    return Trained(config, start, folder / MODEL, conditions, texts.load_embedder)


def loss(texts: Texts, progress: Progress = silent) -> Scores:
    """Nats a token by which the run's model knows a user's texts better; 0 without tokens."""
    own = trained_of(texts, progress)
    if own.conditions is None:
        return gains(downstream_of(own.config, own.start), downstream_of(own.config, own.model))
    device, source = own.config.models.device, own.conditions.max_source
    before, after = Scorer(own.start, device), Scorer(own.model, device)
    length = own.config.evaluation.sequence_length

    def gain(texts: Sequence[str], conditions: Sequence[str] | None) -> float:
        pairs = [Pair(*one) for one in zip(conditions or (), texts, strict=True)]
        rows = before.encode_pairs(pairs, length=length, max_source=source)
        return before.mean_loss(rows) - after.mean_loss(rows) if rows else 0.0

    return lambda users: np.array([gain(*one) for one in own.read(users)])


def update(texts: Texts, progress: Progress = silent) -> Scores:
    """The cosine of the model's whole change with the change that a user's local steps make at the
    start; 0 without text."""
    own = trained_of(texts, progress)
    new = read_model(own.model, own.start)
    if not new:
        raise NotMeasured("the run's model is the one that its training began with")
    whole = initial_parameters(own.start, "full")
    local = local_training(own.config)
    source = own.conditions.max_source if own.conditions else 0

    def score(users: Users) -> F64:
        scorer = load_scorer(own.start, own.config.models.device)
        with CausalLM(scorer).load({name: whole[name] for name in new}) as model:
            moved = model.layout.flatten(new) - model.layout.flatten(whole)
            moved /= np.linalg.norm(moved)
            teach = functools.partial(model.train, options=local, max_source=source)
            cosines = np.zeros(len(users))
            for place, (read, conditions) in enumerate(own.read(users)):
                progress("users' own updates", place, len(users))
                rng = seeded(0, f"inspect {place}")
                change = teach(read, rng=rng, conditions=conditions)
                size = 0.0 if change is None else float(np.linalg.norm(change))
                if change is not None and size > 0:
                    cosines[place] = float(change @ moved) / size
            progress("users' own updates", len(users), len(users))
        return cosines

    return score


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
