"""A population of texts that users vote on: what PrE-Text and private evolution share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from privsyn_flower.arrays import F64
from privsyn_flower.config import PreTextConfig
from privsyn_flower.progress import Progress, silent
from privsyn_flower.protocol.question import Query
from privsyn_flower.randomness import seeded
from privsyn_flower.strategies.engine.rounds import NothingSurvived
from privsyn_flower.strategies.synthesis.start import SynthesisStrategy
from privsyn_flower.text.protocols import Embedder, Infiller

C = TypeVar("C", bound=PreTextConfig)


class Evolution(SynthesisStrategy, Generic[C]):
    """Users vote for the nearest candidates. Who survives, and what becomes of them, is `learn`'s.

    The parameters are those of PrEText; without `config` there are `defaults`.
    """

    def __init__(
        self,
        initial: Sequence[str],
        *,
        embedder: Embedder,
        infiller: Infiller,
        rounds: int,
        config: C | None = None,
        samples_cap: int = 8,
        seed: int = 0,
        progress: Progress = silent,
    ) -> None:
        self.config: C = config or self.defaults()
        self.rounds = rounds
        self.embedder = embedder
        self.infiller = infiller
        self.samples_cap = samples_cap
        self.seed = seed
        self.progress = progress
        distinct, wanted = list(dict.fromkeys(initial)), self.config.candidates
        if len(distinct) < wanted:
            raise ValueError(
                f"{len(distinct)} distinct public texts cannot start a population of "
                f"{wanted}: lower {self.config.table}.population or raise data.public-pool"
            )
        first = seeded(seed, "initial").choice(len(distinct), size=wanted, replace=False)
        self.population = [distinct[i] for i in first]
        self.seeds: list[str] = []

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
            lookahead = self.infiller.vary(repeated, seeded(self.seed, rnd, "lookahead"))
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
        )

    def surviving(self, rnd: int, released: F64, noise_std: float) -> F64:
        """Released votes (m,) -> votes above H, (m,), at least 0 (PrE-Text, Algorithm 2, line 17).

        Raises NothingSurvived when no candidate has more than H.
        """
        threshold = self.threshold(noise_std)
        weights = np.maximum(released - threshold, 0.0)
        if not weights.any():
            raise NothingSurvived(rnd, threshold, self.config.table)
        return weights

    def drawn(self, rnd: int, weights: F64) -> list[str]:
        """N_syn candidates by votes, with replacement (PrE-Text, Algorithm 1, lines 7 and 8)."""
        rng = seeded(self.seed, rnd, "survivors")
        size = self.config.population
        places = rng.choice(len(weights), size=size, p=weights / weights.sum())
        return [self.population[i] for i in places]

    def vary(self, rnd: int, survivors: Sequence[str]) -> list[str]:
        """One variation of each survivor."""
        return self.infiller.vary(survivors, seeded(self.seed, rnd, "variation"))

    def facts(
        self, released: F64, weights: F64, survivors: Sequence[str], noise_std: float
    ) -> dict[str, Any]:
        """A round's public metrics."""
        return {
            "threshold_votes": self.threshold(noise_std),
            "candidates_alive": int((weights > 0).sum()),
            "survivors": len(set(survivors)),
            "seeds": len(self.seeds),
            "released_votes": float(released.sum()),
        }

    def threshold(self, noise_std: float) -> float:
        """H in votes: given in votes (the paper), or in standard deviations of the noise."""
        options = self.config
        return options.threshold * (noise_std if options.threshold_unit == "noise-std" else 1.0)

    def state(self) -> dict[str, Any]:
        return {"population": self.population, "seeds": self.seeds}

    def restore(self, state: dict[str, Any]) -> None:
        self.population = list(state["population"])
        self.seeds = list(state["seeds"])
