"""A ledger's header and its filter: what all charges together may cost, fixed at creation.

For Gaussian charges only: the sum of mu^2 = 1/noise_multiplier^2, exact. For integer (Skellam)
noise, which has RDP bounds only: the sum of RDP at one order; Gaussian charges may join.
"""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.privacy.accounting import (
    Mechanism,
    calibrate,
    compose_gaussians,
    gaussian_epsilon,
)
from privsyn_flower.privacy.charges import MU_SQUARED, Charge
from privsyn_flower.privacy.journal import LedgerError, Row
from privsyn_flower.privacy.renyi import (
    LARGEST_SAMPLED_ORDER,
    ORDERS,
    check_positive,
    delta_left,
    filter_budget,
    rdp_to_epsilon,
    with_total_variation,
)

VERSION = 3  # version 1 had the filter MU_SQUARED only, version 2 no id
UNIT = "user"
ADJACENCY = "zero-out"

RDP = "sum of RDP at a fixed order (Feldman and Zrnic 2021)"

# Rounding of sums of costs. Calibrated noise has 1e-9 of headroom, so this never costs budget.
SLACK = 1e-10


@dataclass(frozen=True)
class Header:
    """The ledger's first row; fixed for its life.

    mu_squared, or rdp at order: the filter's budget; None without a total. total_variation: what
    all charges together may have; its price in delta is taken off the budget from the start. id:
    drawn when the ledger is made, so that another one in its place is noticed; "" before version 3.
    """

    population: str
    total_epsilon: float | None
    total_delta: float | None
    mu_squared: float | None
    simulation: bool
    unit: str = UNIT
    adjacency: str = ADJACENCY
    filter: str = MU_SQUARED
    version: int = VERSION
    order: int | None = None
    rdp: float | None = None
    total_variation: float = 0.0
    id: str = ""

    @property
    def mechanism(self) -> Mechanism:
        """The noise that the ledger was made for."""
        return "gaussian" if self.filter == MU_SQUARED else "skellam"

    @property
    def budget(self) -> float | None:
        """What the filter lets all charges cost together."""
        return self.mu_squared if self.filter == MU_SQUARED else self.rdp

    def cost(self, charge: Charge) -> float:
        """What one charge takes from the budget; 0 without one."""
        if self.filter == MU_SQUARED:
            return charge.mu_squared
        return 0.0 if self.order is None else float(charge.rdp([self.order])[0])

    def spent(self, charges: list[Charge]) -> float:
        """What reserved and committed charges have taken from the budget."""
        return math.fsum(self.cost(charge) for charge in charges if charge.state != "void")

    def epsilon_of(self, cost: float) -> float:
        """Epsilon, at the total delta, of a sum of costs. Raises ValueError without a total."""
        if self.total_epsilon is None or self.total_delta is None:
            raise ValueError(f"total_epsilon = {self.total_epsilon}: the ledger has no total")
        delta = delta_left(self.total_epsilon, self.total_delta, self.total_variation)
        if self.filter == MU_SQUARED:
            return gaussian_epsilon(1 / math.sqrt(cost) if cost > 0 else math.inf, delta)
        return rdp_to_epsilon([cost], [self.order or 0], delta)[0] if cost > 0 else 0.0


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
    mechanism: Mechanism = "gaussian",
    total_variation: float = 0.0,
    order: int | None = None,
) -> Header:
    """The header of a new ledger, with the filter for the mechanism and its budget.

    gaussian: the mu^2 of one Gaussian with this total. skellam: see `filter_budget`, at `order`.
    """
    if mechanism not in ("gaussian", "skellam"):
        raise ValueError(f"mechanism = {mechanism!r} must be 'gaussian' or 'skellam'")
    if not 0 <= total_variation < 1:
        raise ValueError(f"total_variation = {total_variation} must be in [0, 1)")
    mu, at, rdp = None, None, None
    if total_epsilon is not None and total_delta is not None:
        if mechanism == "gaussian":
            z = calibrate(total_epsilon, 1, total_delta, total_variation=total_variation)
            mu = z**-2
        else:
            check_positive("total_epsilon", total_epsilon)
            left = delta_left(total_epsilon, total_delta, total_variation)
            if total_variation > 0 and left <= 0:
                raise ValueError(
                    f"total_variation = {total_variation} leaves nothing of total delta = "
                    f"{total_delta} at epsilon = {total_epsilon}: raise delta or lower epsilon"
                )
            at, rdp = filter_budget(total_epsilon, left, order)
    return Header(
        population,
        total_epsilon,
        total_delta,
        mu,
        simulation,
        filter=MU_SQUARED if mechanism == "gaussian" else RDP,
        order=at,
        rdp=rdp,
        total_variation=total_variation,
        id=uuid.uuid4().hex,
    )


