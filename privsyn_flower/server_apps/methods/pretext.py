"""PrE-Text in a run: a population from the public pool, seeds, and text expanded from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from privsyn_flower.arrays import F32, F64
from privsyn_flower.benchmark.feedback import Feedback, vote_feedback
from privsyn_flower.benchmark.private import Private
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.noise.gaussian import system_gaussian
from privsyn_flower.randomness import seeded
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.controls import replay
from privsyn_flower.server_apps.estimates.work import HEADING_TOKENS, Task, tokens_of
from privsyn_flower.server_apps.methods.stages import (
    embedding,
    filling,
    generation,
    private_texts,
    public_pool,
)
from privsyn_flower.server_apps.methods.synthesis import Synthesis
from privsyn_flower.strategies.pretext import PrEText
from privsyn_flower.text.prompts import LabelledText, expand


class PrETextRecipe(Synthesis[PrEText]):
    """The method, or another method's rival."""

    noise = "noise_votes"
    noise_seeds: Sequence[str] = ()

    @classmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        own = config.pretext
        return "votes", {
            "bound": own.vote_bound,
            "clip": own.clip,
            "neighbors": own.neighbors,
            "metric": own.metric,
        }

    @classmethod
    def length(cls, config: RunConfig) -> int:
        return config.pretext.population

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        infiller = {"infiller"} if config.pretext.variation != "retrieval" else set()
        generator = {"generator"} if config.expand.samples else set()
        return {"embedder"} | infiller | generator

    @classmethod
    def retrieves(cls, config: RunConfig) -> bool:
        return config.pretext.variation != "mask-fill"

    @classmethod
    def first_texts(cls, config: RunConfig) -> tuple[str, int]:
        return "pretext.population", config.pretext.population

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        if config.pretext.population > config.data.public_pool:
            yield (
                f"pretext.population = {config.pretext.population} exceeds data.public-pool = "
                f"{config.data.public_pool}, from which it is drawn: lower the one or raise the "
                "other"
            )

    @classmethod
    def writing(cls, config: RunConfig) -> list[Task]:
        """The pool for retrieval, candidates of every round, the users' texts, the expansion."""
        own, options = config.pretext, config.expand
        filled = {"mask-fill": 1.0, "retrieval": 0.0}.get(own.variation, 1 - own.retrieval_share)
        looked = own.population * own.lookahead if own.lookahead > 1 else 0
        varied = round(looked * filled)
        tokens = tokens_of(config.data.sample_words, own.max_tokens)
        rounds = [
            filling(config, "lookahead", varied, config.rounds),
            filling(config, "survivors", round(own.population * filled), config.rounds - 1),
            # What is retrieved is embedded already.
            embedding(
                "rounds", "candidates", varied or round(own.population * (filled or 1)), tokens,
                config.rounds,
            ),
            private_texts(config),
        ]  # fmt: skip
        shown = options.seeds_per_prompt * (tokens + HEADING_TOKENS)
        text = [generation(config, "expansion", "synthetic texts", options.samples, shown)]
        return [task for task in (*public_pool(cls, config), *rounds, *text) if task.items]

    def strategy(self, folder: RunFolder) -> PrEText:
        config = self.config
        return PrEText(
            self.models.public.pool,
            embedder=self.models.embedder(),
            infiller=self.models.infiller(),
            rounds=config.rounds,
            config=config.pretext,
            samples_cap=config.data.samples_per_user,
            seed=config.seed,
            progress=self.run.progress,
        )

    def write(self, strategy: PrEText, purpose: str) -> list[LabelledText]:
        """The seeds, or text that the generator makes of them (section 3 (6))."""
        options = self.config.expand
        include = options.include_seeds or not options.samples
        texts = list(strategy.seeds) if include else []
        if options.samples:
            generator = self.models.generator()
            generator.use_adapter(None)
            texts += expand(
                strategy.seeds,
                generator,
                samples=options.samples,
                seeds_per_prompt=options.seeds_per_prompt,
                rng=seeded(self.config.seed, purpose, "expand"),
                min_words=options.min_words,
                progress=self.run.progress,
            )
        return [LabelledText(text) for text in texts]

    # The benchmark -----------------------------------------------------------------------

    def noise_answers(
        self, strategy: PrEText, row: Mapping[str, Any], rng: np.random.Generator
    ) -> F64:
        """Around the mean of the released votes, as if every candidate had been equally popular:
        around zero hardly any would pass the threshold, and there would be next to nothing."""
        size = self.config.pretext.population
        return float(row["released_votes"]) / size + rng.normal(0.0, row["noise_std"], size)

    def control(self) -> PrEText:
        strategy = super().control()
        self.noise_seeds = strategy.seeds
        return strategy

    def seeds(self, strategy: PrEText) -> dict[str, Sequence[str]]:
        noise = {self.noise: self.noise_seeds} if self.noise_seeds else {}
        return {"seeds": strategy.seeds, **noise}

    def feedback(self, strategy: PrEText, private: Private, held_out: F32) -> Feedback:
        return vote_feedback(self.folder, private, strategy.seeds)

    def as_rival(self, private: Private) -> PrEText:
        """All rounds on the users' true votes, with Gaussian noise of the run's multiplier: a
        comparison, never a result."""
        folder = RunFolder(self.folder.path / "rival")
        strategy = self.strategy(folder)
        noise_std = self.run.session.promise.main.multiplier * self.config.pretext.vote_bound

        def answers(rnd: int) -> tuple[F64, float]:
            votes = private.votes(strategy.ask(rnd).question())
            return votes + system_gaussian(len(votes), noise_std), noise_std

        rounds = range(1, strategy.rounds + 1)
        replay(strategy, rounds, answers, folder, self.run.progress, "rival")
        return strategy


RECIPE = PrETextRecipe
