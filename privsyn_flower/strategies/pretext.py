"""PrE-Text: private evolution of texts (Hou et al. 2024, arXiv 2406.02958, Algorithms 1, 2)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from privsyn_flower.arrays import F64
from privsyn_flower.config import PreTextConfig
from privsyn_flower.progress import Progress, silent
from privsyn_flower.protocol.question import Query
from privsyn_flower.randomness import seeded
from privsyn_flower.strategies.engine.rounds import NothingSurvived
from privsyn_flower.strategies.synthesis.start import SynthesisStrategy
from privsyn_flower.text.protocols import Embedder, Infiller

logger = logging.getLogger("privsyn_flower")


class PrEText(SynthesisStrategy):
    """Users vote for the nearest candidates; the popular survive and are varied.

    Parameters
    ----------
    initial : public texts to draw the first population S_1 from.
    embedder : public text -> unit rows; users must hold the same model (its fingerprint).
    infiller : Variation: texts -> varied texts.
    rounds : T.
    config : population (N_syn), lookahead (K), clip, threshold (H), ...
    samples_cap : B, the most samples of one user that vote.
    seed : choices on the server; never noise.
    """

    def __init__(
        self,
        initial: Sequence[str],
        *,
        embedder: Embedder,
        infiller: Infiller,
        rounds: int,
        config: PreTextConfig | None = None,
        samples_cap: int = 8,
        seed: int = 0,
        progress: Progress = silent,
    ) -> None:
        self.config = config or PreTextConfig()
        self.rounds = rounds
        self.embedder = embedder
        self.infiller = infiller
        self.samples_cap = samples_cap
        self.seed = seed
        self.progress = progress
        distinct = list(dict.fromkeys(initial))
        if len(distinct) < self.config.population:
            raise ValueError(
                f"{len(distinct)} distinct public texts cannot start a population of "
                f"{self.config.population}: lower pretext.population or raise data.public-pool"
            )
        first = seeded(seed, "initial").choice(
            len(distinct), size=self.config.population, replace=False
        )
        self.population = [distinct[i] for i in first]
        self.seeds: list[str] = []

    def ask(self, rnd: int) -> Query:
        """Candidates as the mean embedding of K variations each (section 3, Lookahead)."""
        copies = self.config.lookahead
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
            bound=self.config.vote_bound,
            clip=self.config.clip,
            samples_cap=self.samples_cap,
            neighbors=self.config.neighbors,
            metric=self.config.metric,
            model=self.embedder.fingerprint,
        )

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """votes (m,): noisy and public. Algorithm 1, lines 6-9; Algorithm 2, line 17."""
        threshold = self.threshold(noise_std)
        weights = np.maximum(released - threshold, 0.0)
        if not weights.any():
            raise NothingSurvived(rnd, threshold)
        rng = seeded(self.seed, rnd, "survivors")
        drawn = rng.choice(len(weights), size=self.config.population, p=weights / weights.sum())
        survivors = [self.population[i] for i in drawn]
        # Line 11: the seed set is the union of all rounds' distinct survivors.
        self.seeds = list(dict.fromkeys([*self.seeds, *survivors]))
        if rnd < self.rounds:
            self.population = self.infiller.vary(survivors, seeded(self.seed, rnd, "variation"))
        return {
            "threshold_votes": threshold,
            "candidates_alive": int((weights > 0).sum()),
            "survivors": len(set(survivors)),
            "seeds": len(self.seeds),
            "released_votes": float(released.sum()),
        }

    def threshold(self, noise_std: float) -> float:
        """H in votes: given in votes (the paper), or in standard deviations of the noise."""
        unit: Literal["noise-std", "votes"] = self.config.threshold_unit
        return self.config.threshold * (noise_std if unit == "noise-std" else 1.0)

    def state(self) -> dict[str, Any]:
        return {"population": self.population, "seeds": self.seeds}

    def restore(self, state: dict[str, Any]) -> None:
        self.population = list(state["population"])
        self.seeds = list(state["seeds"])
