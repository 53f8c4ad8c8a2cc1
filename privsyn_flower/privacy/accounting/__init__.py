"""Epsilon from noise and noise from epsilon, who is drawn for a round, and what noise leaves."""

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
