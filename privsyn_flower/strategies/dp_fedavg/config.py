"""DP-FedAvg has the tables of every training (`config.training`) and none of its own."""

from privsyn_flower.config.common import TRAINING, MethodEntry

METHODS = (
    MethodEntry(
        "dp-fedavg",
        TRAINING,
        shared=("training", "proximity"),
        order=4,
        title="DP-FedAvg (McMahan et al. 2018)",
        product="Machine learning model",
    ),
)
