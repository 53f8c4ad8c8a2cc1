"""Epsilon from noise and noise from epsilon, who is drawn for a round, and what noise leaves."""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import on_demand
from privsyn_flower.privacy.accounting.composition import (
    AccountingError,
    compose_gaussians,
    composed_epsilon,
    epsilon,
    gaussian_epsilon,
    gaussian_mu,
    tightest,
)

if TYPE_CHECKING:
    from privsyn_flower.privacy.accounting.calibration import calibrate, most_releases
    from privsyn_flower.privacy.accounting.curve import renyi_epsilon
else:  # a device needs none of them
    __getattr__ = on_demand(
        __name__, {"calibration": "calibrate most_releases", "curve": "renyi_epsilon"}
    )

__all__ = [
    "AccountingError",
    "calibrate",
    "compose_gaussians",
    "composed_epsilon",
    "epsilon",
    "gaussian_epsilon",
    "gaussian_mu",
    "most_releases",
    "renyi_epsilon",
    "tightest",
]
