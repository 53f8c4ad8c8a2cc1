"""The same model fine-tuned on every set of texts alike, and measured on held-out users.

Opens private and held-out text (rule 4), as `benchmark.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.benchmark.names import (
    METHODS,
    PAIRS,
    RANDOM_PUBLIC,
    public_controls,
    steps_of,
)
from privsyn_flower.app.benchmark.private import Sets
from privsyn_flower.common.arrays import F64
from privsyn_flower.common.progress import Progress, Steps, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, RunConfig, split_list
from privsyn_flower.data import Federation, label_of
from privsyn_flower.evaluation.classification import (
    Classifier,
    Examples,
    always,
    right,
    scores,
)
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.intervals import Interval, paired_bootstrap, save_user_sums
from privsyn_flower.evaluation.process_pool import FineTuning, sums_after
from privsyn_flower.evaluation.public import (
    downstream_of,
    public_start,
    rehearse,
    rehearse_classes,
    start_figures,
    tuning_of,
)
from privsyn_flower.evaluation.rows import Rows, Work
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.text.models.lm_metrics import base_folder

Folders = Mapping[str, Path]
KEYS = {  # what has more texts
    "private": "data.users",
    "random_public": "data.public-pool",
    "minority_public": "data.public-pool",
}


def next_token(
    config: RunConfig,
    federation: Federation,
    downstream: str | Path,
    synthetic: Sets,
    progress: Progress = silent,
    steps: Steps | None = None,
    *,
    models: Folders | None = None,
    start: Path | None = None,
    work: Work | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """The same model fine-tuned on every set alike -> accuracy and loss on held-out users.

    models: others to measure as they are; a name among them is not fine-tuned. start: of the
    fine-tunings; None: `evaluation.start`.
    Returns accuracy, loss (nats) with intervals [value, low, high], their paired differences, the
    learning rate with how it was chosen, and how a converged start was made.
    """
    options, steps = config.evaluation, steps or steps_of(config, progress, [])
    measured = {"pretrained": downstream, **(models or {})}
    pools = {"random_public": federation.public, "minority_public": federation.public_minority}
    public = {name: pools[name]() for name in public_controls(config)}
    if options.start != "base":
        start = start or public_start(config, federation, base_folder(str(downstream)), progress)
        if options.start == "converged":  # (a) goes on from there as the others do
            measured["start"] = start
        elif "random_public" in public:  # (a) is where the others begin
            measured.setdefault("random_public", start)
    else:
        start = None
    model = downstream_of(config, start or downstream)
    with _choosing(config, steps):
        rate, tried = rehearse(config, federation, model, progress)
    tuning = replace(tuning_of(config), learning_rate=rate)
    held_out = {user: model.encode(own) for user, own in federation.held_out(options.on).items()}
    choice = _choice(config, federation, model)
    model.reset()  # the rehearsal left the weights of its last trial
    sums = {}
    for name, folder in measured.items():
        known = model if name == "pretrained" and start is None else downstream_of(config, folder)
        sums[name] = known.user_sums(held_out)
    counts, taken = {}, {}

    def sets() -> Iterator[FineTuning]:
        for name, source in training_sets(federation, synthetic, public).items():
            if name not in measured:
                rows = model.encode(source)
                job = fine_tuning_on(name, rows, tuning)
                counts[name], taken[name] = len(source), tuning.steps_of(len(rows))
                yield job

    sums |= sums_after(
        model,
        sets(),
        held_out,
        choice=choice,
        progress=progress,
        work=work,
        begun=lambda name: steps.task(METHODS[name]),
    )
    names = [name for name in METHODS if name in sums]
    pairs = [pair for pair in PAIRS if set(pair) <= set(sums)]
    result: dict[str, Any] = {
        "held_out_users": len(held_out),
        "held_out_tokens": int(sums["private"][:, 2].sum()),
        "methods": {name: METHODS[name] for name in names},
        "training_texts": counts,
        "steps_per_fine_tuning": taken,
        "learning_rate": rate,
        "learning_rate_trials": tried,
    }
    if start is not None and options.start == "converged":
        result["start"] = start_figures(start)
    unknown = model.unknown_rate([row for rows in held_out.values() for row in rows])
    if unknown is not None:
        result["unknown_rate"] = round(unknown, 5)
    if not tuning.by_texts:
        result["tokens_per_fine_tuning"] = tuning.steps * tuning.batch_tokens
    columns = {
        measure: {name: sums[name][:, [column, 2]] for name in names}
        for measure, column in (("loss", 0), ("accuracy", 1))
    }
    if keep is not None:
        save_user_sums(keep, held_out, columns)
    for measure, own in columns.items():
        rng = seeded(config.seed, "bootstrap")
        result |= figures(measure, paired_bootstrap(own, pairs, rng, resamples=options.bootstrap))
    return result


def classification(
    config: RunConfig,
    federation: Federation,
    downstream: str | Path,
    synthetic: Sets,
    progress: Progress = silent,
    steps: Steps | None = None,
    *,
    models: Folders | None = None,
    start: Path | None = None,
    work: Work | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """As `next_token`, for the public class list: accuracy and macro-F1.

    Public text takes part where it has labels, a control where its text has. `pretrained` has a
    head of random weights: it shows what knowing nothing gives. `majority` needs no model
    (POPri, section 5: epsilon = 0 on OpenReview). start: a classifier that all begin with.
    """
    options = config.evaluation

    def classifier(folder: str | Path) -> Classifier:
        length, device = options.sequence_length, config.models.device
        return Classifier(folder, config.classes, length=length, device=device, seed=config.seed)

    model = classifier(start or downstream)
    public = model.encode(federation.public(), federation.public_labels())
    steps = steps or steps_of(config, progress, [])
    with _choosing(config, steps):
        rate, tried = rehearse_classes(config, model, public, progress, work)
    tuning = replace(tuning_of(config), learning_rate=rate, texts=True)
    held_out = {user: _labelled(model, t) for user, t in federation.held_out(options.on).items()}
    choice: Examples | None = None
    if options.checkpoint == "development":
        users = federation.held_out("development").values()
        choice = _labelled(model, [text for own in users for text in own])
    sets = _example_sets(config, federation, model, synthetic, public)
    model.reset()
    sums = {"pretrained": model.user_sums(held_out)}
    commonest = np.bincount([example.label for example in sets["private"]]).argmax()
    sums["majority"] = always(sums["pretrained"], int(commonest))
    sums |= {name: classifier(own).user_sums(held_out) for name, own in (models or {}).items()}
    sums |= sums_after(
        model,
        [
            fine_tuning_on(name, examples, tuning)
            for name, examples in sets.items()
            # Without examples these two are an error, unless there is no text at all.
            if examples or name == "private" or (name == "synthetic" and synthetic[name])
        ],
        held_out,
        choice=choice,
        progress=progress,
        work=work,
        begun=lambda name: steps.task(METHODS[name]),
    )
    if keep is not None:
        named = {name: right(sums[name]) for name in METHODS if name in sums}
        save_user_sums(keep, held_out, {"accuracy": named})
    counts = {name: len(sets[name]) for name in sets if name in sums}
    return {
        "held_out_users": len(held_out),
        "training_texts": counts,
        "steps_per_fine_tuning": {name: tuning.steps_of(n) for name, n in counts.items()},
        "learning_rate": rate,
        "learning_rate_trials": tried,
        **_class_figures(config, sums),
    }


def _labelled(model: Classifier, texts: Sequence[str]) -> Examples:
    return model.encode(texts, [label_of(text) for text in texts])


def _example_sets(
    config: RunConfig, federation: Federation, model: Classifier, synthetic: Sets, public: Examples
) -> dict[str, Examples]:
    """`training_sets` with their labels. Raises ConfigError where no user's text is of a class."""
    own = training_sets(federation, synthetic, {})
    sets = {name: _labelled(model, texts) for name, texts in own.items()}
    if config.evaluation.compares(RANDOM_PUBLIC):
        sets = {"random_public": public} | sets
    if not sets["private"]:
        key, named = config.labels
        raise ConfigError(
            f"{key} = {named!r}: none of the users' texts is of these classes (data.label-column = "
            f"{config.data.label_column!r}): name those that they have"
        )
    return sets


