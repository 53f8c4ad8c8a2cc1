"""DP-RFT in a run: POPri's, but for its question and its training."""

from __future__ import annotations

from typing import Any

from privsyn_flower.app.benchmark.feedback import Feedback, vote_shares
from privsyn_flower.app.benchmark.private import Private
from privsyn_flower.common.arrays import F32
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.popri import POPriRecipe
from privsyn_flower.strategies.dp_rft.config import DpRftConfig
from privsyn_flower.strategies.dp_rft.strategy import DPRFT
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.strategies.popri.strategy import POPri


class DPRFTRecipe(POPriRecipe):
    """Votes in the place of scores, GRPO in the place of DPO."""

    noise = "noise_votes"

    @classmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        return "votes", {"bound": config[PopriConfig].score_bound}

    @classmethod
    def lessons(cls, config: RunConfig) -> int:
        """All completions, of which a pair has two."""
        return -(-cls.length(config) // 2)

    def algorithm(self, **arguments: Any) -> POPri:
        learning = self.config[DpRftConfig]
        trainer = self.trainer("grpo", clip=learning.clip)
        return DPRFT(**arguments, trainer=trainer, learning=learning)

    def feedback(self, strategy: POPri, private: Private, held_out: F32) -> Feedback:
        """Which share of the true votes the rewarded completions hold."""
        shares, completions = vote_shares(self.folder, private)
        return {"true_votes": shares}, completions


RECIPE = DPRFTRecipe
