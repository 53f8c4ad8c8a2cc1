"""Counts of the work of a run's stages, from a configuration alone, for `privsyn plan`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from privsyn_flower.app.benchmark.names import public_controls
from privsyn_flower.config import RunConfig, cache_folder, split_list
from privsyn_flower.evaluation.tuning import Plateau
from privsyn_flower.text.models.gguf import PackagedModel, imported, packaged
from privsyn_flower.text.tiny.assets import (
    RECIPES,
    AssetError,
    embedded,
    find_asset,
    recipe,
    tuning_recipe,
)
from privsyn_flower.text.tiny.models import package_sides, private_packages

LSTM_STEPS, LSTM_LONGEST = 2000, 64  # `text.models.lstm`, which imports torch
TOKENS_PER_WORD = 4 / 3  # POPri, appendix F: 64 tokens are about 48 words
IMPORT_SECONDS = 30.0  # of 135 million parameters, one core
HEADING_TOKENS = 8  # of a line between two texts of a prompt

Kind = Literal[
    "embedding", "mask-filling", "scoring", "generation", "fine-tuning", "imitation", "preferences",
    "importing",
]  # fmt: skip


@dataclass(frozen=True)
class Task:
    """Equal pieces of work of one stage, at most: public numbers bound what nobody knows before.

    stage: as in `stage_seconds`. what: in words. model: its key in `[models]`. items: texts,
    completions or training sequences of one time; tokens: of each, written ones in a generation.
    times: how often, most often once a round. nodes: done where the users' text is. cap: seconds
    after which it is ended; 0: none. adapters: a fine-tuning of low-rank factors alone.
    seconds: as it was measured elsewhere, where no speed tells it; 0: by speeds.

    An `imitation` is a generator's low-rank training on texts, as `preferences` is on pairs.
    """

    stage: str
    what: str
    kind: Kind
    model: str
    items: int
    tokens: int
    times: int = 1
    nodes: bool = False
    cap: float = 0.0
    adapters: bool = False
    seconds: float = 0.0


def tokens_of(words: int, most: int = 0) -> int:
    """Tokens of a text of so many words, about; cut to `most` (0: uncut)."""
    tokens = math.ceil(words * TOKENS_PER_WORD)
    return min(tokens, most) if most else tokens


def sequence_tokens(config: RunConfig) -> int:
    """Tokens of a training sequence that one of the users' texts fills, at most: texts of the
    demos' sources are cut to data.sample-words, those of files with data.chunk alone."""
    length, data = config.evaluation.sequence_length, config.data
    return tokens_of(data.sample_words, length) if data.has_minority or data.chunk else length


def embedding(stage: str, what: str, items: int, tokens: int, times: int = 1) -> Task:
    """So many texts to rows."""
    return Task(stage, f"embedding {what}", "embedding", "embedder", items, tokens, times)


