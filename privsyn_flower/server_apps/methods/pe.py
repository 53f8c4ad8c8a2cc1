"""Private evolution in a run: PE, Aug-PE and, with [sft], PE+SFT on its last generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import RunConfig
from privsyn_flower.runs import read_jsonl, write_jsonl
from privsyn_flower.server_apps.changes import WRITING
from privsyn_flower.server_apps.methods.pretext import PrETextRecipe
from privsyn_flower.server_apps.methods.stages import Task, generation
from privsyn_flower.strategies.pe.config import PeConfig
from privsyn_flower.strategies.pe.strategy import PrivateEvolution
from privsyn_flower.text.prompts import InstructionPrompts, LabelledText, generate


class PeRecipe(PrETextRecipe):
    """PrE-Text's recipe with `[pe]`; the first population may be the generator's."""

    strategy_class = PrivateEvolution
    table = PeConfig

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        first = {"generator"} if config[PeConfig].initial == "model" else set[str]()
        return super().loads(config) | first

    @classmethod
    def first_texts(cls, config: RunConfig) -> tuple[str, int]:
        return (
            ("pe.prompt", 0) if config[PeConfig].initial == "model" else super().first_texts(config)
        )

    @classmethod
    def asks_with(cls, config: RunConfig, *, released: bool) -> Sequence[str]:
        """The first candidates may be the generator's, too."""
        first = config[PeConfig].initial == "model" and not released
        return WRITING if first else super().asks_with(config, released=released)

    @classmethod
    def num_variations(cls, config: RunConfig) -> tuple[int, int]:
        """PE: the survivors, after the last round, too. Aug-PE: L - 1 of each, but after the last
        (`strategies.pe`)."""
        own = config[PeConfig]
        if own.copies == 1:
            return own.population, config.rounds
        return own.candidates - own.population, config.rounds - 1

    @classmethod
    def max_seeds(cls, config: RunConfig) -> int:
        """The last generation."""
        return config[PeConfig].population

    @classmethod
    def writing(cls, config: RunConfig) -> list[Task]:
        """And the first candidates, where the generator writes them."""
        own = config[PeConfig]
        if own.initial == "public":
            return super().writing(config)
        first = generation(config, "models", "the first candidates", own.candidates)
        return [first, *super().writing(config)]

    def initial(self) -> Sequence[str] | Mapping[str, Sequence[str]]:
        """Texts to draw the first candidates from, by class where there are classes.

        The generator's are written once and kept: a server may write others the next time, and
        the users' votes are for these (RANDOM_API; Aug-PE, Algorithm 1, line 2).
        """
        classes = self.config.classes
        if self.config[PeConfig].initial == "public":
            return super().initial()
        path = self.folder.path / "initial.jsonl"
        if not path.exists():
            texts = self._first_written(classes)
            write_jsonl(path, (asdict(one) if classes else {"text": one.text} for one in texts))
        rows = read_jsonl(path)
        if not classes:
            return [row["text"] for row in rows]
        return {name: [row["text"] for row in rows if row["label"] == name] for name in classes}

    def _first_written(self, classes: Sequence[str]) -> list[LabelledText]:
        """The generator's answers to `pe.prompt`; each class is asked for by itself, so that none
        has fewer than it needs, however many of its texts are usable."""
        config, generator = self.config, self.models.generator()
        own = config[PeConfig]
        generator.use_adapter(None)
        rng, found = seeded(config.seed, "initial", "texts"), list[LabelledText]()
        for named in [[name] for name in classes] or [[]]:
            found += generate(
                InstructionPrompts(own.prompt, named),
                generator,
                samples=-(-config[PeConfig].population // max(1, len(classes)))
                * config[PeConfig].copies,
                rng=rng,
                min_words=config.expand.min_words,
                max_words=config.data.sample_words,
                progress=self.run.progress,
            )
        return found


RECIPE = PeRecipe
