"""What CTCL begins with: topics of the public pool, and a generator that can learn texts of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from privsyn_flower.common.files import build_folder
from privsyn_flower.common.progress import Progress
from privsyn_flower.config import ConfigError, RunConfig, cache_folder
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.text.conditions import end_of_text
from privsyn_flower.text.models.parameters import longest_sequence
from privsyn_flower.text.models.pretrained import encodes
from privsyn_flower.text.protocols import Embedder
from privsyn_flower.text.topic_training import make_topics
from privsyn_flower.text.topics import TopicModel, save_topics

_MADE = 2  # raise it when topics are made in another way


def topics_of(
    config: RunConfig, pool: Sequence[str], embedder: Embedder, progress: Progress
) -> Path:
    """The folder of the public pool's topics, found in the cache by its content, or made there."""
    own = config[CtclConfig]
    made_of = [_MADE, own.topic_count, own.clustering, own.topic_words, config.seed]
    made_of += [own.umap_components] if own.umap_components else []
    state = hashlib.sha256(json.dumps([*made_of, embedder.fingerprint, list(pool)]).encode())
    target = cache_folder(config) / "topics" / state.hexdigest()[:24]
    target.parent.mkdir(parents=True, exist_ok=True)

    return build_folder(
        target, lambda folder: save_topics(clusters_of(config, pool, embedder, progress), folder)
    )


def clusters_of(
    config: RunConfig, texts: Sequence[str], embedder: Embedder, progress: Progress
) -> TopicModel:
    """Topics of these public texts, as `[ctcl]` says that they are made. Raises ValueError."""
    own = config[CtclConfig]
    return make_topics(
        texts,
        embedder,
        count=own.topic_count,
        clustering=own.clustering,
        seed=config.seed,
        words=own.topic_words,
        umap_components=own.umap_components,
        progress=progress,
    )


def check_generator(config: RunConfig, generator: Path) -> None:
    """Raises ConfigError for a model that could not learn or write such texts: before anybody is
    asked.

    A condition and a text stand one after the other in a causal model; an encoder-decoder model
    has one of them in either part.
    """
    from privsyn_flower.text.models.pretrained import load_tokenizer

    try:
        end_of_text(load_tokenizer(generator, "models.conditional"))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    source, text = config[CtclConfig].max_source, config.evaluation.sequence_length
    longest = longest_sequence(generator)
    if (max(source, text) if encodes(generator) else source + text) > longest:
        raise ConfigError(
            f"ctcl.max-source = {source} and evaluation.sequence-length = {text}: "
            f"models.conditional = {generator} takes at most {longest} tokens; lower one"
        )
