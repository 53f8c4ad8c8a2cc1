"""The release gate: the only place where a private sum becomes a public array.

The order is the guarantee. The charge is on disk before the query is sent (the caller reserves
it); here the sum is checked and stored (fsynced), and only then is the charge committed and the
array handed out. A crash before the store leaves a charge that counts and no release; a crash
after it a stored release, which is read again and never asked for again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.privacy.ledger.journal import LedgerError

if TYPE_CHECKING:  # a device imports this package, and keeps no ledger
    from privsyn_flower.privacy.ledger.ledger import Ledger


class ReleaseRefused(LedgerError):
    """The sum does not carry the noise that its charge is for; nothing was released."""


class TooFewSurvivors(ReleaseRefused):
    """The nodes that answered do not carry the guaranteed noise."""


@dataclass(frozen=True)
class NoisySum:
    """A query's sum with the noise on it, and what vouches for that noise.

    vector: (d,) float64, PRIVATE until released (kept out of repr, so out of logs).
    bound: L2 norm of one user's vector. noise_std: guaranteed standard deviation of the noise
    at honest weight `min_weight`; of noise that is correlated across rounds, that of independent
    noise with the same cost. weight: of the nodes that answered, in users. colluding: weight
    assumed to know and subtract its own noise. min_weight: W_min, in users.
    """

    vector: F64 = field(repr=False)
    bound: float
    noise_std: float
    weight: float
    colluding: float
    min_weight: float


def release(
    summed: NoisySum,
    *,
    ledger: Ledger,
    charge_id: str,
    store: Callable[[F64], None],
) -> F64:
    """Release a noisy sum against its reserved charge; returns the array, public from here.

    store: writes the array to disk and fsyncs before it returns. The array is neither clipped
    nor rounded, and read-only. Raises TooFewSurvivors or ReleaseRefused with the charge still
    reserved and nothing stored; whatever `store` raises also leaves the charge reserved.
    Source: Balle and Wang 2018 for the Gaussian mechanism; the noise share per unit of weight
    is sigma^2 / W_min, so honest survivors of weight W_min carry sigma^2.
    """
    _check_sum(summed)
    charge = ledger.charge(charge_id)
    if charge.state != "reserved":
        raise ReleaseRefused(
            f"charge {charge_id} is {charge.state}: only a reserved charge pays for a release"
        )
    multiplier = summed.noise_std / summed.bound
    if not math.isclose(multiplier, charge.noise_multiplier, rel_tol=1e-12, abs_tol=0.0):
        raise ReleaseRefused(
            f"noise_std / bound = {summed.noise_std} / {summed.bound} = {multiplier} differs from "
            f"the noise multiplier {charge.noise_multiplier} of charge {charge_id}"
        )
    check_weight(summed.weight, summed.colluding, summed.min_weight)
    released = np.array(summed.vector, dtype=np.float64)
    released.flags.writeable = False
    store(released)
    ledger.commit(charge_id)
    return released


def check_weight(weight: float, colluding: float, min_weight: float) -> None:
    """Raise TooFewSurvivors unless the nodes that answered reach W_min without colluders."""
    honest = weight - colluding
    if not honest >= min_weight:
        raise TooFewSurvivors(
            f"nodes of weight {weight} answered, {colluding} of it assumed colluding: {honest} "
            f"honest is below W_min = {min_weight} (key min-surviving-weight), so the noise would "
            "not suffice and nothing is released"
        )


def _check_sum(summed: NoisySum) -> None:
    for name in ("bound", "noise_std", "min_weight"):
        value = getattr(summed, name)
        if not 0 < value < math.inf:
            raise ReleaseRefused(f"{name} = {value} must be finite and above 0")
    for name in ("weight", "colluding"):  # nobody may have answered: weight 0 is too few, not odd
        value = getattr(summed, name)
        if not 0 <= value < math.inf:
            raise ReleaseRefused(f"{name} = {value} must be finite and at least 0")
    vector = summed.vector
    if vector.ndim != 1 or vector.size == 0 or vector.dtype != np.float64:
        raise ReleaseRefused(
            f"the sum has shape {vector.shape} and type {vector.dtype}, expected (d,) float64"
        )
    if not np.isfinite(vector).all():
        raise ReleaseRefused("the sum has entries that are not finite: a node broke the protocol")
