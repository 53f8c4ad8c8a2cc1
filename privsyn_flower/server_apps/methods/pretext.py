"""PrE-Text in a run: a population from the public pool, seeds, and text expanded from them.

With `[sft]` the generator learns the seeds before it writes: POPri's baseline PE+SFT (Hou et al.
2025, section 3 and Table 1). They are differentially private, so it costs nothing.

Private evolution (`pe.py`) is the same recipe around another algorithm and table of keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.benchmark.feedback import Feedback, vote_feedback
from privsyn_flower.app.benchmark.private import Private
from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import EvolutionConfig, RunConfig
from privsyn_flower.data import LabelledText as UserText
from privsyn_flower.evaluation.quality import side_by_side
from privsyn_flower.privacy.noise.gaussian import system_gaussian
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.changes import WRITING
from privsyn_flower.server_apps.controls import replay
from privsyn_flower.server_apps.methods import stages
from privsyn_flower.server_apps.methods.stages import Task
from privsyn_flower.server_apps.methods.synthesis import Synthesis, state_of
from privsyn_flower.server_apps.public_text import labels_of
from privsyn_flower.strategies.pretext.config import PreTextConfig
from privsyn_flower.strategies.pretext.strategy import PrEText
from privsyn_flower.strategies.synthesis.evolution import Evolution
from privsyn_flower.text.prompts import LabelledText, expand_prompt
from privsyn_flower.text.protocols import Trainer
from privsyn_flower.text.readiness import try_adapters

SFT = "sft"  # folder of a run, of what was learned of its seeds


class PrETextRecipe(Synthesis[Evolution[Any]]):
    """The method, or another method's rival."""

    strategy_class: type[Any] = PrEText
    table: type[EvolutionConfig] = PreTextConfig
    length_keys = "pretext.population"
    rewrites = True
    noise = "noise_votes"
    noise_seeds: Sequence[str] = ()

    @classmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        own = config.evolution
        return "votes", {
            "bound": own.vote_bound,
            "clip": own.clip,
            "neighbors": own.neighbors,
            "metric": own.metric,
        }

    @classmethod
    def length(cls, config: RunConfig) -> int:
        return config.evolution.candidates

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        own = config.evolution
        variation = {"infiller"} if own.variation in ("mask-fill", "mixed") else set()
        writes = config.expand.samples or own.written_by_generator
        return {"embedder"} | variation | ({"generator"} if writes else set())

    @classmethod
    def retrieves(cls, config: RunConfig) -> bool:
        return config.evolution.variation in ("retrieval", "mixed")

    @classmethod
    def first_texts(cls, config: RunConfig) -> tuple[str, int]:
        own = config.evolution
        return f"{own.table}.population", own.candidates

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        key, wanted = cls.first_texts(config)
        if wanted > config.data.public_pool:
            yield (
                f"{key} = {config.evolution.population} exceeds data.public-pool = "
                f"{config.data.public_pool}, from which {wanted} texts are drawn: lower the one "
                "or raise the other"
            )
        shown, most = config.expand.seeds_per_prompt, cls.max_seeds(config)
        if config.expand.samples and not config.classes and shown > most:
            yield (
                f"expand.seeds-per-prompt = {shown}: there are {most} seeds at most "
                f"({key}, rounds): lower it"
            )

    @classmethod
    def asks_with(cls, config: RunConfig, *, released: bool) -> Sequence[str]:
        """What writes candidates."""
        return WRITING if config.evolution.written_by_generator and not released else ()

    @classmethod
    def num_variations(cls, config: RunConfig) -> tuple[int, int]:
        """Texts that are varied after a round, and in how many rounds: every survivor once, but
        after the last."""
        return config[PreTextConfig].population, config.rounds - 1

    @classmethod
    def max_seeds(cls, config: RunConfig) -> int:
        """Seeds at most: distinct survivors of all rounds."""
        return config.rounds * config[PreTextConfig].population

    @classmethod
    def texts(cls, config: RunConfig) -> int:
        options = config.expand
        seeds = cls.max_seeds(config) if options.releases_seeds else 0
        return options.samples + seeds

    @classmethod
    def writing(cls, config: RunConfig) -> list[Task]:
        """The pool for retrieval, candidates of every round, the users' texts, the expansion."""
        own = config.evolution
        share = {"mixed": 1 - own.retrieval_share, "retrieval": 0.0}.get(own.variation, 1.0)
        cut = 0 if own.written_by_generator else own.max_tokens
        tokens = stages.tokens_of(config.data.sample_words, cut)
        looked = round(share * own.candidates * own.lookahead) if own.lookahead > 1 else 0
        varied, times = cls.num_variations(config)
        varied = round(share * varied)
        # Retrieved texts are embedded already, and so is whoever was a candidate before: without a
        # lookahead a round has its variations to embed, and the first one all candidates.
        rows = looked if own.lookahead > 1 else varied
        known = cls.retrieves(config) and cls.first_texts(config)[1] > 0
        first = 0 if own.lookahead > 1 or known else own.candidates - varied
        tasks = [
            *([stages.public_pool(config)] if cls.retrieves(config) else []),
            stages.variations(config, "lookahead", looked, config.rounds),
            stages.variations(config, "survivors", varied, times),
            stages.embedding("rounds", "candidates", rows, tokens, config.rounds),
            stages.embedding("rounds", "other candidates of the first round", first, tokens),
            stages.private_texts(config),
            *stages.imitation(config, cls.max_seeds(config), tokens),
            *stages.expansion(config),
        ]
        return [task for task in tasks if task.items * task.times]

    def strategy(self, folder: RunFolder) -> Evolution[Any]:
        config = self.config
        found: Evolution[Any] = self.strategy_class(
            self.initial(),
            embedder=self.models.embedder(),
            variation=self.models.infiller(),
            rounds=config.rounds,
            config=config[self.table],
            samples_cap=config.data.samples_per_user,
            seed=config.seed,
            progress=self.run.progress,
        )
        return found

    def ready(self, strategy: Evolution[Any]) -> None:
        """Tries the variation, then expansion and training on the population, not seeds yet."""
        super().ready(strategy)
        if not self.config.expand.samples:
            return
        self.try_expansion(strategy.with_labels(strategy.population))
        self._try_training()
        self.models.rest_until_expansion()

    def initial(self) -> Sequence[str] | Mapping[str, Sequence[str]]:
        """Public texts to draw the first candidates from, by class where there are classes."""
        public = self.models.public
        return public.by_class if self.config.evolution.labels else public.pool

    def result(self, strategy: Evolution[Any]) -> int:
        """The seeds first: whatever becomes of the rest, they are there."""
        strategy.write_seeds(self.folder)
        return super().result(strategy)

    def figures(self, strategy: Evolution[Any]) -> Mapping[str, Any]:
        federation, domains = self.models.public.federation, dict[str, str]()
        if federation is not None and self.config.data.has_minority:
            domains = labels_of(federation, self.config)
        voted = strategy.described_rounds(self.folder, domains)
        written = self.synthetic[self.seeds_in_front :] if self.config.expand.samples else []
        beside = side_by_side(
            public=self.models.public.pool,
            seeds=strategy.seeds,
            synthetic=[one.text for one in written],
        )
        facts = {"seeds": len(strategy.seeds), "voted": voted, "side_by_side": beside}
        return {**facts, **self.written_facts()}

    def write(self, strategy: Evolution[Any], purpose: str) -> list[LabelledText]:
        """The seeds, or text that the generator makes of them (section 3 (6))."""
        return self.expanded(strategy.seeds, purpose)

    def rewritten(self, released: RunFolder, purpose: str) -> list[LabelledText]:
        """Of the seeds so far: neither embedder nor pool is needed."""
        state = state_of(released)
        labels = state.get("seed_labels") or [""] * len(state["seeds"])
        seeds = [UserText(*pair) for pair in zip(state["seeds"], labels, strict=True)]
        return self.expanded(seeds, purpose)

    def output_paths(self) -> list[str]:
        return [*super().output_paths(), SFT]

    # Fine-tuning of the generator ----------------------------------------------------------

    def adapter(self, seeds: Sequence[str], purpose: str) -> Path | None:
        """The adapter that the seeds taught the run's generator; None with sft.epochs = 0.

        Trained once for each purpose (the result, its control), in a folder of its own: a training
        that was interrupted goes on where it was.
        """
        config = self.config
        if not config.sft.epochs:
            return None
        trainer = self._trainer()
        self.models.generator().rest()
        rng = seeded(config.seed, purpose, "sft")
        trained = trainer.train(
            imitations(seeds, config.expand.seeds_per_prompt, rng),
            start=None,
            work=self.folder.path / SFT / purpose,
            seed=int(rng.integers(2**31)),
        )
        return trained[-1].adapter

    def _try_training(self) -> None:
        """Raise, before anybody was asked, what `adapter` would raise for its model, its device,
        its libraries or a server that takes no adapters."""
        if not self.config.sft.epochs:
            return
        folder = self.folder.path / SFT
        folder.mkdir(exist_ok=True)
        prompt = expand_prompt(self.models.public.pool[:1])
        try_adapters(self._trainer(), self.models.generator(), folder, prompt)

    def _trainer(self) -> Trainer:
        from privsyn_flower.text.preference import PreferenceTrainer

        config, options = self.config, self.config.sft
        return PreferenceTrainer(
            self.models.folder("generator"),
            method="sft",
            learning_rate=options.learning_rate,
            epochs=options.epochs,
            batch_size=options.batch_size,
            micro_batch_size=options.micro_batch_size,
            lora_rank=options.lora_rank,
            lora_alpha=options.lora_alpha,
            device=config.models.device,
            processes=config.models.training_processes,
            launch_arguments=config.models.accelerate_arguments,
            progress=self.run.progress,
            section="sft",
        )

    # The benchmark -----------------------------------------------------------------------

    def noise_answers(
        self, strategy: Evolution[Any], row: Mapping[str, Any], rng: np.random.Generator
    ) -> F64:
        """Around the mean of the released votes, as if every candidate had been equally popular:
        around zero hardly any would pass the threshold, and there would be next to nothing."""
        size = self.config.evolution.candidates
        return float(row["released_votes"]) / size + rng.normal(0.0, row["noise_std"], size)

    def control(self) -> Evolution[Any]:
        strategy = super().control()
        self.noise_seeds = strategy.seeds
        return strategy

    def seeds(self, strategy: Evolution[Any]) -> dict[str, Sequence[str]]:
        noise = {self.noise: self.noise_seeds} if self.noise_seeds else {}
        return {"seeds": strategy.seeds, **noise}

    def feedback(self, strategy: Evolution[Any], private: Private, held_out: F32) -> Feedback:
        return vote_feedback(self.folder, private, strategy.seeds)

    def as_rival(self, private: Private) -> Evolution[Any]:
        """All rounds on the users' true votes, with Gaussian noise of the run's multiplier: a
        comparison, never a result."""
        folder = RunFolder(self.folder.path / "rival")
        strategy = self.strategy(folder)
        noise_std = (
            self.run.session.privacy_plan.main.multiplier * self.config[PreTextConfig].vote_bound
        )

        def answers(rnd: int) -> tuple[F64, float]:
            votes = private.answers(strategy.ask(rnd))
            return votes + system_gaussian(len(votes), noise_std), noise_std

        rounds = range(1, strategy.rounds + 1)
        replay(strategy, rounds, answers, folder, self.run.progress, "rival")
        return strategy


def imitations(
    seeds: Sequence[str], examples: int, rng: np.random.Generator
) -> list[dict[str, str]]:
    """n distinct seeds -> n pairs of `prompt` and `chosen`, in a random order.

    Each seed is what follows a prompt that shows `examples` others: the prompts are those that the
    tuned generator is given afterwards. Raises ValueError for fewer than examples + 1 seeds.
    """
    lines = list(dict.fromkeys(" ".join(seed.split()) for seed in seeds))
    if len(lines) <= examples:
        raise ValueError(
            f"{len(lines)} distinct texts to fine-tune on, and each is shown with "
            f"expand.seeds-per-prompt = {examples} others: lower it, or set sft.epochs = 0"
        )
    pairs = []
    for place in rng.permutation(len(lines)).tolist():
        others = rng.choice(len(lines) - 1, examples, replace=False)
        shown = [lines[i + (i >= place)] for i in others.tolist()]
        pairs.append({"prompt": expand_prompt(shown), "chosen": lines[place]})
    return pairs


RECIPE = PrETextRecipe
