"""Shared by recipes that write text: the text and its benchmark; with rounds, the control.

BaselineRecipe: no queries, phases or ledger; its strategy is the list of initial texts.
"""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from privsyn_flower.app.benchmark.benchmark import run_benchmark
from privsyn_flower.app.benchmark.feedback import Feedback
from privsyn_flower.app.benchmark.names import METHODS, PUBLIC_CONTROLS, steps_of
from privsyn_flower.app.benchmark.pictures import draw_benchmark
from privsyn_flower.app.benchmark.private import Private
from privsyn_flower.app.report import reading
from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.data import LabelledText as UserText
from privsyn_flower.data import label_of
from privsyn_flower.evaluation.quality import faults, quality, sentences
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.controls import replay
from privsyn_flower.server_apps.methods import stages
from privsyn_flower.server_apps.methods.recipe import NOISE, Recipe
from privsyn_flower.server_apps.methods.stages import Task
from privsyn_flower.strategies.synthesis.start import SynthesisStrategy
from privsyn_flower.text.embedders import load_embedder
from privsyn_flower.text.prompts import ExamplePrompts, LabelledText, TooFewTextsError, expand
from privsyn_flower.text.readiness import try_prompts

SYNTHETIC = "synthetic"  # the result's name, and purpose
IN_FRONT = "seeds-in-front"  # how many of its texts are seeds, before those that were written
LOOKED_AT = 10_000  # texts of the result, for its quality
logger = logging.getLogger("privsyn_flower")

T = TypeVar("T")
S = TypeVar("S", bound=SynthesisStrategy)


