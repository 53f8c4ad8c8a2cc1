"""POPri: private scores become preferences (Hou et al. 2025, arXiv 2504.16438, Algorithm 1)."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from flwr.serverapp import Grid

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder, read_jsonl, write_json, write_jsonl
from privsyn_flower.strategies.engine.arguments import check_arguments
from privsyn_flower.strategies.engine.rounds import NothingLearned
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.strategies.synthesis.preferences import (
    Checkpoints,
    Distance,
    Responses,
    Writer,
    pairs_of,
    rank_responses,
    score_facts,
)
from privsyn_flower.strategies.synthesis.start import SynthesisResult, SynthesisStrategy
from privsyn_flower.text.prompts import (
    ExamplePrompts,
    LabelledText,
    PromptSource,
    generate,
    prompt_source,
)
from privsyn_flower.text.protocols import AdaptableGenerator, Embedder, Trainer
from privsyn_flower.text.readiness import try_adapters, try_prompts

logger = logging.getLogger("privsyn_flower")


class NoPairs(NothingLearned):
    """No prompt has two usable responses to prefer one of: there is nothing to learn from."""

    def __init__(self, rnd: int) -> None:
        super().__init__(
            f"round {rnd}: no prompt has different usable responses of different rank; raise "
            "popri.responses or expand.max-tokens, lower expand.min-words, or use another "
            "models.generator"
        )


@dataclass(frozen=True)
class Lessons:
    """What a round's answers say about its responses: rows for the trainer, of so many at most,
    public figures about them, the responses that become seeds, and a note on progress."""

    rows: list[dict[str, Any]]
    most: int
    metrics: dict[str, Any]
    seeds: list[str]
    note: str


@dataclass(frozen=True)
class Learned:
    """What a round left behind. adapter: relative to the strategy's folder; None: the base.
    distance: Frechet, of the kept checkpoint's texts to the text that rounds are compared by."""

    adapter: str | None
    distance: float | None
    seeds: list[str]
    metrics: dict[str, Any]


