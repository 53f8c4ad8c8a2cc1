"""What a run and others on the same users were charged: the ledger, read without taking part.

No lock is taken and nothing is written: rows are only ever appended, and a last one without its
newline was never acknowledged to anyone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.privacy.ledger.filters import Header, charged_epsilon, parse_header
from privsyn_flower.privacy.ledger.journal import Charge, LedgerError, parsed, replay

COPY = "ledger.jsonl"  # in a run folder: the run's own rows, when it last held the ledger


@dataclass(frozen=True)
class LedgerView:
    """A ledger's charges, in their order, as they stood when it was read.

    run: the id of the run whose folder led here; its charges are of that name, or RUN-NAME for a
    question beside its rounds. whole: the ledger itself was read, with the charges of all runs;
    else the copy in the run folder, of this run's alone. times: charge id -> Unix time when it was
    reserved.
    """

    header: Header
    charges: list[Charge]
    run: str
    whole: bool
    times: Mapping[str, float]

    @property
    def shared(self) -> bool:
        """Whether runs share it: it was made for a declared population, not for one run."""
        return self.header.population != f"run {self.run}"

    @property
    def own(self) -> list[Charge]:
        """The charges of this run."""
        return [c for c in self.charges if c.run == self.run or c.run.startswith(f"{self.run}-")]

    def epsilon(self, charges: list[Charge], delta: float | None = None) -> float:
        """Of these charges together, at the ledger's total delta or another one; inf where their
        noise was too coarse. A plan with sampling takes a second. Raises ValueError without a
        delta."""
        used = self.header.total_delta if delta is None else delta
        if used is None:
            raise ValueError("delta = None: the ledger has no total delta, so name one")
        return charged_epsilon(charges, used)


def read_ledger(folder: Path, run: str, began: Mapping[str, Any]) -> LedgerView | None:
    """The ledger that a run began with, else the copy in its folder; None where neither is.

    run: the run's id. began: the folder's note of the ledger ({"id", "path"}), {} without one.
    Raises LedgerError for rows that no writer makes, and for a copy of earlier versions.
    """
    path = Path(str(began.get("path", "")))
    rows = _rows(path) if began else []
    if rows and rows[0].get("id") == began.get("id"):
        return _view(rows, path, run, whole=True)
    rows = _rows(folder / COPY)
    return _view(rows, folder / COPY, run, whole=False) if rows else None


def open_ledger(path: Path) -> LedgerView:
    """A ledger's own file. Raises LedgerError for a file that is none."""
    rows = parsed(path.read_bytes(), path)
    if not rows:
        raise LedgerError(f"{path} is no ledger: it has no rows")
    return _view(rows, path, "", whole=rows[0].get("kind") != "copy")


def _view(rows: list[dict[str, Any]], path: Path, run: str, *, whole: bool) -> LedgerView:
    header = parse_header(rows[0] | {"kind": "ledger"}, path)
    times = {str(row["id"]): float(row["time"]) for row in rows[1:] if row.get("kind") == "reserve"}
    return LedgerView(header, replay(rows, path), run, whole, times)


def _rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a file, none where it cannot be read: it may be on another machine, or
    another account's. Raises LedgerError for a complete one that is no JSON object."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    return parsed(content, path)
