"""The work of stages that several recipes have, from a configuration alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privsyn_flower.app.benchmark.names import RANDOM_PUBLIC
from privsyn_flower.config import RunConfig, split_list
from privsyn_flower.server_apps.estimates.work import HEADING_TOKENS, Task, tokens_of
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.text.models.lm_metrics import BATCH_TOKENS
from privsyn_flower.text.tiny.assets import AssetError, embedded, find_asset
from privsyn_flower.text.tiny.models import package_sides, private_packages
from privsyn_flower.text.tiny.recipes import RECIPES, recipe, tuning_recipe
from privsyn_flower.units import units

if TYPE_CHECKING:
    from privsyn_flower.server_apps.methods.recipe import Recipe

VLLM_BATCH = 256  # sequences that a vLLM server decodes together unless it is told otherwise
LSTM_STEPS, LSTM_LONGEST = 2000, 64  # `text.models.lstm`, which imports torch
FILL_BATCH = 64  # texts of one pass of a mask-fill (`text.infillers`)


def embedding(stage: str, what: str, items: int, tokens: int, times: int = 1) -> Task:
    """So many texts to rows."""
    return Task(stage, f"embedding {what}", "embedding", "embedder", items, tokens, 1, times=times)


def scoring(config: RunConfig, stage: str, models: int, tokens: int, times: int = 1) -> Task:
    """So many models on at most so many tokens of every user, where the users' text is."""
    length = config.evaluation.sequence_length
    return Task(
        stage, "measuring models on the users' text, on their nodes", "scoring", "downstream",
        config.data.users * models * -(-tokens // length), length, max(1, BATCH_TOKENS // length),
        times=times, nodes=True, key="evaluation.sequence-length",
    )  # fmt: skip


def choosing(config: RunConfig) -> list[Task]:
    """The public pool, measured by the model before and after its training (`[proximity]`)."""
    if not config.proximity.filter:
        return []
    tokens = tokens_of(config.data.sample_words, config.evaluation.sequence_length)
    return [Task(
        "proximity", "measuring the public pool by both models", "scoring", "downstream",
        2 * config.data.public_pool, tokens, max(1, BATCH_TOKENS // tokens),
        key="evaluation.sequence-length",
    )]  # fmt: skip


def public_pool(recipe: type[Recipe[Any]], config: RunConfig) -> list[Task]:
    """The whole pool, where texts are retrieved from it."""
    if not recipe.retrieves(config):
        return []
    tokens = tokens_of(config.data.sample_words)
    return [embedding("models", "the public pool", config.data.public_pool, tokens)]


def private_texts(config: RunConfig) -> Task:
    """Every user's texts, once, on their nodes: at most as many as the cap lets a user have."""
    data = config.data
    return Task(
        "rounds", "embedding the users' texts on their nodes, in the first round", "embedding",
        "embedder", data.users * data.samples_per_user, tokens_of(data.sample_words), 1, nodes=True,
    )  # fmt: skip


def variations(config: RunConfig, what: str, texts: int, times: int) -> list[Task]:
    """So many texts varied: mask-filled in all steps, or written by the generator."""
    own, words = config.evolution, config.data.sample_words
    if own.written_by_generator:
        rewrite = own.variation == "rewrite"
        told = tokens_of(len(units(own.rewrite))) if rewrite else HEADING_TOKENS
        return [generation(config, "rounds", what, texts, told + tokens_of(words), times)]
    tokens = tokens_of(words, own.max_tokens)
    passes = own.mask_passes or round(own.mask_fraction * tokens)
    return [Task(
        "rounds", f"varying {what}", "mask-filling", "infiller", texts * own.mask_steps * passes,
        tokens, FILL_BATCH, scored=own.mask_fraction, times=times, key=f"{own.table}.max-tokens",
    )]  # fmt: skip


def generation(
    config: RunConfig,
    stage: str,
    what: str,
    items: int,
    shown: int,
    times: int = 1,
    tokens: int = 0,
) -> Task:
    """So many completions, each as long as it may be: of `tokens`, or expand.max-tokens."""
    served = config.generation.backend != "huggingface"
    batch = VLLM_BATCH if served else config.expand.batch_size
    return Task(
        stage, f"writing {what}", "generation", "generator", items,
        tokens or config.expand.max_tokens, batch, shown, times=times, key="expand.batch-size",
    )  # fmt: skip


def expansion(config: RunConfig, tokens: int) -> list[Task]:
    """The generator's texts, each after a prompt of seeds of so many tokens."""
    options = config.expand
    if not options.samples:
        return []
    shown = options.seeds_per_prompt * (tokens + HEADING_TOKENS)
    return [generation(config, "expansion", "synthetic texts", options.samples, shown)]


def imitation(config: RunConfig, seeds: int, tokens: int) -> list[Task]:
    """What `[sft]` trains on so many seeds before the expansion, all passes over them counted."""
    own = config.sft
    if not own.epochs:
        return []
    length = config.expand.seeds_per_prompt * (tokens + HEADING_TOKENS) + tokens
    return [Task(
        "expansion", "fine-tuning the generator on the seeds", "imitation", "generator",
        seeds * own.epochs, length, min(own.micro_batch_size, own.batch_size),
        scored=tokens / length, key="sft.micro-batch-size",
    )]  # fmt: skip


def preferences(config: RunConfig, pairs: int, shown: int, times: int) -> Task:
    """Training on so many pairs, all passes over them counted."""
    own = config[PopriConfig]
    return Task(
        "rounds", "training on preferences", "preferences", "generator", pairs,
        shown + config.expand.max_tokens, min(own.micro_batch_size, own.batch_size),
        scored=config.expand.max_tokens / (shown + config.expand.max_tokens), times=times,
        key="popri.micro-batch-size",
    )  # fmt: skip


def fine_tuning(
    config: RunConfig,
    stage: str,
    what: str,
    texts: int,
    times: int,
    *,
    public: bool = False,
    apart: bool = False,
) -> Task:
    """Of the downstream model on a set of so many texts, so often.

    public: the stage on public text before the others (`evaluation.public.tuning_of`). apart: as
    in `Task`.
    """
    options, training = config.evaluation, config.training
    steps, epochs, batch = options.steps, options.epochs, options.batch_size
    if public and config.trains:
        steps, epochs = training.public_steps, 0
    elif public:
        steps, epochs = options.public_steps, options.public_epochs
        batch = options.public_batch_size or batch
    scored = 1.0 if options.task == "next-token" else 0.0
    return Task(
        stage, f"fine-tuning {what}", "fine-tuning", "downstream",
        epochs * texts if epochs else steps * batch, options.sequence_length,
        min(options.micro_batch_size or batch, batch), scored=scored, times=times,
        key="evaluation.micro-batch-size", rank=options.adapter_rank,
        entry=2 if options.precision == "bfloat16" else 4, apart=apart,
    )  # fmt: skip


def trials(config: RunConfig) -> int:
    """Fine-tunings that choose a learning rate: none for a single one."""
    rates = len(split_list(config.evaluation.learning_rates))
    return rates if rates > 1 else 0


def start_tuning(config: RunConfig, stage: str) -> list[Task]:
    """The model tuned on the public pool, where the others begin, and the trials of its rate."""
    what = "the start on public text, unless it is in the cache"
    often = 1 + trials(config)
    found = fine_tuning(config, stage, what, config.data.public_pool, often, public=True)
    return [found] if found.items else []


def fine_tunings(config: RunConfig, written: Sequence[int]) -> list[Task]:
    """The benchmark's: trials of rates, random public text, the private text, and the result and
    its controls, of so many texts each. What is measured as it is, is not tuned: a training's own
    model and its controls, and with a public start the model of public text."""
    options, data = config.evaluation, config.data
    started = options.start == "public" or (config.trains and config.training.public_steps > 0)
    public = trials(config) + int(options.compares(RANDOM_PUBLIC) and not started)
    sizes = [data.public_pool] * public + [data.users * data.samples_per_user, *written]
    # In steps all take the same, whatever their texts.
    often = Counter(size if options.epochs else 0 for size in sizes)
    start = [] if config.trains or options.start == "base" else start_tuning(config, "benchmark")
    what, apart = "the downstream model", options.processes == 1
    tasks = [
        fine_tuning(config, "benchmark", what, texts, times, apart=apart)
        for texts, times in often.items()
    ]
    return start + [task for task in tasks if task.items]


def tiny_models(config: RunConfig, kinds: set[str]) -> list[Task]:
    """Tiny models that are not shipped for this run's text: shipped ones are tuned on it, and
    trained anew where they have read what is private in it (`text.tiny.models.ensure_model`)."""
    wanted = {kind for kind in kinds & set(RECIPES) if embedded(kind, _name(kind, config))}
    ways = {kind: way for kind in sorted(wanted) if (way := _way(kind, config))}
    trained = {kind for kind, way in ways.items() if way == "training"}
    tasks = [_made(config, "tuning", kind) for kind in ways if kind not in trained]
    # The others take its tokenizer or weights over.
    trained |= {"downstream"} if trained else set()
    tasks += [_made(config, "training", kind) for kind in sorted(trained)]
    if "downstream" in kinds and config.models.downstream == "lstm":
        tasks.append(_made(config, "training", "lstm"))
    return tasks


def lstms_anew(config: RunConfig) -> list[Task]:
    """The benchmark's LSTMs of what a filter kept and of what it is compared with."""
    options = config.evaluation
    if not (config.benchmark and config.proximity.filter and config.models.downstream == "lstm"):
        return []
    one, what = _made(config, "training", "lstm"), "training the LSTM anew on what was kept"
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


def _made(config: RunConfig, way: str, kind: str) -> Task:
    models, length = config.models, LSTM_LONGEST
    if kind == "lstm":
        steps, tokens = models.train_steps or LSTM_STEPS, models.lstm_batch_words
        texts = models.lstm_batch_texts or max(1, tokens // length)
    else:
        by = tuning_recipe if way == "tuning" else recipe
        steps, tokens = (made := by(kind, models.train_steps)).steps, made.batch_tokens
        texts = max(1, tokens // length)
    batch, name = max(1, tokens // length), "LSTM" if kind == "lstm" else f"tiny {kind}"
    return Task(
        "models", f"{way} the {name}, unless it is in the cache", "fine-tuning",
        "downstream" if kind == "lstm" else kind, steps * texts, length, batch,
        cap=models.train_seconds, key="models.train-seconds",
    )  # fmt: skip
