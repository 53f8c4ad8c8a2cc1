"""CTCL in a run: topics of public text, a histogram of them, a generator trained on the nodes, and
text by the noisy shares (Tan et al. 2025, arXiv 2503.12347)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from privsyn_flower.app.benchmark.feedback import Feedback, topic_feedback
from privsyn_flower.app.benchmark.names import PUBLIC_CONTROLS
from privsyn_flower.app.benchmark.pictures import draw_topics
from privsyn_flower.app.benchmark.private import Private
from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.common.files import build_folder
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import RunConfig
from privsyn_flower.config.section import config_errors
from privsyn_flower.evaluation.public import export_model
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.server_apps.controls import CONTROL, noise_updates
from privsyn_flower.server_apps.methods import stages
from privsyn_flower.server_apps.methods.recipe import NOISE, sampler_of
from privsyn_flower.server_apps.methods.stages import Task
from privsyn_flower.server_apps.methods.synthesis import Writing, texts_of
from privsyn_flower.server_apps.methods.training import Updating, local_steps, noise_errors
from privsyn_flower.server_apps.topics import (
    SYNTHETIC,
    Resampling,
    as_it_comes,
    check_generator,
    histogram_of,
    topics_of,
)
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.ctcl.strategy import BOUND, CTCL, ctcl_phases, trainer_of
from privsyn_flower.strategies.synthesis.topic_counts import proportions, topic_question
from privsyn_flower.strategies.synthesis.topic_texts import (
    MODEL,
    TOPICS,
    GenerationInputs,
    Written,
    keep_shares,
    keep_topics,
    try_writing,
    write,
)
from privsyn_flower.text.models.lm_metrics import base_folder
from privsyn_flower.text.prompts import LabelledText
from privsyn_flower.text.topics import TopicModel, load_topics

# Controls beside noise and random public text, in `evaluation.controls`; their rows by name.
UNTRAINED, HISTOGRAM, TRAINING = "no-private-step", "histogram-only", "training-only"
ROWS = {
    UNTRAINED: "no_private_step",
    HISTOGRAM: "histogram_only",
    TRAINING: "training_only",
    NOISE: "noise_answers",
}
SHOWN, SAMPLES = 5, 2  # topics in the summary, and texts of each


class CTCLRecipe(Updating, Writing[CTCL]):
    """Both private steps, or one of them.

    start: folder of the generator before any private step. topics: None without conditions.
    """

    controls = (NOISE, *list(ROWS)[:3], *PUBLIC_CONTROLS)
    libraries = ("torch", "transformers")
    length_keys = "ctcl.topic-count"
    keeps_generator = True
    algorithm_class: ClassVar[type[CTCL]] = CTCL
    start: Path
    topics: TopicModel | None
    resampling: Resampling | None = None

    # Of a configuration ------------------------------------------------------------------

    @classmethod
    def algorithm(cls, config: RunConfig) -> TrainingStrategy:
        return trainer_of(
            config.training, config.ftrl, sampler=sampler_of(config), seed=config.seed
        )

    @classmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        return ("update", {}) if config.updates else ("votes", {"bound": BOUND})

    @classmethod
    def phases(cls, config: RunConfig) -> list[Phase]:
        """The histogram and the rounds. Raises ConfigError for numbers that make no such noise."""
        with noise_errors(config):
            return ctcl_phases(
                config[CtclConfig],
                cls.algorithm(config),
                config.rounds,
                config.spare_rounds,
                nodes=config.nodes,
                noise_multiplier=config.noise_multiplier,
            )

    @classmethod
    def statement_fields(cls, config: RunConfig) -> dict[str, Any]:
        return {"adaptive_clipping": config.training.adaptive_clipping and config.updates}

    @classmethod
    def length(cls, config: RunConfig) -> int:
        own = config[CtclConfig]
        return 1 if config.updates else own.topic_count * max(1, len(own.classes))

    @classmethod
    def candidates(cls, config: RunConfig) -> int:
        """The topics travel with the histogram, and with every round."""
        return config[CtclConfig].topic_count if _has_topics(config) else 0

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        embeds = _has_topics(config) or config.benchmark
        return {"conditional"} | ({"embedder"} if embeds else set())

    @classmethod
    def retrieves(cls, config: RunConfig) -> bool:
        """Topics are clusters of the pool."""
        return _has_public_topics(config) and config[CtclConfig].topics == "train"

    @classmethod
    def first_texts(cls, config: RunConfig) -> tuple[str, int]:
        if not cls.retrieves(config):
            return "", 0
        own = config[CtclConfig]  # hdbscan makes as many as it finds
        return "ctcl.topic-count", own.topic_count if own.clustering == "k-means" else 1

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        if _has_public_topics(config) and config[CtclConfig].topics != "train":
            try:
                load_topics(Path(config[CtclConfig].topics))
            except ValueError as error:
                yield str(error)
        if not config.expand.samples:
            yield f"expand.samples = 0: method = {config.method!r} writes that many texts; raise it"
        if config.evaluation.rival:
            yield (
                f"evaluation.rival = {config.evaluation.rival!r} is simulated beside 'popri', not "
                f"beside {config.method!r}: set it to '', and run the other method by itself"
            )

    @classmethod
    def asks_with(cls, config: RunConfig, *, released: bool) -> Sequence[str]:
        """Where text is resampled, the histogram that is paid for is of the text of one setting."""
        pool = ["expand"] if config[CtclConfig].resample_pool else []
        trains = config.updates and not released
        return [*pool, *(["evaluation.sequence-length"] if trains else [])]

    @classmethod
    def writing(cls, config: RunConfig) -> list[Task]:
        """The topics, the users' texts by topic, their training, and the synthetic texts."""
        pool = stages.public_pool(config)
        tasks = [replace(pool, stage="public")] if cls.retrieves(config) else []
        if _has_topics(config):
            stage = "topics" if config[CtclConfig].histogram else "rounds"
            tasks.append(replace(stages.private_texts(config), stage=stage))
        if config.updates:
            tasks.append(local_steps(config))
        if texts := config[CtclConfig].resample_pool:
            tokens = stages.tokens_of(config.data.sample_words)
            tasks.append(stages.embedding("expansion", "texts to draw from", texts, tokens))
        return [*tasks, _generation(config, "expansion", "synthetic texts")]

    @classmethod
    def compared_work(cls, config: RunConfig) -> list[Task]:
        return [_generation(config, name, "texts of a control") for name in _others(config)]

    # Of a run ----------------------------------------------------------------------------

    def begin(self) -> CTCL:
        with self.run.clock("models"):
            self.start = base_folder(self.models.folder("conditional"))
            check_generator(self.config, self.start)
            if self.config[CtclConfig].resample_pool:
                self.resampling = Resampling(self.config, self.folder, self.models, self._written)
        with self.run.clock("public"):
            self.topics = self._topics() if _has_public_topics(self.config) else None
            return self.strategy(self.folder)

    def _topics(self) -> TopicModel:
        """The run's own copy; else those of a folder, or of the public pool (cached by content).

        Raises ConfigError for topics of another embedder.
        """
        own, embedder = self.config[CtclConfig], self.models.embedder()
        with config_errors():
            if (self.folder.path / TOPICS).is_dir():
                return load_topics(self.folder.path / TOPICS, embedder.fingerprint)
            if own.topics == "train":
                pool = self.models.public.pool
                folder = topics_of(self.config, pool, embedder, self.run.progress)
            else:
                folder = Path(own.topics)
            found = load_topics(folder, embedder.fingerprint)
            return keep_topics(self.folder.path, found)

    def strategy(self, folder: RunFolder) -> CTCL:
        config = self.config
        strategy = self.algorithm_class(
            self.topics,
            self.start,
            rounds=config.rounds,
            config=config[CtclConfig],
            training=config.training,
            ftrl=config.ftrl if config.uses("ftrl") else None,
            sampler=sampler_of(config),
            samples_per_user=config.data.samples_per_user,
            sequence_length=config.evaluation.sequence_length,
            seed=config.seed,
        )
        if config.updates:
            with config_errors():
                strategy.begin(
                    users=config.round_users,
                    nodes=config.nodes,
                    noise_multiplier=self.run.session.privacy_plan.main.multiplier,
                )
            strategy.attach(folder)
        return strategy

    def ready(self, strategy: CTCL) -> None:
        """A few texts by the generator as it is; the run may teach it better ones."""
        config = self.config
        device, topics = config.models.device, strategy.topics
        try_writing(config[CtclConfig], config.expand, device, self.start, topics, config.seed)

    def prepare(self, strategy: CTCL) -> None:
        """The histogram: one release, which a run that goes on finds in its folder."""
        if self.config[CtclConfig].histogram and self.resampling is None:
            self._histogram(strategy)

    def _histogram(self, strategy: CTCL) -> None:
        with self.run.clock("topics"):
            strategy.histogram(self.run.session)
            strategy.proportions()  # what cannot be used ends the run here, and not in its result

    def evaluate(self, strategy: CTCL) -> None:
        """Where text is resampled: the histogram of clusters of the trained generator's text."""
        if self.resampling is None:
            return
        with self.run.clock("expansion"):
            pool = self.resampling.pool(SYNTHETIC, self._model(strategy, self.folder.path / MODEL))
        with self.run.clock("topics"):
            strategy.topics = self.topics = self.resampling.clusters(pool)
        self._histogram(strategy)

    def result(self, strategy: CTCL) -> int:
        """model/, the shares beside the run's topics, and synthetic.jsonl."""
        with self.run.clock("expansion"):
            model = self._model(strategy, self.folder.path / MODEL)
            if self.topics is not None:
                keep_shares(self.folder.path, strategy.proportions())
            self.kept = GenerationInputs(model, self.topics, strategy.proportions())
            return self._write(SYNTHETIC, self.kept)

    def _model(self, strategy: CTCL, target: Path) -> Path:
        """The generator with what was trained of it, or a copy where nothing was."""
        if self.config.updates:
            return export_model(self.start, strategy.parameters(), target)

        def fill(folder: Path) -> None:
            shutil.copytree(self.start, folder, dirs_exist_ok=True)

        return build_folder(target, fill, result=True)

    def _write(self, name: str, kept: GenerationInputs) -> int:
        """NAME.jsonl with `expand.samples` texts, unless it is there; how many there are."""
        target, facts = self.folder.path / f"{name}.jsonl", f"written-{name}"
        if not target.exists():
            if self.resampling is not None and kept.topics is not None:
                written = self.resampling.draw(name, kept, target)
            else:
                written = self._written(name, kept, target, self.config.expand.samples)
            self.folder.save_value(facts, asdict(written))
        stored = self.folder.load_value(facts) or {}
        return int(stored.get("texts", 0)) or len(read_jsonl(target))

    def _written(self, name: str, kept: GenerationInputs, target: Path, samples: int) -> Written:
        config = self.config
        return write(
            config[CtclConfig],
            config.expand,
            config.models.device,
            kept,
            target,
            samples=samples,
            seed=config.seed,
            purpose=SYNTHETIC,  # the controls' too: they differ in what they are about
            progress=self.run.progress,
            stage="expansion" if name == SYNTHETIC else name,
        )

    def write(self, strategy: CTCL, purpose: str) -> list[LabelledText]:
        """The texts of a file of the run."""
        return texts_of(self.folder.path / f"{purpose}.jsonl")

    def output_paths(self) -> list[str]:
        """The result's own pool stays: the histogram that was paid for is of its clusters."""
        files = [f"{name}.jsonl" for name in ROWS.values()]
        return [*super().output_paths(), *files, f"{CONTROL}-pool.jsonl"]

    def figures(self, strategy: CTCL) -> dict[str, Any]:
        facts: dict[str, Any] = {"written": self.folder.load_value("written-synthetic")}
        if self.config.updates:
            facts["parameters"] = strategy.trainer.layout.length
        if self.topics is not None:
            facts["topics"] = self._described(self.topics, self._by_topic(strategy.proportions()))
        return facts

    def _described(self, topics: TopicModel, shares: F64) -> dict[str, Any]:
        """The largest topics with some of their texts: public, as all of it was released."""
        largest = np.argsort(-shares, kind="stable")[:SHOWN].tolist()
        texts: dict[int, list[str]] = {topic: [] for topic in largest}
        for row in read_jsonl(self.folder.path / "synthetic.jsonl"):
            if len(texts.get(row["topic"], [""] * SAMPLES)) < SAMPLES:
                texts[row["topic"]].append(row["text"])
        shown = [
            {
                "keywords": list(topics.keywords[topic]),
                "share": round(float(shares[topic]), 4),
                "texts": texts[topic],
            }
            for topic in largest
        ]
        return {"count": len(topics), "used": int((shares > 0).sum()), "largest": shown}

    def _by_topic(self, shares: F64) -> F64:
        """Shares of topics in classes -> of topics (m,)."""
        summed: F64 = shares.reshape(max(1, len(self.config[CtclConfig].classes)), -1).sum(axis=0)
        return summed

    # The benchmark -----------------------------------------------------------------------

    def benchmark(self, strategy: CTCL) -> dict[str, Any]:
        self.synthetic = self.write(strategy, "synthetic")
        return super().benchmark(strategy)

    def compared(self) -> list[str]:
        """The chosen controls that are not the run itself."""
        noise = [ROWS[NOISE]] if self.config.evaluation.compares(NOISE) else []
        return [*_others(self.config), *noise]

    def comparison(self, name: str, private: Private) -> list[LabelledText]:
        stage = CONTROL if name == ROWS[NOISE] else name
        with self.run.clock(stage):
            self._write(stage, self._compared(name))
            return texts_of(self.folder.path / f"{stage}.jsonl")

    def _compared(self, name: str) -> GenerationInputs:
        """The generator and the shares of a control: the run's own, or what stands for them."""
        kept = self.kept
        even = replace(kept, shares=np.full(len(kept.shares), 1 / len(kept.shares)))
        if self.resampling is not None:
            even = as_it_comes(kept.model)
        if name == ROWS[UNTRAINED]:
            return replace(even, model=self.start)
        if name == ROWS[HISTOGRAM]:
            return replace(kept, model=self.start)
        if name == ROWS[TRAINING]:
            return even
        return self._of_noise()

    def _of_noise(self) -> GenerationInputs:
        """The identical pipeline on noise of the same variance in the place of both answers."""
        folder, model = RunFolder(self.folder.path / CONTROL), self.start
        strategy = self.strategy(folder)
        if self.config.updates:
            correlation = self.run.session.privacy_plan.main.factorization
            noise_updates(
                strategy.trainer, self.config, self.folder, folder, correlation, self.run.progress
            )
            model = export_model(self.start, strategy.parameters(), folder.path / MODEL)
        return GenerationInputs(model, self.topics, self._noise_shares())

    def _noise_shares(self) -> F64:
        """Of a histogram in which every topic is as popular as another, with the same noise."""
        if not self.config[CtclConfig].histogram:
            return self.kept.shares
        counts, noise_std = histogram_of(self.folder)
        rng = seeded(self.config.seed, "control", "topics")
        drawn = counts.mean() + rng.normal(0.0, noise_std, len(counts))
        return proportions(drawn, noise_std, self.config[CtclConfig].topic_threshold)

    def feedback(self, strategy: CTCL, private: Private, held_out: F32) -> Feedback:
        if self.topics is None:
            return {}, []
        shares = self._by_topic(self.kept.shares)
        question = topic_question(self.topics, BOUND, samples_cap=self.config.data.samples_per_user)
        figures, true = topic_feedback(question, shares, private)
        path = self.folder.path / "topics.png"
        draw_topics(self.topics.keywords, shares, true, path, caption=self.run.caption)
        return figures, []


def _has_topics(config: RunConfig) -> bool:
    """Whether anything is by topic: nothing is of a generator without conditions."""
    return config[CtclConfig].by_topic or config[CtclConfig].histogram


def _has_public_topics(config: RunConfig) -> bool:
    """Whether topics are there before the rounds; clusters of the run's own text are not."""
    return _has_topics(config) and not config[CtclConfig].resample_pool


def _others(config: RunConfig) -> list[str]:
    """Names in figures of the chosen controls without noise, but for what is the run itself."""
    own, chosen = config[CtclConfig], config.evaluation.compares
    both = own.histogram and own.generator_training
    # Clusters of the trained generator's text know the training: no histogram alone has them.
    fitting = {UNTRAINED: True, HISTOGRAM: both and not own.resample_pool, TRAINING: both}
    return [ROWS[name] for name, fits in fitting.items() if fits and chosen(name)]


def _generation(config: RunConfig, stage: str, what: str) -> Task:
    """All texts of one set."""
    items = config[CtclConfig].resample_pool or config.expand.samples
    return replace(stages.generation(config, stage, what, items), model="conditional")


RECIPE = CTCLRecipe
