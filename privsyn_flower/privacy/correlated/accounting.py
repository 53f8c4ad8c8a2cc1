"""Epsilon of correlated noise: the whole run is one Gaussian release.

What is released is a function of C x + z, z with standard deviation `z` per unit of clip norm, so
its privacy is that of one Gaussian of multiplier z / sensitivity(C), adaptively chosen users'
vectors included (Denisov et al. 2022, arXiv 2202.08312, Theorem 2.1; for trees, whose nodes have
noise of their own, Kairouz et al. 2021). A run that is stopped has paid for a prefix: the same
with `cumulative_sensitivity`. Adjacency is zero-out.
"""

from __future__ import annotations

from privsyn_flower.privacy.accounting.composition import calibrate, gaussian_epsilon
from privsyn_flower.privacy.correlated.factorization import Factorization
from privsyn_flower.privacy.correlated.participation import Participation


def calibrate_correlated(
    epsilon: float, delta: float, factorization: Factorization, participation: Participation
) -> float:
    """The standard deviation of z, per unit of clip norm, whose run costs at most `epsilon`.

    Within 1e-9 of the smallest and never below it. Raises ValueError as `calibrate` does.
    """
    return factorization.sensitivity(participation) * calibrate(epsilon, 1, delta)


def epsilon_correlated(
    z: float, delta: float, factorization: Factorization, participation: Participation
) -> float:
    """Exact epsilon of a whole run. z: standard deviation of z per unit of clip norm."""
    return gaussian_epsilon(z / factorization.sensitivity(participation), delta)
