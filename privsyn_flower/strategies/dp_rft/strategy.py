"""DP-RFT: votes for a policy's completions are its rewards (Xu et al. 2026, arXiv 2602.18633).

Only that paper's abstract was at hand, which has nearest-neighbour votes and PPO. Decided here: one
question among all completions of a round, and GRPO (Shao et al. 2024, arXiv 2402.03300, equations 3
and 4), PPO without a value model, on those very completions. Rewards come of released votes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.protocol.question import Query
from privsyn_flower.strategies.dp_rft.config import DpRftConfig
from privsyn_flower.strategies.engine.rounds import NothingLearned
from privsyn_flower.strategies.popri.strategy import Lessons, POPri
from privsyn_flower.strategies.synthesis.preferences import Responses
from privsyn_flower.text.prompts import PromptSource


class DPRFT(POPri):
    """Users vote for the completions nearest to their texts; the policy makes those likelier.

    Parameters
    ----------
    prompts : as POPri's, without classes.
    learning : what votes are worth.
    named : the others of POPri's; trainer: completions with advantages -> adapters
        (`PreferenceTrainer(method="grpo")`).

    `seeds` are the completions with a reward in the last round that had any.
    """

    method = "dp-rft"
    learns = "completions"

    def __init__(
        self,
        prompts: PromptSource | Sequence[str],
        *,
        learning: DpRftConfig | None = None,
        **named: Any,
    ) -> None:
        super().__init__(prompts, **named)
        self.learning = learning or DpRftConfig()

    def ask(self, rnd: int) -> Query:
        """One question about all completions of the round that differ within their prompt."""
        responses = self._responses(rnd)
        if not responses.texts_to_score:
            raise self.nothing(rnd)
        return Query.votes(
            self.embedder.embed(responses.texts_to_score),
            bound=self.config.score_bound,
            samples_cap=self.samples_cap,
            model=self.embedder.fingerprint,
        )

    def lessons(self, responses: Responses, released: F64, noise_std: float) -> Lessons:
        """Every completion that was asked about, with its advantage; prompts whose completions
        have equal rewards teach nothing and are left out."""
        responses.matrix(released)  # as many as were asked
        threshold = self.learning.threshold * noise_std
        rewarded = rewards(released, threshold)
        weights = advantages(rewarded, responses.groups, self.learning.scale)
        asked = zip(responses.prompts, responses.texts, responses.places, strict=True)
        rows = [
            {"prompt": prompt.text, "completion": texts[place]}
            for prompt, texts, places in asked
            for place in places
        ]
        groups = np.repeat(np.arange(len(responses.groups)), responses.groups)
        taught = np.unique(groups[weights != 0])
        metrics: dict[str, Any] = {
            "threshold_votes": threshold,
            "candidates_alive": int((rewarded > 0).sum()),
            "prompts_taught": len(taught),
        }
        kept = np.flatnonzero(np.isin(groups, taught)).tolist()
        texts = responses.texts_to_score
        seeds = list(dict.fromkeys(texts[at] for at in kept if rewarded[at] > 0))
        lessons = [{**rows[at], "advantage": float(weights[at])} for at in kept]
        note = f"{metrics['candidates_alive']} with a reward"
        return Lessons(lessons, len(rows), metrics, seeds, note)

    def nothing(self, rnd: int) -> NothingLearned:
        return NothingLearned(
            f"round {rnd}: no prompt has completions of different reward; lower dp-rft.threshold "
            "or expand.min-words, raise popri.prompts, popri.responses or expand.max-tokens, or "
            "use another models.generator"
        )


def rewards(votes: F64, threshold: float) -> F64:
    """Released votes (m,) -> what each has above the threshold, at least 0 (as private evolution
    keeps candidates)."""
    return np.maximum(votes - threshold, 0.0)


def advantages(rewards: F64, sizes: Sequence[int], scale: Literal["group", "round"]) -> F64:
    """Rewards (m,) of m = sum(sizes) completions, prompt by prompt -> advantages (m,).

    A reward less the mean of its prompt's, over the standard deviation of its prompt's rewards
    ("group"), or of all those differences ("round"); 0 in a prompt of equal rewards.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    counts = np.maximum(np.asarray(sizes), 1)
    centred = rewards - (np.bincount(owner, rewards, len(sizes)) / counts)[owner]
    spread = np.sqrt(np.bincount(owner, centred**2, len(sizes)) / counts)
    equal = spread <= 1e-9 * max(1.0, float(np.abs(rewards).max(initial=0.0)))
    if scale == "round":
        spread = np.full(len(sizes), float(np.sqrt((centred**2).mean())) if len(centred) else 0.0)
    below = np.where(equal, 1.0, spread)[owner]
    found: F64 = np.where(equal[owner], 0.0, centred / below)
    return found
