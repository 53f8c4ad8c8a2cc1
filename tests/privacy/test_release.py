"""The one door: what it refuses, and the order in which it lets a sum out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privsyn_flower.privacy import Ledger, NoisySum, ReleaseRefused, TooFewSurvivors
from privsyn_flower.privacy.release import release

SUM = NoisySum(
    vector=np.array([3.25, -1e9, 0.1]),
    bound=2.0,
    noise_std=2.0 * 2.31,
    weight=950,
    colluding=100,
    min_weight=850,
)


@pytest.fixture
def ledger(tmp_path):
    return Ledger.open(
        tmp_path / "ledger.jsonl", population="p", total_epsilon=7.58, total_delta=3e-6
    )


@pytest.fixture
def charge(ledger):
    return ledger.reserve(run="r", query="votes", round=1, attempt=1, noise_multiplier=2.31)


def test_stored_before_committed_before_returned(ledger, charge):
    seen = []

    def store(array):
        seen.append((array.copy(), ledger.charge(charge).state))

    released = release(SUM, ledger=ledger, charge_id=charge, store=store)
    assert np.array_equal(released, SUM.vector) and released is not SUM.vector
    assert np.array_equal(seen[0][0], SUM.vector) and seen[0][1] == "reserved"
    assert ledger.charge(charge).state == "committed"
    with pytest.raises(ValueError, match="read-only"):
        released[0] = 0
    with pytest.raises(ReleaseRefused, match="committed"):
        release(SUM, ledger=ledger, charge_id=charge, store=store)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"weight": 949.0}, TooFewSurvivors, "949.0 answered, 100 .* 849.0 .* W_min = 850"),
        ({"weight": 0.0, "colluding": 0.0}, TooFewSurvivors, "weight 0.0 answered"),
        ({"weight": float("nan")}, ReleaseRefused, "weight = nan"),
        ({"colluding": -1.0}, ReleaseRefused, "colluding = -1.0"),
        ({"noise_std": 4.61}, ReleaseRefused, "4.61 / 2.0 .* 2.31"),
        ({"bound": 2.0000001}, ReleaseRefused, "differs"),
        ({"bound": 0.0}, ReleaseRefused, "bound = 0.0"),
        ({"vector": np.array([1.0, np.nan])}, ReleaseRefused, "not finite"),
        ({"vector": np.zeros(0)}, ReleaseRefused, r"shape \(0,\)"),
        ({"vector": np.zeros(3, np.float32)}, ReleaseRefused, "float32"),
    ],
)
def test_refusals_store_nothing_and_stay_charged(ledger, charge, change, error, words):
    stored = []
    with pytest.raises(error, match=words):
        release(replace(SUM, **change), ledger=ledger, charge_id=charge, store=stored.append)
    assert stored == [] and ledger.charge(charge).state == "reserved"


def test_a_failing_store_stays_charged(ledger, charge):
    def store(_):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        release(SUM, ledger=ledger, charge_id=charge, store=store)
    assert ledger.charge(charge).state == "reserved" and ledger.spent_epsilon() > 0


def test_a_void_charge_pays_for_nothing(ledger, charge):
    ledger.void(charge, "not sent")
    with pytest.raises(ReleaseRefused, match="void"):
        release(SUM, ledger=ledger, charge_id=charge, store=print)


def test_the_sum_does_not_show_in_logs():
    assert "3.25" not in repr(SUM)
