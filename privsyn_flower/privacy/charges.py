"""The charges of a ledger: what one costs, and the states that its rows give it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.privacy.accounting import Mechanism
from privsyn_flower.privacy.journal import LedgerError, Row
from privsyn_flower.privacy.renyi import (
    check_positive,
    check_rate,
    check_sensitivity,
    sampled_skellam_rdp,
)

MU_SQUARED = "sum of mu^2 (Smith and Thakurta 2022)"

State = Literal["reserved", "committed", "void"]


@dataclass(frozen=True)
class Charge:
    """One noisy release, reserved or made. Raises ValueError on values that no release has.

    noise_multiplier: guaranteed noise std / L2 bound of one user's vector; of noise that is
    correlated across rounds, that of the independent noise with the cost which this release adds.
    sensitivity: that bound in integer units, for skellam. total_variation: distance of the noise
    from exact noise.
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
    sampling_rate: float = 1.0

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
        check_rate("sampling_rate", self.sampling_rate)
        if self.mechanism == "gaussian" and self.sampling_rate != 1.0:
            raise ValueError(
                f"sampling_rate = {self.sampling_rate} is charged for mechanism = 'skellam' only"
            )

    @property
    def mu_squared(self) -> float:
        """What a Gaussian charge takes from a filter of mu^2."""
        return (1 / self.noise_multiplier) ** 2

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """What the charge takes from a filter of RDP at each integer order."""
        if self.sensitivity is not None:
            return sampled_skellam_rdp(
                self.noise_multiplier, self.sensitivity, self.sampling_rate, orders
            )
        return np.asarray(orders, dtype=np.float64) * (self.mu_squared / 2)


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
        name: row[name]
        for name in ("mechanism", "sensitivity", "total_variation", "sampling_rate")
        if name in row
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
