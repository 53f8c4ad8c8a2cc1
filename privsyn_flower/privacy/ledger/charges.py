"""The charges of a ledger: what one costs, and the states that its rows give it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from privsyn_flower.privacy.accounting.composition import check_positive, check_rate, mu_squared
from privsyn_flower.privacy.ledger.journal import LedgerError, Row

State = Literal["reserved", "committed", "void"]


@dataclass(frozen=True)
class Charge:
    """One noisy release, reserved or made. Raises ValueError on values that no release has.

    noise_multiplier: guaranteed noise std / L2 bound of one user's vector; of noise that is
    correlated across rounds, that of the independent noise with the cost which this release adds.
    total_variation: distance of the noise from (rounded) Gaussian noise. sampling_rate: probability
    with which each user takes part, by a coin hidden from the adversary.
    """

    id: str
    run: str
    query: str
    round: int
    attempt: int
    noise_multiplier: float
    state: State
    sent: bool = False  # the query may have left: the charge can no longer be void
    total_variation: float = 0.0
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier)
        if not 0 <= self.total_variation < 1:
            raise ValueError(f"total_variation = {self.total_variation} must be in [0, 1)")
        check_rate("sampling_rate", self.sampling_rate)

    @property
    def mu_squared(self) -> float:
        """What the charge takes from a filter of mu^2, in which sampling counts for nothing."""
        return mu_squared(self.noise_multiplier)


def replay(rows: list[Row], path: Path) -> list[Charge]:
    """Replay of the rows. Raises LedgerError on an order of rows that no writer makes."""
    found: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows[1:], start=2):
        kind = row.get("kind")
        try:
            if kind == "reserve" and row["id"] not in found:
                found[row["id"]] = _reserved(row)
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


def _reserved(row: Row) -> dict[str, Any]:
    """The fields of a charge. Raises KeyError, TypeError or ValueError on a row that is none."""
    names = ("id", "run", "query", "round", "attempt", "noise_multiplier")
    values = {name: row[name] for name in names} | {"state": "reserved"}
    values |= {name: row[name] for name in ("total_variation", "sampling_rate") if name in row}
    Charge(**values)
    return values


def find(charges: list[Charge], charge_id: str, path: Path) -> Charge:
    """The charge with this id. Raises LedgerError when there is none."""
    for charge in charges:
        if charge.id == charge_id:
            return charge
    raise LedgerError(f"no charge {charge_id!r} in {path}")
