"""Who takes part in a round, and what may be claimed for it against whom.

`full`: every user, in every round. `poisson`: client-side Poisson sampling, each user by a secret
draw of its node. All nodes answer, with their noise; users who are not sampled contribute zeros,
and cost their node the same work as the others: response time must not reveal participation (a
simulation's only node, whose server is trusted with its vector, saves that work). `fixed`: the
server draws that many nodes, without replacement.

Sampling amplifies privacy only against those who do not see who was sampled: never against a user's
own node, and a draw of the server claims nothing, because the server knows it. (For an observer its
size is fixed, so a user's absence puts another one in: neighbours differ by a replacement, at twice
the sensitivity.) Unit: a rate is the probability that one user takes part in one round.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from privsyn_flower.common.arrays import Bools
from privsyn_flower.privacy.accounting.composition import check_rate

SamplerName = Literal["full", "poisson", "fixed"]
AggregationName = Literal["plain", "secure"]


@dataclass(frozen=True)
class Sampler:
    """Draws who takes part in a round; what is accounted is what it draws by.

    rate: of Poisson sampling, and so the rate that may be claimed; 1 for the others. nodes: that
    the server draws for fixed; 0 for the others. Raises ValueError on anything else.
    """

    name: SamplerName = "full"
    rate: float = 1.0
    nodes: int = 0

    def __post_init__(self) -> None:
        check_sampler(self.name, self.rate)
        whole = type(self.nodes) is int and self.nodes >= 0
        if not whole or (self.name == "fixed") != (self.nodes > 0):
            raise ValueError(
                f"nodes = {self.nodes} with sampler = {self.name!r}: 'fixed' draws at least 1, the "
                "others none"
            )


def check_sampler(name: str, rate: float) -> None:
    """Raises ValueError on an unknown sampler, or on a rate that it does not have."""
    if name not in get_args(SamplerName):
        raise ValueError(f"sampler = {name!r} must be one of {get_args(SamplerName)}")
    check_rate("sampling rate", rate)
    if name != "poisson" and rate != 1.0:
        raise ValueError(f"sampling rate = {rate} belongs to sampler = 'poisson', not {name!r}")


EVERYBODY = Sampler()


def poisson_sample(count: int, rate: float) -> Bools:
    """Which of `count` users are sampled, by operating-system randomness: (count,), PRIVATE.

    Each is True with probability rate, rounded down to a multiple of 2^-64: never more often
    than is accounted for. Raises ValueError on a negative count or a rate outside (0, 1].
    """
    if count < 0:
        raise ValueError(f"count = {count} must be at least 0")
    check_rate("rate", rate)
    if rate == 1.0:
        return np.ones(count, dtype=np.bool_)
    words = np.frombuffer(os.urandom(8 * count), dtype="<u8")
    # Scaling by a power of two is exact, so the comparison of integers is too.
    sampled: Bools = words < np.uint64(math.floor(math.ldexp(rate, 64)))
    return sampled
