"""The ledger: every charge on a population's privacy budget, on disk before it is spent.

An append-only JSONL file. The first row fixes what the file is about: population, unit,
adjacency, total, filter, and whether it is a simulation. Then one row per event: `reserve`,
`sent`, `commit`, `void`. A charge goes from reserved to committed or void and nowhere else, and
to void only while its query is not marked as sent; reserved and committed charges both count,
so a crash can only over-count. Every operation takes an exclusive `flock` on the file, reads it,
and appends one row with fsync. Local file systems of POSIX systems only.

With a total fixed at creation the ledger is a privacy filter (`filters`). Without one the composed
number holds only for plans fixed before the first release, and `is_guarantee` is False.

Noise that is correlated across rounds is charged by what each release adds to the cost of all
before it (`AggregatorNoise.charge` of `strategies.engine` says why that is right).
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Self

from privsyn_flower.privacy.ledger.filters import (
    ADJACENCY,
    UNIT,
    Header,
    Plan,
    charged_epsilon,
    check_header,
    fits,
    new_header,
    parse_header,
)
from privsyn_flower.privacy.ledger.journal import (
    Charge,
    LedgerError,
    Row,
    append_row,
    belongs,
    find,
    locked,
    missing,
    read_rows,
    replay,
    reserved,
)
from privsyn_flower.privacy.ledger.refusals import check_plan, why_refused


class BudgetExceeded(LedgerError):
    """The charge would take the population beyond the ledger's total; nothing was written."""


class DuplicateCharge(LedgerError):
    """This (run, query, round, attempt) was charged before; nothing was written."""


