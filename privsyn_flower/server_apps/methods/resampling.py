"""CTCL's baseline "+ Resample" in a run: a pool of text without conditions, its clusters, and the
draw (`strategies.synthesis.topic_counts`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.topics import clusters_of
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.synthesis.topic_counts import NoTopicLeft, resampled
from privsyn_flower.strategies.synthesis.topic_texts import Written
from privsyn_flower.strategies.synthesis.topic_writing import TOPICS, GenerationInputs, keep_topics
from privsyn_flower.text.topics import TopicModel, load_topics

if TYPE_CHECKING:
    from privsyn_flower.server_apps.models import Models

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
        try:
            if (self.folder.path / TOPICS).is_dir():
                return load_topics(self.folder.path / TOPICS, embedder.fingerprint)
            found = clusters_of(config, pool, embedder, self.models.progress)
        except ValueError as error:
            raise ConfigError(f"clusters of {len(pool)} synthetic texts: {error}") from None
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
