"""Resource-adaptive synthesis in a run: CTCL's on strong nodes, then a vote of weak ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.protocol.packing import LARGEST
from privsyn_flower.runs import read_jsonl, write_jsonl
from privsyn_flower.server_apps.methods.ctcl import CTCLRecipe
from privsyn_flower.server_apps.methods.stages import Task, embedding, tokens_of
from privsyn_flower.server_apps.topics import SYNTHETIC
from privsyn_flower.strategies.ctcl.strategy import CTCL
from privsyn_flower.strategies.resource_adaptive.config import ResourceAdaptiveConfig
from privsyn_flower.strategies.resource_adaptive.strategy import (
    VOTES,
    ResourceAdaptive,
    by_groups,
    top_by_votes,
)
from privsyn_flower.strategies.synthesis.topic_counts import largest_remainder
from privsyn_flower.strategies.synthesis.topic_texts import MODEL, GenerationInputs, Written
from privsyn_flower.text.embedders import known_dimension

POOL = "synthetic-pool"  # of a run folder: the text that was voted on


class ResourceAdaptiveRecipe(CTCLRecipe):
    """votes (n,): of the pool's texts."""

    algorithm_class = ResourceAdaptive
    votes: F64

    @classmethod
    def phases(cls, config: RunConfig) -> list[Phase]:
        return by_groups(super().phases(config), config.spare_rounds)

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        return {"conditional", "embedder"}

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        yield from super().faults(config)
        texts, width = _pool_size(config), known_dimension(config.models.embedder)
        if width and texts * width > LARGEST:
            yield (
                f"resource-adaptive.pool x expand.samples = {texts:,} texts of {width:,} dimensions"
                f" are {texts * width:,} numbers, and nodes refuse a question of more than "
                f"{LARGEST:,}: lower one of them"
            )

    @classmethod
    def asks_with(cls, config: RunConfig, *, released: bool) -> Sequence[str]:
        """The vote that is paid for is about the text of one setting."""
        return ["expand", *super().asks_with(config, released=released)]

    @classmethod
    def writing(cls, config: RunConfig) -> list[Task]:
        *tasks, texts = super().writing(config)
        items, tokens = _pool_size(config), tokens_of(config.data.sample_words)
        return [
            *tasks,
            replace(texts, items=items),
            embedding(VOTES, "the texts to vote on", items, tokens),
        ]

    def prepare(self, strategy: CTCL) -> None:
        """The histogram, once it is known that the vote can follow."""
        _voting(strategy).greet(self.run.session)
        super().prepare(strategy)

    def evaluate(self, strategy: CTCL) -> None:
        """The pool, by the trained generator, and the weak nodes' votes for it."""
        with self.run.clock("expansion"):
            model = self._model(strategy, self.folder.path / MODEL)
            pool = self._pool(GenerationInputs(model, self.topics, strategy.proportions()))
        with self.run.clock(VOTES):
            texts, numbers = [row["text"] for row in pool], [row["topic"] for row in pool]
            embedder = self.models.embedder()
            self.votes = _voting(strategy).vote(self.run.session, texts, numbers, embedder)

    def _pool(self, inputs: GenerationInputs) -> list[dict[str, Any]]:
        """Distinct texts with their topics, written unless they are there. Raises ConfigError."""
        target = self.folder.path / f"{POOL}.jsonl"
        if not target.exists():
            self._written(SYNTHETIC, inputs, target, _pool_size(self.config))
        found = list({row["text"]: row for row in reversed(read_jsonl(target))}.values())[::-1]
        if not found:
            raise ConfigError(
                "the generator wrote no usable text to vote on: lower expand.min-words, raise "
                "expand.max-tokens, or train longer (rounds); the rounds' release is in "
                f"{self.folder.path}"
            )
        return found

    def _write(self, name: str, kept: GenerationInputs) -> int:
        """The result: each topic's texts with most votes, to its share; controls as CTCL's."""
        target = self.folder.path / f"{name}.jsonl"
        if name == SYNTHETIC and not target.exists():
            pool, samples = self._pool(kept), self.config.expand.samples
            numbers = np.array([row["topic"] for row in pool])
            places = top_by_votes(self.votes, numbers, largest_remainder(kept.shares, samples))
            facts = Written(len(places), len(pool), samples - len(places))
            self.folder.save_value(f"written-{name}", asdict(facts))
            write_jsonl(target, (pool[at] for at in places.tolist()))
        return super()._write(name, kept)


def _voting(strategy: CTCL) -> ResourceAdaptive:
    if not isinstance(strategy, ResourceAdaptive):
        raise TypeError(f"{type(strategy).__name__} has no vote")
    return strategy


def _pool_size(config: RunConfig) -> int:
    return config[ResourceAdaptiveConfig].pool * config.expand.samples


RECIPE = ResourceAdaptiveRecipe
