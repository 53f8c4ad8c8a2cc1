"""What CTCL begins with: topics of the public pool, and a generator that can learn texts of it;
and its baseline "+ Resample": a pool of text without conditions, its clusters, and the draw
(`strategies.synthesis.topic_counts`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.files import build_folder
from privsyn_flower.common.progress import Progress
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, RunConfig, cache_folder
from privsyn_flower.config.section import config_errors
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.synthesis.topic_counts import NoTopicLeft, resampled
from privsyn_flower.strategies.synthesis.topic_texts import (
    TOPICS,
    GenerationInputs,
    Written,
    keep_topics,
)
from privsyn_flower.text.conditions import end_of_text
from privsyn_flower.text.models.parameters import longest_sequence
from privsyn_flower.text.models.pretrained import encodes
from privsyn_flower.text.protocols import Embedder
from privsyn_flower.text.topic_training import make_topics
from privsyn_flower.text.topics import TopicModel, load_topics, save_topics

if TYPE_CHECKING:
    from privsyn_flower.server_apps.models import Models

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

    with config_errors():
        end_of_text(load_tokenizer(generator, "models.conditional"))
    source, text = config[CtclConfig].max_source, config.evaluation.sequence_length
    longest = longest_sequence(generator)
    if (max(source, text) if encodes(generator) else source + text) > longest:
        raise ConfigError(
            f"ctcl.max-source = {source} and evaluation.sequence-length = {text}: "
            f"models.conditional = {generator} takes at most {longest} tokens; lower one"
        )


SYNTHETIC = "synthetic"  # the name of the result, and of the randomness of all text

Write = Callable[[str, GenerationInputs, Path, int], Written]


def as_it_comes(model: Path) -> GenerationInputs:
    """A generator that is asked for no topic."""
    return GenerationInputs(model, None, np.ones(1))


@dataclass(frozen=True)
class Resampling:
    """write: name, generator, file, how many -> writes text, as the run does all of it."""

    config: RunConfig
    folder: RunFolder
    models: Models
    write: Write

    def pool(self, name: str, model: Path) -> list[str]:
        """What NAME.jsonl is drawn from, NAME-pool.jsonl, written unless it is there."""
        target = self.folder.path / f"{name}-pool.jsonl"
        if not target.exists():
            self.write(name, as_it_comes(model), target, self.config[CtclConfig].resample_pool)
        return [row["text"] for row in read_jsonl(target)]

    def clusters(self, pool: list[str]) -> TopicModel:
        """Of the pool; the run's own copy when it goes on. Raises ConfigError."""
        embedder, config = self.models.embedder(), self.config
        with config_errors(f"clusters of {len(pool)} synthetic texts: "):
            if (self.folder.path / TOPICS).is_dir():
                return load_topics(self.folder.path / TOPICS, embedder.fingerprint)
            found = clusters_of(config, pool, embedder, self.models.progress)
        return keep_topics(self.folder.path, found)

    def draw(self, name: str, inputs: GenerationInputs, target: Path) -> Written:
        """Texts of a generator's pool to `target`, to the shares of the clusters in `kept.topics`:
        the cluster is a text's topic. Raises ConfigError when none can be drawn."""
        topics, samples = inputs.topics, self.config.expand.samples
        if topics is None:
            raise ValueError(f"{name}: there are no clusters to draw by")
        pool = self.pool(name, inputs.model)
        clusters = topics.assign(self.models.embedder().embed(pool))
        rng = seeded(self.config.seed, SYNTHETIC, "resample")
        try:
            places = resampled(clusters, inputs.shares, samples, rng).tolist()
        except NoTopicLeft as error:
            raise ConfigError(str(error)) from None
        words = [list(own) for own in topics.keywords]
        rows = (
            {"text": pool[at], "topic": int(clusters[at]), "keywords": words[clusters[at]]}
            for at in places
        )
        write_jsonl(target, rows)
        return Written(samples, len(pool), 0)


def histogram_of(folder: RunFolder) -> tuple[F64, float]:
    """A run's released counts of topics (m,), and the standard deviation of their noise."""
    state = RunFolder(folder.path / "evaluations" / TOPICS).last_checkpoint()
    if state is None:
        raise RuntimeError(f"{folder.path} has no histogram of topics")
    return np.array(state["state"]["released"]), float(state["state"]["noise_std"])
