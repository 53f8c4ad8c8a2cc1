"""POPri: private scores of responses become preferences (Hou et al., ICML 2025, Algorithm 1)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from privsyn_flower.evaluation.distances import frechet_distance
from privsyn_flower.progress import Progress, silent
from privsyn_flower.question import Query
from privsyn_flower.randomness import seeded
from privsyn_flower.runs import RunFolder, read_jsonl, write_json, write_jsonl
from privsyn_flower.sections import PopriConfig
from privsyn_flower.strategies.preferences import (
    asked_places,
    pairs_of,
    rank_responses,
    score_facts,
    score_matrix,
)
from privsyn_flower.strategies.rounds import NothingLearned, Vector
from privsyn_flower.strategies.synthesis import SynthesisResult, SynthesisStrategy
from privsyn_flower.text.prompts import (
    ExamplePrompts,
    LabelledText,
    Prompt,
    PromptSource,
    generate,
    prompt_source,
    read_text,
)
from privsyn_flower.text.protocols import AdaptableGenerator, Embedder, Trained, Trainer

logger = logging.getLogger("privsyn_flower")

Distance = Callable[[Sequence[str]], float]  # of generated texts to what they should be like


class NoPairs(NothingLearned):
    """Hardly any two different usable responses to one prompt: there is nothing to prefer."""

    def __init__(self, rnd: int) -> None:
        super().__init__(
            f"round {rnd}: no prompt has two different usable responses of different rank; raise "
            "popri.responses or expand.max-tokens, lower expand.min-words, or use another "
            "models.generator"
        )


@dataclass(frozen=True)
class Learned:
    """What a round left behind. adapter: relative to the strategy's folder; None: the base."""

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
    seed : choices on the server; never noise.

    After the last round `adapter()` is the generator's final state, and `seeds` are the responses
    chosen in the last round that had any.
    """

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
        self.config = config or PopriConfig()
        self.prompts = _source(prompts, self.config)
        self.embedder, self.generator, self.trainer = embedder, generator, trainer
        self.rounds, self.samples_cap = rounds, samples_cap
        self.min_words, self.max_words = min_words, max_words
        self.validation = list(validation)
        self.private_distance = private_distance
        self.seed, self.progress = seed, progress
        self.seeds: list[str] = []
        self.adapters: list[str | None] = []  # after each round, relative to the folder
        self.distances: list[float | None] = []  # of their texts to the public validation text
        self.chosen: int | None = None
        self._folder: Path | None = None
        self._check()

    def _check(self) -> None:
        """Raises ValueError for settings that cannot work, before anything is asked."""
        config = self.config
        if config.rejected_rank > config.responses:
            raise ValueError(
                f"popri.rejected-rank = {config.rejected_rank} is above popri.responses = "
                f"{config.responses}"
            )
        if config.score == "nearest" and (self.prompts.labels or config.dimension):
            raise ValueError(
                "popri.score = 'nearest' takes neither popri.labels nor popri.dimension"
            )
        if "public" in (config.checkpoint, config.select) and len(self.validation) < 2:
            raise ValueError(
                "popri.checkpoint or popri.select = 'public' needs public validation text "
                "(data.public-validation)"
            )
        if (config.checkpoint == "private") != (self.private_distance is not None):
            raise ValueError(
                f"popri.checkpoint = {config.checkpoint!r}: a distance to private text is given "
                "with 'private' only, and only by a benchmark (benchmark = true), because epsilon "
                "does not cover the choice"
            )

    # Algorithm 1 -------------------------------------------------------------------------

    def ask(self, rnd: int) -> Query:
        """Lines 9 to 13: J responses to each of K prompts, as embeddings.

        The texts are on disk before this returns: `learn` may be called by another process.
        """
        prompts, responses = self._responses(rnd)
        places = [own for own in asked_places(responses) if own]
        if not places:
            raise NoPairs(rnd)
        kept = [k for k, own in enumerate(asked_places(responses)) if own]
        texts = [responses[k][j] for k, own in zip(kept, places, strict=True) for j in own]
        rows = self.embedder.embed(texts)
        config = self.config
        if config.score == "nearest":
            return Query.votes(
                rows,
                bound=config.score_bound,
                samples_cap=self.samples_cap,
                model=self.embedder.fingerprint,
            )
        labels = self.prompts.labels
        return Query.scores(
            rows,
            bound=config.score_bound,
            model=self.embedder.fingerprint,
            score=config.score,
            samples_cap=self.samples_cap,
            groups=[len(own) for own in places],
            classes=[prompts[k].label for k in kept] if labels else None,
            labels=labels,
            dimension=config.dimension,
        )

    def learn(self, rnd: int, released: Vector, noise_std: float) -> dict[str, Any]:
        """Lines 21 to 27: rank, pair the best with the l-th, and fine-tune on the pairs.

        released (m,): noisy and public. A round that is learned from again, after a kill, trains
        on from where it was, or only reads what it left.
        """
        path = self.folder / f"round-{rnd:04d}-learned.json"
        if path.exists():
            learned = Learned(**json.loads(path.read_text(encoding="utf-8")))
        else:
            learned = self._learn(rnd, released, noise_std)
            write_json(path, asdict(learned))
        self.adapters = [*self.adapters[: rnd - 1], learned.adapter]
        self.distances = [*self.distances[: rnd - 1], learned.distance]
        self.seeds = learned.seeds
        return learned.metrics

    def _learn(self, rnd: int, released: Vector, noise_std: float) -> Learned:
        prompts, responses = self._responses(rnd)
        places = asked_places(responses)
        scores = score_matrix(released, responses, places)
        ranking = rank_responses(responses, scores, rejected_rank=self.config.rejected_rank)
        pairs = pairs_of(ranking, [prompt.text for prompt in prompts], responses)
        metrics: dict[str, Any] = {
            "prompts_asked": sum(map(bool, places)),
            "responses_asked": len(released),
            "pairs": len(pairs),
            "pairs_identical": ranking.identical,
            "pairs_unusable": ranking.unusable,
            "pairs_shortened": ranking.shortened,
            **score_facts(released, [len(own) for own in places if own], noise_std),
        }
        before = self._before(rnd)
        if not pairs:
            if rnd == 1:
                raise NoPairs(rnd)
            logger.warning("round %d has no pairs: the generator stays as it was", rnd)
            distance = self.distances[rnd - 2]
            return Learned(before, distance, self.seeds, metrics)
        rows = ranking.prompts
        margin = scores[rows, ranking.chosen] - scores[rows, ranking.rejected]
        metrics["preference_margin"] = float(margin.mean()) / noise_std
        trained = self._train(rnd, pairs, before)
        kept, distance = self._checkpoint(rnd, trained)
        metrics |= {f"training_{name}": value for name, value in trained[kept].metrics.items()}
        metrics |= {"epoch": kept + 1, "frechet_public": distance}
        seeds = list(dict.fromkeys(pair["chosen"] for pair in pairs))
        return Learned(self._relative(trained[kept].adapter), distance, seeds, metrics)

    def _responses(self, rnd: int) -> tuple[list[Prompt], list[list[str]]]:
        """The round's prompts (K,) and responses (K, J), "" where unusable: made once."""
        path = self.folder / f"round-{rnd:04d}.json"
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            return [Prompt(**prompt) for prompt in stored["prompts"]], stored["responses"]
        config = self.config
        prompts = self.prompts.draw(config.prompts, seeded(self.seed, rnd, "prompts"))
        self.generator.use_adapter(self._path(self._before(rnd)))
        completions = self.generator.complete(
            [prompt.text for prompt in prompts],
            config.responses,
            seeded(self.seed, rnd, "responses"),
        )
        responses = [[self._read(text) or "" for text in row] for row in completions]
        value = {"prompts": [asdict(prompt) for prompt in prompts], "responses": responses}
        write_json(path, value)
        return prompts, responses

    def _read(self, completion: str) -> str | None:
        return read_text(self.prompts, completion, self.min_words, self.max_words)

    def _train(
        self, rnd: int, pairs: Sequence[Mapping[str, str]], before: str | None
    ) -> list[Trained]:
        """Psi_{t+1} from Psi_t; the trainer goes on by itself after a kill."""
        self.generator.rest()
        seed = int(seeded(self.seed, rnd, "training").integers(2**31))
        work = self.folder / f"round-{rnd:04d}"
        return self.trainer.train(pairs, start=self._path(before), work=work, seed=seed)

    def _checkpoint(self, rnd: int, trained: Sequence[Trained]) -> tuple[int, float | None]:
        """The epoch to keep, and its distance to the public validation text (appendix B.1)."""
        last = len(trained) - 1
        choice = self.config.checkpoint
        if choice == "last" and not self.validation:
            return last, None
        epochs = [last] if choice == "last" else range(len(trained))
        texts = {epoch: self._sample(rnd, trained[epoch].adapter) for epoch in epochs}
        public = {epoch: self._public_distance(texts[epoch]) for epoch in epochs}
        measured = public
        if self.private_distance is not None:
            measured = {epoch: self.private_distance(texts[epoch]) for epoch in epochs}
        kept = min(epochs, key=lambda epoch: measured[epoch])
        return kept, public[kept] if np.isfinite(public[kept]) else None

    def _sample(self, rnd: int, adapter: Path) -> list[str]:
        """Usable texts of `select_samples` completions; every epoch gets the same prompts."""
        prompts = self.prompts.draw(
            self.config.select_samples, seeded(self.seed, rnd, "selection prompts")
        )
        self.generator.use_adapter(adapter)
        completions = self.generator.complete(
            [prompt.text for prompt in prompts], 1, seeded(self.seed, rnd, "selection")
        )
        return [text for (one,) in completions if (text := self._read(one))]

    def _public_distance(self, texts: Sequence[str]) -> float:
        """Frechet distance of embeddings; infinite when there is too little to compare."""
        if min(len(texts), len(self.validation)) < 2:
            return float("inf")
        return frechet_distance(self.embedder.embed(texts), self.embedder.embed(self.validation))

    # The final generator -----------------------------------------------------------------

    def candidates(self) -> list[tuple[int, Path | None]]:
        """The rounds learned from and their adapters, for whoever compares them."""
        return [(rnd, self._path(name)) for rnd, name in enumerate(self.adapters, start=1)]

    def choose(self, rnd: int) -> None:
        """Take the generator of round `rnd` (0: the base); for select = "federated"."""
        if not 0 <= rnd <= len(self.adapters):
            raise ValueError(f"round {rnd}: must lie in [0, {len(self.adapters)}]")
        self.chosen = rnd

    def adapter(self, rnd: int | None = None) -> Path | None:
        """The adapter of round `rnd` (0: None, the base), or that of the selected round."""
        rnd = self.selected_round() if rnd is None else rnd
        if not 0 <= rnd <= len(self.adapters):
            raise ValueError(f"round {rnd}: must lie in [0, {len(self.adapters)}]")
        return self._path(self.adapters[rnd - 1]) if rnd else None

    def selected_round(self) -> int:
        """The round whose generator writes the result, by popri.select. 0: no round yet."""
        if self.chosen is not None:
            return self.chosen
        if self.config.select == "federated":
            raise RuntimeError("popri.select = 'federated': nothing was chosen yet (choose)")
        if self.config.select == "public":
            known = [(value, i) for i, value in enumerate(self.distances, 1) if value is not None]
            if known:
                return min(known)[1]
        return len(self.adapters)

    def synthesise(self, samples: int) -> list[LabelledText]:
        """Line 30: distinct texts of the selected generator, with their classes."""
        self.generator.use_adapter(self.adapter())
        return generate(
            self.prompts,
            self.generator,
            samples=samples,
            rng=seeded(self.seed, "synthetic"),
            min_words=self.min_words,
            max_words=self.max_words,
            exclude=self.prompts.shown,
            progress=self.progress,
        )

    def start(
        self, grid: Grid, *, folder: str | Path, samples: int = 1000, **options: Any
    ) -> SynthesisResult:
        """As SynthesisStrategy.start; the result has `samples` texts, kept in synthetic.jsonl."""
        if self.config.select == "federated":
            raise ValueError("popri.select = 'federated' needs a whole run: use 'last' or 'public'")
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
        self._folder = folder.path / "popri"
        self._folder.mkdir(exist_ok=True)

    def state(self) -> dict[str, Any]:
        return {"adapters": self.adapters, "distances": self.distances, "seeds": self.seeds}

    def restore(self, state: dict[str, Any]) -> None:
        self.adapters = list(state["adapters"])
        self.distances = list(state["distances"])
        self.seeds = list(state["seeds"])

    def _before(self, rnd: int) -> str | None:
        """The adapter of Psi_t; None: the base."""
        return self.adapters[rnd - 2] if rnd > 1 else None

    def _path(self, name: str | None) -> Path | None:
        return None if name is None else self.folder / name

    def _relative(self, adapter: Path) -> str:
        """Relative, so that a run folder can be moved."""
        return adapter.relative_to(self.folder).as_posix()


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
