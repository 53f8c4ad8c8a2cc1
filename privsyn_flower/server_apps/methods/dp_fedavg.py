"""DP-FedAvg in a run: rounds with independent noise, of the nodes or of a trusted aggregator."""

from __future__ import annotations

from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.training import Training
from privsyn_flower.strategies.dp_fedavg import DPFedAvg


class DPFedAvgRecipe(Training):
    """The training, whose users may toss coins."""

    @classmethod
    def algorithm(cls, config: RunConfig) -> DPFedAvg:
        training = config.training
        strategy = DPFedAvg(
            training.clip_norm,
            server_optimizer=training.server_optimizer,
            server_learning_rate=training.server_learning_rate,
            server_momentum=training.server_momentum,
            beta_2=training.beta_2,
            tau=training.tau,
            noise=training.noise,
            adaptive_clipping=training.adaptive_clipping,
            target_quantile=training.target_quantile,
            clip_learning_rate=training.clip_learning_rate,
            sampling_rate=config.sampling_rate,
            cohort_nodes=config.cohort_nodes,
            seed=config.seed,
        )
        strategy.nodes = config.nodes
        return strategy


RECIPE = DPFedAvgRecipe
