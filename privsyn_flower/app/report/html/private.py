"""How private: the claim, what each release spent, and what the ledger holds over all runs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from privsyn_flower.app.report.guarantee import claim_of, fact_sheet, sources
from privsyn_flower.app.report.html.charts import by_round, lines
from privsyn_flower.app.report.html.markup import Context, Figure, Table, few, spread
from privsyn_flower.app.report.html.overview import (
    delta,
    epsilon,
    guarantee,
    rounded_up,
    short_claim,
    why_unclaimed,
)
from privsyn_flower.app.report.reading import LedgerView, RunFolder
from privsyn_flower.app.report.summaries import ReportError, is_number, number
from privsyn_flower.privacy.ledger import Charge
from privsyn_flower.privacy.wording import at_most, delta_at_most

INTEGERS = ", but for the part of delta that pays for integers"
WOULD = "No privacy is claimed: this is what real noise of the same size would spend."
STATES = {
    "committed": "released",
    "reserved": "no release, and charged",
    "void": "ended before anything could be seen; not charged",
}


def private(run: RunFolder) -> Context:
    """The claim, and the releases it is about."""
    found = run.claimed
    sheet, no_sheet = _fact_sheet(run)
    whole = str(found.get("privacy") or run.statement)
    return {
        "claim": short_claim(run),
        "numbers": _numbers(run, found),
        "sheet": sheet,
        "no_sheet": no_sheet,
        "would": WOULD if why_unclaimed(found) and run.ledger is not None else "",
        "releases": _releases(run),
        "curve": _curve(run, found),
        "statement": [one for one in whole.split("\n\n") if one and not one.startswith("#")],
    }


def _numbers(run: RunFolder, found: Mapping[str, Any]) -> list[tuple[str, object]]:
    multiplier, rounds = found.get("noise_multiplier"), found.get("participations_per_user")
    return [
        ("epsilon", epsilon(found)),
        ("delta", delta(found)),
        *_other_measures(found),
        ("unit", found.get("unit")),
        ("adjacency", found.get("adjacency")),
        ("accountant", found.get("accountant")),
        ("noise / bound of a user", number(multiplier) if multiplier else None),
        ("rounds of one user", number(rounds) if rounds else None),
        ("against", found.get("threat_model")),
        *_over_runs(run, found),
    ]


def _other_measures(found: Mapping[str, Any]) -> list[tuple[str, object]]:
    """The same noise as zero-concentrated and Gaussian privacy, rounded up."""
    if why_unclaimed(found):
        return []
    measures = {"zero-concentrated: rho": "rho_zcdp", "Gaussian: mu": "mu_gdp"}
    known = [
        (name, at_most(float(value)))
        for name, key in measures.items()
        if is_number(value := found.get(key))
    ]
    if known and _adds_integers(found):
        known[-1] = (known[-1][0], f"{known[-1][1]}{INTEGERS}{', as rho' * (len(known) > 1)}")
    return list(known)


def _adds_integers(found: Mapping[str, Any]) -> bool:
    """Whether nodes add noise, which is Gaussian but for a part of delta; where it is not known,
    it is taken to be so."""
    try:
        own = claim_of(found)
    except (ReportError, TypeError, ValueError):
        return True
    return own is None or "nodes" in sources(own)


def _over_runs(run: RunFolder, found: Mapping[str, Any]) -> list[tuple[str, object]]:
    if why_unclaimed(found):
        return []
    ledger = run.ledger
    if ledger is None:
        spent, total = found.get("epsilon_ledger"), found.get("epsilon_ledger_total")
        if not is_number(spent):
            return []
        of = f" of {at_most(total)}" if is_number(total) else ""
        return [("on the ledger, all runs", f"epsilon {at_most(spent)}{of}")]
    total = ledger.header.total_epsilon
    of = f" of {at_most(total)}" if total is not None else ", without a total"
    rows: list[tuple[str, object]] = [
        ("ledger", "the population's, shared by runs" if ledger.shared else "this run's own")
    ]
    if (own := _spent(ledger, ledger.own)) is not None:
        rows.append(("spent by this run so far", f"epsilon {own}{of}"))
    if ledger.shared:
        runs = len({charge.run.partition("-")[0] for charge in ledger.charges})
        every = _spent(ledger, list(ledger.charges))
        if ledger.whole and every is not None:
            who = f"all {runs} runs" if runs != 1 else "the one run"
            rows.append((f"spent by {who} on it", f"epsilon {every}{of}"))
        elif not ledger.whole:
            rows.append(("spent by all runs on it", "the ledger itself could not be read here"))
    return rows


def _spent(ledger: LedgerView, charges: list[Charge]) -> str | None:
    """Their epsilon together, rounded up; None where it cannot be computed."""
    try:
        value = ledger.epsilon(charges)
    except (ValueError, ArithmeticError, ImportError):
        return None
    return at_most(value) if math.isfinite(value) else "infinity"


def _fact_sheet(run: RunFolder) -> tuple[Table | None, str]:
    """NIST SP 800-226's questions, of a run with a result; or why there are none."""
    if not run.summary:
        return None, ""
    try:
        items = [[one.question, one.answer, one.source] for one in fact_sheet(run.summary)]
    except ReportError as error:  # of a run of an earlier version
        return None, f"Fact sheet: None can be made: {error}."
    headings = ["question", "answer", "from"]
    return Table("The run's own answers", headings, items, words=3, stacked=True), ""


