"""PrE-Text: private evolution of texts (Hou et al. 2024, arXiv 2406.02958, Algorithms 1, 2)."""

from __future__ import annotations

from typing import Any

from privsyn_flower.common.arrays import F64
from privsyn_flower.data import label_of
from privsyn_flower.strategies.pretext.config import PreTextConfig
from privsyn_flower.strategies.synthesis.evolution import Evolution


class PrEText(Evolution[PreTextConfig]):
    """Users vote for the nearest candidates; the popular survive and are varied.

    Parameters
    ----------
    initial : public texts to draw the first population S_1 from; or class -> texts, and then
        users' texts vote within their classes.
    embedder : public text -> unit rows; users must hold the same model (its fingerprint).
    variation : texts -> varied texts; or class -> the variation of its texts.
    rounds : T.
    config : population (N_syn), lookahead (K), clip, threshold (H), ...
    samples_cap : B, the most samples of one user that vote.
    seed : choices on the server; never noise.
    """

    method = "pretext"

    @classmethod
    def defaults(cls) -> PreTextConfig:
        return PreTextConfig()

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """released (m,): noisy votes, public. Algorithm 1, lines 6-9; Algorithm 2, line 17."""
        weights = self.votes_above_threshold(rnd, released, noise_std)
        survivors = [self.population[i] for i in self.survivors(rnd, released, weights)]
        # Line 11: the seed set is the union of all rounds' distinct survivors.
        known = {(text, label_of(text)) for text in self.seeds}
        new = self.with_labels(survivors)
        new = [text for text in new if (text, label_of(text)) not in known]
        self.seeds = [*self.seeds, *new]
        if rnd < self.rounds:
            self.population = self.vary(rnd, survivors)
        return self.facts(released, weights, survivors, noise_std)
