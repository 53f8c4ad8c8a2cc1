"""The ledger's file and the charges in it: locked, fsynced JSON lines that survive a kill.

A charge goes from reserved to committed or void and nowhere else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from privsyn_flower.common.files import sync_folder
from privsyn_flower.privacy.accounting.composition import check_positive, check_rate, mu_squared

Row = dict[str, Any]
State = Literal["reserved", "committed", "void"]


class LedgerError(RuntimeError):
    """The ledger does not allow this, or its file cannot be trusted."""


def missing(path: Path) -> LedgerError:
    """What to raise where the ledger that charges were written to is not there."""
    return LedgerError(
        f"no ledger at {path}: it was moved or removed, and it alone knows what was spent: put it "
        "back, or start a new run in another folder"
    )


@contextmanager
def locked(path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the file under an exclusive lock, until the block ends.

    create: make a missing file (0600). Raises LedgerError when it is missing otherwise: a ledger
    that vanished must not start again from nothing.
    """
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        raise missing(path) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)  # releases the lock


def read_rows(descriptor: int, path: Path) -> list[Row]:
    """All complete rows of the open file. Raises LedgerError as `parsed` does."""
    return parsed(_read_all(descriptor), path)


def parsed(content: bytes, path: Path) -> list[Row]:
    """All complete rows. A last line without newline is skipped: nobody relied on it.

    Raises LedgerError naming the line when a complete one is not a JSON object.
    """
    complete = content[: content.rfind(b"\n") + 1]
    rows = []
    for number, line in enumerate(complete.splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise LedgerError(f"{path}, line {number} is damaged: restore it from a copy")
        rows.append(row)
    return rows


def append_row(descriptor: int, path: Path, row: Row) -> None:
    """Cut off a torn last line, append one row, fsync; the first row syncs the folder too.

    When the disk refuses, the file is put back to the rows it had, and OSError names it.
    """
    end = _read_all(descriptor).rfind(b"\n") + 1
    os.ftruncate(descriptor, end)
    line = json.dumps(row, allow_nan=False).encode("utf-8") + b"\n"
    try:
        written = 0
        while written < len(line):
            written += os.pwrite(descriptor, line[written:], end + written)
        os.fsync(descriptor)
        if end == 0:
            sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _read_all(descriptor: int) -> bytes:
    parts = []
    position = 0
    while part := os.pread(descriptor, 1 << 20, position):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


@dataclass(frozen=True)
class Charge:
    """One noisy release, reserved or made. Raises ValueError on values that no release has.

    noise_multiplier: guaranteed noise std / L2 bound of one user's vector; of noise that is
    correlated across rounds, that of the independent noise with the cost which this release adds.
    total_variation: distance of the noise from (rounded) Gaussian noise. sampling_rate: probability
    with which each user takes part, hidden from the adversary. group: RUN/NAME where only the users
    of one group of a run were asked, of whom none is in another group of it; "" for all.
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
    group: str = ""

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier)
        if not 0 <= self.total_variation < 1:
            raise ValueError(f"total_variation = {self.total_variation} must be in [0, 1)")
        check_rate("sampling_rate", self.sampling_rate)
        if self.group and self.sampling_rate < 1:
            raise ValueError(f"group = {self.group!r}: groups are accounted without sampling")
        whole, _, name = self.group.partition("/")
        if self.group and not (name and belongs(self.run or whole, whole)):
            raise ValueError(f"group = {self.group!r} of run {self.run!r} must be RUN/NAME")

    @property
    def mu_squared(self) -> float:
        """What the charge takes from a filter of mu^2, in which sampling counts for nothing."""
        return mu_squared(self.noise_multiplier)


def belongs(name: str, run: str) -> bool:
    """Whether a charge's run is this one, or an evaluation beside its rounds (RUN-NAME)."""
    return name == run or name.startswith(f"{run}-")


def replay(rows: list[Row], path: Path) -> list[Charge]:
    """Replay of the rows. Raises LedgerError on an order of rows that no writer makes."""
    found: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows[1:], start=2):
        kind = row.get("kind")
        try:
            if kind == "reserve" and row["id"] not in found:
                found[row["id"]] = reserved(row)
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


def reserved(row: Row) -> dict[str, Any]:
    """The fields of a charge. Raises KeyError, TypeError or ValueError on a row that is none."""
    names = ("id", "run", "query", "round", "attempt", "noise_multiplier")
    values = {name: row[name] for name in names} | {"state": "reserved"}
    more = ("total_variation", "sampling_rate", "group")
    values |= {name: row[name] for name in more if name in row}
    Charge(**values)
    return values


def find(charges: list[Charge], charge_id: str, path: Path) -> Charge:
    """The charge with this id. Raises LedgerError when there is none."""
    for charge in charges:
        if charge.id == charge_id:
            return charge
    raise LedgerError(f"no charge {charge_id!r} in {path}")