def _releases(run: RunFolder) -> Table | Figure | str:
    """What each release spent, or why nothing is listed."""
    drawn = by_round(run.metrics, "epsilon_so_far", "spent so far")
    if run.ledger is not None:
        listing = _charges(run, run.ledger)
        return _spent_figure(run, drawn, listing) if len(drawn) > 1 else listing
    if drawn:
        rows = [[number(row["x"]), rounded_up(row["value"])] for row in spread(drawn)]
        caption = f"Epsilon by round{few(len(rows), len(drawn))}"
        return _spent_figure(run, drawn, Table(caption, ["round", "epsilon so far"], rows))
    asked = run.claimed.get("claim", "") is not None
    return f"Nothing to list: {'no charge is known here' if asked else 'no user was asked'}."


def _charges(run: RunFolder, ledger: LedgerView) -> Table:
    sofar = {str(row.get("charge")): row.get("epsilon_so_far") for row in run.metrics}
    charges = ledger.own
    sampled = any(charge.sampling_rate < 1 for charge in charges)
    rows = [
        [
            charge.id,
            _question(charge, ledger.run),
            number(charge.round),
            number(charge.attempt),
            number(charge.noise_multiplier),
            *([number(charge.sampling_rate)] if sampled else []),
            STATES[charge.state],
            rounded_up(sofar.get(charge.id)),
            _clock(ledger.times.get(charge.id)),
        ]
        for charge in spread(charges)
    ]
    headings = ["charge", "question", "round", "attempt", "noise / bound"]
    headings += ["rate"] if sampled else []
    headings += ["what became of it", "epsilon after it", "when (UTC)"]
    return Table(f"Charges of this run{few(len(rows), len(charges))}", headings, rows, words=2)


def _spent_figure(run: RunFolder, drawn: list[dict[str, Any]], listing: Table) -> Figure:
    """Epsilon against rounds, below the total of the privacy plan."""
    found = run.claimed
    total = found.get("epsilon")
    budget = float(total) if is_number(total) and not why_unclaimed(found) else None
    remark = WOULD
    if not why_unclaimed(found):
        remark = (
            f"The dashed line is the run's whole claim, {guarantee(run)}, which also pays for "
            "spare rounds and evaluations."
        )
    draw = partial(lines, drawn, value="epsilon so far", budget=budget)
    return Figure("Epsilon spent by round", remark, listing, draw)


def _question(charge: Charge, run: str) -> str:
    """The kind of question; of one beside the rounds, its name, too."""
    beside = charge.run.removeprefix(run).removeprefix("-")
    return f"{beside} ({charge.query})" if beside else charge.query


def _clock(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def _curve(run: RunFolder, found: Mapping[str, Any]) -> Figure | None:
    """The (epsilon, delta) curve of the run's releases."""
    points = found.get("privacy_curve")
    if not isinstance(points, list) or why_unclaimed(found):
        return None
    pairs = [
        (float(one[0]), float(one[1]))
        for one in points
        if isinstance(one, list | tuple) and len(one) == 2 and all(map(is_number, one))
    ]
    if len(pairs) < 2:
        return None
    rows = [
        {"x": point, "value": math.log10(one), "series": "curve"} for point, one in pairs if one > 0
    ]
    title = "Epsilon and delta: each point of the curve holds"
    cells = [[at_most(point), delta_at_most(one)] for point, one in pairs]
    listing = Table("Epsilon and delta", ["epsilon", "delta"], cells)
    draw = partial(lines, rows, value="log10 of delta", label="epsilon", zero=False)
    return Figure(title, guarantee(run), listing, draw)
