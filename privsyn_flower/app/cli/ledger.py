"""`privsyn ledger`: what was charged to a population's privacy budget, and copies of that."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from privsyn_flower.app.cli.errors import AsJson, Commands, fail, failing
from privsyn_flower.app.report.ledgers import LedgerView, open_ledger
from privsyn_flower.app.report.reading import read_run
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.privacy.ledger.journal import LedgerError
from privsyn_flower.privacy.wording import at_most

ledger_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Look at the ledger of a population's budget; copy it.",
)


@ledger_app.callback()
def ledger() -> None:
    """Look at the ledger of a population's budget; copy it."""


@ledger_app.command()
def show(
    place: Annotated[Path, typer.Argument(help="A ledger's file, or a run folder.")],
    as_json: AsJson = False,
) -> None:
    """What each run on these users was charged, and what all of them together come to."""
    try:
        facts = _facts(_view(place.expanduser()))
    except (LedgerError, ReportError) as error:
        raise fail(str(error)) from None
    typer.echo(json.dumps(facts) if as_json else "\n".join(_lines(facts)))


@ledger_app.command()
def copy(
    source: Annotated[Path, typer.Argument(help="A ledger's file, or its backup.")],
    target: Annotated[Path, typer.Argument(help="The backup, or the ledger's file.")],
) -> None:
    """Back a ledger up, or put its backup back, unless TARGET knows of more than SOURCE."""
    from privsyn_flower.privacy.ledger.usage import copy_ledger

    with failing(LedgerError, OSError):
        count = copy_ledger(source.expanduser(), target.expanduser())
    typer.echo(f"{target}: {count} charges")


def _view(place: Path) -> LedgerView:
    if not place.is_dir():
        return open_ledger(place)
    found = read_run(place).ledger
    if found is None:
        raise ReportError(f"{place} has no ledger: nobody was asked yet, or it cannot be read")
    return found


def _facts(view: LedgerView) -> dict[str, Any]:
    header, rows = view.header, []
    for run in dict.fromkeys(charge.run for charge in view.charges):
        own = [charge for charge in view.charges if charge.run == run]
        states = {s: sum(c.state == s for c in own) for s in ("committed", "reserved", "void")}
        rows.append({"run": run, **states, "epsilon": _epsilon(view, own)})
    return {
        "population": header.population,
        "simulation": header.simulation,
        "total_epsilon": header.total_epsilon,
        "delta": header.total_delta,
        "epsilon": _epsilon(view, view.charges),
        "whole": view.whole,
        "runs": rows,
        "charges": [asdict(charge) for charge in view.charges],
    }


def _epsilon(view: LedgerView, charges: list[Any]) -> float | None:
    """None where there is no delta to tell it at, or no epsilon."""
    if view.header.total_delta is None:
        return None
    found = view.epsilon(charges)
    return found if math.isfinite(found) else None


def _lines(facts: dict[str, Any]) -> list[str]:
    def told(epsilon: float | None) -> str:
        return "epsilon unknown" if epsilon is None else f"epsilon = {at_most(epsilon)}"

    total = facts["total_epsilon"]
    budget = "no total" if total is None else f"total {at_most(total)} at delta {facts['delta']:g}"
    simulated = ", a simulation's" if facts["simulation"] else ""
    copy = "" if facts["whole"] else " (the run's own copy: other runs on these users are missing)"
    return [
        f"population {facts['population']!r}{simulated}: {told(facts['epsilon'])} charged, "
        f"{budget}{copy}",
        *(
            f"run {row['run']!r}: {row['committed']} released, {row['reserved']} charged and not "
            f"released, {row['void']} void; {told(row['epsilon'])}"
            for row in facts["runs"]
        ),
    ]