def parse_header(row: Row, path: Path) -> Header:
    """The header in a file's first row. Raises LedgerError when it is of no known version."""
    values: dict[str, Any] = {name: value for name, value in row.items() if name != "kind"}
    if row.get("kind") != "ledger" or values.get("version") not in range(1, VERSION + 1):
        raise LedgerError(
            f"{path} does not begin with a ledger header of version 1 to {VERSION} (the copy in a "
            f"run folder is no ledger): {json.dumps(row)[:80]}"
        )
    try:
        header = Header(**values)
    except TypeError as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from None
    if header.filter not in (MU_SQUARED, RDP):
        raise LedgerError(f"{path} has a filter that this version does not know: {header.filter}")
    if (header.total_epsilon is None) != (header.budget is None):
        raise LedgerError(f"{path} has an unreadable header: a total without its budget")
    return header


def composed_epsilon(header: Header, charges: list[Charge], delta: float) -> float:
    """Epsilon of reserved and committed charges; by RDP, at the best order for their sum."""
    counted = [charge for charge in charges if charge.state != "void"]
    distance = math.fsum(charge.total_variation for charge in counted)
    sampled = any(charge.sampling_rate < 1 for charge in counted)
    orders = ORDERS[ORDERS <= LARGEST_SAMPLED_ORDER] if sampled else ORDERS

    def at(delta: float) -> float:
        if header.filter == MU_SQUARED:
            return gaussian_epsilon(compose_gaussians(c.noise_multiplier for c in counted), delta)
        if not counted:
            return 0.0
        return rdp_to_epsilon(_composed_rdp(counted, orders), orders, delta)[0]

    return with_total_variation(at, delta, distance)


def _composed_rdp(charges: list[Charge], orders: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum of the charges' RDP; equal releases are computed once."""
    kinds: dict[tuple[float, float | None, float], list[Charge]] = {}
    for charge in charges:
        key = (charge.noise_multiplier, charge.sensitivity, charge.sampling_rate)
        kinds.setdefault(key, []).append(charge)
    total = np.zeros(orders.shape)
    for same in kinds.values():
        total += len(same) * same[0].rdp(orders)
    return total


def why_refused(header: Header, charges: list[Charge], wanted: Charge) -> str | None:
    """Why the filter does not take one more charge; None when it does."""
    if header.budget is None or header.total_epsilon is None:
        return None
    counted = [charge.total_variation for charge in charges if charge.state != "void"]
    distance = math.fsum([*counted, wanted.total_variation])
    if distance > header.total_variation * (1 + SLACK):
        return (
            f"charges with total_variation = {distance:.3g} together are more than the "
            f"{header.total_variation:.3g} that the ledger was created with: draw exact noise, or "
            "use another ledger (key ledger)"
        )
    spent = header.spent(charges)
    after = spent + header.cost(wanted)
    if after <= header.budget * (1 + SLACK):
        return None
    return (
        f"population {header.population!r} has spent epsilon = {header.epsilon_of(spent):.6g} of "
        f"{header.total_epsilon:.6g} (delta = {header.total_delta:.3g}); a round at noise "
        f"multiplier {wanted.noise_multiplier:.6g} would make it {header.epsilon_of(after):.6g}: "
        "raise noise-multiplier, lower rounds or spare-rounds, or use another ledger (key ledger)"
    )