class Writing(Recipe[T]):
    """A method whose result is `synthetic.jsonl`."""

    controls: ClassVar[tuple[str, ...]] = (NOISE, *PUBLIC_CONTROLS)
    synthetic: list[LabelledText]

    @abstractmethod
    def write(self, strategy: T, purpose: str) -> list[LabelledText]:
        """The strategy's synthetic texts. purpose: of the randomness."""

    @abstractmethod
    def feedback(self, strategy: T, private: Private, held_out: F32) -> Feedback:
        """What the users' answers were worth, for the benchmark."""

    def seeds(self, strategy: T) -> dict[str, Sequence[str]]:
        """Seeds to measure as the texts are, by names in figures; none for most methods."""
        return {}

    @classmethod
    def writing(cls, config: RunConfig) -> list[Task]:
        """The stages between the data and the benchmark, in their order."""
        return []

    @classmethod
    def texts(cls, config: RunConfig) -> int:
        return config.expand.samples

    @classmethod
    def work(cls, config: RunConfig) -> list[Task]:
        """The method's own stages, its controls as often again, and the fine-tunings."""
        own = cls.writing(config)
        if not config.benchmark:
            return [*stages.models_to_make(config, cls.loads(config)), *own]
        again = [task for task in own if task.stage != "models" and not task.nodes]
        controls = [replace(task, stage="control") for task in again]
        made = int(NOISE in cls.controls and config.evaluation.compares(NOISE))
        compared = cls.compared_work(config)
        texts = 1 + made + len({task.stage for task in compared})
        return [
            *stages.models_to_make(config, cls.loads(config) | {"downstream"}),
            *own,
            *(controls if made else []),
            *compared,
            *stages.fine_tunings(config, [cls.texts(config)] * texts),
        ]

    @classmethod
    def compared_work(cls, config: RunConfig) -> list[Task]:
        """Of the benchmark's other texts, a stage for each."""
        return []

    def result(self, strategy: T) -> int:
        with self.run.clock("expansion"):
            self.synthetic = self.written(SYNTHETIC, strategy)
        return len(self.synthetic)

    def written(self, name: str, strategy: T) -> list[LabelledText]:
        """The texts in NAME.jsonl, made unless they are there: post-processing, costs nothing."""
        path = self.folder.path / f"{name}.jsonl"
        if path.exists():
            return texts_of(path)
        if name == SYNTHETIC:
            self.folder.save_value(f"dropped-{name}", {})
        texts = self.write(strategy, name)
        write_jsonl(path, (asdict(one) if one.label else {"text": one.text} for one in texts))
        return texts

    def try_expansion(self, seeds: Sequence[str]) -> None:
        """A few texts after public seeds as `expanded` writes them, kept nowhere."""
        options = self.config.expand
        if not options.samples:
            return
        generator, pool = self.models.generator(), _by_class(seeds)
        generator.use_adapter(None)
        source = ExamplePrompts(pool, options.seeds_per_prompt, fewer=True)
        rng = seeded(self.config.seed, "readiness")
        try_prompts(source, generator, rng, min_words=options.min_words)

    def adapter(self, seeds: Sequence[str], purpose: str) -> Path | None:
        """The adapter that the generator expands `seeds` with; None: the generator as it is."""
        return None

    def expanded(self, seeds: Sequence[str], purpose: str) -> list[LabelledText]:
        """PrE-Text, section 3 (6): text by the generator, the seeds in front where asked for.

        purpose: of the randomness.
        """
        options = self.config.expand
        include = options.releases_seeds
        texts = [LabelledText(str(text), label_of(text)) for text in seeds] if include else []
        if purpose == SYNTHETIC:
            self.folder.save_value(IN_FRONT, len(texts) if options.samples else 0)
        if options.samples:
            generator = self.models.generator()
            generator.use_adapter(self.adapter(seeds, purpose))
            texts += self.as_far_as(
                purpose,
                lambda tally: expand(
                    _by_class(seeds),
                    generator,
                    samples=options.samples,
                    seeds_per_prompt=options.seeds_per_prompt,
                    rng=seeded(self.config.seed, purpose, "expand"),
                    min_words=options.min_words,
                    progress=self.run.progress,
                    dropped=tally,
                ),
            )
        return texts

    def as_far_as(
        self, purpose: str, make: Callable[[Counter[str]], list[LabelledText]]
    ) -> list[LabelledText]:
        """What `make` writes; of the result also where it is less than was asked for, which
        `unusable` then says."""
        tally, short = Counter[str](), ""
        try:
            found = make(tally)
        except TooFewTextsError as error:
            if purpose != SYNTHETIC:
                raise
            found, short = error.texts, str(error)
            logger.warning("%s", short)
        self.folder.save_value(f"dropped-{purpose}", {"causes": tally, "short": short})
        return found

    def rewritten(self, released: RunFolder, purpose: str) -> list[LabelledText]:
        """Text of what a run released so far, where the method `rewrites`. Raises
        TooFewTextsError with what there is."""
        raise NotImplementedError

    @property
    def seeds_in_front(self) -> int:
        """Seeds before the written texts of the result; 0 where seeds are all of it."""
        return int(self.folder.load_value(IN_FRONT) or 0)

    def written_facts(self) -> dict[str, Any]:
        """For the summary, public: seeds before the written texts, and completions that gave no
        text of the result, by cause."""
        causes = (self.folder.load_value(f"dropped-{SYNTHETIC}") or {}).get("causes")
        facts = {"seeds_in_front": self.seeds_in_front, "dropped": causes}
        return {name: value for name, value in facts.items() if value}

    def figures(self, strategy: T) -> Mapping[str, Any]:
        return self.written_facts()

    def unusable(self, samples: int) -> list[str]:
        """Too few written texts, none at all, or such as nobody can use; seeds are no excuse."""
        found = []
        if short := (self.folder.load_value(f"dropped-{SYNTHETIC}") or {}).get("short"):
            found.append(str(short))
        if samples == self.seeds_in_front:
            return found or ["there is no synthetic text: all that was written was dropped"]
        return found + (faults(self.quality) if self.run.asks else [])

    @functools.cached_property
    def quality(self) -> dict[str, Any]:
        """Of at most LOOKED_AT written texts, or seeds where these are all, spread evenly; with who
        wrote them, if a model did."""
        rows = reading.RunFolder(self.folder.path).texts(LOOKED_AT, first=self.seeds_in_front)
        public = [*self.models.public.pool, *self.models.public.validation]
        found = quality([row["text"] for row in rows], public)
        if not found:
            return {}
        loaded = self.loads(self.config)
        kind = next((kind for kind in ("conditional", "generator") if kind in loaded), "")
        writer = self.models.described(kind) if kind else {}
        return {**found, "writer": writer, "sentences": sentences(found)}

    def output_paths(self) -> list[str]:
        return [*super().output_paths(), *(f"{name}.jsonl" for name in self.compared())]

    def compared(self) -> list[str]:
        """The chosen controls that write text, by their names in figures."""
        return []

    def comparison(self, name: str, private: Private) -> list[LabelledText]:
        """Synthetic texts of one of `compared`."""
        raise KeyError(name)

    def benchmark(self, strategy: T) -> dict[str, Any]:
        steps = steps_of(self.config, self.run.progress, self.compared())
        # Without progress: how many texts a user has is for no file of the run.
        models = self.config.models
        embedder = load_embedder(models.embedder, models.device, progress=False)
        private = Private(self.config, self.run.federation(), embedder)
        texts = {"synthetic": self.synthetic}
        for name in self.compared():
            with steps.task(f"text for {METHODS[name]}"):
                texts[name] = self.comparison(name, private)
        with self.run.clock("benchmark"):
            found = run_benchmark(
                self.config,
                private,
                downstream=self.models.folder("downstream"),
                feedback=lambda held_out: self.feedback(strategy, private, held_out),
                synthetic={name: _with_labels(own) for name, own in texts.items()},
                seeds=self.seeds(strategy),
                progress=self.run.progress,
                steps=steps,
                work=self.run.work(),
                keep=self.folder.path,
            )
            draw_benchmark(
                found.summary, found.candidates, found.held_out, self.folder.path,
                caption=self.run.caption,
            )  # fmt: skip
        return found.summary


