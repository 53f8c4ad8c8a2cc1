"""DP-FTRL in a run: rounds whose noise is correlated."""

from __future__ import annotations

from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.training import Training
from privsyn_flower.strategies.dp_ftrl.strategy import DPFTRL


class DPFTRLRecipe(Training):
    """The training, whose users take turns."""

    @classmethod
    def algorithm(cls, config: RunConfig) -> DPFTRL:
        return DPFTRL(config.training, config.ftrl, seed=config.seed)


RECIPE = DPFTRLRecipe
