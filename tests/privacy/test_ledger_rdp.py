"""A ledger for integer noise: RDP at a fixed order, and what it does not mix with."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy import BudgetExceeded, Ledger, LedgerError, calibrate, epsilon
from privsyn_flower.privacy.charges import Charge
from privsyn_flower.privacy.filters import composed_epsilon, new_header, why_refused
from privsyn_flower.privacy.renyi import filter_budget, rdp_to_epsilon, skellam_rdp

DELTA = 3e-6
numbers = count(1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "phones.jsonl"


def make(path, total=7.58, mechanism="skellam", **options):
    delta = None if total is None else DELTA
    return Ledger.open(
        path,
        population="phones",
        total_epsilon=total,
        total_delta=delta,
        mechanism=mechanism,
        **options,
    )


def reserve(ledger, z, sensitivity=4096.0, mechanism="skellam", **options):
    return ledger.reserve(
        run="a",
        query="votes",
        round=next(numbers),
        attempt=1,
        noise_multiplier=z,
        mechanism=mechanism,
        sensitivity=sensitivity,
        **options,
    )


@pytest.mark.parametrize("sensitivity", [4.0, 4096.0])
@pytest.mark.parametrize("rounds", [1, 9, 50])
def test_a_calibrated_plan_fits_exactly(path, rounds, sensitivity):
    ledger = make(path)
    z = calibrate(7.58, rounds, DELTA, mechanism="skellam", sensitivity=sensitivity)
    plan = {"mechanism": "skellam", "sensitivity": sensitivity}
    assert ledger.is_guarantee and ledger.remaining_rounds(z, **plan) == rounds
    for _ in range(rounds):
        ledger.commit(reserve(ledger, z, sensitivity))
    assert ledger.spent_epsilon() == pytest.approx(epsilon(z, rounds, DELTA, **plan))
    assert ledger.spent_epsilon() <= 7.58
    assert ledger.remaining_rounds(z, **plan) == 0
    size = path.stat().st_size
    with pytest.raises(BudgetExceeded, match=r"of 7\.58 .*noise-multiplier.*phones\.jsonl"):
        reserve(ledger, z, sensitivity)
    assert path.stat().st_size == size


@settings(deadline=None, max_examples=60)
@given(
    total=st.floats(0.3, 10),
    rounds=st.integers(1, 60),
    sensitivity=st.sampled_from([1.0, 4.0, 64.0, 4096.0, 1e6]),
    log_delta=st.floats(-9, -4),
)
def test_what_is_calibrated_always_fits_and_no_more(total, rounds, sensitivity, log_delta):
    delta = 10.0**log_delta
    z = calibrate(total, rounds, delta, mechanism="skellam", sensitivity=sensitivity)
    header = new_header("phones", total, delta, False, "skellam")
    charge = Charge("", "", "", 0, 0, z, "reserved", False, "skellam", sensitivity)
    assert why_refused(header, [charge] * (rounds - 1), charge) is None
    louder = replace(charge, noise_multiplier=z * (1 - 1e-6))
    assert why_refused(header, [louder] * (rounds - 1), louder) is not None
    assert why_refused(header, [charge] * rounds, charge) is not None
    assert composed_epsilon(header, [charge] * rounds, delta) <= total


def test_the_header_fixes_the_order_and_its_budget(path):
    header = make(path).header
    assert (header.order, header.rdp) == filter_budget(7.58, DELTA)
    assert rdp_to_epsilon([header.rdp], [header.order], DELTA)[0] == pytest.approx(7.58, rel=1e-6)
    row = json.loads(path.read_text())
    assert row["version"] == 3 and "Feldman" in row["filter"] and row["mu_squared"] is None
    assert make(path).header == header


def test_both_kinds_of_noise_compose_at_the_order(path):
    ledger = make(path)
    reserve(ledger, 5.0, 64.0)
    reserve(ledger, 3.0, None, "gaussian")
    gone = reserve(ledger, 3.0, 4096.0)
    ledger.void(gone, "nobody was asked")
    order, budget = ledger.header.order, ledger.header.rdp
    used = skellam_rdp(5.0, 64.0, [order])[0] + order / 18
    assert ledger.header.spent(ledger.charges()) == pytest.approx(used)
    cost = skellam_rdp(4.0, 4096.0, [order])[0]
    left = ledger.remaining_rounds(4.0, mechanism="skellam", sensitivity=4096.0)
    assert left == math.floor((budget - used) / cost)
    mixed, parts = ledger.spent_epsilon(), (epsilon(5.0, 1, DELTA), epsilon(3.0, 1, DELTA))
    assert max(parts) < mixed < ledger.header.epsilon_of(used) * (1 + 1e-9) < 7.58
    charges = ledger.charges()
    assert [c.sensitivity for c in charges] == [64.0, None, 4096.0]
    assert [c.mechanism for c in charges] == ["skellam", "gaussian", "skellam"]


def test_an_adaptive_plan_stops_at_the_total(path):
    """Noise that depends on what was spent: the filter holds however it is chosen."""
    ledger = make(path, total=1.29)
    for step in range(100):
        try:
            reserve(ledger, 4.0 + 3 * (step % 5) - ledger.spent_epsilon(), 4096.0)
        except BudgetExceeded:
            break
    else:
        pytest.fail("never refused")
    assert 0.5 < ledger.spent_epsilon() <= 1.29
    assert ledger.header.spent(ledger.charges()) <= ledger.header.rdp * (1 + 1e-9)


def test_sent_is_never_void(path):
    ledger = make(path)
    charge = reserve(ledger, 9.0)
    ledger.mark_sent(charge)
    with pytest.raises(LedgerError, match="was sent"):
        ledger.void(charge, "too few")
    ledger.commit(charge)


def test_a_ledger_keeps_its_mechanism(path, tmp_path):
    make(path)
    with pytest.raises(LedgerError, match=r"mechanism = 'skellam', this run wants 'gaussian'"):
        make(path, mechanism="gaussian")
    other = tmp_path / "gaussian.jsonl"
    gaussian = make(other, mechanism="gaussian")
    with pytest.raises(LedgerError, match=r"mechanism = 'gaussian', this run wants 'skellam'"):
        make(other)
    with pytest.raises(ValueError, match=r"mechanism = 'skellam': .*created for 'gaussian'"):
        reserve(gaussian, 9.0)
    with pytest.raises(ValueError, match="created for 'gaussian'"):
        gaussian.remaining_rounds(9.0, mechanism="skellam", sensitivity=4.0)
    assert gaussian.charges() == []


def test_without_a_total_there_is_no_filter(path):
    ledger = make(path, total=None)
    assert ledger.header.mechanism == "skellam" and not ledger.is_guarantee
    reserve(ledger, 0.5)
    reserve(ledger, 19.3)
    assert ledger.remaining_rounds(1.0, mechanism="skellam", sensitivity=4.0) is None
    assert ledger.spent_epsilon(delta=DELTA) > epsilon(0.5, 1, DELTA)


def test_total_variation_is_paid_from_the_start(path, tmp_path):
    rounds, distance = 20, 1e-10
    plan = {"mechanism": "skellam", "total_variation": distance}
    ledger = make(path, total=1.0, total_variation=rounds * distance)
    z = calibrate(1.0, rounds, DELTA, **plan)
    assert ledger.header.rdp < filter_budget(1.0, DELTA)[1]
    for _ in range(rounds):
        reserve(ledger, z, total_variation=distance)
    assert ledger.spent_epsilon() == pytest.approx(epsilon(z, rounds, DELTA, **plan))
    assert ledger.spent_epsilon() <= 1.0
    with pytest.raises(BudgetExceeded, match=r"total_variation = 2\.1e-09 .* 2e-09"):
        reserve(ledger, 1000.0, total_variation=distance)
    with pytest.raises(LedgerError, match="total variation"):
        make(path, total=1.0)
    exact = make(tmp_path / "exact.jsonl")
    with pytest.raises(BudgetExceeded, match="draw exact noise"):
        reserve(exact, 9.0, total_variation=distance)
    with pytest.raises(ValueError, match=r"total_variation = 0\.001 leaves nothing"):
        make(tmp_path / "none.jsonl", total_variation=1e-3)


def version_1(path, total=7.58):
    """A file as the first version wrote it."""
    mu = None if total is None else calibrate(total, 1, DELTA) ** -2
    header = {
        "kind": "ledger",
        "population": "phones",
        "total_epsilon": total,
        "total_delta": None if total is None else DELTA,
        "mu_squared": mu,
        "simulation": False,
        "unit": "user",
        "adjacency": "zero-out",
        "filter": "sum of mu^2 (Smith and Thakurta 2022)",
        "version": 1,
    }
    row = {"kind": "reserve", "id": "1", "run": "old", "query": "votes", "round": 1, "attempt": 1}
    rows = [header, row | {"mechanism": "gaussian", "noise_multiplier": 9.0, "time": 0.0}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("total", [7.58, None])
def test_files_of_version_1_go_on(path, total):
    version_1(path, total)
    ledger = make(path, total, mechanism="gaussian")
    assert ledger.charge("1").mechanism == "gaussian" and ledger.charge("1").sensitivity is None
    reserve(ledger, 9.0, None, "gaussian")
    ledger.commit("1")
    assert make(path, total, mechanism="gaussian").spent_epsilon(delta=DELTA) == pytest.approx(
        epsilon(9.0, 2, DELTA)
    )
    with pytest.raises(LedgerError, match="this run wants 'skellam'"):
        make(path, total)


def test_files_of_version_2_go_on_and_a_new_one_does_not_take_their_place(path):
    """They have no id: a ledger made anew in their place has one."""
    make(path)
    header = json.loads(path.read_text()) | {"version": 2}
    del header["id"]
    path.write_text(json.dumps(header) + "\n")
    reserve(make(path, identity=""), 9.0)
    assert len(make(path, identity="").charges()) == 1
    path.unlink()
    with pytest.raises(LedgerError, match="alone knows what was spent"):
        make(path, identity="")
    make(path)
    with pytest.raises(LedgerError, match="not the ledger that this run began with"):
        make(path, identity="")


@pytest.mark.parametrize(
    "change",
    [
        {"filter": "sum of rho"},
        {"version": 4},
        {"rdp": None},
        {"color": "red"},
    ],
)
def test_an_unknown_header_is_not_guessed(path, change):
    make(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(LedgerError, match=r"filter|header"):
        make(path)


@pytest.mark.parametrize(
    "change",
    [
        {"sensitivity": None},
        {"sensitivity": 0.5},
        {"mechanism": "gaussian"},
        {"mechanism": "laplace"},
        {"noise_multiplier": "9"},
        {"noise_multiplier": 0.0},
        {"total_variation": -1.0},
    ],
)
def test_a_charge_that_no_writer_makes_is_never_guessed(path, change):
    ledger = make(path)
    reserve(ledger, 9.0)
    header, row = path.read_text().splitlines()
    path.write_text(header + "\n" + json.dumps(json.loads(row) | change) + "\n")
    with pytest.raises(LedgerError, match="line 2"):
        ledger.charges()


def test_skellam_in_a_gaussian_file_is_never_guessed(path, tmp_path):
    reserve(make(path), 9.0)
    other = tmp_path / "gaussian.jsonl"
    gaussian = make(other, mechanism="gaussian")
    with other.open("a") as file:
        file.write(path.read_text().splitlines()[1] + "\n")
    with pytest.raises(LedgerError, match="line 2"):
        gaussian.charges()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: reserve(make(p), 9.0, None), "sensitivity = None"),
        (lambda p: reserve(make(p), 9.0, 0.5), "sensitivity = 0.5"),
        (lambda p: reserve(make(p), 9.0, 4.0, "gaussian"), "sensitivity = 4.0 belongs"),
        (lambda p: reserve(make(p), 9.0, 4.0, "laplace"), "mechanism = 'laplace'"),
        (lambda p: reserve(make(p), math.nan), "noise_multiplier = nan"),
        (lambda p: reserve(make(p), 9.0, total_variation=2.0), "total_variation = 2.0"),
        (lambda p: make(p, mechanism="laplace"), "mechanism = 'laplace'"),
        (lambda p: make(p, total_variation=-1.0), "total_variation = -1.0"),
        (lambda p: make(p, total=1e-9), "total epsilon = 1e-09"),
    ],
)
def test_bad_values(path, call, words):
    with pytest.raises(ValueError, match=words):
        call(path)
    assert len(path.read_text().splitlines()) <= 1
