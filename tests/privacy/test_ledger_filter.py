"""The ledger's filter: the sum of mu^2 and of distances, of whoever adds the noise."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy import (
    BudgetExceeded,
    LedgerError,
    calibrate,
    compose_gaussians,
    epsilon,
    gaussian_epsilon,
)
from privsyn_flower.privacy.accounting import gaussian_mu
from privsyn_flower.privacy.ledger import Charge
from privsyn_flower.privacy.ledger.filters import SLACK, charged_epsilon, new_header
from privsyn_flower.privacy.ledger.refusals import why_refused
from privsyn_flower.privacy.ledger.usage import affordable_charges
from privsyn_flower.privacy.noise.integer_noise import allowed_distance, gaussian_delta
from privsyn_flower.privacy.wording import at_most
from tests.rigs.ledger import (
    DELTA,
    LEFT,
    make,
    path,
    remaining_rounds,
    reserve,
)

__all__ = ["path"]


def charged(z):
    return Charge("", "", "", 0, 0, z, "reserved")


@pytest.mark.parametrize("rounds", [1, 9, 50])
def test_a_calibrated_plan_fits_exactly(path, rounds):
    """Of a run whose noise may be the nodes', in integers, or an aggregator's."""
    ledger, z = make(path), calibrate(7.58, rounds, LEFT)
    assert ledger.is_guarantee and remaining_rounds(ledger, z) == rounds
    for done in range(1, rounds + 1):
        charge = reserve(ledger, z, total_variation=1e-14 if done % 3 else 0.0)
        if done % 2:
            ledger.commit(charge)
    assert epsilon(z, rounds, LEFT) == pytest.approx(ledger.spent_epsilon())
    assert ledger.spent_epsilon() <= 7.58
    assert remaining_rounds(ledger, z) == 0
    size = path.stat().st_size
    with pytest.raises(BudgetExceeded, match=r"of 7\.58 .*noise-multiplier.*phones\.jsonl"):
        reserve(ledger, z)
    assert path.stat().st_size == size


@settings(deadline=None, max_examples=60)
@given(total=st.floats(0.01, 50), rounds=st.integers(1, 60), log_delta=st.floats(-9, -2))
def test_what_is_calibrated_always_fits_and_no_more(total, rounds, log_delta):
    delta = 10.0**log_delta
    header = new_header("phones", total, delta, False)
    charge = charged(calibrate(total, rounds, gaussian_delta(delta)))
    assert why_refused(header, [charge] * (rounds - 1), charge) is None
    louder = charged(charge.noise_multiplier * (1 - 1e-6))
    assert why_refused(header, [louder] * (rounds - 1), louder) is not None
    assert why_refused(header, [charge] * rounds, charge) is not None
    assert charged_epsilon([charge] * rounds, delta) <= total


@settings(deadline=None, max_examples=60)
@given(
    total=st.floats(0.01, 50),
    log_delta=st.floats(-9, -2),
    noise=st.lists(st.floats(0.05, 100), min_size=1, max_size=40),
)
def test_whatever_noise_is_taken_stays_within_the_total(total, log_delta, noise):
    """However it was chosen: the sum stays under the square of the total's own mu."""
    delta = 10.0**log_delta
    header, taken = new_header("phones", total, delta, False), []
    for z in noise:
        if why_refused(header, taken, charged(z)) is None:
            taken.append(charged(z))
    assert math.fsum(z.mu_squared for z in taken) <= gaussian_mu(total, gaussian_delta(delta)) ** 2
    assert charged_epsilon(taken, delta) <= total * (1 + 1e-9) + 2e-12


@pytest.mark.parametrize("total", [0.01, 1.29, 7.58, 50.0])
def test_rounding_is_kept_from_the_budget(total):
    """What is let through beyond it, for sums that were rounded, is still within the total."""
    budget = new_header("phones", total, DELTA, False).budget
    assert 1 - 1e-9 < budget * (1 + SLACK) / gaussian_mu(total, LEFT) ** 2 <= 1 + 1e-15


def test_hardly_any_noise_is_refused_not_an_overflow(path):
    ledger = make(path)
    for z in (1e-3, 1e-160, 1e-300):
        with pytest.raises(BudgetExceeded, match="would make it"):
            reserve(ledger, z)
        assert (
            remaining_rounds(ledger, z)
            == affordable_charges(ledger, [{"noise_multiplier": z}])
            == 0
        )
    assert ledger.charges() == []


