"""What a run does with its ledger beside charging it: looks ahead, holds it, copies its rows."""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import LockTaken, file_lock, replace_private
from privsyn_flower.privacy.ledger.filters import Header, fits, parse_header
from privsyn_flower.privacy.ledger.journal import (
    Charge,
    LedgerError,
    append_row,
    belongs,
    locked,
    parsed,
    read_rows,
    replay,
)
from privsyn_flower.privacy.ledger.ledger import Ledger, new_charge


class LedgerInUse(LedgerError):
    """Another process holds the ledger for its run."""


@contextmanager
def exclusive(ledger: Ledger) -> Iterator[None]:
    """Hold the ledger for a whole run; a second run is refused with LedgerInUse.

    A lock file beside the ledger, held by `flock`: it vanishes with its process, however
    that ends, so no lock is ever stale. Single operations stay open to other processes.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(ledger.path.with_name(ledger.path.name + ".lock")))
        except LockTaken as error:
            raise LedgerInUse(
                f"{ledger.path} is in use by the run of process {error.owner}: wait "
                "for it, end it, or use another ledger (key ledger)"
            ) from None
        yield


def export(ledger: Ledger, run: str, path: str | os.PathLike[str]) -> None:
    """Copy the header and the rows of a run, and of its evaluations (RUN-NAME), to `path`.

    It is for reading, and refused as a ledger: what others, and later ones, spent is missing.
    """
    ledger.charges()  # the rows are in order
    with locked(ledger.path) as handle:
        rows = read_rows(handle, ledger.path)
    ids = {row["id"] for row in rows[1:] if belongs(str(row.get("run", "")), run)}
    copied = [rows[0] | {"kind": "copy"}, *(row for row in rows[1:] if row["id"] in ids)]
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in copied)
    replace_private(Path(path), text.encode())


def copy_ledger(source: Path, target: Path) -> tuple[int, float]:
    """Back a ledger up, or put its copy back, whole; its charges, and the time of its last row.

    Rows are only ever appended, so the newer of two copies begins with all rows of the older one.
    Raises LedgerError where `target` has a row that `source` lacks, OSError for a missing `source`.
    """
    rows = parsed(source.read_bytes(), source)
    if not rows:
        raise LedgerError(f"{source} is no ledger: it has no rows")
    parse_header(rows[0], source)
    told = len(replay(rows, source)), float(rows[-1].get("time", 0.0))
    if not target.exists():
        replace_private(target, "".join(json.dumps(row) + "\n" for row in rows).encode())
        return told
    with locked(target) as handle:
        known = read_rows(handle, target)
        if rows[: len(known)] != known:
            raise LedgerError(
                f"{target} has rows that {source} lacks: an older copy, or another ledger, forgets "
                f"what was spent. Nothing was written; move {target} away if it is the wrong one"
            )
        for row in rows[len(known) :]:
            append_row(handle, target, row)
    return told


def affordable_charges(
    ledger: Ledger, wanted: Iterable[Mapping[str, Any]], *, run: str = ""
) -> int | None:
    """How many of these charges, in this order, the total still takes; None without a total.

    wanted: arguments of `Ledger.reserve` for the noise of each. run: one that will be resumed, and
    then gives back what it reserved without sending.
    """
    if ledger.header.budget is None:
        return None
    stays = [c for c in ledger.charges() if c.run != run or c.sent or c.state != "reserved"]
    return _number_that_fits(ledger.header, stays, [new_charge(**noise) for noise in wanted])


def _number_that_fits(header: Header, charges: list[Charge], wanted: list[Charge]) -> int:
    """How many of these charges the total still takes, in their order."""
    counts = range(1, len(wanted) + 1)
    full = lambda count: not fits(header, [*charges, *wanted[:count]])  # noqa: E731
    return bisect.bisect_left(counts, True, key=full)
