"""Why a ledger does not take a charge or a run, in words that name the way out."""

from __future__ import annotations

import math
from pathlib import Path

from privsyn_flower.privacy.ledger.filters import SLACK, Header, Plan, charged_epsilon, fits
from privsyn_flower.privacy.ledger.journal import Charge, LedgerError
from privsyn_flower.privacy.wording import at_most


def why_refused(header: Header, charges: list[Charge], wanted: Charge) -> str | None:
    """Why the filter does not take one more charge; None when it does."""
    if header.budget is None or header.total_epsilon is None:
        return None
    counted = [charge.total_variation for charge in charges if charge.state != "void"]
    distance = math.fsum([*counted, wanted.total_variation])
    if distance > header.total_variation * (1 + SLACK):
        return (
            f"charges whose integer noise is {distance:.3g} from Gaussian noise together (total "
            f"variation) are more than the {header.total_variation:.3g} that the ledger's total "
            "leaves room for: raise delta, or use another ledger (key ledger)"
        )
    if refused := not_covered(header, wanted.noise_multiplier, wanted.sampling_rate):
        return refused
    if fits(header, [*charges, wanted]):
        return None
    return (
        f"population {header.population!r} has spent epsilon = "
        f"{at_most(header.epsilon_of(charges), 6)} of {at_most(header.total_epsilon, 6)} "
        f"(delta = {header.total_delta:.3g}); a round at noise multiplier "
        f"{wanted.noise_multiplier:.6g} would make it "
        f"{at_most(_with_one_more(header, charges, wanted), 6)}: "
        "raise noise-multiplier, lower rounds or spare-rounds, or use another ledger (key ledger)"
    )


def _with_one_more(header: Header, charges: list[Charge], wanted: Charge) -> float:
    """Epsilon of a charge too many, beside the others: that of the plan and one more."""
    if header.plan is None or header.total_delta is None:
        return header.epsilon_of([*charges, wanted])
    return charged_epsilon([*charges, wanted], header.total_delta)


def not_covered(header: Header, noise_multiplier: float, sampling_rate: float) -> str | None:
    """Why the ledger is not for releases like this; None when it is."""
    plan = header.plan
    if plan is None or any(kind.covers(noise_multiplier, sampling_rate) for kind in plan):
        return None
    made_for = " or ".join(
        f"at least {kind.noise_multiplier:.6g}, at most {kind.sampling_rate:g}" for kind in plan
    )
    return (
        f"a release at noise multiplier {noise_multiplier:.6g}, in which a user takes part with "
        f"probability {sampling_rate:g}, is not covered by the plan that the ledger was made for "
        f"({made_for}): raise "
        "noise-multiplier, lower sampling-rate, or use another ledger (key ledger)"
    )


def check_plan(path: Path, header: Header, wanted: Plan | None) -> None:
    """Raises LedgerError unless the ledger counts what a run of this plan is calibrated for."""
    if wanted is not None and header.budget is not None and header.plan is None:
        raise LedgerError(
            f"{path} was created for runs without sampling and gives nothing for sampling-rate = "
            f"{min(kind.sampling_rate for kind in wanted):g}: set sampler = 'full', or name "
            "another ledger (key ledger)"
        )
    if wanted is None and header.plan is not None:
        raise LedgerError(
            f"{path} was created for runs whose users take part with a probability of at most "
            f"{max(kind.sampling_rate for kind in header.plan):g}, this one asks all of them: set "
            "sampler = 'poisson' and sampling-rate, or name another ledger (key ledger)"
        )
    for kind in wanted or ():
        if refused := not_covered(header, *kind[:2]):
            raise LedgerError(f"{path}: {refused}")