class Ledger:
    """A population's charges. Make one with `Ledger.open`; processes may share the file."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        population: str,
        total_epsilon: float | None = None,
        total_delta: float | None = None,
        simulation: bool = False,
        plan: Plan | None = None,
        identity: str | None = None,
    ) -> Self:
        """Create the ledger, or check that the one at `path` is about the same thing.

        population: declared name, public. total_epsilon and total_delta: both or neither; a new
        ledger without them has no filter, an existing one keeps the total it has. plan: of releases
        with sampling, None for a filter of mu^2; an existing ledger's plan must cover it, where a
        total is given. identity: the id of a ledger that must be there already. Raises LedgerError
        naming both values when the file says otherwise, ValueError on arguments.
        """
        check_header(population, total_epsilon, total_delta)
        file = Path(path)
        with locked(file, create=identity is None) as handle:
            rows = read_rows(handle, file)
            if not rows and identity is not None:
                raise missing(file)
            if not rows:
                header = new_header(population, total_epsilon, total_delta, simulation, plan)
                append_row(handle, file, {"kind": "ledger", **asdict(header)})
                return cls(file, header)
        found = parse_header(rows[0], file)
        if identity not in (None, found.id):
            raise LedgerError(
                f"{file} is not the ledger that this run began with (another file, or made anew): "
                "put that one back, or start a new run in another folder"
            )
        _same(file, "population", found.population, population, "population-name or ledger")
        _same(file, "simulation", found.simulation, simulation, "ledger")
        _same(file, "unit", found.unit, UNIT, "ledger")
        _same(file, "adjacency", found.adjacency, ADJACENCY, "ledger")
        if total_epsilon is not None:
            _same(file, "total epsilon", found.total_epsilon, total_epsilon, "ledger-epsilon")
            _same(file, "total delta", found.total_delta, total_delta, "delta")
            check_plan(file, found, plan)
        return cls(file, found)

    @property
    def is_guarantee(self) -> bool:
        """Whether `spent_epsilon` holds for adaptive plans: only under a fixed total."""
        return self.header.budget is not None

    def reserve(
        self,
        *,
        run: str,
        query: str,
        round: int,
        attempt: int,
        noise_multiplier: float,
        total_variation: float = 0.0,
        sampling_rate: float = 1.0,
        group: str = "",
    ) -> str:
        """Write a charge before its query is sent; returns the charge's id.

        Values as of `Charge`. Raises BudgetExceeded, DuplicateCharge, ValueError: nothing written.
        """
        wanted = new_charge(noise_multiplier, total_variation, sampling_rate, group)
        with locked(self.path) as handle:
            charges = self._replay(handle)
            key = (run, query, round, attempt)
            for charge in charges:
                if (charge.run, charge.query, charge.round, charge.attempt) == key:
                    raise DuplicateCharge(
                        f"run {run!r}, query {query!r}, round {round}, attempt {attempt} is "
                        f"already charge {charge.id} ({charge.state}) in {self.path}"
                    )
            if not fits(self.header, [*charges, wanted]):
                raise BudgetExceeded(
                    f"{why_refused(self.header, charges, wanted)}. Ledger: {self.path}"
                )
            charge_id = str(len(charges) + 1)
            row: Row = {"kind": "reserve", "id": charge_id, "run": run, "query": query}
            row |= {"round": round, "attempt": attempt}
            row |= {"noise_multiplier": float(noise_multiplier), "time": time.time()}
            row |= {"total_variation": float(total_variation)} if total_variation else {}
            row |= {"sampling_rate": float(sampling_rate)} if sampling_rate != 1.0 else {}
            row |= {"group": group} if group else {}
            reserved(row)
            append_row(handle, self.path, row)
        return charge_id

    def mark_sent(self, charge_id: str) -> None:
        """Written before the first message leaves: from here on the charge cannot be void."""
        self._close(charge_id, {"kind": "sent", "id": charge_id, "time": time.time()})

    def commit(self, charge_id: str) -> None:
        """The release is on disk. Raises LedgerError unless the charge is reserved."""
        self._close(charge_id, {"kind": "commit", "id": charge_id, "time": time.time()})

    def void(self, charge_id: str, reason: str) -> None:
        """Give a reserved charge back, because provably nothing was revealed.

        Raises LedgerError unless the charge is reserved and its query was never marked as sent.
        """
        if self.charge(charge_id).sent:
            raise LedgerError(f"charge {charge_id} was sent: it stays, released or not")
        row: Row = {"kind": "void", "id": charge_id, "reason": reason, "time": time.time()}
        self._close(charge_id, row)

    def charges(self, run: str | None = None) -> list[Charge]:
        """All charges in order, or those of one run, each in its present state."""
        return [charge for charge in self._read() if run is None or charge.run == run]

    def charge(self, charge_id: str) -> Charge:
        """One charge. Raises LedgerError when there is none with this id."""
        return find(self._read(), charge_id, self.path)

    def spent_epsilon(self, run: str | None = None, delta: float | None = None) -> float:
        """Epsilon of everything charged (reserved or committed), or of a run with its evaluations.

        delta: None for the ledger's total delta. With sampling this holds for plans fixed in
        advance: what is guaranteed is the total. Raises ValueError when there is no delta.
        """
        used = delta if delta is not None else self.header.total_delta
        if used is None:
            raise ValueError(f"delta = None: {self.path} has no total delta, so name one")
        charges = [c for c in self._read() if run is None or belongs(c.run, run)]
        return charged_epsilon(charges, used)

    def _read(self) -> list[Charge]:
        with locked(self.path) as handle:
            return self._replay(handle)

    def _replay(self, handle: int) -> list[Charge]:
        rows = read_rows(handle, self.path)
        if not rows or parse_header(rows[0], self.path) != self.header:
            raise LedgerError(f"{self.path} was replaced by another file while in use")
        return replay(rows, self.path)

    def _close(self, charge_id: str, row: Row) -> None:
        with locked(self.path) as handle:
            charge = find(self._replay(handle), charge_id, self.path)
            if charge.state != "reserved":
                raise LedgerError(
                    f"charge {charge_id} in {self.path} is {charge.state}: only a reserved "
                    f"charge can {row['kind']}"
                )
            append_row(handle, self.path, row)


def new_charge(
    noise_multiplier: float,
    total_variation: float = 0.0,
    sampling_rate: float = 1.0,
    group: str = "",
) -> Charge:
    """A charge that is not written yet. Raises ValueError on values that no release has."""
    z, noise = float(noise_multiplier), (total_variation, sampling_rate, group)
    return Charge("", "", "", 0, 0, z, "reserved", False, *noise)


def _same(path: Path, what: str, found: object, wanted: object, key: str) -> None:
    if found != wanted:
        raise LedgerError(
            f"{path} was created with {what} = {found!r}, this run wants {wanted!r}: change "
            f"the key {key}"
        )
