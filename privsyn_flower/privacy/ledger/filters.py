"""A ledger's header and its filter: what all charges together may cost, fixed at creation.

Without sampling: the sum of mu^2 = 1/noise_multiplier^2, up to that of one Gaussian with the
total's (epsilon, delta'), whatever the noise of each round depends on (Smith and Thakurta 2022,
arXiv 2210.17520, "Fully adaptive composition for Gaussian differential privacy"). With Poisson
sampling: the number of releases of each kind in a plan. Every release that is charged takes the
place of one of the plan's, which has at most its noise and at least its rate, and so dominates it;
and the plan's own, chosen adaptively in all else, are (epsilon, delta')-DP together by privacy loss
distributions (Zhu, Dong, Wang 2022, arXiv 2106.08567, "Optimal accounting of differential privacy
via characteristic function", Theorem 10), in whatever order: those that are left after the first
are dominated by the same pair of distributions. A thousandth of delta, delta - delta', is kept for
the nodes' integers (`integer_noise`).
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
    compose_gaussians,
    composed_epsilon,
    gaussian_epsilon,
    gaussian_mu,
)
from privsyn_flower.privacy.ledger.journal import Charge, LedgerError, Row
from privsyn_flower.privacy.noise.integer_noise import allowed_distance, gaussian_delta
from privsyn_flower.privacy.wording import at_most

VERSION = 4
UNIT = "user"
ADJACENCY = "zero-out"

MU_SQUARED = "sum of mu^2 (Smith and Thakurta 2022)"
PLAN = "releases of a fixed plan (PLD)"

# Rounding of sums of costs, kept from a budget of mu^2. Calibrated noise has 1e-9 of headroom.
SLACK = 1e-10
ROUNDING = 1e-6  # relative difference of a header's numbers that other versions of libraries make


class Kind(NamedTuple):
    """Releases with this much noise or more, for users who take part at this rate or less."""

    noise_multiplier: float
    sampling_rate: float
    releases: int

    def covers(self, noise_multiplier: float, sampling_rate: float) -> bool:
        """Whether a release of this kind is at least as costly as one like that."""
        enough = noise_multiplier >= self.noise_multiplier * (1 - SLACK)
        return enough and sampling_rate <= self.sampling_rate


Plan = tuple[Kind, ...]


@dataclass(frozen=True)
class Header:
    """The ledger's first row; fixed for its life.

    budget: of mu^2, or releases of all kinds; None without a total. noise_multiplier,
    sampling_rate: of the first kind of a plan, None in a ledger of mu^2; beside: the plan's other
    kinds. id: drawn when the ledger is made, so that another one in its place is noticed.
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
    beside: Plan = ()
    id: str = ""

    @property
    def plan(self) -> Plan | None:
        """What a ledger of a plan was made for."""
        if self.noise_multiplier is None or self.sampling_rate is None:
            return None
        first = int(self.budget or 0) - sum(kind.releases for kind in self.beside)
        return (Kind(self.noise_multiplier, self.sampling_rate, first), *self.beside)

    @property
    def total_variation(self) -> float:
        """What all charges together may have; its price in delta is kept from the start."""
        return math.inf if self.total_delta is None else allowed_distance(self.total_delta)

    def epsilon_of(self, charges: list[Charge]) -> float:
        """Epsilon, at the total delta, of what charges take from the budget; inf for those of no
        place in a plan. Raises ValueError without a total."""
        if self.total_epsilon is None or self.total_delta is None:
            raise ValueError(f"total_epsilon = {self.total_epsilon}: the ledger has no total")
        delta, plan = gaussian_delta(self.total_delta), self.plan
        if plan is None:
            noise = [charge.noise_multiplier for charge in of_one_user(charges)]
            return gaussian_epsilon(compose_gaussians(noise), delta)
        used = places(plan, charges)
        if used is None:
            return math.inf
        events = Counter[tuple[float, float]]()
        for (z, rate, _), count in zip(plan, used, strict=True):
            events[(z, rate)] += count
        return composed_epsilon(events, delta)


def of_one_user(charges: list[Charge]) -> list[Charge]:
    """The charges, without void ones, that cost one user most: of the groups of a run, in one of
    which every user is, those of the group that costs most by mu^2; of others all."""
    counted = [charge for charge in charges if charge.state != "void"]
    costs, costliest = dict[str, float](), dict[str, str]()
    for charge in (one for one in counted if one.group):
        costs[charge.group] = costs.get(charge.group, 0.0) + charge.mu_squared
    for group in sorted(costs, key=costs.__getitem__):
        costliest[group.partition("/")[0]] = group
    return [c for c in counted if not c.group or costliest[c.group.partition("/")[0]] == c.group]


def places(plan: Plan, charges: list[Charge]) -> list[int] | None:
    """How many releases of each kind the charges take; None when one finds no place.

    A charge takes the place of its like, or the first that covers it, in the order of charging.
    """
    used = [0] * len(plan)
    for charge in charges:
        if charge.state == "void":
            continue
        noise = (charge.noise_multiplier, charge.sampling_rate)
        free = [at for at, kind in enumerate(plan) if used[at] < kind.releases]
        fits = [at for at in free if plan[at].covers(*noise)]
        if not fits:
            return None
        like = [at for at in fits if Kind(*noise, 0).covers(*plan[at][:2])]
        used[(like or fits)[0]] += 1
    return used


