"""DP-FTRL has the tables of every training (`config.training`) and none of its own."""

from privsyn_flower.config.common import TRAINING, MethodEntry

METHODS = (
    MethodEntry(
        "dp-ftrl",
        TRAINING,
        shared=("training", "ftrl", "proximity"),
        order=5,
        title="DP-FTRL (Kairouz et al. 2021)",
        product="Machine learning model",
    ),
)
