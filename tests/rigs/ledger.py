"""What several tests share about ledger."""

from __future__ import annotations

from itertools import count

import pytest

from privsyn_flower.privacy import (
    Ledger,
)
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