class Synthesis(Writing[S]):
    """One with rounds. noise: what its control is called in figures."""

    noise: ClassVar[str]

    def ready(self, strategy: S) -> None:
        strategy.try_models()

    @abstractmethod
    def noise_answers(self, strategy: S, row: Mapping[str, Any], rng: np.random.Generator) -> F64:
        """Noise like that of a round, in the answers' place. row: of the round's metrics."""

    def control(self) -> S:
        """The identical pipeline on pure noise of the same variance: what answers are worth."""
        record, folder = self.folder, RunFolder(self.folder.path / "control")
        strategy = self.strategy(folder)
        rows = {row["round"]: row for row in record.metrics()}

        def answers(rnd: int) -> tuple[F64, float]:
            rng = seeded(self.config.seed, rnd, "control")
            return self.noise_answers(strategy, rows[rnd], rng), rows[rnd]["noise_std"]

        replay(strategy, rows, answers, folder, self.run.progress, "control")
        return strategy

    def compared(self) -> list[str]:
        return [self.noise] if self.config.evaluation.compares(NOISE) else []

    def comparison(self, name: str, private: Private) -> list[LabelledText]:
        with self.run.clock("control"):
            return self.written("control", self.control())


def texts_of(path: Path) -> list[LabelledText]:
    """The texts of a file that the run wrote."""
    return [LabelledText(row["text"], row.get("label", "")) for row in read_jsonl(path)]


def state_of(released: RunFolder) -> dict[str, Any]:
    """A strategy's state after the last round that was released. Raises ConfigError without one."""
    checkpoint = released.last_checkpoint()
    if checkpoint is None:
        raise ConfigError(f"{released.path}: no round was released yet, so there is nothing to use")
    state: dict[str, Any] = checkpoint["state"]
    return state


def _by_class(texts: Sequence[str]) -> Sequence[str] | dict[str, list[str]]:
    """Class -> its texts, where they have labels."""
    found: dict[str, list[str]] = {}
    for text in texts:
        found.setdefault(label_of(text), []).append(text)
    return found if any(found) else texts


def _with_labels(texts: list[LabelledText]) -> list[str]:
    """The texts as the benchmark reads private ones: a label comes with its text."""
    return [UserText(one.text, one.label) if one.label else one.text for one in texts]


class BaselineRecipe(Writing[list[str]]):
    """A row without rounds. Its `baseline` says what it claims."""

    controls = PUBLIC_CONTROLS

    @classmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        """There is none. Raises ConfigError."""
        raise ConfigError(f"method = {config.method!r} asks no user anything: there is no answer")

    @classmethod
    def phases(cls, config: RunConfig) -> list[Phase]:
        return []

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        """The embedder measures distances for the benchmark."""
        return {"embedder"} if config.benchmark else set()

    @classmethod
    def work(cls, config: RunConfig) -> list[Task]:
        """And the users' texts, which no round has embedded before the benchmark."""
        own = super().work(config)
        if config.benchmark:
            what = "embedding the users' texts"
            own.append(
                replace(stages.private_texts(config), stage="benchmark", what=what, nodes=False)
            )
        return own

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        if config.evaluation.rival:
            yield (
                f"evaluation.rival = {config.evaluation.rival!r} is simulated at a run's noise, "
                f"and method = {config.method!r} has none: set it to ''"
            )

    def feedback(self, strategy: list[str], private: Private, held_out: F32) -> Feedback:
        """Nobody answered."""
        return {}, []