def scoring(config: RunConfig, stage: str, models: int, tokens: int, times: int = 1) -> Task:
    """So many models on at most so many tokens of every user, where the users' text is."""
    length, data = sequence_tokens(config), config.data
    items = data.users * models * -(-min(tokens, data.samples_per_user * length) // length)
    what = "measuring models on the users' text, on their nodes"
    return Task(stage, what, "scoring", "downstream", items, length, times, nodes=True)


def choosing(config: RunConfig) -> list[Task]:
    """The public pool, measured by the model before and after its training (`[proximity]`)."""
    if not config.proximity.filter:
        return []
    tokens = tokens_of(config.data.sample_words, config.evaluation.sequence_length)
    items, what = 2 * config.data.public_pool, "measuring the public pool by both models"
    return [Task("proximity", what, "scoring", "downstream", items, tokens)]


def public_pool(config: RunConfig) -> Task:
    """The whole pool, where texts are retrieved from it."""
    tokens = tokens_of(config.data.sample_words)
    return embedding("models", "the public pool", config.data.public_pool, tokens)


def private_texts(config: RunConfig) -> Task:
    """Every user's texts, once, on their nodes: at most as many as the cap lets a user have."""
    data, what = config.data, "the users' texts on their nodes, in the first round"
    items = data.users * data.samples_per_user
    return replace(embedding("rounds", what, items, tokens_of(data.sample_words)), nodes=True)


def variations(config: RunConfig, what: str, texts: int, times: int) -> Task:
    """So many texts varied: mask-filled in all steps, or written by the generator."""
    own = config.evolution
    if own.written_by_generator:
        return generation(config, "rounds", what, texts, times)
    tokens = tokens_of(config.data.sample_words, own.max_tokens)
    items = texts * own.mask_steps * (own.mask_passes or round(own.mask_fraction * tokens))
    return Task("rounds", f"varying {what}", "mask-filling", "infiller", items, tokens, times)


def generation(
    config: RunConfig, stage: str, what: str, items: int, times: int = 1, tokens: int = 0
) -> Task:
    """So many completions, each as long as it may be: of `tokens`, or expand.max-tokens."""
    tokens = tokens or config.expand.max_tokens
    return Task(stage, f"writing {what}", "generation", "generator", items, tokens, times)


def expansion(config: RunConfig) -> list[Task]:
    """The generator's texts."""
    samples = config.expand.samples
    return [generation(config, "expansion", "synthetic texts", samples)] if samples else []


def imitation(config: RunConfig, seeds: int, tokens: int) -> list[Task]:
    """What `[sft]` trains on so many seeds before the expansion, all passes over them counted."""
    if not config.sft.epochs:
        return []
    length = config.expand.seeds_per_prompt * (tokens + HEADING_TOKENS) + tokens
    what, items = "fine-tuning the generator on the seeds", seeds * config.sft.epochs
    return [Task("expansion", what, "imitation", "generator", items, length)]


def preferences(config: RunConfig, pairs: int, shown: int, times: int) -> Task:
    """Training on so many pairs, all passes over them counted. shown: tokens of a prompt."""
    length, what = shown + config.expand.max_tokens, "training on preferences"
    return Task("rounds", what, "preferences", "generator", pairs, length, times)


def fine_tuning(
    config: RunConfig, stage: str, what: str, texts: int, times: int, *, public: bool = False
) -> Task:
    """Of the downstream model on a set of so many texts, so often. public: the stage on public
    text before the others (`evaluation.public.tuning_of`)."""
    options, training = config.evaluation, config.training
    steps, epochs, batch = options.steps, options.epochs, options.batch_size
    if public and config.trains and options.start != "converged":
        steps, epochs = training.public_steps, 0
    elif public:
        steps, epochs = options.public_steps, options.public_epochs
        batch = options.public_batch_size or batch
    return Task(
        stage, f"fine-tuning {what}", "fine-tuning", "downstream",
        epochs * texts if epochs else steps * batch, options.sequence_length, times,
        adapters=options.adapter_rank > 0,
    )  # fmt: skip


def trials(config: RunConfig) -> int:
    """Fine-tunings that choose a learning rate: none for a single one."""
    rates = len(split_list(config.evaluation.learning_rates))
    return rates if rates > 1 else 0


def start_tuning(config: RunConfig, stage: str) -> list[Task]:
    """The model tuned on the public pool, where the others begin, and the trials of its rate."""
    what, pool = "the start on public text, unless it is in the cache", config.data.public_pool
    if config.evaluation.start != "converged":
        often = 1 + trials(config)
        found = fine_tuning(config, stage, what, pool, often, public=True)
        return [found] if found.items else []
    own, looks = config.evaluation, Plateau.of(config.evaluation.public_patience)
    tokens = tokens_of(config.data.sample_words, own.sequence_length)
    tasks = [
        fine_tuning(config, stage, f"{what}, at most", pool, 1, public=True),
        Task(
            stage, "its loss on public validation text", "scoring", "downstream",
            config.data.public_validation, tokens, 1 + own.public_steps // looks.every,
        ),
        fine_tuning(config, stage, "the trials of its rate", pool, trials(config)),
    ]  # fmt: skip
    return [task for task in tasks if task.items and task.times]


def fine_tunings(config: RunConfig, written: Sequence[int]) -> list[Task]:
    """The benchmark's: trials of rates, random public text, the private text, and the result and
    its controls, of so many texts each. What is measured as it is, is not tuned: a training's own
    model and its controls, and with a public start the model of public text."""
    options, data = config.evaluation, config.data
    started = options.start == "public" or (config.trains and config.training.public_steps > 0)
    shares = {"minority_public": data.minority_share} | ({} if started else {"random_public": 1.0})
    public = [round(data.public_pool * shares[n]) for n in public_controls(config) if n in shares]
    sizes = [*public, data.users * data.samples_per_user, *written]
    # In steps all take the same, whatever their texts.
    often = Counter(size if options.epochs else 0 for size in sizes)
    start = [] if config.trains or options.start == "base" else start_tuning(config, "benchmark")
    what = f"the downstream model{_passes(config, written[0] if written else 0)}"
    tasks = [fine_tuning(config, "benchmark", what, texts, times) for texts, times in often.items()]
    kept = ", unless it is in the cache" * (options.task == "next-token")
    rate = fine_tuning(
        config, "benchmark", f"the trials of its rate{kept}", data.public_pool, trials(config)
    )
    tasks.append(rate)
    return start + [task for task in tasks if task.items and task.times]


def _passes(config: RunConfig, texts: int) -> str:
    """How often steps read a set of so many texts: of tokens they read whole texts faster."""
    own = config.evaluation
    if own.epochs or not texts:
        return ""
    least = "" if own.batch_of == "texts" or own.task == "classification" else "at least "
    return f", {least}{own.steps * own.batch_size / texts:.2g} passes over {texts:,} texts"


def to_import(config: RunConfig, kinds: Collection[str]) -> dict[str, PackagedModel]:
    """kind -> the model in a package that is not in the cache yet, of kinds that the run loads
    here: behind a server the name is the server's."""
    where, found = config.generation, dict[str, PackagedModel]()
    for kind in sorted(kinds):
        model = packaged(kind, _name(kind, config))
        there = kind == "generator" and where.base_url and not config.teaches_generator
        if model and not there and imported(model, cache_folder(config)) is None:
            found[kind] = model
    return found


def models_to_make(config: RunConfig, kinds: set[str]) -> list[Task]:
    """Imports of models in packages, of which a conditional one is tuned, and tiny models that are
    not shipped for this run's text: shipped ones are tuned on it, and trained anew where they have
    read what is private in it (`text.tiny.models`)."""
    names = {model.name: kind for kind, model in to_import(config, kinds).items()}
    imports = [
        Task("models", f"importing {name}", "importing", kind, 1, 0, seconds=IMPORT_SECONDS)
        for name, kind in names.items()
    ]
    wanted = {kind for kind in kinds & set(RECIPES) if embedded(kind, _name(kind, config))}
    ways = {kind: way for kind in sorted(wanted) if (way := _way(kind, config))}
    if "conditional" in kinds and packaged("conditional", config.models.conditional):
        ways["conditional"] = "tuning"
    trained = {kind for kind, way in ways.items() if way == "training"}
    tasks = [_training(config, "tuning", kind) for kind in ways if kind not in trained]
    tasks = imports + tasks
    # The others take its tokenizer or weights over.
    trained |= {"downstream"} if trained else set()
    tasks += [_training(config, "training", kind) for kind in sorted(trained)]
    if "downstream" in kinds and config.models.downstream == "lstm":
        tasks.append(_training(config, "training", "lstm"))
    return tasks


def lstms_anew(config: RunConfig) -> list[Task]:
    """The benchmark's LSTMs of what a filter kept and of what it is compared with."""
    options = config.evaluation
    if not (config.benchmark and config.proximity.filter and config.models.downstream == "lstm"):
        return []
    one, what = _training(config, "training", "lstm"), "training the LSTM anew on what was kept"
    times = 2 + options.compares("noise")
    return [replace(one, stage="benchmark", what=what, times=times, cap=0.0)]


def _way(kind: str, config: RunConfig) -> str:
    """What a run does to have a tiny model: training, tuning, or nothing where it is shipped."""
    try:
        place = embedded(kind, name := _name(kind, config)) or kind
        found = find_asset(place, Path(config.assets) if config.assets else None)
    except AssetError:  # the run says so
        return ""
    if found is None or found.knows(private_packages(config)):
        return "training" if name == "tiny" else ""  # another is refused by the run
    return "" if found.is_of(package_sides(config)) else "tuning"


def _name(kind: str, config: RunConfig) -> str:
    return str(getattr(config.models, kind))


def _training(config: RunConfig, way: str, kind: str) -> Task:
    models, length, name = config.models, LSTM_LONGEST, "LSTM"
    if kind == "lstm":
        steps, tokens = models.train_steps or LSTM_STEPS, models.lstm_batch_words
        texts = models.lstm_batch_texts or max(1, tokens // length)
    else:
        tuned = way == "tuning"  # else a tiny one is made from nothing, whatever is named
        name = f"{_name(kind, config) if tuned else 'tiny'} {kind}"
        by = tuning_recipe if tuned else recipe
        large = tuned and packaged(kind, _name(kind, config)) is not None
        made = by(kind, 0 if large else models.train_steps)
        steps, tokens = made.steps, made.batch_tokens
        texts = max(1, tokens // length)
    what = f"{way} the {name}, unless it is in the cache"
    model = "downstream" if kind == "lstm" else kind
    items, cap = steps * texts, models.train_seconds
    return Task("models", what, "fine-tuning", model, items, length, cap=cap)
