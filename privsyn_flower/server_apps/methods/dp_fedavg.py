"""DP-FedAvg in a run: rounds with independent noise, of the nodes or of a trusted aggregator."""

from __future__ import annotations

from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.recipe import sampler_of
from privsyn_flower.server_apps.methods.training import Training
from privsyn_flower.strategies.dp_fedavg.strategy import DPFedAvg


class DPFedAvgRecipe(Training):
    """The training, with or without client-side Poisson sampling."""

    @classmethod
    def algorithm(cls, config: RunConfig) -> DPFedAvg:
        return DPFedAvg(config.training, sampler=sampler_of(config), seed=config.seed)


RECIPE = DPFedAvgRecipe