def _class_figures(config: RunConfig, sums: Mapping[str, F64]) -> dict[str, Any]:
    """Accuracy and macro-F1 from held-out users' confusion counts, by the names in METHODS."""
    names = [name for name in METHODS if name in sums]
    pairs = [pair for pair in PAIRS if set(pair) <= set(sums)]
    resamples = config.evaluation.bootstrap
    found = scores({n: sums[n] for n in names}, pairs, config.seed, resamples=resamples)
    return {
        "held_out_texts": int(sums["private"].sum()),
        "classes": config.classes,
        "methods": {name: METHODS[name] for name in names},
        **figures("accuracy", found["accuracy"]),
        **figures("macro_f1", found["macro_f1"]),
    }


def training_sets(federation: Federation, synthetic: Sets, public: Sets) -> Sets:
    """What the model is fine-tuned on, by the names in METHODS."""
    own = [text for texts in federation.shard(0, 1).values() for text in texts]
    return {**public, **synthetic, "private": own}


def fine_tuning_on(name: str, rows: Sequence[Any], tuning: Tuning) -> FineTuning:
    """The fine-tuning on one set. Raises ConfigError, naming the key, for one without a text that a
    model can learn from, however long it would train."""
    if not len(rows):
        key = KEYS.get(name, "expand.samples, or lower expand.min-words")
        raise ConfigError(
            f"fine-tuning on {name}: none of its texts can be learned from, so there is nothing "
            f"for evaluation.{'epochs' if tuning.epochs else 'steps'}: raise {key}"
        )
    return FineTuning(name, rows, tuning, f"fine-tuning on {name}")


def _choosing(config: RunConfig, steps: Steps) -> AbstractContextManager[None]:
    if len(split_list(config.evaluation.learning_rates)) > 1:
        return steps.task("the learning rate, on public text")
    return nullcontext()


def _choice(config: RunConfig, federation: Federation, model: Downstream) -> Rows | None:
    """What the best epoch is chosen by, PRIVATE for `development`; None: the last is taken."""
    if config.evaluation.checkpoint == "last":
        return None
    if config.evaluation.checkpoint == "public":
        rows = model.encode(federation.public_validation())
    else:
        users = federation.held_out("development").values()
        rows = model.encode([text for own in users for text in own])
    if not rows:
        raise ConfigError(
            f"evaluation.checkpoint = {config.evaluation.checkpoint!r}: there is no such text; set "
            "'last'"
        )
    return rows


def figures(measure: str, intervals: Mapping[str, Mapping[str, Interval]]) -> dict[str, Any]:
    """Values, intervals and paired differences of one measure, as the summary has them."""
    values, differences = intervals["value"], intervals["difference"]
    return {
        measure: {k: v.value for k, v in values.items()},
        f"{measure}_interval": {k: v.as_list()[1:] for k, v in values.items()},
        f"{measure}_difference": {k: v.as_list() for k, v in differences.items()},
    }
