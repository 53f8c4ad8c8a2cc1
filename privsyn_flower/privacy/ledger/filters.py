"""A ledger's header and its filter: what all charges together may cost, fixed at creation.

Without sampling: the sum of mu^2 = 1/noise_multiplier^2, exact, whatever the noise of each round
depends on (Smith and Thakurta 2022). For a plan whose users toss coins: the number of releases of
one kind. Every release that is charged has at least the plan's noise and at most its rate, so
the plan's own dominates it, and as many of those as the plan has, chosen adaptively in all else,
are (epsilon, delta)-DP by privacy loss distributions (Zhu, Dong, Wang 2022, "Optimal accounting of
differential privacy via characteristic function", Theorem 10).
"""

from __future__ import annotations

import functools
import json
import math
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from privsyn_flower.privacy.accounting.composition import (
    composed_epsilon,
    epsilon,
    gaussian_epsilon,
    gaussian_mu,
    most_releases,
)
from privsyn_flower.privacy.ledger.charges import Charge
from privsyn_flower.privacy.ledger.journal import LedgerError, Row
from privsyn_flower.privacy.noise.integer_noise import allowed_distance, gaussian_delta

VERSION = 4  # up to version 3 the nodes' noise was Skellam, accounted by Renyi bounds
UNIT = "user"
ADJACENCY = "zero-out"

MU_SQUARED = "sum of mu^2 (Smith and Thakurta 2022)"
PLAN = "releases of a fixed plan (PLD)"

# Rounding of sums of costs, kept from a budget of mu^2. Calibrated noise has 1e-9 of headroom.
SLACK = 1e-10


class Plan(NamedTuple):
    """Releases with this much noise or more, for users who take part at this rate or less."""

    noise_multiplier: float
    sampling_rate: float
    releases: int

    def covers(self, noise_multiplier: float, sampling_rate: float) -> bool:
        """Whether the plan's own release is at least as costly as one like this."""
        enough = noise_multiplier >= self.noise_multiplier * (1 - SLACK)
        return enough and sampling_rate <= self.sampling_rate


@dataclass(frozen=True)
class Header:
    """The ledger's first row; fixed for its life.

    budget: of mu^2, or releases; None without a total. noise_multiplier, sampling_rate: of a
    plan's releases, None in a ledger of mu^2. id: drawn when the ledger is made, so that another
    one in its place is noticed.
    """

    population: str
    total_epsilon: float | None
    total_delta: float | None
    simulation: bool
    budget: float | None
    unit: str = UNIT
    adjacency: str = ADJACENCY
    filter: str = MU_SQUARED
    version: int = VERSION
    noise_multiplier: float | None = None
    sampling_rate: float | None = None
    id: str = ""

    @property
    def plan(self) -> Plan | None:
        """What a ledger of a plan was made for."""
        if self.noise_multiplier is None or self.sampling_rate is None:
            return None
        return Plan(self.noise_multiplier, self.sampling_rate, int(self.budget or 0))

    @property
    def total_variation(self) -> float:
        """What all charges together may have; its price in delta is kept from the start."""
        return math.inf if self.total_delta is None else allowed_distance(self.total_delta)

    def cost(self, charge: Charge) -> float:
        """What one charge takes from the budget; inf when the plan does not cover it."""
        if self.plan is None:
            return charge.mu_squared
        covered = self.plan.covers(charge.noise_multiplier, charge.sampling_rate)
        return 1.0 if covered else math.inf

    def spent(self, charges: list[Charge]) -> float:
        """What reserved and committed charges have taken from the budget."""
        return math.fsum(self.cost(charge) for charge in charges if charge.state != "void")

    def epsilon_of(self, cost: float) -> float:
        """Epsilon, at the total delta, of a sum of costs. Raises ValueError without a total."""
        if self.total_epsilon is None or self.total_delta is None:
            raise ValueError(f"total_epsilon = {self.total_epsilon}: the ledger has no total")
        delta = gaussian_delta(self.total_delta)
        if math.isinf(cost):
            return math.inf
        if self.plan is None:
            return gaussian_epsilon(1 / math.sqrt(cost) if cost > 0 else math.inf, delta)
        z, rate, _ = self.plan
        return epsilon(z, round(cost), delta, sampling_rate=rate)


@functools.lru_cache(maxsize=16)  # it takes seconds, and several parts ask
def sampled_plan(
    noise_multiplier: float,
    sampling_rate: float,
    releases: int,
    epsilon: float,
    delta: float,
    total_epsilon: float = 0.0,
) -> Plan | None:
    """What the ledger of a run with sampling is made for; None for one without.

    releases: of the run, which cost at most epsilon. total_epsilon: of the ledger, where it is
    larger: then as many releases like these as it has room for.
    """
    if sampling_rate == 1.0:
        return None
    if total_epsilon > epsilon:
        releases = most_releases(
            noise_multiplier, sampling_rate, total_epsilon, gaussian_delta(delta)
        )
    return Plan(noise_multiplier, sampling_rate, releases)


def check_header(population: str, total_epsilon: float | None, total_delta: float | None) -> None:
    """Raises ValueError on a nameless population or half a total."""
    if not population:
        raise ValueError("population = '': a ledger needs the declared population's name")
    if (total_epsilon is None) != (total_delta is None):
        raise ValueError(
            f"total_epsilon = {total_epsilon} and total_delta = {total_delta}: give both or neither"
        )


