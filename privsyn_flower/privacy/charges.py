"""What a ledger's rows mean: the header, the charges, and their states."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from privsyn_flower.privacy.accounting import calibrate
from privsyn_flower.privacy.journal import LedgerError, Row

VERSION = 1
UNIT = "user"
ADJACENCY = "zero-out"

State = Literal["reserved", "committed", "void"]


@dataclass(frozen=True)
class Charge:
    """One Gaussian release, reserved or made. noise_multiplier: guaranteed std / bound."""

    id: str
    run: str
    query: str
    round: int
    attempt: int
    noise_multiplier: float
    state: State
    sent: bool = False  # the query may have left: the charge can no longer be void

    @property
    def mu_squared(self) -> float:
        """What the charge takes from the filter's budget."""
        return (1 / self.noise_multiplier) ** 2


@dataclass(frozen=True)
class Header:
    """The ledger's first row; fixed for its life."""

    population: str
    total_epsilon: float | None
    total_delta: float | None
    mu_squared: float | None  # the filter: None without a total
    simulation: bool
    unit: str = UNIT
    adjacency: str = ADJACENCY
    filter: str = "sum of mu^2 (Smith and Thakurta 2022)"
    version: int = VERSION


def check_header(population: str, total_epsilon: float | None, total_delta: float | None) -> None:
    """Raises ValueError on a nameless population or half a total."""
    if not population:
        raise ValueError("population = '': a ledger needs the declared population's name")
    if (total_epsilon is None) != (total_delta is None):
        raise ValueError(
            f"total_epsilon = {total_epsilon} and total_delta = {total_delta}: give both or neither"
        )


def new_header(
    population: str, total_epsilon: float | None, total_delta: float | None, simulation: bool
) -> Header:
    """The header of a new ledger; its filter is the mu^2 of one Gaussian with this total."""
    budget = None
    if total_epsilon is not None and total_delta is not None:
        budget = calibrate(total_epsilon, 1, total_delta) ** -2
    return Header(population, total_epsilon, total_delta, budget, simulation)


def parse_header(row: Row, path: Path) -> Header:
    """The header in a file's first row. Raises LedgerError when it is none of this version."""
    values: dict[str, Any] = {name: value for name, value in row.items() if name != "kind"}
    if row.get("kind") != "ledger" or values.get("version") != VERSION:
        raise LedgerError(
            f"{path} does not begin with a version {VERSION} ledger header: {json.dumps(row)[:80]}"
        )
    try:
        return Header(**values)
    except TypeError as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from None


def replay(rows: list[Row], path: Path) -> list[Charge]:
    """Replay of the rows. Raises LedgerError on an order of rows that no writer makes."""
    found: dict[str, dict[str, Any]] = {}
    fields = ("id", "run", "query", "round", "attempt", "noise_multiplier")
    for number, row in enumerate(rows[1:], start=2):
        kind = row.get("kind")
        try:
            if kind == "reserve" and row["id"] not in found:
                found[row["id"]] = {name: row[name] for name in fields} | {"state": "reserved"}
            elif kind == "sent" and found[row["id"]]["state"] == "reserved":
                found[row["id"]]["sent"] = True
            elif kind == "void" and found[row["id"]].get("sent"):
                raise KeyError("void after sent")
            elif kind in ("commit", "void") and found[row["id"]]["state"] == "reserved":
                found[row["id"]]["state"] = "committed" if kind == "commit" else "void"
            else:
                raise KeyError(kind)
        except KeyError as error:
            raise LedgerError(f"{path}, line {number}: no valid ledger row ({error})") from None
    return [Charge(**values) for values in found.values()]


def find(charges: list[Charge], charge_id: str, path: Path) -> Charge:
    """The charge with this id. Raises LedgerError when there is none."""
    for charge in charges:
        if charge.id == charge_id:
            return charge
    raise LedgerError(f"no charge {charge_id!r} in {path}")


def mu_squared(charges: list[Charge]) -> float:
    """What reserved and committed charges have taken from the filter's budget."""
    return math.fsum(charge.mu_squared for charge in charges if charge.state != "void")
