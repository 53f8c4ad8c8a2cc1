"""Epsilon from noise and noise from epsilon, who is drawn for a round, and what noise leaves."""

from typing import TYPE_CHECKING

from privsyn_flower.on_demand import on_demand

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

if TYPE_CHECKING:
    from privsyn_flower.privacy.accounting.composition import (
        AccountingError,
        calibrate,
        compose_gaussians,
        composed_epsilon,
        epsilon,
        gaussian_epsilon,
        gaussian_mu,
        most_releases,
        renyi_epsilon,
        tightest,
    )
else:
    __getattr__ = on_demand(__name__, **dict.fromkeys(__all__, "composition"))
