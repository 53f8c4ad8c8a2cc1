"""Responses of a generator's state to random prompts, their use as a question, and preference
pairs of their released scores (POPri, Algorithm 1, lines 21 to 26). All public.

Which epoch's adapter a round keeps, its responses tell (`Checkpoints`; POPri, appendix B.1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from privsyn_flower.common.arrays import F64, Ints
from privsyn_flower.common.randomness import seeded
from privsyn_flower.evaluation.metrics import frechet_distance
from privsyn_flower.runs import write_json
from privsyn_flower.text.prompts import Prompt, PromptSource, read_text
from privsyn_flower.text.protocols import AdaptableGenerator, Embedder, Trained


@dataclass(frozen=True)
class Responses:
    """J responses to each of K prompts: texts[k][j], "" where unusable."""

    prompts: list[Prompt]
    texts: list[list[str]]

    @cached_property
    def places(self) -> list[list[int]]:
        """For every prompt the places j of the responses that users score.

        A text is asked about once for each prompt. A prompt with fewer than two distinct usable
        responses has nothing to compare and is not asked about: [].
        """
        places = []
        for row in self.texts:
            first = {text: j for j, text in reversed(list(enumerate(row))) if text}
            places.append(sorted(first.values()) if len(first) > 1 else [])
        return places

    @property
    def texts_to_score(self) -> list[str]:
        """The texts that users score, prompt by prompt."""
        return [self.texts[k][j] for k, own in enumerate(self.places) for j in own]

    @property
    def groups(self) -> list[int]:
        """How many of them belong to each prompt that is asked about."""
        return [len(own) for own in self.places if own]

    @property
    def classes(self) -> list[str]:
        """The class of each prompt that is asked about."""
        return [p.label for p, own in zip(self.prompts, self.places, strict=True) if own]

    def matrix(self, released: F64) -> F64:
        """Scores (m,) of the asked texts -> (K, J); 0 where nothing was asked.

        Equal responses to one prompt get the same score. Raises ValueError when m is another
        number than that of the asked texts.
        """
        asked = sum(self.groups)
        if released.shape != (asked,):
            raise ValueError(
                f"released scores of shape {released.shape} for {asked} responses: the files "
                "under popri/ are not those of this run"
            )
        values = iter(released.tolist())
        scores = []
        for row, own in zip(self.texts, self.places, strict=True):
            known = {row[j]: next(values) for j in own}
            scores.append([known.get(text, 0.0) for text in row])
        return np.array(scores, dtype=np.float64)

    def save(self, path: Path) -> None:
        """One JSON file, atomically."""
        prompts = [asdict(prompt) for prompt in self.prompts]
        write_json(path, {"prompts": prompts, "responses": self.texts})

    @classmethod
    def load(cls, path: Path) -> Responses:
        """What `save` wrote."""
        stored = json.loads(path.read_text(encoding="utf-8"))
        return cls([Prompt(**prompt) for prompt in stored["prompts"]], stored["responses"])


@dataclass(frozen=True)
class Writer:
    """The generator behind a source of prompts. Texts have min_words words or more and are cut
    to max_words (0: uncut)."""

    source: PromptSource
    generator: AdaptableGenerator
    min_words: int
    max_words: int
    seed: int

    def write(
        self, adapter: Path | None, prompts: int, copies: int, purpose: Sequence[int | str]
    ) -> Responses:
        """`copies` responses to each prompt by the base with `adapter`.

        The prompts and the draws depend on `purpose` alone, so that two adapters can be compared
        on the same ones.
        """
        drawn = self.source.draw(prompts, seeded(self.seed, *purpose, "prompts"))
        self.generator.use_adapter(adapter)
        completions = self.generator.complete(
            [prompt.text for prompt in drawn], copies, seeded(self.seed, *purpose, "responses")
        )
        return Responses(drawn, [[self._read(text) for text in row] for row in completions])

    def _read(self, completion: str) -> str:
        return read_text(self.source, completion, self.min_words, self.max_words) or ""


Distance = Callable[[Sequence[str]], float]  # of generated texts to what they should be like


class EpochChoice(NamedTuple):
    """An epoch by its place, and the Frechet distances of its texts to public validation text and
    to private text; None where none was taken, or there was too little text."""

    epoch: int
    public: float | None
    private: float | None


@dataclass(frozen=True)
class Checkpoints:
    """Compares the epochs of a training by what they write: `samples` responses each.

    validation: public texts. private_distance: to private text, which epsilon does not cover; the
    paper's choice, for benchmarks only. rounds: the rounds are compared by the kept epochs, too.
    """

    choice: Literal["last", "public", "private"]
    writer: Writer
    samples: int
    embedder: Embedder
    validation: list[str]
    private_distance: Distance | None = None
    rounds: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError when the choice lacks what it needs, or has what it must not see."""
        if self.choice == "public" and len(self.validation) < 2:
            raise ValueError(
                "popri.checkpoint = 'public' needs public validation text (data.public-validation)"
            )
        if (self.choice == "private") != (self.private_distance is not None):
            raise ValueError(
                f"popri.checkpoint = {self.choice!r}: a distance to private text is given with "
                "'private' only, and only by a benchmark (benchmark = true), because epsilon does "
                "not cover the choice"
            )

    def keep(self, rnd: int, trained: Sequence[Trained]) -> EpochChoice:
        """Trained epochs of a round -> the one to keep. Where nothing is compared no text is
        generated for a figure alone."""
        last = len(trained) - 1
        if self.choice == "last" and not (self.rounds and self.validation):
            return EpochChoice(last, None, None)
        epochs = [last] if self.choice == "last" else list(range(len(trained)))
        texts = {epoch: self._texts(rnd, trained[epoch]) for epoch in epochs}
        public = {epoch: self.public_distance(texts[epoch]) for epoch in epochs}
        private = dict.fromkeys(epochs, math.inf)
        if self.private_distance is not None:
            private = {epoch: self.private_distance(texts[epoch]) for epoch in epochs}
        measured = public if self.private_distance is None else private
        kept = min(epochs, key=lambda epoch: measured[epoch])
        told = [one[kept] if math.isfinite(one[kept]) else None for one in (public, private)]
        return EpochChoice(kept, *told)

    def public_distance(self, texts: Sequence[str]) -> float:
        """Frechet distance of the embeddings; infinite when there is too little to compare."""
        if min(len(texts), len(self.validation)) < 2:
            return math.inf
        return frechet_distance(self.embedder.embed(texts), self.embedder.embed(self.validation))

    def _texts(self, rnd: int, one: Trained) -> list[str]:
        """Usable texts of an epoch; every epoch of a round gets the same prompts."""
        written = self.writer.write(one.adapter, self.samples, 1, (rnd, "selection"))
        return [text for row in written.texts for text in row if text]


