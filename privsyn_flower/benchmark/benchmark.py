"""What a simulated run is worth, measured with private and held-out text.

With `private.py` the ONLY file that opens private or held-out text outside the nodes (rule 4). It
runs in simulation with `benchmark = true`, and its figures are no part of the private result: they
go under `benchmark` in summary.json and are not covered by epsilon.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.arrays import F32
from privsyn_flower.benchmark.feedback import Feedback
from privsyn_flower.benchmark.private import Private
from privsyn_flower.config import ConfigError, RunConfig, split_list
from privsyn_flower.data import Federation, label_of
from privsyn_flower.evaluation.bootstrap import Interval, paired_bootstrap
from privsyn_flower.evaluation.classification import (
    Classifier,
    Examples,
    always,
    examples_digest,
    right,
    scores,
)
from privsyn_flower.evaluation.distances import frechet_by_size
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.duplicates import near_duplicates
from privsyn_flower.evaluation.public import (
    downstream_of,
    public_start,
    rehearse,
    rehearse_classes,
    tuning_of,
)
from privsyn_flower.evaluation.rows import Rows
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.evaluation.user_sums import save_user_sums
from privsyn_flower.evaluation.work import Work, rows_digest
from privsyn_flower.progress import BENCHMARK, Progress, Steps, silent
from privsyn_flower.randomness import seeded
from privsyn_flower.text.models.lm_metrics import base_folder

Sets = Mapping[str, Sequence[str]]
Folders = Mapping[str, Path]

FRECHET_TEXTS = 500  # texts embedded per set: enough for 384 dimensions, half a minute on a CPU
RANDOM_PUBLIC = "random-public"  # in `evaluation.controls`
NOTE = "measured with private and held-out text; not covered by epsilon"
CHOSEN = {
    "last": "",
    "public": "; each fine-tuning's epoch was chosen by public text",
    "development": "; each fine-tuning's epoch was chosen by development users' text, which "
    "epsilon does not cover either",
}
METHODS = {
    "pretrained": "the downstream model as it is",
    "majority": "always the private texts' most frequent class",
    "random_public": "(a) fine-tuned on random public text",
    "unaligned": "(a1) on the generator's text before alignment",
    "noise_votes": "(a2) on the same pipeline's text, its votes replaced by noise",
    "noise_scores": "(a2) on the same pipeline's text, its scores replaced by noise",
    "pretext": "(a3) on PrE-Text's synthetic text at the same noise and rounds, simulated",
    "no_private_step": "(a1) on the conditional generator's text before any private step",
    "histogram_only": "(h) on text of that generator by the noisy shares of topics",
    "training_only": "(f) on text of the trained generator, every topic alike",
    "noise_answers": "(a2) on the same pipeline's text, both answers replaced by noise",
    "noise_updates": "(a2) trained in the same way, users' updates replaced by noise",
    "synthetic": "(b) on the synthetic text",
    "trained": "(b) trained privately on the nodes",
    "private": "(c) on the private text, without privacy",
}
PAIRS = (
    ("synthetic", "random_public"),
    ("synthetic", "unaligned"),
    ("synthetic", "noise_votes"),
    ("synthetic", "noise_scores"),
    ("synthetic", "pretext"),
    ("synthetic", "no_private_step"),
    ("synthetic", "histogram_only"),
    ("synthetic", "training_only"),
    ("synthetic", "noise_answers"),
    ("histogram_only", "no_private_step"),
    ("training_only", "no_private_step"),
    ("synthetic", "majority"),
    ("trained", "pretrained"),
    ("trained", "random_public"),
    ("trained", "noise_updates"),
    ("private", "random_public"),
    ("private", "synthetic"),
    ("private", "trained"),
)


def steps_of(
    config: RunConfig, progress: Progress, made: Sequence[str], models: Sequence[str] = ()
) -> Steps:
    """The benchmark's line of progress: what is made for comparison (names in METHODS), what is
    measured, and a fine-tuning for each set of texts. models: made, too, and not fine-tuned."""
    public = [name for name in ("random_public",) if config.evaluation.compares(RANDOM_PUBLIC)]
    own = ["trained"] if config.trains else ["synthetic"]
    tuned = {*public, *own, *made, "private"} - {*models, "trained"}
    if config.evaluation.start == "public":
        tuned -= {"random_public"}
    rate = len(split_list(config.evaluation.learning_rates)) > 1
    measured = 0 if config.trains else 2
    return Steps(progress, BENCHMARK, len(made) + measured + rate + len(tuned))


@dataclass(frozen=True)
class Benchmark:
    """summary: figures for summary.json. For the pictures: held_out (n, d) embeddings of
    held-out texts, PRIVATE, and the candidates (m, d) of every round."""

    summary: dict[str, Any]
    held_out: F32
    candidates: list[F32]


def run_benchmark(
    config: RunConfig,
    private: Private,
    *,
    downstream: str | Path,
    feedback: Callable[[F32], Feedback],
    synthetic: Sets,
    seeds: Sets,
    progress: Progress = silent,
    steps: Steps | None = None,
    work: Work | None = None,
    keep: Path | None = None,
) -> Benchmark:
    """All figures of one finished run; held-out users as `evaluation.on` says.

    downstream: folder or name of the model to fine-tune. feedback: held-out embeddings (n, d) ->
    what the users' answers were worth. synthetic: texts by the names in METHODS, "synthetic" the
    run's own and the others its controls; with their labels (`data.LabelledText`) for
    `evaluation.task = "classification"`. seeds: PrE-Text's, "seeds" the run's own; empty for
    methods without. steps: those begun already (`steps_of`). work: where finished fine-tunings
    are kept until all are (`Work`). keep: the run folder, where held-out users' sums stay
    (`evaluation.user_sums`).
    """
    steps = steps or steps_of(config, progress, [])
    federation = private.federation
    pool = federation.public() if config.evaluation.compares(RANDOM_PUBLIC) else ()
    held_out = private.held_out()
    summary: dict[str, Any] = {
        "note": note(config),
        "held_out": config.evaluation.on,
    }
    steps.begin("distances to held-out text")
    found, candidates = feedback(held_out)
    summary |= found
    groups = {"seeds": seeds, "synthetic": synthetic} if seeds else {"synthetic": synthetic}
    summary["frechet"] = distances(groups, pool, private, held_out, config)
    steps.begin("texts that repeat others")
    summary["near_duplicates"] = repeated(synthetic["synthetic"], federation, config)
    measure = classification if config.evaluation.task == "classification" else next_token
    summary |= {"task": config.evaluation.task}
    work = work or Work()
    summary |= measure(
        config, federation, downstream, synthetic, progress, steps, work=work, keep=keep
    )
    work.end()
    steps.end()
    return Benchmark(summary, held_out, candidates)


def training_benchmark(
    config: RunConfig,
    federation: Federation,
    *,
    downstream: str | Path,
    models: Folders,
    start: Path | None = None,
    progress: Progress = silent,
    steps: Steps | None = None,
    work: Work | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Figures of a run that trained a model: for summary.json, named as `run_benchmark`'s are.

    models: folders by the names in METHODS, measured as they are. start: the model that the private
    training began with, from which others go with `evaluation.start = "public"`. There is no text
    whose distances could be told. work, keep: as `run_benchmark`'s. Raises ConfigError unless
    `benchmark` is true.
    """
    if not config.benchmark:
        raise ConfigError("benchmark = false: private text is not opened; set benchmark = true")
    steps = steps or steps_of(config, progress, [], list(models))
    work = work or Work()
    found = next_token(
        config,
        federation,
        downstream,
        {},
        progress,
        steps,
        models=models,
        start=start,
        work=work,
        keep=keep,
    )
    work.end()
    steps.end()
    return {
        "note": note(config),
        "held_out": config.evaluation.on,
        "frechet": {},
        "task": config.evaluation.task,
        **found,
    }


