"""The ledger: every charge on a population's privacy budget, on disk before it is spent.

An append-only JSONL file. The first row fixes what the file is about: population, unit,
adjacency, total, filter, and whether it is a simulation. Then one row per event: `reserve`,
`sent`, `commit`, `void`. A charge goes from reserved to committed or void and nowhere else, and
to void only while its query is not marked as sent; reserved and committed charges both count,
so a crash can only over-count.

Every operation takes an exclusive `flock` on the file, reads it, and appends one row with
fsync. A last line without its newline was never acknowledged to anyone: readers skip it and
the next writer cuts it off. Local file systems of POSIX systems only.

With a total fixed at creation the ledger is a privacy filter: the noise of every round may
depend on all earlier releases as long as a sum of costs stays below a budget. The costs are
mu^2 = 1/noise_multiplier^2 and the budget is that of one Gaussian with the total's (epsilon,
delta') (Smith and Thakurta 2022, arXiv 2210.17520, "Fully adaptive composition for Gaussian
differential privacy"); or, where users toss coins, a number of releases of one plan (`filters`). A
thousandth of delta is kept for the nodes' integers (`integer_noise`), so one ledger takes their
noise and an aggregator's. Without a total the composed number holds only for plans fixed before the
first release, and `is_guarantee` is False.

Noise that is correlated across rounds is charged by what each release adds to the cost of all
before it (`AggregatorNoise.charge` of `strategies.engine` says why that is right).
"""

from __future__ import annotations

import bisect
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from privsyn_flower.files import Held, held
from privsyn_flower.privacy.ledger.charges import Charge, find, replay
from privsyn_flower.privacy.ledger.filters import (
    ADJACENCY,
    SLACK,
    UNIT,
    Header,
    Plan,
    charged_epsilon,
    check_header,
    fits,
    new_header,
    not_covered,
    parse_header,
    why_refused,
)
from privsyn_flower.privacy.ledger.journal import (
    LedgerError,
    Row,
    append_row,
    locked,
    missing,
    read_rows,
    write_rows_atomically,
)


class BudgetExceeded(LedgerError):
    """The charge would take the population beyond the ledger's total; nothing was written."""


class DuplicateCharge(LedgerError):
    """This (run, query, round, attempt) was charged before; nothing was written."""