def test_nodes_and_an_aggregator_share_one_ledger(path):
    """The nodes' integers are the same Gaussian, at some distance; an aggregator's are at none."""
    ledger = make(path)
    apart = ledger.header.total_variation
    assert apart == allowed_distance(DELTA)
    assert 5.5 * apart == pytest.approx(DELTA - LEFT)
    reserve(ledger, 5.0, total_variation=0.7 * apart)
    reserve(ledger, 3.0)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert "total_variation" in rows[1] and "total_variation" not in rows[2]
    assert ledger.spent_epsilon() == pytest.approx(
        gaussian_epsilon(compose_gaussians([5.0, 3.0]), LEFT)
    )
    content = path.read_bytes()
    too_far = {"noise_multiplier": 40.0, "total_variation": 0.4 * apart}
    with pytest.raises(BudgetExceeded, match=r"total variation.*raise delta.*phones\.jsonl"):
        reserve(ledger, 40.0, total_variation=0.4 * apart)
    assert path.read_bytes() == content
    assert (
        affordable_charges(ledger, [too_far]) == 0
        and affordable_charges(ledger, [{"noise_multiplier": 40.0}]) == 1
    )
    reserve(ledger, 40.0)  # an aggregator's goes on
    again = reserve(ledger, 40.0, total_variation=0.3 * apart)
    assert affordable_charges(ledger, [too_far]) == 0
    ledger.void(again, "nobody was asked")  # gives its distance back, too
    reserve(ledger, 40.0, total_variation=0.3 * apart)


def test_integers_too_coarse_for_a_smaller_delta_have_no_epsilon(path):
    ledger = make(path)
    reserve(ledger, 5.0, total_variation=ledger.header.total_variation)
    assert 0 < ledger.spent_epsilon() < 7.58
    assert ledger.spent_epsilon(delta=1e-12) == math.inf
    reserve(ledger, 5.0, run="central")
    assert 0 < ledger.spent_epsilon("central", delta=1e-12) < math.inf


def test_an_adaptive_plan_stops_at_the_total(path):
    """Noise that depends on what was spent: the filter holds however it is chosen."""
    ledger = make(path, total=1.29)
    for step in range(100):
        try:
            reserve(ledger, 4.0 + 3 * (step % 5) - ledger.spent_epsilon())
        except BudgetExceeded:
            break
    else:
        pytest.fail("never refused")
    assert 0.5 < ledger.spent_epsilon() <= 1.29
    spent = sum(c.mu_squared for c in ledger.charges() if c.state != "void")
    assert spent <= ledger.header.budget * (1 + 1e-9)


def test_the_refusal_names_spent_wanted_total_and_key(path):
    ledger = make(path, total=1.0)
    reserve(ledger, 6.0)
    with pytest.raises(BudgetExceeded) as refused:
        reserve(ledger, 5.0)
    spent, wanted = (
        gaussian_epsilon(6.0, LEFT),
        gaussian_epsilon(compose_gaussians([6.0, 5.0]), LEFT),
    )
    for words in (at_most(spent, 6), at_most(wanted, 6), "of 1 ", "key ledger"):
        assert words in str(refused.value)


def test_adaptive_noise_composes_by_sum_of_mu_squared(path):
    ledger = make(path)
    for z in (5.0, 3.0, 10.0):
        reserve(ledger, z, run="a")
    reserve(ledger, 4.0, run="b")
    assert ledger.spent_epsilon("a") == pytest.approx(
        gaussian_epsilon(compose_gaussians([5, 3, 10]), LEFT)
    )
    assert ledger.spent_epsilon(delta=1e-5) == pytest.approx(
        gaussian_epsilon(compose_gaussians([5, 3, 10, 4]), gaussian_delta(1e-5))
    )
    left = calibrate(7.58, 1, LEFT) ** -2 - sum(z**-2.0 for z in (5, 3, 10, 4))
    assert remaining_rounds(ledger, 6.0) == math.floor(left * 36)


def test_affordable_charges_of_different_noise(path):
    ledger = make(path)
    reserve(ledger, 5.0)
    wanted = [{"noise_multiplier": z} for z in (3.0, 1.0, 0.8, 0.4, 9.0)]
    content = path.read_bytes()
    room = affordable_charges(ledger, wanted)
    assert path.read_bytes() == content and 0 < room < 5
    for noise in wanted[:room]:
        reserve(ledger, noise["noise_multiplier"])
    with pytest.raises(BudgetExceeded):
        reserve(ledger, wanted[room]["noise_multiplier"])
    assert affordable_charges(ledger, wanted[room:]) == 0 and affordable_charges(ledger, []) == 0
    assert affordable_charges(make(path.with_name("open.jsonl"), total=None), wanted) is None


def test_a_resumed_run_has_room_for_what_it_gives_back(path):
    ledger, z = make(path), calibrate(7.58, 2, LEFT)
    wanted = [{"noise_multiplier": z}] * 2
    ledger.commit(reserve(ledger, z, run="killed"))
    charge = reserve(ledger, z, run="killed")
    assert (
        affordable_charges(ledger, wanted) == affordable_charges(ledger, wanted, run="other") == 0
    )
    assert affordable_charges(ledger, wanted, run="killed") == 1
    ledger.mark_sent(charge)  # from here on it stays
    assert affordable_charges(ledger, wanted, run="killed") == 0


def test_without_a_total_the_number_is_no_guarantee(path):
    ledger = make(path, total=None)
    reserve(ledger, 0.1)
    assert not ledger.is_guarantee and remaining_rounds(ledger, 1.0) is None
    assert ledger.spent_epsilon(delta=DELTA) == gaussian_epsilon(0.1, LEFT)
    with pytest.raises(ValueError, match="delta = None"):
        ledger.spent_epsilon()
    with pytest.raises(LedgerError, match="total epsilon = None"):
        make(path, total=7.58)
