"""A population of texts that users vote on: what PrE-Text and private evolution share."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from privsyn_flower.common.arrays import F64, Ints
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import EvolutionConfig, split_list
from privsyn_flower.data import LabelledText, label_of
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import SEEDS, RunFolder, write_jsonl
from privsyn_flower.strategies.engine.arguments import check_arguments
from privsyn_flower.strategies.engine.rounds import NothingLearned
from privsyn_flower.strategies.synthesis.start import SynthesisStrategy
from privsyn_flower.text.protocols import Embedder, Variation

C = TypeVar("C", bound=EvolutionConfig)

Voted = tuple[str, str]  # a text and its class, "" without classes

logger = logging.getLogger("privsyn_flower")

BEST = 5  # candidates of the last round that are described
TRIED = 8  # candidates that are varied before the first round


class NothingSurvived(NothingLearned):
    """No candidate had more votes than the threshold: the release says nothing usable."""

    def __init__(self, rnd: int, threshold: float, table: str = "pretext") -> None:
        super().__init__(
            f"round {rnd}: no candidate has more than H = {threshold:g} votes; lower "
            f"{table}.threshold, or use more users or fewer candidates ({table}.population)"
        )


class Evolution(SynthesisStrategy, Generic[C]):
    """Users vote for the nearest candidates. Who survives, and what becomes of them, is `learn`'s.

    With classes a text votes among the candidates of its own class, and each class has the same
    number of survivors (numbers that differ by one at most), whatever the votes: candidate i is
    of class `classes[i]` in every round, and a variation is of the class of its survivor. Without
    them there is one class, which has no name.

    The parameters are those of PrEText; without `config` there are `defaults`.
    """

    def __init__(
        self,
        initial: Sequence[str] | Mapping[str, Sequence[str]],
        *,
        embedder: Embedder,
        variation: Variation | Mapping[str, Variation],
        rounds: int,
        config: C | None = None,
        samples_cap: int = 8,
        seed: int = 0,
        progress: Progress = silent,
    ) -> None:
        check_arguments(rounds=rounds)
        self.config: C = config or self.defaults()
        self.rounds = rounds
        self.embedder = embedder
        self.variation = variation
        self.samples_cap = samples_cap
        self.seed = seed
        self.progress = progress
        by_class = initial if isinstance(initial, Mapping) else {"": initial}
        self.labels = tuple(by_class) if isinstance(initial, Mapping) else ()
        self._check_classes()
        sizes = [
            len(part) for part in np.array_split(np.arange(self.config.population), len(by_class))
        ]
        survivors = np.repeat(np.arange(len(by_class)), sizes)  # (N_syn,)
        # The survivors, then what is made of each beside it.
        more = np.repeat(survivors, self.config.candidates // self.config.population - 1)
        self.classes: Ints = np.concatenate([survivors, more])  # (m,)
        self.population = self.first = self._first(list(by_class.values()))
        self.seeds: list[str] = []

    def _check_classes(self) -> None:
        """Raises ValueError for classes that are not those of the configuration, or too many."""
        own, table = split_list(self.config.labels), self.config.table
        if own and tuple(own) != self.labels:
            raise ValueError(
                f"{table}.labels = {self.config.labels!r}, and the first texts are those of "
                f"{', '.join(self.labels) or 'no classes'}: give them class by class"
            )
        self.config.check_candidates_per_class(len(self.labels))

    def _first(self, by_class: Sequence[Sequence[str]]) -> list[str]:
        """The first candidates (m,), drawn from the distinct texts of their classes."""
        rng, found = seeded(self.seed, "initial"), [""] * len(self.classes)
        for texts, places in zip(by_class, self._places(), strict=True):
            distinct = list(dict.fromkeys(texts))
            if len(distinct) < len(places):
                raise ValueError(
                    f"{len(distinct)} distinct public texts cannot start a population of "
                    f"{len(places)}{self._of_class(places)}: lower {self.config.table}.population "
                    "or raise data.public-pool"
                )
            first = rng.choice(len(distinct), size=len(places), replace=False)
            for place, i in zip(places.tolist(), first.tolist(), strict=True):
                found[place] = distinct[i]
        return found

    def _places(self) -> Iterator[Ints]:
        """Where each class' candidates are."""
        for number in range(max(1, len(self.labels))):
            yield np.flatnonzero(self.classes == number)

    def _of_class(self, places: Ints) -> str:
        return f" of class {self.labels[self.classes[places[0]]]!r}" if self.labels else ""

    @classmethod
    @abstractmethod
    def defaults(cls) -> C:
        """The configuration of whoever gives none."""

    def ask(self, rnd: int) -> Query:
        """Candidates as mean embeddings of K variations (PrE-Text, section 3, Lookahead)."""
        options, copies = self.config, self.config.lookahead
        self.progress(f"round {rnd}: candidates", 0, 2)
        if copies > 1:
            repeated = [text for text in self.population for _ in range(copies)]
            classes = np.repeat(self.classes, copies)
            lookahead = self._vary(repeated, classes, seeded(self.seed, rnd, "lookahead"))
        else:
            lookahead = self.population
        self.progress(f"round {rnd}: candidates", 1, 2)
        rows = self.embedder.embed(lookahead)
        self.progress(f"round {rnd}: candidates", 2, 2)
        return Query.votes(
            rows.reshape(len(self.population), copies, -1).mean(axis=1),
            bound=options.vote_bound,
            clip=options.clip,
            samples_cap=self.samples_cap,
            neighbors=options.neighbors,
            metric=options.metric,
            model=self.embedder.fingerprint,
            classes=[self.labels[i] for i in self.classes] if self.labels else None,
            labels=self.labels,
        )

    def votes_above_threshold(self, rnd: int, released: F64, noise_std: float) -> F64:
        """Released votes (m,) -> votes above H, (m,), at least 0 (PrE-Text, Algorithm 2, line 17).

        Raises NothingSurvived when no candidate has more than H.
        """
        threshold = self.threshold(noise_std)
        weights = np.maximum(released - threshold, 0.0)
        if not weights.any():
            raise NothingSurvived(rnd, threshold, self.config.table)
        return weights

    def survivors(self, rnd: int, released: F64, weights: F64) -> list[int]:
        """Places of the N_syn candidates that survive a round, by its release alone. weights (m,):
        votes above H."""
        return self.draw_survivors(rnd, weights)

    def draw_survivors(self, rnd: int, weights: F64) -> list[int]:
        """N_syn places by votes, with replacement (PrE-Text, Algorithm 1, lines 7 and 8).

        Each class its share of them. Where none of a class has more than H votes, all of it are
        as likely.
        """
        rng, found = seeded(self.seed, rnd, "survivors"), list[int]()
        for places, size in self._shares():
            own = weights[places]
            if not own.any():
                logger.warning(
                    "round %d: no candidate%s has more than H votes", rnd, self._of_class(places)
                )
                own = np.ones(len(places))
            found += places[rng.choice(len(places), size=size, p=own / own.sum())].tolist()
        return found

    def best(self, released: F64) -> list[int]:
        """The N_syn places of most votes, each class its share of them; of equal ones the
        first."""
        found = list[int]()
        for places, size in self._shares():
            found += places[np.argsort(-released[places], kind="stable")[:size]].tolist()
        return found

    def _shares(self) -> Iterator[tuple[Ints, int]]:
        """Each class' places, and how many of them survive."""
        for places in self._places():
            yield places, int((places < self.config.population).sum())

    def with_labels(self, texts: Sequence[str]) -> list[str]:
        """Texts in the order of the candidates, or of the survivors, with their classes
        (`LabelledText`); each once in a class."""
        if not self.labels:
            return list(dict.fromkeys(texts))
        pairs = zip(texts, self.classes[: len(texts)].tolist(), strict=True)
        return [LabelledText(text, self.labels[number]) for text, number in dict.fromkeys(pairs)]

    def try_models(self) -> None:
        """Vary a few of the first candidates: what fails would fail after the first round."""
        few = self.population[:TRIED]
        varied = self._vary(few, self.classes[: len(few)], seeded(self.seed, "readiness"))
        if self.config.written_by_generator and varied == few:
            logger.warning(
                "none of %d variations that models.generator wrote could be used, and such a text "
                "stays as it is: lower expand.min-words, or raise expand.max-tokens", len(few)
            )  # fmt: skip

    def vary(self, rnd: int, survivors: Sequence[str]) -> list[str]:
        """One variation of each survivor, in the order of the last candidates."""
        classes = self.classes[-len(survivors) :]
        return self._vary(survivors, classes, seeded(self.seed, rnd, "variation"))

    def _vary(self, texts: Sequence[str], classes: Ints, rng: np.random.Generator) -> list[str]:
        """Variations of texts of these classes, each by its class's variation if there is one."""
        if not isinstance(self.variation, Mapping):
            return self.variation.vary(texts, rng)
        found = list(texts)
        for number, label in enumerate(self.labels):
            places = np.flatnonzero(classes == number).tolist()
            if not places:
                continue
            varied = self.variation[label].vary([texts[i] for i in places], rng)
            for place, text in zip(places, varied, strict=True):
                found[place] = text
        return found

    def facts(
        self, released: F64, weights: F64, survivors: Sequence[str], noise_std: float
    ) -> dict[str, Any]:
        """A round's public metrics."""
        return {
            "threshold_votes": self.threshold(noise_std),
            "candidates_alive": int((weights > 0).sum()),
            "survivors": len(self.with_labels(survivors)),
            "seeds": len(self.seeds),
            "released_votes": float(released.sum()),
        }

    def threshold(self, noise_std: float) -> float:
        """H in votes: given in votes (the paper), or in standard deviations of the noise."""
        options = self.config
        return options.threshold * (noise_std if options.threshold_unit == "noise-std" else 1.0)

    def write_seeds(self, folder: RunFolder) -> None:
        """seeds.jsonl: text, its class, the round that found it, and the noisy votes for it in all
        rounds together; most votes first. A text that nobody voted on has none."""
        found, votes = dict[Voted, int](), dict[Voted, float]()
        population = self.first
        for row in folder.checkpoints():
            rnd, state = int(row["round"]), row["state"]
            released = folder.load_release(rnd)
            if released is not None:
                for text, own in zip(self._voted(population), released.tolist(), strict=True):
                    votes[text] = votes.get(text, 0.0) + own
            population = state["population"]
            labels = state.get("seed_labels") or [""] * len(state["seeds"])
            for text in zip(state["seeds"], labels, strict=True):
                found.setdefault(text, rnd)
        seeds = [(str(text), label_of(text)) for text in self.seeds]
        seeds.sort(key=lambda text: -votes.get(text, -math.inf))
        write_jsonl(
            folder.path / SEEDS,
            (
                {"text": text}
                | ({"label": label} if label else {})
                | ({"round": found[text, label]} if (text, label) in found else {})
                | ({"votes": round(votes[text, label], 3)} if (text, label) in votes else {})
                for text, label in seeds
            ),
        )

    def described_rounds(self, folder: RunFolder, domains: Mapping[str, str]) -> dict[str, Any]:
        """The best candidates of the last round with their noisy votes, and where survivors are
        from: post-processing of the releases.

        domains: public text -> its domain. A candidate that is none of these is of the domain of
        the text that it was varied from. shares: of the first candidates, as round 0, and of each
        round's survivors; [] without domains.
        """
        population, number = self.first, len(self.classes) // self.config.population - 1
        origins = [domains.get(text, "") for text in population]
        best, shares = list[dict[str, Any]](), [{"round": 0, "shares": _shares_of(origins)}]
        for row in folder.checkpoints():
            rnd = int(row["round"])
            if (released := folder.load_release(rnd)) is None:
                continue
            best = [
                {"round": rnd, "text": str(population[i]), "votes": round(float(released[i]), 3)}
                for i in np.argsort(-released, kind="stable")[:BEST].tolist()
            ]
            noise_std = float(row["metrics"]["noise_std"])
            weights = self.votes_above_threshold(rnd, released, noise_std)
            kept = self.survivors(rnd, released, weights)
            shares.append({"round": rnd, "shares": _shares_of([origins[i] for i in kept])})
            # As `learn` has them: one variation of each, or each with its variations behind all.
            parents = [*kept, *(i for i in kept for _ in range(number))]
            population = row["state"]["population"]
            origins = [
                domains.get(text, origins[parent])
                for text, parent in zip(population, parents, strict=True)
            ]
        return {"best": best, "shares": shares if any(domains.values()) else []}

    def _voted(self, population: Sequence[str]) -> list[Voted]:
        """Candidates with their classes."""
        names = self.labels or ("",)
        numbers = self.classes.tolist()
        return [(text, names[number]) for text, number in zip(population, numbers, strict=True)]

    def state(self) -> dict[str, Any]:
        classes = {"seed_labels": [label_of(text) for text in self.seeds]} if self.labels else {}
        return {"population": self.population, "seeds": self.seeds, **classes}

    def restore(self, state: dict[str, Any]) -> None:
        self.population = list(state["population"])
        self.seeds = list(state["seeds"])
        if self.labels:
            pairs = zip(self.seeds, state["seed_labels"], strict=True)
            self.seeds = [LabelledText(text, label) for text, label in pairs]


def _shares_of(names: Sequence[str]) -> dict[str, float]:
    """The share of each domain, the largest first; "" is of none."""
    return {name: round(count / len(names), 4) for name, count in Counter(names).most_common()}
