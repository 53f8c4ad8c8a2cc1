"""`privsyn account` and `privsyn calibrate`: epsilon of a noise multiplier, and the other way;
`privsyn ledger`: what was charged to a population's privacy budget, and copies of that.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from privsyn_flower.app.cli.errors import AsJson, failing, group, json_text
from privsyn_flower.app.report.reading import LedgerView, open_ledger, read_run
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.privacy.accounting import calibration
from privsyn_flower.privacy.accounting import composition as accounting
from privsyn_flower.privacy.accounting.curve import renyi_epsilon
from privsyn_flower.privacy.accounting.sampling import SamplerName, check_sampler
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.wording import at_most, noise_at_least, sampling_sentence

SAMPLING = (
    "Holds for Poisson sampling whose outcome is hidden from the adversary: against those who "
    "see only the released sums, and against the server only when each node samples its own "
    "users under secure aggregation and does the same work whoever is sampled; never against a "
    "user's own node."
)
RENYI = "By Renyi bounds, to compare with papers; what a run is charged is told without --renyi."
BY: dict[accounting.Accountant, str] = {
    "exact": "By the closed form of composed Gaussians, which is exact without sampling.",
    "pld": "By the privacy loss distribution of the sampled Gaussians, rounded up.",
    "renyi": "By Renyi bounds, the least of all that hold for so many rounds at this delta.",
}

Delta = Annotated[float, typer.Option(help="Of the (epsilon, delta) guarantee.")]
Releases = Annotated[int, typer.Option("--rounds", help="Releases, spare rounds included.")]
Rate = Annotated[float, typer.Option(help="Poisson rate; 1: every user in every round.")]
Sampling = Annotated[
    SamplerName | None,
    typer.Option(help="Who takes part; default: poisson for a rate below 1, else full."),
]
Renyi = Annotated[
    bool, typer.Option("--renyi", help="For comparison: by Renyi bounds, as in the papers; looser.")
]


def account(
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise std / L2 bound, independent in each round.")
    ],
    rounds: Releases,
    delta: Delta,
    sampling_rate: Rate = 1.0,
    sampler: Sampling = None,
    renyi: Renyi = False,
    as_json: AsJson = False,
) -> None:
    """Epsilon of a noise multiplier, the nodes' or an aggregator's."""
    with failing(ValueError, ArithmeticError):
        chosen, left = _sampler(sampler, sampling_rate), _left(delta)
        plan = (noise_multiplier, rounds)
        if renyi:
            value, how = renyi_epsilon(*plan, delta, sampling_rate=sampling_rate), RENYI
        else:
            value = accounting.epsilon(*plan, left, sampling_rate=sampling_rate)
            how = BY[accounting.tightest({(noise_multiplier, sampling_rate): rounds}, left)[1]]
    _print("epsilon", value, as_json, chosen, delta, how)


def calibrate(
    epsilon: Annotated[float, typer.Option(help="Budget; never exceeded.")],
    rounds: Releases,
    delta: Delta,
    sampling_rate: Rate = 1.0,
    sampler: Sampling = None,
    as_json: AsJson = False,
) -> None:
    """Smallest noise multiplier that keeps epsilon, of the nodes or an aggregator."""
    with failing(ValueError, ArithmeticError):
        chosen = _sampler(sampler, sampling_rate)
        value = calibration.calibrate(epsilon, rounds, _left(delta), sampling_rate=sampling_rate)
    _print("noise_multiplier", value, as_json, chosen, delta)


def _left(delta: float) -> float:
    """Of delta, for the Gaussians: runs keep the rest for the nodes' integers."""
    accounting.check_delta("delta", delta)
    return gaussian_delta(delta)


def _sampler(name: SamplerName | None, rate: float) -> SamplerName:
    chosen = name or ("full" if rate == 1.0 else "poisson")
    check_sampler(chosen, rate)
    return chosen


def _print(
    name: str, value: float, as_json: bool, sampler: SamplerName, delta: float, how: str = ""
) -> None:
    """The figure, and the sentences without which it means nothing. how: it was computed."""
    if as_json:
        typer.echo(json_text({name: value}))
    else:
        typer.echo(f"{name} = {at_most(value, 6) if name == 'epsilon' else noise_at_least(value)}")
        typer.echo(
            f"user-level, zero-out adjacency (a user's vector against zeros), delta = {delta:g}, "
            "for one user's vector clipped to the bound in every round; repetition and tuning on "
            "the same users are not covered"
        )
    if how:
        typer.echo(how, err=as_json)
    if sampler == "poisson":
        typer.echo(SAMPLING, err=as_json)
    elif sampler == "fixed":
        typer.echo(sampling_sentence("fixed"), err=as_json)


ledger_app = group("Look at the ledger of a population's budget; copy it.")


@ledger_app.command()
def show(
    place: Annotated[Path, typer.Argument(help="A ledger's file, or a run folder.")],
    as_json: AsJson = False,
) -> None:
    """What each run on these users was charged, and what all of them together come to."""
    facts = _facts(_view(place.expanduser()))
    typer.echo(json.dumps(facts) if as_json else "\n".join(_lines(facts)))


@ledger_app.command()
def copy(
    source: Annotated[Path, typer.Argument(help="A ledger's file, or its backup.")],
    target: Annotated[Path, typer.Argument(help="The backup, or the ledger's file.")],
) -> None:
    """Back a ledger up, or put its backup back, unless TARGET knows of more than SOURCE."""
    from privsyn_flower.privacy.ledger.usage import copy_ledger

    count, last = copy_ledger(source.expanduser(), target.expanduser())
    until = f" until {datetime.fromtimestamp(last, UTC):%Y-%m-%d %H:%M} UTC" if last else ""
    typer.echo(f"{target}: {count} charges{until}; what later runs spent is not in it")


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