@dataclass(frozen=True)
class Ranking:
    """Pair i: response chosen[i] over rejected[i] of prompt prompts[i], arrays of one length.

    identical: prompts left out because the two texts are the same. unusable: prompts left out
    because fewer than two responses are usable. shortened: pairs whose rejected response is the
    last usable one, because there are fewer usable ones than the rank.
    """

    prompts: Ints
    chosen: Ints
    rejected: Ints
    identical: int
    unusable: int
    shortened: int


def preference_pairs(
    prompts: Sequence[str],
    responses: Sequence[Sequence[str]],
    scores: npt.ArrayLike,
    *,
    rejected_rank: int,
) -> list[dict[str, str]]:
    """Prompts (K,), responses (K, J) and scores (K, J) -> at most K pairs, in order.

    A pair has `prompt`, `chosen` (rank 1) and `rejected` (rank `rejected_rank`, which counts from
    1). `rank_responses` says which prompts have none, and how many. Raises ValueError as it does.
    """
    ranking = rank_responses(responses, scores, rejected_rank=rejected_rank)
    if len(prompts) != len(responses):
        raise ValueError(f"{len(prompts)} prompts, but responses to {len(responses)}")
    return pairs_of(ranking, prompts, responses)


def pairs_of(
    ranking: Ranking, prompts: Sequence[str], responses: Sequence[Sequence[str]]
) -> list[dict[str, str]]:
    """The texts of a ranking's pairs."""
    places = zip(
        ranking.prompts.tolist(), ranking.chosen.tolist(), ranking.rejected.tolist(), strict=True
    )
    return [
        {"prompt": prompts[k], "chosen": responses[k][best], "rejected": responses[k][worse]}
        for k, best, worse in places
    ]


def rank_responses(
    responses: Sequence[Sequence[str]], scores: npt.ArrayLike, *, rejected_rank: int
) -> Ranking:
    """Responses (K, J), "" where unusable, and their scores (K, J) -> who is preferred to whom.

    The ranking is stable: equal scores keep the order of the responses. Unusable responses rank
    last and are in no pair. Raises ValueError for shapes that do not fit, scores that are not
    finite, and a rank outside 2 to J.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or len(values) != len(responses):
        raise ValueError(
            f"scores of shape {values.shape} for responses to {len(responses)} prompts"
        )
    count, width = values.shape
    if not all(len(row) == width for row in responses):
        raise ValueError(f"every prompt needs {width} responses, as many as scores")
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite")
    if not 2 <= rejected_rank <= width:
        raise ValueError(
            f"popri.rejected-rank = {rejected_rank} must lie in [2, {width}] (popri.responses)"
        )
    flat = map(bool, chain.from_iterable(responses))
    usable = np.fromiter(flat, dtype=np.bool_, count=count * width).reshape(count, width)
    order = np.argsort(np.where(usable, -values, np.inf), axis=1, kind="stable")
    left = usable.sum(axis=1)
    rows = np.arange(count)
    chosen = order[:, 0]
    rejected = order[rows, np.clip(left, 1, rejected_rank) - 1]
    enough = left >= 2
    same = np.array(
        [row[i] == row[j] for row, i, j in zip(responses, chosen, rejected, strict=True)],
        dtype=np.bool_,
    )
    kept = enough & ~same
    return Ranking(
        prompts=rows[kept],
        chosen=chosen[kept],
        rejected=rejected[kept],
        identical=int((enough & same).sum()),
        unusable=int((~enough).sum()),
        shortened=int((kept & (left < rejected_rank)).sum()),
    )


def score_facts(released: F64, sizes: Sequence[int], noise_std: float) -> dict[str, float]:
    """Public figures about the released scores (m,), m = sum of sizes (responses by prompt).

    The signal-to-noise ratios compare variances: what the scores have beyond the noise, over the
    noise, at least 0; over all, and within the prompts, where the ranking happens.
    """
    noise = noise_std**2
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
    means = np.add.reduceat(released, starts) / np.asarray(sizes)
    inside = released - np.repeat(means, sizes)
    within = float((inside**2).sum() / max(len(released) - len(sizes), 1))
    return {
        "score_std": float(released.std()),
        "signal_to_noise": max(0.0, float(released.var()) / noise - 1.0),
        "signal_to_noise_within": max(0.0, within / noise - 1.0),
    }
