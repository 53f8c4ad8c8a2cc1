"""What several tests share about ledger."""

from __future__ import annotations

import math
from itertools import count

import pytest

from privsyn_flower.privacy import (
    Ledger,
)
from privsyn_flower.privacy.ledger.filters import SLACK
from privsyn_flower.privacy.ledger.ledger import new_charge
from privsyn_flower.privacy.ledger.usage import affordable_charges
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta

DELTA = 3e-6


LEFT = gaussian_delta(DELTA)  # of it, for the noise


numbers = count(1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledgers" / "phones.jsonl"


def make(path, total=7.58, **options):
    options.setdefault("population", "phones")
    return Ledger.open(
        path, total_epsilon=total, total_delta=None if total is None else DELTA, **options
    )


def reserve(ledger, z, run="a", **options):
    options = {"query": "votes", "round": next(numbers), "attempt": 1} | options
    return ledger.reserve(run=run, noise_multiplier=z, **options)


def remaining_rounds(ledger, noise_multiplier, *, sampling_rate=1.0):
    """How many more rounds at this noise the total allows; None without a total."""
    header, wanted = ledger.header, {"noise_multiplier": noise_multiplier}
    if header.budget is None:
        return None
    if header.plan is not None:
        wanted["sampling_rate"] = sampling_rate
        return affordable_charges(ledger, [wanted] * int(header.budget))
    spent = math.fsum(charge.mu_squared for charge in ledger.charges() if charge.state != "void")
    cost = new_charge(noise_multiplier, sampling_rate=sampling_rate).mu_squared
    cost = cost or math.ulp(0.0)  # of noise beyond all bounds
    return math.floor(min(max(0.0, header.budget * (1 + SLACK) - spent) / cost, 2.0**53))
