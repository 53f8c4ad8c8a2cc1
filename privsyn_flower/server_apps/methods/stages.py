"""The work of stages that several recipes have, from a configuration alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privsyn_flower.benchmark.benchmark import RANDOM_PUBLIC
from privsyn_flower.config import RunConfig, split_list
from privsyn_flower.server_apps.estimates.work import Task, tokens_of
from privsyn_flower.text.tiny.assets import AssetError, find_asset
from privsyn_flower.text.tiny.models import package_sides
from privsyn_flower.text.tiny.recipes import RECIPES, recipe

if TYPE_CHECKING:
    from privsyn_flower.server_apps.methods.recipe import Recipe

VLLM_BATCH = 256  # sequences that a vLLM server decodes together unless it is told otherwise
LSTM_STEPS, LSTM_WORDS, LSTM_LONGEST = 2000, 2048, 64  # `text.models.lstm`, which imports torch
FILL_BATCH = 64  # texts of one pass of a mask-fill (`text.infillers`)


def embedding(stage: str, what: str, items: int, tokens: int, times: int = 1) -> Task:
    """So many texts to rows."""
    return Task(stage, f"embedding {what}", "embedding", "embedder", items, tokens, 1, times=times)


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
    own = config.evolution
    tokens = tokens_of(config.data.sample_words, own.max_tokens)
    if own.variation in ("rewrite", "continue"):
        return [generation(config, "rounds", what, texts, tokens, times)]
    passes = own.mask_passes or round(own.mask_fraction * tokens)
    return [Task(
        "rounds", f"varying {what}", "mask-filling", "infiller", texts * own.mask_steps * passes,
        tokens, FILL_BATCH, scored=own.mask_fraction, times=times, key=f"{own.table}.max-tokens",
    )]  # fmt: skip


def generation(
    config: RunConfig, stage: str, what: str, items: int, shown: int, times: int = 1
) -> Task:
    """So many completions, each as long as it may be."""
    served = config.generation.backend != "huggingface"
    batch = VLLM_BATCH if served else config.expand.batch_size
    return Task(
        stage, f"writing {what}", "generation", "generator", items, config.expand.max_tokens,
        batch, shown, times=times, key="expand.batch-size",
    )  # fmt: skip


def preferences(config: RunConfig, pairs: int, shown: int, times: int) -> Task:
    """Training on so many pairs, all passes over them counted."""
    own = config.popri
    return Task(
        "rounds", "training on preferences", "preferences", "generator", pairs,
        shown + config.expand.max_tokens, min(own.micro_batch_size, own.batch_size),
        scored=config.expand.max_tokens / (shown + config.expand.max_tokens), times=times,
        key="popri.micro-batch-size",
    )  # fmt: skip


def fine_tuning(config: RunConfig, stage: str, what: str, steps: int, times: int) -> Task:
    """Of the downstream model on text: so many steps, so often."""
    options = config.evaluation
    scored = 1.0 if options.task == "next-token" else 0.0
    return Task(
        stage, f"fine-tuning {what}", "fine-tuning", "downstream", steps * options.batch_size,
        options.sequence_length, options.batch_size, scored=scored, times=times,
        key="evaluation.batch-size",
    )  # fmt: skip


def fine_tunings(config: RunConfig, controls: int) -> list[Task]:
    """The benchmark's: trials of rates, random public text, the result and its controls, and the
    private text. A training's own model and its controls are measured as they are."""
    options = config.evaluation
    rates = len(split_list(options.learning_rates))
    public = int(options.compares(RANDOM_PUBLIC))
    started = config.trains and config.training.public_steps > 0
    sets = (rates if rates > 1 else 0) + (public and not started) + controls + 1
    times = sets + (0 if config.trains else 1)
    return [fine_tuning(config, "benchmark", "the downstream model", options.steps, times)]


def tiny_models(config: RunConfig, kinds: set[str]) -> list[Task]:
    """Tiny models that are not shipped for this run's text, and so trained by it."""
    wanted = {kind for kind in kinds & set(RECIPES) if getattr(config.models, kind) == "tiny"}
    missing = {kind for kind in wanted if not _shipped(kind, config)}
    # The others take its tokenizer or weights over.
    missing |= {"downstream"} if missing else set()
    models = config.models
    words = Task(
        "models", "training the LSTM, unless it is in the cache", "fine-tuning", "downstream",
        (models.train_steps or LSTM_STEPS) * LSTM_WORDS // LSTM_LONGEST, LSTM_LONGEST,
        LSTM_WORDS // LSTM_LONGEST, cap=models.train_seconds, key="models.train-seconds",
    )  # fmt: skip
    return [words] * ("downstream" in kinds and models.downstream == "lstm") + [
        Task(
            "models", f"training the tiny {kind} model, unless it is in the cache", "fine-tuning",
            kind, (made := recipe(kind, models.train_steps)).steps * (made.batch_tokens // 64), 64,
            made.batch_tokens // 64, cap=models.train_seconds, key="models.train-seconds",
        )
        for kind in sorted(missing)
    ]  # fmt: skip


def _shipped(kind: str, config: RunConfig) -> bool:
    if config.models.train_steps:
        return False
    folder = Path(config.assets) if config.assets else None
    try:
        found = find_asset(kind, asdict(recipe(kind)), package_sides(config), folder)
    except AssetError:  # the run says so
        return True
    return found is not None