def fits(header: Header, charges: list[Charge]) -> bool:
    """Whether the total holds all of these charges together; True without a total."""
    if header.budget is None:
        return True
    distance = math.fsum(charge.total_variation for charge in charges if charge.state != "void")
    if distance > header.total_variation * (1 + SLACK):
        return False
    plan = header.plan
    if plan is not None:
        return places(plan, charges) is not None
    spent = math.fsum(charge.mu_squared for charge in of_one_user(charges))
    return spent <= header.budget * (1 + SLACK)


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
        fixed["budget"] = budget_of_mu_squared(total_epsilon, total_delta)
    if plan is not None:
        if total_epsilon is None or total_delta is None:
            raise ValueError(f"{plan} needs total_epsilon and total_delta")
        for kind in plan:
            if kind.releases < 1:
                raise ValueError(f"releases = {kind.releases} of {plan}: at least 1 of each kind")
        needed = plan_epsilon(plan, total_delta)
        if needed > total_epsilon:
            raise ValueError(f"{plan} costs epsilon = {needed}, the total is {total_epsilon}")
        first, *others = plan
        fixed |= {"budget": float(sum(kind.releases for kind in plan)), "filter": PLAN}
        fixed |= {"noise_multiplier": first.noise_multiplier, "beside": tuple(others)}
        fixed |= {"sampling_rate": first.sampling_rate}
    return Header(population, total_epsilon, total_delta, simulation, **fixed)


@functools.lru_cache(maxsize=16)  # every operation on a ledger reads its header
def budget_of_mu_squared(total_epsilon: float, total_delta: float) -> float:
    """The sum of mu^2 that a total allows. Raises ValueError as `gaussian_mu` does."""
    mu = gaussian_mu(total_epsilon, gaussian_delta(total_delta))
    return mu * mu / (1 + SLACK)


@functools.lru_cache(maxsize=16)
def plan_epsilon(plan: Plan, total_delta: float) -> float:
    """What all releases of a plan cost together."""
    events = Counter[tuple[float, float]]()
    for z, rate, releases in plan:
        events[(z, rate)] += releases
    return composed_epsilon(events, gaussian_delta(total_delta))


def _check_budget(header: Header, path: Path) -> None:
    """Raises LedgerError unless a header's budget is what its own total allows."""
    if header.total_epsilon is None or header.total_delta is None or header.budget is None:
        return
    if header.plan is not None:
        costs = plan_epsilon(header.plan, header.total_delta)
        if costs <= header.total_epsilon * (1 + ROUNDING):
            return
        found = f"a plan of {header.budget:g} releases that cost epsilon = {at_most(costs, 6)}"
    else:
        allowed = budget_of_mu_squared(header.total_epsilon, header.total_delta)
        if math.isclose(header.budget, allowed, rel_tol=ROUNDING):
            return
        found = f"a budget of {header.budget:.9g} of mu^2, where {allowed:.9g} would be right"
    raise LedgerError(
        f"{path} has a header that contradicts itself: total epsilon = {header.total_epsilon} at "
        f"delta = {header.total_delta} with {found}; somebody changed it: restore the file, or "
        "name another ledger (key ledger)"
    )


def parse_header(row: Row, path: Path) -> Header:
    """The header in a file's first row. Raises LedgerError when it is of no known version."""
    values: dict[str, Any] = {name: value for name, value in row.items() if name != "kind"}
    if row.get("kind") != "ledger" or values.get("version") != VERSION:
        raise LedgerError(
            f"{path} does not begin with a ledger header of version {VERSION} (the copy in a run "
            f"folder is no ledger; name another file, key ledger): {json.dumps(row)[:80]}"
        )
    try:
        others = tuple(Kind(z, rate, int(n)) for z, rate, n in values.pop("beside", ()))
        header = Header(**values, beside=others)
        plan = header.plan or ()
        if not all(z > 0 and 0 < rate <= 1 and count > 0 for z, rate, count in plan):
            raise ValueError(f"{plan} is no plan of releases")
    except (TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from None
    if header.filter not in (MU_SQUARED, PLAN):
        raise LedgerError(f"{path} has a filter that this version does not know: {header.filter}")
    if (header.total_epsilon is None) != (header.budget is None):
        raise LedgerError(f"{path} has an unreadable header: a total without its budget")
    if (header.filter == PLAN) != (header.plan is not None):
        raise LedgerError(f"{path} has an unreadable header: {PLAN} without its noise or rate")
    try:
        _check_budget(header, path)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from None
    return header


def charged_epsilon(charges: list[Charge], delta: float) -> float:
    """Epsilon of reserved and committed charges, for plans fixed in advance.

    inf when their integers were so coarse that nothing can be said at this delta.
    """
    counted = [charge for charge in charges if charge.state != "void"]
    found = composed_epsilon(
        Counter((charge.noise_multiplier, charge.sampling_rate) for charge in of_one_user(charges)),
        gaussian_delta(delta),
    )
    distance = math.fsum(charge.total_variation for charge in counted)
    return found if distance <= allowed_distance(delta) * (1 + SLACK) else math.inf
