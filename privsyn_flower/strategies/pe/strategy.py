"""Private evolution: PE (Lin et al. 2024, arXiv 2305.15560, Algorithm 1), and Aug-PE for text
(Xie et al. 2024, arXiv 2403.01749, Algorithm 1)."""

from __future__ import annotations

from typing import Any

from privsyn_flower.common.arrays import F64
from privsyn_flower.strategies.pe.config import PeConfig
from privsyn_flower.strategies.synthesis.evolution import Evolution


class PrivateEvolution(Evolution[PeConfig]):
    """Users vote for the nearest candidates; the last generation is the result.

    PrE-Text keeps the survivors of all rounds as seeds of more text. Here a generation replaces
    the one before it, and `seeds` are the texts of the last: with copies L = 1 (PE) the varied
    survivors, with L > 1 (Aug-PE) the survivors themselves, distinct and in order of their votes
    when they are chosen by rank: with classes in order of class, then of votes.

    Parameters
    ----------
    initial : texts to draw the first L x N_syn candidates from, public ones or a model's; or
        class -> texts, and then users' texts vote within their classes.
    embedder : public text -> unit rows; users must hold the same model (its fingerprint).
    variation : texts -> varied texts; or class -> the variation of its texts.
    rounds : T.
    config : population (N_syn), copies (L), selection, lookahead (K), clip, threshold (H), ...
    samples_cap : the most samples of one user that vote.
    seed : choices on the server; never noise.
    """

    method = "pe"

    @classmethod
    def defaults(cls) -> PeConfig:
        return PeConfig()

    def survivors(self, rnd: int, released: F64, weights: F64) -> list[int]:
        """By rank, or as PrE-Text draws them."""
        if self.config.selection == "rank":
            return self.best(released)
        return super().survivors(rnd, released, weights)

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """votes (m,): noisy and public. Survivors by votes or by rank, then their variations."""
        weights = self.votes_above_threshold(rnd, released, noise_std)
        survivors = [self.population[i] for i in self.survivors(rnd, released, weights)]
        if self.config.copies == 1:
            # PE: the variations are the next generation, after the last round the result.
            self.population = self.vary(rnd, survivors)
            self.seeds = self.with_labels(self.population)
        else:
            # Aug-PE: the survivors stay, each with L - 1 variations beside it.
            self.seeds = self.with_labels(survivors)
            if rnd < self.rounds:
                more = [text for text in survivors for _ in range(self.config.copies - 1)]
                self.population = [*survivors, *self.vary(rnd, more)]
        return self.facts(released, weights, survivors, noise_std)
