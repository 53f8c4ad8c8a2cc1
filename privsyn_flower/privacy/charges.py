"""What a ledger's rows mean: the header, the charges, their states, and what they cost.

A ledger's filter is fixed at creation. For Gaussian charges only: the sum of mu^2 =
1/noise_multiplier^2, exact. For integer (Skellam) noise, which has RDP bounds only: the sum of
RDP at one order; Gaussian charges may join.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.privacy.accounting import (
    Mechanism,
    calibrate,
    compose_gaussians,
    gaussian_epsilon,
)
from privsyn_flower.privacy.journal import LedgerError, Row
from privsyn_flower.privacy.renyi import (
    ORDERS,
    check_positive,
    check_sensitivity,
    delta_left,
    filter_budget,
    rdp_to_epsilon,
    skellam_rdp,
    with_total_variation,
)

VERSION = 2  # version 1 had the filter MU_SQUARED only
UNIT = "user"
ADJACENCY = "zero-out"
MU_SQUARED = "sum of mu^2 (Smith and Thakurta 2022)"
RDP = "sum of RDP at a fixed order (Feldman and Zrnic 2021)"

# Rounding of sums of costs. Calibrated noise has 1e-9 of headroom, so this never costs budget.
SLACK = 1e-10

State = Literal["reserved", "committed", "void"]


@dataclass(frozen=True)
class Charge:
    """One noisy release, reserved or made. Raises ValueError on values that no release has.

    noise_multiplier: guaranteed noise std / L2 bound of one user's vector. sensitivity: that
    bound in integer units, for skellam. total_variation: distance of the noise from exact noise.
    """

    id: str
    run: str
    query: str
    round: int
    attempt: int
    noise_multiplier: float
    state: State
    sent: bool = False  # the query may have left: the charge can no longer be void
    mechanism: Mechanism = "gaussian"
    sensitivity: float | None = None
    total_variation: float = 0.0

    def __post_init__(self) -> None:
        if self.mechanism not in ("gaussian", "skellam"):
            raise ValueError(f"mechanism = {self.mechanism!r} must be 'gaussian' or 'skellam'")
        check_positive("noise_multiplier", self.noise_multiplier)
        if self.mechanism == "skellam" and self.sensitivity is None:
            raise ValueError("sensitivity = None: skellam noise needs the integer L2 norm")
        if self.mechanism == "gaussian" and self.sensitivity is not None:
            raise ValueError(f"sensitivity = {self.sensitivity} belongs to mechanism = 'skellam'")
        if self.sensitivity is not None:
            check_sensitivity(self.sensitivity)
        if not 0 <= self.total_variation < 1:
            raise ValueError(f"total_variation = {self.total_variation} must be in [0, 1)")

    @property
    def mu_squared(self) -> float:
        """What a Gaussian charge takes from a filter of mu^2."""
        return (1 / self.noise_multiplier) ** 2

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """What the charge takes from a filter of RDP at each integer order."""
        if self.sensitivity is not None:
            return skellam_rdp(self.noise_multiplier, self.sensitivity, orders)
        return np.asarray(orders, dtype=np.float64) * (self.mu_squared / 2)


@dataclass(frozen=True)
class Header:
    """The ledger's first row; fixed for its life.

    mu_squared, or rdp at order: the filter's budget; None without a total. total_variation: what
    all charges together may have; its price in delta is taken off the budget from the start.
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
) -> Header:
    """The header of a new ledger, with the filter for the mechanism and its budget.

    gaussian: the mu^2 of one Gaussian with this total. skellam: see `filter_budget`.
    """
    if mechanism not in ("gaussian", "skellam"):
        raise ValueError(f"mechanism = {mechanism!r} must be 'gaussian' or 'skellam'")
    if not 0 <= total_variation < 1:
        raise ValueError(f"total_variation = {total_variation} must be in [0, 1)")
    mu, order, rdp = None, None, None
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
            order, rdp = filter_budget(total_epsilon, left)
    return Header(
        population,
        total_epsilon,
        total_delta,
        mu,
        simulation,
        filter=MU_SQUARED if mechanism == "gaussian" else RDP,
        order=order,
        rdp=rdp,
        total_variation=total_variation,
    )


def parse_header(row: Row, path: Path) -> Header:
    """The header in a file's first row. Raises LedgerError when it is of no known version."""
    values: dict[str, Any] = {name: value for name, value in row.items() if name != "kind"}
    if row.get("kind") != "ledger" or values.get("version") not in (1, VERSION):
        raise LedgerError(
            f"{path} does not begin with a ledger header of version 1 to {VERSION}: "
            f"{json.dumps(row)[:80]}"
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


def replay(rows: list[Row], path: Path) -> list[Charge]:
    """Replay of the rows. Raises LedgerError on an order of rows that no writer makes."""
    found: dict[str, dict[str, Any]] = {}
    gaussian_only = rows[0].get("filter") == MU_SQUARED
    for number, row in enumerate(rows[1:], start=2):
        kind = row.get("kind")
        try:
            if kind == "reserve" and row["id"] not in found:
                found[row["id"]] = _reserved(row, gaussian_only)
            elif kind == "sent" and found[row["id"]]["state"] == "reserved":
                found[row["id"]]["sent"] = True
            elif kind == "void" and found[row["id"]].get("sent"):
                raise KeyError("void after sent")
            elif kind in ("commit", "void") and found[row["id"]]["state"] == "reserved":
                found[row["id"]]["state"] = "committed" if kind == "commit" else "void"
            else:
                raise KeyError(kind)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"{path}, line {number}: no valid ledger row ({error})") from None
    return [Charge(**values) for values in found.values()]


def _reserved(row: Row, gaussian_only: bool) -> dict[str, Any]:
    """The fields of a charge. Raises KeyError, TypeError or ValueError on a row that is none."""
    names = ("id", "run", "query", "round", "attempt", "noise_multiplier")
    values = {name: row[name] for name in names} | {"state": "reserved"}
    values |= {
        name: row[name] for name in ("mechanism", "sensitivity", "total_variation") if name in row
    }
    if Charge(**values).mechanism != "gaussian" and gaussian_only:
        raise ValueError(f"{row['mechanism']} in a ledger of Gaussian charges")
    return values


def find(charges: list[Charge], charge_id: str, path: Path) -> Charge:
    """The charge with this id. Raises LedgerError when there is none."""
    for charge in charges:
        if charge.id == charge_id:
            return charge
    raise LedgerError(f"no charge {charge_id!r} in {path}")


def composed_epsilon(header: Header, charges: list[Charge], delta: float) -> float:
    """Epsilon of reserved and committed charges; by RDP, at the best order for their sum."""
    counted = [charge for charge in charges if charge.state != "void"]
    distance = math.fsum(charge.total_variation for charge in counted)

    def at(delta: float) -> float:
        if header.filter == MU_SQUARED:
            return gaussian_epsilon(compose_gaussians(c.noise_multiplier for c in counted), delta)
        if not counted:
            return 0.0
        return rdp_to_epsilon(np.sum([c.rdp(ORDERS) for c in counted], axis=0), ORDERS, delta)[0]

    return with_total_variation(at, delta, distance)


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