def repeated(
    synthetic: Sequence[str], federation: Federation, config: RunConfig
) -> dict[str, dict[str, float]]:
    """How much of the synthetic text repeats private, held-out (chance) and public text."""
    references = {
        "private": federation.shard(0, 1),
        "held_out": federation.held_out(config.evaluation.on),
    }
    texts = {name: [t for own in users.values() for t in own] for name, users in references.items()}
    texts["public"] = federation.public_corpus()
    return {name: near_duplicates(synthetic, reference) for name, reference in texts.items()}


def distances(
    groups: Mapping[str, Sets],
    pool: Sequence[str],
    private: Private,
    held_out: F32,
    config: RunConfig,
) -> dict[str, dict[str, float]]:
    """Frechet distances to held-out text, each group at equal numbers of texts; `private` is
    the floor: private users' text at the same number."""
    rng = seeded(config.seed, "frechet")

    def rows(source: Sequence[str]) -> F32:
        count = min(len(source), FRECHET_TEXTS)
        picked = rng.choice(len(source), count, replace=False)
        return private.embedder.embed([source[i] for i in picked])

    others = {"random_public": rows(pool)} if len(pool) > 1 else {}
    count = len(others["random_public"]) if others else min(len(private.rows), FRECHET_TEXTS)
    own = rng.choice(len(private.rows), count, replace=len(private.rows) < count)
    others["private"] = private.rows[own]
    return {
        group: {
            name: round(value, 5)
            for name, value in frechet_by_size(
                {name: rows(source) for name, source in members.items() if len(source) > 1}
                | others,
                held_out,
                rng,
            ).items()
        }
        for group, members in groups.items()
    }