class LedgerInUse(LedgerError):
    """Another process holds the ledger for its run."""


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

        population: declared name, public. total_epsilon and total_delta: both or neither; a
        new ledger without them has no filter, an existing one keeps the total it has.
        plan: of releases with sampling, None for a filter of mu^2, in which sampling counts for
        nothing; an existing ledger's plan must cover it, where a total is given. identity: the id
        of a ledger that must be there already, and is never made anew. Raises LedgerError naming
        both values when the file says otherwise, ValueError on arguments.
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
            _check_plan(file, found, plan)
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
    ) -> str:
        """Write a charge before its query is sent; returns the charge's id.

        total_variation: distance of the noise from (rounded) Gaussian noise. sampling_rate:
        probability with which each user takes part, by a coin hidden from the adversary. Raises
        BudgetExceeded or DuplicateCharge before anything is written, ValueError on values that no
        release has (`Charge`).
        """
        wanted = _new(noise_multiplier, total_variation, sampling_rate)
        with locked(self.path) as handle:
            charges = self._replay(handle)
            key = (run, query, round, attempt)
            for charge in charges:
                if (charge.run, charge.query, charge.round, charge.attempt) == key:
                    raise DuplicateCharge(
                        f"run {run!r}, query {query!r}, round {round}, attempt {attempt} is "
                        f"already charge {charge.id} ({charge.state}) in {self.path}"
                    )
            refused = why_refused(self.header, charges, wanted)
            if refused:
                raise BudgetExceeded(f"{refused}. Ledger: {self.path}")
            charge_id = str(len(charges) + 1)
            row: Row = {"kind": "reserve", "id": charge_id, "run": run, "query": query}
            row |= {"round": round, "attempt": attempt}
            row |= {"noise_multiplier": float(noise_multiplier), "time": time.time()}
            if total_variation:
                row["total_variation"] = float(total_variation)
            if sampling_rate != 1.0:
                row["sampling_rate"] = float(sampling_rate)
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
        charges = [c for c in self._read() if run is None or _belongs(c.run, run)]
        return charged_epsilon(charges, used)

    def remaining_rounds(
        self, noise_multiplier: float, *, sampling_rate: float = 1.0
    ) -> int | None:
        """How many more rounds at this noise the total allows; None without a total."""
        wanted = _new(noise_multiplier, sampling_rate=sampling_rate)
        header, charges = self.header, self._read()
        if header.budget is None:
            return None
        if header.plan is not None:
            return _taken(header, charges, [wanted] * int(header.budget))
        spent = math.fsum(charge.mu_squared for charge in charges if charge.state != "void")
        cost = wanted.mu_squared or math.ulp(0.0)  # of noise beyond all bounds
        return math.floor(min(max(0.0, header.budget * (1 + SLACK) - spent) / cost, 2.0**53))

    def room_for(self, wanted: Iterable[Mapping[str, Any]], *, run: str = "") -> int | None:
        """How many of these charges, in this order, the total still takes; None without a total.

        wanted: arguments of `reserve` for the noise of each. run: one that will be resumed, and
        then gives back what it reserved without sending. Nothing is written.
        """
        if self.header.budget is None:
            return None
        stays = [c for c in self._read() if c.run != run or c.sent or c.state != "reserved"]
        return _taken(self.header, stays, [_new(**noise) for noise in wanted])

    def export(self, run: str, path: str | os.PathLike[str]) -> None:
        """Copy the header and the rows of a run, and of its evaluations (RUN-NAME), to `path`.

        It is for reading, and refused as a ledger: what others, and later ones, spent is missing.
        """
        with locked(self.path) as handle:
            self._replay(handle)
            rows = read_rows(handle, self.path)
        ids = {row["id"] for row in rows[1:] if _belongs(str(row.get("run", "")), run)}
        head = rows[0] | {"kind": "copy"}
        write_rows_atomically(Path(path), [head, *(r for r in rows[1:] if r["id"] in ids)])

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the ledger for a whole run; a second run is refused with LedgerInUse.

        A lock file beside the ledger, held by `flock`: it vanishes with its process, however
        that ends, so no lock is ever stale. Single operations stay open to other processes.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(held(self.path.with_name(self.path.name + ".lock")))
            except Held as error:
                raise LedgerInUse(
                    f"{self.path} is in use by the run of process {error.owner}: wait "
                    "for it, end it, or use another ledger (key ledger)"
                ) from None
            yield

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


def _new(
    noise_multiplier: float, total_variation: float = 0.0, sampling_rate: float = 1.0
) -> Charge:
    """A charge that is not written yet. Raises ValueError on values that no release has."""
    z, noise = float(noise_multiplier), (total_variation, sampling_rate)
    return Charge("", "", "", 0, 0, z, "reserved", False, *noise)


def _taken(header: Header, charges: list[Charge], wanted: list[Charge]) -> int:
    """How many of these charges the total still takes, in their order."""

    def room(count: int) -> bool:
        together = [*charges, *wanted[:count]]
        apart = math.fsum(charge.total_variation for charge in together if charge.state != "void")
        return apart <= header.total_variation * (1 + SLACK) and fits(header, together)

    counts = range(1, len(wanted) + 1)
    return bisect.bisect_left(counts, True, key=lambda count: not room(count))


def _belongs(name: str, run: str) -> bool:
    """Whether a charge's run is this one, or an evaluation beside its rounds (RUN-NAME)."""
    return name == run or name.startswith(f"{run}-")


def _same(path: Path, what: str, found: object, wanted: object, key: str) -> None:
    if found != wanted:
        raise LedgerError(
            f"{path} was created with {what} = {found!r}, this run wants {wanted!r}: change "
            f"the key {key}"
        )


def _check_plan(path: Path, found: Header, wanted: Plan | None) -> None:
    """Raises LedgerError unless the ledger counts what a run of this plan is calibrated for."""
    if wanted is not None and found.budget is not None and found.plan is None:
        raise LedgerError(
            f"{path} was created for runs without sampling and gives nothing for sampling-rate = "
            f"{min(kind.sampling_rate for kind in wanted):g}: set sampler = 'full', or name "
            "another ledger (key ledger)"
        )
    if wanted is None and found.plan is not None:
        raise LedgerError(
            f"{path} was created for runs whose users take part with a probability of at most "
            f"{max(kind.sampling_rate for kind in found.plan):g}, this one asks all of them: set "
            "sampler = 'poisson' and sampling-rate, or name another ledger (key ledger)"
        )
    for kind in wanted or ():
        if refused := not_covered(found, *kind[:2]):
            raise LedgerError(f"{path}: {refused}")
