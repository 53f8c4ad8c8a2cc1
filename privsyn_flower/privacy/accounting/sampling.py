"""Who takes part in a round, and what may be claimed for it against whom.

Sampling amplifies privacy only against those who do not see who was sampled. So a sampler
says which rate may enter the accounting, for a named adversary: `server` runs the rounds and
sees all messages, `observer` sees only what is released, `own-node` is the device of the user
(or a colluder on it). Unit: a rate is the probability that one user takes part in one round.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.privacy.accounting.composition import check_rate, sampled_event

SamplerName = Literal["full", "poisson", "fixed"]
Adversary = Literal["server", "observer", "own-node"]
AggregationName = Literal["plain", "secure"]


@dataclass(frozen=True)
class Full:
    """Every user takes part in every round."""

    def rate_against(self, adversary: Adversary, aggregation: AggregationName = "plain") -> float:
        """1.0: nobody is left out, so nothing is amplified."""
        _check(adversary, aggregation)
        return 1.0

    def privacy_event(
        self,
        noise_multiplier: float,
        adversary: Adversary = "server",
        aggregation: AggregationName = "plain",
    ) -> Any:
        """dp_accounting's event of one Gaussian sum, as claimed against the adversary."""
        return sampled_event(noise_multiplier, self.rate_against(adversary, aggregation))

    def sentence(self, aggregation: AggregationName = "plain") -> str:
        """The clause that goes with epsilon."""
        return sampling_sentence("full", 1.0, aggregation)


@dataclass(frozen=True)
class NodePoisson:
    """Each user's node tosses a coin of this rate, secretly; all nodes answer, with their noise.

    Users whose coin fails contribute zeros, and cost their node the same work as the others: else
    the time of an answer would tell the server how the coin fell. The sum's denominator is
    rate * declared users, both public. Raises ValueError unless 0 < rate <= 1.
    """

    rate: float

    def __post_init__(self) -> None:
        check_rate("rate", self.rate)

    def rate_against(self, adversary: Adversary, aggregation: AggregationName = "plain") -> float:
        """The rate, except against the own node, and the server unless it sees only sums."""
        _check(adversary, aggregation)
        hidden = adversary == "observer" or (adversary == "server" and aggregation == "secure")
        return self.rate if hidden else 1.0

    def privacy_event(
        self,
        noise_multiplier: float,
        adversary: Adversary = "server",
        aggregation: AggregationName = "plain",
    ) -> Any:
        """dp_accounting's event of one Gaussian sum, as claimed against the adversary."""
        return sampled_event(noise_multiplier, self.rate_against(adversary, aggregation))

    def sentence(self, aggregation: AggregationName = "plain") -> str:
        """The clause that goes with epsilon."""
        return sampling_sentence("poisson", self.rate, aggregation)


@dataclass(frozen=True)
class FixedSize:
    """The server draws this many users for a round, without replacement.

    Raises ValueError unless size >= 1.
    """

    size: int

    def __post_init__(self) -> None:
        if self.size != int(self.size) or self.size < 1:
            raise ValueError(f"size = {self.size} must be a whole number, at least 1")

    def rate_against(self, adversary: Adversary, aggregation: AggregationName = "plain") -> float:
        """1.0 against everyone: no amplification is claimed.

        The server knows whom it drew. For an observer the size is fixed, so a user's absence
        puts another one in: neighbours differ by a replacement, at twice the sensitivity, and
        what sampling gains that way was measured to be far from the Poisson rate's.
        """
        _check(adversary, aggregation)
        return 1.0

    def privacy_event(
        self,
        noise_multiplier: float,
        adversary: Adversary = "server",
        aggregation: AggregationName = "plain",
    ) -> Any:
        """dp_accounting's event of one Gaussian sum, as claimed against the adversary."""
        return sampled_event(noise_multiplier, self.rate_against(adversary, aggregation))

    def sentence(self, aggregation: AggregationName = "plain") -> str:
        """The clause that goes with epsilon."""
        return sampling_sentence("fixed", 1.0, aggregation)


Sampler = Full | NodePoisson | FixedSize


def parse_sampler(name: str, rate: float = 1.0, size: int = 0) -> Sampler:
    """The sampler of a configuration. rate: for poisson, else 1; size: for fixed, else 0.

    Raises ValueError naming the argument that the sampler does not have, or lacks.
    """
    check_sampler(name, rate)
    if name != "fixed" and size != 0:
        raise ValueError(f"size = {size} belongs to sampler = 'fixed', this one is {name!r}")
    if name == "fixed":
        return FixedSize(size)
    return NodePoisson(rate) if name == "poisson" else Full()


def check_sampler(name: str, rate: float) -> None:
    """Raises ValueError on an unknown sampler, or on a rate that it does not have."""
    if name not in get_args(SamplerName):
        raise ValueError(f"sampler = {name!r} must be one of {get_args(SamplerName)}")
    check_rate("sampling rate", rate)
    if name != "poisson" and rate != 1.0:
        raise ValueError(f"sampling rate = {rate} belongs to sampler = 'poisson', not {name!r}")


def coins(count: int, rate: float) -> NDArray[np.bool_]:
    """`count` independent coins from operating-system randomness: (count,), PRIVATE.

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
    tossed: NDArray[np.bool_] = words < np.uint64(math.floor(math.ldexp(rate, 64)))
    return tossed


def sampling_sentence(
    name: SamplerName, rate: float = 1.0, aggregation: AggregationName = "plain"
) -> str:
    """What is claimed for a sampler, against whom: a clause without a full stop."""
    check_sampler(name, rate)
    if name == "fixed":
        return (
            "the server draws a fixed number of nodes for each round and knows which; no "
            "amplification by sampling is claimed"
        )
    if name == "full" or rate == 1.0:
        return "no amplification by sampling is claimed"
    server = (
        " and against the server, which sees only sums, and answers whose work is the same however "
        "the coins fell"
    )
    return (
        f"each user takes part in a round with probability {rate:g}, by a secret coin of its own "
        "node, and the amplification by this is claimed against those who see only the released "
        f"sums{server if aggregation == 'secure' else ''}, never against a user's own node"
    )


def _check(adversary: str, aggregation: str) -> None:
    if adversary not in get_args(Adversary):
        raise ValueError(f"adversary = {adversary!r} must be one of {get_args(Adversary)}")
    if aggregation not in get_args(AggregationName):
        raise ValueError(
            f"aggregation = {aggregation!r} must be one of {get_args(AggregationName)}"
        )
