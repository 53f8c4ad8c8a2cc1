"""DP-FTRL in a run: rounds whose noise a trusted aggregator correlates."""

from __future__ import annotations

from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.training import Training
from privsyn_flower.strategies.dp_ftrl import DPFTRL


class DPFTRLRecipe(Training):
    """The training, whose users take turns."""

    @classmethod
    def algorithm(cls, config: RunConfig) -> DPFTRL:
        training, ftrl = config.training, config.ftrl
        return DPFTRL(
            training.clip_norm,
            mechanism=ftrl.mechanism,
            min_separation=ftrl.min_separation,
            max_participations=ftrl.max_participations,
            schedule=ftrl.schedule,
            buffers=ftrl.buffers,
            bands=ftrl.bands,
            restart_every=ftrl.restart_every,
            completion=ftrl.completion,
            server_optimizer=training.server_optimizer,
            server_learning_rate=training.server_learning_rate,
            server_momentum=training.server_momentum,
            beta_2=training.beta_2,
            tau=training.tau,
            seed=config.seed,
        )


RECIPE = DPFTRLRecipe