def new_header(
    population: str,
    total_epsilon: float | None,
    total_delta: float | None,
    simulation: bool,
    plan: Plan | None = None,
) -> Header:
    """The header of a new ledger, with its filter and budget.

    Raises ValueError for a plan without a total, or beyond it.
    """
    fixed: dict[str, Any] = {"id": uuid.uuid4().hex, "budget": None}
    if total_epsilon is not None and total_delta is not None:
        mu = gaussian_mu(total_epsilon, gaussian_delta(total_delta))
        fixed["budget"] = mu * mu / (1 + SLACK)
    if plan is not None:
        if total_epsilon is None or total_delta is None:
            raise ValueError(f"{plan} needs total_epsilon and total_delta")
        z, rate, releases = plan
        needed = epsilon(z, releases, gaussian_delta(total_delta), sampling_rate=rate)
        if needed > total_epsilon:
            raise ValueError(f"{plan} costs epsilon = {needed}, the total is {total_epsilon}")
        fixed |= {"budget": float(releases), "filter": PLAN}
        fixed |= {"noise_multiplier": z, "sampling_rate": rate}
    return Header(population, total_epsilon, total_delta, simulation, **fixed)


def parse_header(row: Row, path: Path) -> Header:
    """The header in a file's first row. Raises LedgerError when it is of no known version."""
    values: dict[str, Any] = {name: value for name, value in row.items() if name != "kind"}
    if row.get("kind") == "ledger" and values.get("version") in range(1, VERSION):
        total = f"{values.get('total_epsilon')} at delta = {values.get('total_delta')}"
        raise LedgerError(
            f"{path} was written by an earlier version, which kept nothing of delta for the nodes' "
            "integers and accounted for them by Renyi bounds: no exact account can go on from "
            "there; finish its runs with that version; "
            f"or begin another ledger (key ledger) and let both share the total epsilon = {total} "
            "(key ledger-epsilon), of which the old one may have spent all"
        )
    if row.get("kind") != "ledger" or values.get("version") != VERSION:
        raise LedgerError(
            f"{path} does not begin with a ledger header of version {VERSION} (the copy in a "
            f"run folder is no ledger): {json.dumps(row)[:80]}"
        )
    try:
        header = Header(**values)
    except TypeError as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from None
    if header.filter not in (MU_SQUARED, PLAN):
        raise LedgerError(f"{path} has a filter that this version does not know: {header.filter}")
    if (header.total_epsilon is None) != (header.budget is None):
        raise LedgerError(f"{path} has an unreadable header: a total without its budget")
    if (header.filter == PLAN) != (header.plan is not None):
        raise LedgerError(f"{path} has an unreadable header: {PLAN} without its noise or rate")
    return header


def charged_epsilon(charges: list[Charge], delta: float) -> float:
    """Epsilon of reserved and committed charges, for plans fixed in advance.

    inf when their integers were so coarse that nothing can be said at this delta.
    """
    counted = [charge for charge in charges if charge.state != "void"]
    found = composed_epsilon(
        Counter((charge.noise_multiplier, charge.sampling_rate) for charge in counted),
        gaussian_delta(delta),
    )
    distance = math.fsum(charge.total_variation for charge in counted)
    return found if distance <= allowed_distance(delta) * (1 + SLACK) else math.inf


def why_refused(header: Header, charges: list[Charge], wanted: Charge) -> str | None:
    """Why the filter does not take one more charge; None when it does."""
    if header.budget is None or header.total_epsilon is None:
        return None
    counted = [charge.total_variation for charge in charges if charge.state != "void"]
    distance = math.fsum([*counted, wanted.total_variation])
    if distance > header.total_variation * (1 + SLACK):
        return (
            f"charges whose integer noise is {distance:.3g} from Gaussian noise together (total "
            f"variation) are more than the {header.total_variation:.3g} that the ledger's total "
            "leaves room for: raise delta, or use another ledger (key ledger)"
        )
    if refused := not_covered(header, wanted.noise_multiplier, wanted.sampling_rate):
        return refused
    spent, cost = header.spent(charges), header.cost(wanted)
    if spent + cost <= header.budget * (1 + SLACK):
        return None
    return (
        f"population {header.population!r} has spent epsilon = {header.epsilon_of(spent):.6g} of "
        f"{header.total_epsilon:.6g} (delta = {header.total_delta:.3g}); a round at noise "
        f"multiplier {wanted.noise_multiplier:.6g} would make it "
        f"{header.epsilon_of(spent + cost):.6g}: "
        "raise noise-multiplier, lower rounds or spare-rounds, or use another ledger (key ledger)"
    )


def not_covered(header: Header, noise_multiplier: float, sampling_rate: float) -> str | None:
    """Why the ledger is not for releases like this; None when it is."""
    plan = header.plan
    if plan is None or plan.covers(noise_multiplier, sampling_rate):
        return None
    return (
        f"a release at noise multiplier {noise_multiplier:.6g}, in which a user takes part with "
        f"probability {sampling_rate:g}, is not covered by the plan that the ledger was made for "
        f"(at least {plan.noise_multiplier:.6g}, at most {plan.sampling_rate:g}): raise "
        "noise-multiplier, lower sampling-rate, or use another ledger (key ledger)"
    )