class POPri(SynthesisStrategy):
    """Users score responses; the generator learns to prefer what is closest to them.

    Parameters
    ----------
    prompts : Lambda: a PromptSource, or public texts (or class -> texts) to show as examples.
    embedder : Gamma: public text -> unit rows; users must hold the same model (its fingerprint).
    generator : Psi: takes the adapter that the last round trained.
    trainer : preference pairs -> adapters (DPO, or SFT on the chosen).
    rounds : T.
    config : prompts (K), responses (J), score, rejected_rank (l), checkpoint, select, ...
    samples_cap : the most samples of one user that count.
    min_words, max_words : of a response; longer ones are cut, 0: uncut.
    validation : public texts that the generator's are compared with.
    private_distance : for checkpoint = "private" only, which epsilon does not cover: a benchmark
        gives a distance to private text here, nothing else may.
    seed : choices on the server; never noise. progress: told how far the rounds are.

    After the last round `adapter()` is the generator's final state, and `seeds` are the responses
    chosen in the last round that had any.
    """

    method = "popri"
    learns: ClassVar[str] = "pairs"  # of a round, in words

    def __init__(
        self,
        prompts: PromptSource | Sequence[str] | Mapping[str, Sequence[str]],
        *,
        embedder: Embedder,
        generator: AdaptableGenerator,
        trainer: Trainer,
        rounds: int,
        config: PopriConfig | None = None,
        samples_cap: int = 8,
        min_words: int = 4,
        max_words: int = 0,
        validation: Sequence[str] = (),
        private_distance: Distance | None = None,
        seed: int = 0,
        progress: Progress = silent,
    ) -> None:
        check_arguments(rounds=rounds)
        self.config = config or PopriConfig()
        self.prompts = _source(prompts, self.config)
        self.embedder, self.generator, self.trainer = embedder, generator, trainer
        self.rounds, self.samples_cap = rounds, samples_cap
        self.seed, self.progress = seed, progress
        self.writer = Writer(self.prompts, generator, min_words, max_words, seed)
        self.checkpoints = Checkpoints(
            self.config.checkpoint,
            self.writer,
            self.config.select_samples,
            embedder,
            list(validation),
            private_distance,
            rounds=self.config.select == "public",
        )
        self.seeds: list[str] = []
        self.adapters: list[str | None] = []  # after each round, relative to the folder
        self.distances: list[float | None] = []  # of each round's Learned
        self.chosen: int | None = None
        self._folder: Path | None = None
        _check(self.config, self.prompts, len(validation))

    # Algorithm 1 -------------------------------------------------------------------------

    def ask(self, rnd: int) -> Query:
        """Lines 9 to 13: J responses to each of K prompts, as embeddings.

        The texts are on disk before this returns: another process may be the one that learns.
        Raises NoPairs when there is nothing to compare.
        """
        config, responses = self.config, self._responses(rnd)
        if not responses.texts_to_score:
            raise NoPairs(rnd)
        rows = self.embedder.embed(responses.texts_to_score)
        if config.score == "nearest":
            return Query.votes(
                rows,
                bound=config.score_bound,
                samples_cap=self.samples_cap,
                model=self.embedder.fingerprint,
            )
        return Query.scores(
            rows,
            bound=config.score_bound,
            model=self.embedder.fingerprint,
            score=config.score,
            samples_cap=self.samples_cap,
            groups=responses.groups,
            classes=responses.classes if self.prompts.labels else None,
            labels=self.prompts.labels,
            dimension=config.dimension,
        )

    def try_models(self) -> None:
        """A few usable responses, and an adapter on the generator: what `learn` makes of scores."""
        writer, rng = self.writer, seeded(self.seed, "readiness")
        self.generator.use_adapter(None)
        try_prompts(
            self.prompts, self.generator, rng, min_words=writer.min_words,
            max_words=writer.max_words, distinct=False,  # `ask` says so
        )  # fmt: skip
        [prompt] = self.prompts.draw(1, rng)
        try_adapters(self.trainer, self.generator, self.folder, prompt.text)

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """Lines 21 to 27: rank, pair the best with the l-th, and fine-tune on the pairs.

        released (m,): noisy and public. After a kill the training goes on where it was, and a
        round that was learned from is only read.
        """
        path = self.folder / f"round-{rnd:04d}-learned.json"
        if path.exists():
            learned = Learned(**json.loads(path.read_text(encoding="utf-8")))
        else:
            learned = self._learn(rnd, released, noise_std)
            write_json(path, asdict(learned))
        before, skipped = self.adapters[: rnd - 1], rnd - 1 - len(self.adapters)
        self.adapters = [*before, *[self._before(rnd)] * skipped, learned.adapter]
        self.distances = [*self.distances[: rnd - 1], *[None] * skipped, learned.distance]
        self.seeds = learned.seeds
        return learned.metrics

    def _learn(self, rnd: int, released: F64, noise_std: float) -> Learned:
        responses, before = self._responses(rnd), self._before(rnd)
        lessons = self.lessons(responses, released, noise_std)
        metrics: dict[str, Any] = {
            "prompts_asked": len(responses.groups),
            "responses_asked": len(released),
            **lessons.metrics,
            **score_facts(released, responses.groups, noise_std),
            "frechet_public": self._response_distance(responses),
        }
        if not lessons.rows:
            if not self.adapters:
                raise self.nothing(rnd)
            logger.warning("round %d has no %s: the generator stays as it was", rnd, self.learns)
            return Learned(before, self.distances[-1], self.seeds, metrics)
        label = f"round {rnd}: {self.learns}"
        self.progress(label, len(lessons.rows), lessons.most, lessons.note)
        self.generator.rest()
        trained = self.trainer.train(
            lessons.rows,
            start=self._path(before),
            work=self.folder / f"round-{rnd:04d}",
            seed=int(seeded(self.seed, rnd, "training").integers(2**31)),
        )
        kept = self.checkpoints.keep(rnd, trained)
        own = trained[kept.epoch]
        metrics |= {f"training_{name}": value for name, value in own.metrics.items()}
        metrics["epoch"] = kept.epoch + 1
        if kept.public is not None:
            metrics["frechet_public"] = kept.public
        # Relative, so that a run folder can be moved.
        adapter = own.adapter.relative_to(self.folder).as_posix()
        distance = kept.private if self.config.select == "private" else kept.public
        return Learned(adapter, distance, lessons.seeds, metrics)

    def lessons(self, responses: Responses, released: F64, noise_std: float) -> Lessons:
        """Lines 21 to 26: the preference pairs."""
        scores = responses.matrix(released)
        ranking = rank_responses(responses.texts, scores, rejected_rank=self.config.rejected_rank)
        pairs = pairs_of(ranking, [prompt.text for prompt in responses.prompts], responses.texts)
        metrics: dict[str, Any] = {
            "pairs": len(pairs),
            "pairs_identical": ranking.identical,
            "pairs_unusable": ranking.unusable,
            "pairs_shortened": ranking.shortened,
        }
        note = ""
        if pairs:
            best, worse = (scores[ranking.prompts, j] for j in (ranking.chosen, ranking.rejected))
            margin = metrics["preference_margin"] = float((best - worse).mean()) / noise_std
            note = f"their margin {margin:.2f} standard deviations of the noise"
        seeds = list(dict.fromkeys(pair["chosen"] for pair in pairs))
        return Lessons(list(pairs), len(responses.texts), metrics, seeds, note)

    def nothing(self, rnd: int) -> NothingLearned:
        """The error of a first round without lessons."""
        return NoPairs(rnd)

    def _response_distance(self, responses: Responses) -> float | None:
        """Frechet distance of the round's texts, embedded to be asked about, to public validation
        text; as many of them as epochs are compared by."""
        step = max(1, -(-len(responses.texts_to_score) // self.config.select_samples))
        distance = self.checkpoints.public_distance(responses.texts_to_score[::step])
        return distance if math.isfinite(distance) else None

    def _responses(self, rnd: int) -> Responses:
        """The round's prompts and responses of Psi_t, generated once."""
        path = self.folder / f"round-{rnd:04d}.json"
        if path.exists():
            return Responses.load(path)
        count, copies = self.config.prompts, self.config.responses
        written = self.writer.write(self._path(self._before(rnd)), count, copies, (rnd,))
        written.save(path)
        return written

    def synthesise(self, samples: int, dropped: Counter[str] | None = None) -> list[LabelledText]:
        """Line 30: distinct texts of the selected generator, with their classes. dropped: counts
        the completions without one, as `text.prompts.generate` does."""
        self.generator.use_adapter(self.adapter())
        return generate(
            self.prompts,
            self.generator,
            samples=samples,
            rng=seeded(self.seed, "synthetic"),
            min_words=self.writer.min_words,
            max_words=self.writer.max_words,
            exclude=self.prompts.shown,
            progress=self.progress,
            dropped=dropped,
        )

    # The adapters ------------------------------------------------------------------------

    def candidates(self) -> list[tuple[int, Path | None]]:
        """The rounds learned from and their adapters, for whoever compares them."""
        return [(rnd, self._path(name)) for rnd, name in enumerate(self.adapters, start=1)]

    def choose(self, rnd: int) -> None:
        """Take the generator of round `rnd` (0: the base); for select = "federated"."""
        self.adapter(rnd)
        self.chosen = rnd

    def adapter(self, rnd: int | None = None) -> Path | None:
        """The adapter after round `rnd` (0: None, the base), or after the selected round."""
        rnd = self.selected_round() if rnd is None else rnd
        if not 0 <= rnd <= len(self.adapters):
            raise ValueError(f"round {rnd}: must lie in [0, {len(self.adapters)}]")
        return self._path(self.adapters[rnd - 1]) if rnd else None

    def selected_round(self) -> int:
        """The round whose generator writes the result, by popri.select; 0: none was learned."""
        if self.chosen is not None:
            return self.chosen
        if self.config.select == "federated":
            raise RuntimeError("popri.select = 'federated': no round was chosen yet")
        measured = [(value, i) for i, value in enumerate(self.distances, 1) if value is not None]
        if self.config.select in ("public", "private") and measured:
            return min(measured)[1]
        return len(self.adapters)

    def start(
        self, grid: Grid, *, folder: str | Path, samples: int = 1000, **options: Any
    ) -> SynthesisResult:
        """As SynthesisStrategy.start; the result has `samples` texts, kept in synthetic.jsonl."""
        if self.config.select == "federated":
            raise ValueError("popri.select = 'federated' needs a whole run: use 'last' or 'public'")
        if self.config.checkpoint == "private":
            raise ValueError(
                "popri.checkpoint = 'private' is for the benchmark of a simulated run only: its "
                "epsilon does not cover the choice; use 'last' or 'public'"
            )
        result = super().start(grid, folder=folder, **options)
        run = RunFolder(folder)
        path = run.path / "synthetic.jsonl"
        with run.lock():
            if not path.exists():
                write_jsonl(path, map(asdict, self.synthesise(samples)))
        return replace(result, texts=[LabelledText(**row) for row in read_jsonl(path)])

    # State -------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where responses and adapters are kept. Raises RuntimeError before `attach`."""
        if self._folder is None:
            raise RuntimeError("POPri keeps files: call attach(RunFolder(path)) first")
        return self._folder

    def attach(self, folder: RunFolder) -> None:
        """Keep responses and adapters under FOLDER/popri."""
        self._folder = folder.path.absolute() / "popri"
        self._folder.mkdir(exist_ok=True)

    def state(self) -> dict[str, Any]:
        return {"adapters": self.adapters, "distances": self.distances, "seeds": self.seeds}

    def restore(self, state: dict[str, Any]) -> None:
        self.adapters = list(state["adapters"])
        self.distances = list(state["distances"])
        self.seeds = list(state["seeds"])

    def _before(self, rnd: int) -> str | None:
        """The adapter of Psi_t: the newest one of the rounds before; None: the base."""
        return self.adapters[: rnd - 1][-1] if self.adapters[: rnd - 1] else None

    def _path(self, name: str | None) -> Path | None:
        return None if name is None else self.folder / name


def _source(
    prompts: PromptSource | Sequence[str] | Mapping[str, Sequence[str]], config: PopriConfig
) -> PromptSource:
    if isinstance(prompts, Mapping):
        return ExamplePrompts(prompts, config.examples)
    if not isinstance(prompts, Sequence):
        return prompts
    labels = [label.strip() for label in config.labels.split(",") if label.strip()]
    return prompt_source(
        prompts, examples=config.examples, instruction=config.instruction, labels=labels
    )


def _check(config: PopriConfig, prompts: PromptSource, validation: int) -> None:
    """Raises ValueError for settings that cannot work, before anything is asked."""
    if config.rejected_rank > config.responses:
        raise ValueError(
            f"popri.rejected-rank = {config.rejected_rank} is above popri.responses = "
            f"{config.responses}"
        )
    if config.score == "nearest" and (prompts.labels or config.dimension):
        raise ValueError("popri.score = 'nearest' takes neither popri.labels nor popri.dimension")
    if config.select == "public" and validation < 2:
        raise ValueError(
            "popri.select = 'public' needs public validation text (data.public-validation)"
        )