def training_sets(federation: Federation, synthetic: Sets, public: Sequence[str]) -> Sets:
    """What the model is fine-tuned on, by the names in METHODS; `public` may be empty."""
    own = [text for texts in federation.shard(0, 1).values() for text in texts]
    return {**({"random_public": public} if public else {}), **synthetic, "private": own}


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
    fine-tunings; None: `evaluation.start`. Returns accuracy, loss (nats) with intervals
    [value, low, high], their paired differences, and the learning rate with how it was chosen.
    """
    options, steps, work = (
        config.evaluation,
        steps or steps_of(config, progress, []),
        work or Work(),
    )
    measured = {"pretrained": downstream, **(models or {})}
    public = federation.public() if options.compares(RANDOM_PUBLIC) else ()
    if options.start == "public":
        start = start or public_start(config, federation, base_folder(str(downstream)), progress)
        if public:  # (a) is where the others begin
            measured.setdefault("random_public", start)
    else:
        start = None
    model = downstream_of(config, start or downstream)
    _choosing(config, steps)
    rate, tried = rehearse(config, federation, model, progress, work=work)
    tuning = replace(tuning_of(config), learning_rate=rate)
    held_out = {user: model.encode(own) for user, own in federation.held_out(options.on).items()}
    choice = _choice(config, federation, model)
    tested = rows_digest([row for own in held_out.values() for row in own])
    chosen_by = None if choice is None else rows_digest(choice)
    about = [model.said(), tested, vars(tuning), options.checkpoint, chosen_by]
    model.reset()  # the rehearsal left the weights of its last trial
    sums = {}
    for name, folder in measured.items():
        known = model if name == "pretrained" and start is None else downstream_of(config, folder)
        sums[name] = known.user_sums(held_out)
    counts, taken = {}, {}

    def sets() -> Iterator[tuple[str, Rows]]:
        for name, source in training_sets(federation, synthetic, public).items():
            if name not in measured:
                steps.begin(METHODS[name])
                rows = model.encode(source)
                counts[name], taken[name] = len(source), tuning.steps_of(len(rows))
                yield name, rows

    tune = functools.partial(_tuned, model, tuning, held_out, choice, progress)
    for name, rows in sets():
        made = work.once(name, [*about, rows_digest(rows)], functools.partial(tune, name, rows))
        sums[name] = np.array(made)
    result: dict[str, Any] = {
        "held_out_users": len(held_out),
        "held_out_tokens": int(sums["private"][:, 2].sum()),
        "methods": {name: METHODS[name] for name in METHODS if name in sums},
        "training_texts": counts,
        **(
            {}
            if tuning.by_texts
            else {"tokens_per_fine_tuning": tuning.steps * tuning.batch_tokens}
        ),
        "steps_per_fine_tuning": taken,
        "learning_rate": rate,
        "learning_rate_trials": tried,
    }
    if not tuning.by_texts:
        result["tokens_per_fine_tuning"] = tuning.steps * tuning.batch_tokens
    columns = {
        measure: {name: sums[name][:, [column, 2]] for name in METHODS if name in sums}
        for measure, column in (("loss", 0), ("accuracy", 1))
    }
    if keep is not None:
        save_user_sums(keep, held_out, columns)
    for measure, own in columns.items():
        result |= figures(
            measure,
            paired_bootstrap(
                own,
                [pair for pair in PAIRS if set(pair) <= set(sums)],
                seeded(config.seed, "bootstrap"),
                resamples=options.bootstrap,
            ),
        )
    return result


def _tuned(
    model: Any,
    tuning: Tuning,
    held_out: Mapping[str, Any],
    choice: Any,
    progress: Progress,
    name: str,
    source: Any,
    folder: Path | None,
) -> Any:
    """Sums of held-out users after a fine-tuning on `source`, as JSON has them."""
    stage = f"fine-tuning on {name}"
    model.fine_tune(source, tuning, progress, stage, work=folder, choice=choice)
    return model.user_sums(held_out).tolist()


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


def classification(
    config: RunConfig,
    federation: Federation,
    downstream: str | Path,
    synthetic: Sets,
    progress: Progress = silent,
    steps: Steps | None = None,
    *,
    work: Work | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """As `next_token`, for the public class list: accuracy and macro-F1.

    Public text takes part where it has labels, a control where its text has. `pretrained` has a
    head of random weights: it shows what knowing nothing gives. `majority` needs no model
    (POPri, section 5: epsilon = 0 on OpenReview).
    """
    options, classes = config.evaluation, config.classes
    length, device = options.sequence_length, config.models.device
    model = Classifier(downstream, classes, length=length, device=device, seed=config.seed)

    def encoded(texts: Sequence[str]) -> Examples:
        return model.encode(texts, [label_of(text) for text in texts])

    public = model.encode(federation.public(), federation.public_labels())
    steps, work = steps or steps_of(config, progress, []), work or Work()
    _choosing(config, steps)
    rate, tried = rehearse_classes(config, model, public, progress, work)
    tuning = replace(tuning_of(config), learning_rate=rate, texts=True)
    held_out = {user: encoded(own) for user, own in federation.held_out(options.on).items()}
    choice: Examples | None = None
    if options.checkpoint == "development":
        own_text = federation.held_out("development").values()
        choice = encoded([text for own in own_text for text in own])
    tested = examples_digest([one for own in held_out.values() for one in own])
    chosen_by = None if choice is None else examples_digest(choice)
    about = [str(downstream), classes, tested, vars(tuning), options.checkpoint, chosen_by]
    sets = {name: encoded(own) for name, own in training_sets(federation, synthetic, ()).items()}
    if options.compares(RANDOM_PUBLIC):
        sets = {"random_public": public} | sets
    tune = functools.partial(_tuned, model, tuning, held_out, choice, progress)
    model.reset()
    sums = {"pretrained": model.user_sums(held_out)}
    commonest = np.bincount([example.label for example in sets["private"]]).argmax()
    sums["majority"] = always(sums["pretrained"], int(commonest))
    for name, examples in sets.items():
        # Without examples these two are an error, unless there is no text at all.
        if examples or name == "private" or (name == "synthetic" and synthetic[name]):
            steps.begin(METHODS[name])
            key = [*about, examples_digest(examples)]
            sums[name] = np.array(work.once(name, key, functools.partial(tune, name, examples)))
    names = [name for name in METHODS if name in sums]
    pairs = [pair for pair in PAIRS if set(pair) <= set(sums)]
    if keep is not None:
        save_user_sums(keep, held_out, {"accuracy": {n: right(sums[n]) for n in names}})
    found = scores({n: sums[n] for n in names}, pairs, config.seed, resamples=options.bootstrap)
    counts = {name: len(sets[name]) for name in sets if name in sums}
    return {
        "held_out_users": len(held_out),
        "held_out_texts": int(sums["private"].sum()),
        "classes": classes,
        "methods": {name: METHODS[name] for name in names},
        "training_texts": counts,
        "steps_per_fine_tuning": {name: tuning.steps_of(n) for name, n in counts.items()},
        "learning_rate": rate,
        "learning_rate_trials": tried,
        **figures("accuracy", found["accuracy"]),
        **figures("macro_f1", found["macro_f1"]),
    }


def _choosing(config: RunConfig, steps: Steps) -> None:
    if len(split_list(config.evaluation.learning_rates)) > 1:
        steps.begin("the learning rate, on public text")


def note(config: RunConfig) -> str:
    """What the figures rest on."""
    return NOTE + CHOSEN[config.evaluation.checkpoint]


def figures(measure: str, intervals: Mapping[str, Mapping[str, Interval]]) -> dict[str, Any]:
    """Values, intervals and paired differences of one measure, as the summary has them."""
    values, differences = intervals["value"], intervals["difference"]
    return {
        measure: {k: v.value for k, v in values.items()},
        f"{measure}_interval": {k: v.as_list()[1:] for k, v in values.items()},
        f"{measure}_difference": {k: v.as_list() for k, v in differences.items()},
    }
