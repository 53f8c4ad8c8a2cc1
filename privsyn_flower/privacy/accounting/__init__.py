"""Epsilon from noise and noise from epsilon, who is drawn for a round, and what noise leaves."""

from privsyn_flower.privacy.accounting.calibration import calibrate, most_releases
from privsyn_flower.privacy.accounting.composition import (
    AccountingError,
    compose_gaussians,
    composed_epsilon,
    epsilon,
    gaussian_epsilon,
    gaussian_mu,
    tightest,
)
from privsyn_flower.privacy.accounting.curve import renyi_epsilon

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
