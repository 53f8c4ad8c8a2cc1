"""Accounting numbers: the papers' settings, other public accountants, and the safe end."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy import (
    accounting,
    calibrate,
    compose_gaussians,
    epsilon,
    gaussian_epsilon,
)

GOLDEN = Path(__file__).parents[1] / "golden"
DELTA = 3e-6


def exact_delta(sigma: float, eps: float) -> float:
    """Balle and Wang 2018, Theorem 8, by scaled complementary error functions."""
    from scipy.special import erfcx

    mu, x = 1 / sigma, eps * sigma - 0.5 / sigma
    mills = [math.sqrt(math.pi / 2) * float(erfcx(y / math.sqrt(2))) for y in (x, x + mu)]
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (mills[0] - mills[1])


@pytest.mark.parametrize(
    ("rounds", "sigma", "rdp", "pld"),
    [(20, 19.3, 0.9973, 0.9195), (20, 3.35, 6.9622, 6.4993), (50, 30.6, 0.9943, 0.9167)],
)
def test_unsampled_rounds_of_the_papers(rounds, sigma, rdp, pld):
    assert epsilon(sigma, rounds, DELTA) == pytest.approx(pld, abs=6e-5)
    assert epsilon(sigma, rounds, DELTA, accountant="rdp") == pytest.approx(rdp, abs=6e-5)


@pytest.mark.parametrize(
    ("sigma", "rate", "rdp", "pld"), [(3.4, 0.1, 0.9927, 0.9034), (15.5, 0.5, 0.991, 0.913)]
)
def test_sampled_rounds_of_the_papers(sigma, rate, rdp, pld):
    assert epsilon(sigma, 50, DELTA, sampling_rate=rate) == pytest.approx(pld, abs=5e-4)
    found = epsilon(sigma, 50, DELTA, sampling_rate=rate, accountant="rdp")
    assert found == pytest.approx(rdp, abs=5e-4)


@pytest.mark.parametrize(("target", "rdp", "pld"), [(1.29, 11.28, 10.486), (7.58, 2.310, 2.181)])
def test_calibration_of_pretext(target, rdp, pld):
    assert calibrate(target, 11, DELTA) == pytest.approx(pld, abs=6e-4)
    assert calibrate(target, 11, DELTA, accountant="rdp") == pytest.approx(rdp, abs=6e-4)


@pytest.mark.parametrize(("sigma", "published"), [(3.01, 3.990), (5.49, 1.992), (10.3, 0.995)])
def test_ctcl_training_without_histogram(sigma, published):
    users = 75316
    delta = 1 / (users * math.log(users))
    found = epsilon(sigma, 2000, delta, sampling_rate=4096 / users)
    assert found == pytest.approx(published, abs=6e-4)


@pytest.mark.parametrize(("rho", "published"), [(0.42, 5.952), (0.5, 6.548)])
def test_gboard_zcdp_as_one_gaussian(rho, published):
    assert gaussian_epsilon(1 / math.sqrt(2 * rho), 1e-10) == pytest.approx(published, abs=6e-4)


def test_golden_pld_table():
    for key, published in json.loads((GOLDEN / "accounting_pld.json").read_text()).items():
        sigma, rounds, rate = key.split(",")
        found = epsilon(float(sigma), int(rounds), DELTA, sampling_rate=float(rate))
        assert found == pytest.approx(published, rel=1e-6), key


def test_golden_gaussian_table():
    """Closed form to 1e-9; RDP near another accountant's; its numerical failures are refused."""
    failures = 0
    for row in json.loads((GOLDEN / "accounting_gaussian.json").read_text()):
        plan = (row["noise_multiplier"], row["steps"], row["delta"])
        rdp = epsilon(*plan, sampling_rate=row["q"], accountant="rdp")
        if row["eps_analytic_gaussian"] is not None:
            assert epsilon(*plan) == pytest.approx(row["eps_analytic_gaussian"], abs=1e-9)
        if row["eps_opacus_rdp"] < 0:
            failures += 1
            assert rdp > epsilon(*plan, sampling_rate=row["q"]) > 0
        else:
            # Other orders: ours may be tighter at large delta, never by much elsewhere.
            assert rdp == pytest.approx(row["eps_opacus_rdp"], rel=2e-3)
    assert failures == 2  # the table's -29.87 and -11.86


def test_golden_noise_search_is_matched_from_the_safe_side():
    for row in json.loads((GOLDEN / "dpsda_noise_multiplier_search.json").read_text()):
        found = calibrate(row["epsilon"], row["steps"], row["delta"])
        assert found == pytest.approx(row["noise_multiplier"], rel=1e-6)
        assert epsilon(found, row["steps"], row["delta"]) <= row["epsilon"]


@settings(deadline=None, max_examples=40)
@given(sigma=st.floats(0.05, 1e5), log_delta=st.floats(-25, -0.5))
def test_closed_form_never_understates_and_is_tight(sigma, log_delta):
    delta = 10.0**log_delta
    eps = gaussian_epsilon(sigma, delta)
    assert exact_delta(sigma, eps) <= delta * (1 + 1e-7)
    if eps > 1e-6:
        assert exact_delta(sigma, eps * (1 - 1e-4)) > delta * (1 - 1e-7)


@settings(deadline=None, max_examples=25)
@given(target=st.floats(0.01, 50), rounds=st.integers(1, 3000), log_delta=st.floats(-12, -2))
def test_calibration_never_exceeds_and_is_smallest(target, rounds, log_delta):
    delta = 10.0**log_delta
    found = calibrate(target, rounds, delta)
    assert epsilon(found, rounds, delta) <= target
    assert epsilon(found * (1 - 1e-6), rounds, delta) > target


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_sampled_calibration_never_exceeds(accountant):
    plan = {"sampling_rate": 0.1, "accountant": accountant}
    found = calibrate(1.0, 50, DELTA, **plan)
    assert epsilon(found, 50, DELTA, **plan) <= 1.0 < epsilon(found * 0.999, 50, DELTA, **plan)


def skellam(z, rounds, **options):
    return epsilon(z, rounds, DELTA, mechanism="skellam", **options)


@pytest.mark.parametrize(
    ("rounds", "z", "sensitivity", "wanted"),
    [
        (20, 19.3, 4.0, 0.99738),
        (20, 19.3, 4096.0, 0.99727),
        (11, 11.3, 4096.0, 1.28759),
        (11, 2.31, 4096.0, 7.61205),  # integer orders: 4 is best, a Gaussian's best is 4.4
    ],
)
def test_integer_noise_at_the_papers_settings(rounds, z, sensitivity, wanted):
    found = skellam(z, rounds, sensitivity=sensitivity)
    assert found == pytest.approx(wanted, abs=1e-5)
    assert found == skellam(z, rounds, sensitivity=sensitivity, accountant="rdp")
    rdp = epsilon(z, rounds, DELTA, accountant="rdp")
    assert rdp - 1e-9 <= found <= rdp + (1e-3 if z > 10 else 0.04)


@settings(deadline=None, max_examples=25)
@given(
    target=st.floats(0.01, 20),
    rounds=st.integers(1, 300),
    sensitivity=st.floats(1, 1e5),
    log_delta=st.floats(-12, -2),
)
def test_integer_noise_is_calibrated_on_the_safe_side(target, rounds, sensitivity, log_delta):
    delta, options = 10.0**log_delta, {"mechanism": "skellam", "sensitivity": sensitivity}
    found = calibrate(target, rounds, delta, **options)
    assert epsilon(found, rounds, delta, **options) <= target
    # The filter's order is best at large sensitivity, and costs at most a few percent at 1.
    closeness = 1e-6 if sensitivity > 1000 else 0.05
    assert epsilon(found * (1 - closeness), rounds, delta, **options) > target


def test_integer_noise_amplified_by_sampling():
    plan = {"mechanism": "skellam", "sampling_rate": 0.1}
    found = epsilon(3.4, 50, DELTA, **plan)
    assert epsilon(3.4, 50, DELTA, sampling_rate=0.1, accountant="rdp") < found < 2.3
    assert found < skellam(3.4, 50) / 5
    noise = calibrate(1.0, 50, DELTA, **plan)
    assert epsilon(noise, 50, DELTA, **plan) <= 1.0 < epsilon(noise * 0.999, 50, DELTA, **plan)


@pytest.mark.parametrize("mechanism", ["gaussian", "skellam"])
def test_total_variation_is_paid_in_delta(mechanism):
    plan = {"mechanism": mechanism, "total_variation": 1e-9}
    found = epsilon(19.3, 20, DELTA, **plan)
    cost = (1 + math.exp(found)) * 20e-9
    assert found == pytest.approx(
        epsilon(19.3, 20, DELTA - cost, mechanism=mechanism), rel=1e-6, abs=1e-12
    )
    noise = calibrate(1.0, 20, DELTA, **plan)
    assert epsilon(noise, 20, DELTA, **plan) <= 1.0 < epsilon(noise * 0.999, 20, DELTA, **plan)


def test_composition_is_closed_form():
    assert compose_gaussians([]) == math.inf
    assert compose_gaussians([3.0]) == pytest.approx(3.0)
    assert compose_gaussians([2.0] * 4) == pytest.approx(1.0)
    assert compose_gaussians([3.0, 4.0]) == pytest.approx(2.4)
    assert compose_gaussians([3.0, 0.0]) == 0.0
    assert gaussian_epsilon(compose_gaussians([19.3] * 20), DELTA) == pytest.approx(
        epsilon(19.3, 20, DELTA)
    )


def test_ends_of_the_scale():
    assert gaussian_epsilon(0.0, DELTA) == math.inf
    assert gaussian_epsilon(math.inf, DELTA) == 0.0
    assert gaussian_epsilon(1e12, 1e-300) > 0  # where the closed form loses its digits
    assert epsilon(1.0, 0, DELTA) == 0.0
    assert epsilon(0.0, 3, DELTA) == math.inf
    assert epsilon(0.2, 3, DELTA, sampling_rate=0.01) <= epsilon(0.2, 3, DELTA)


@pytest.mark.parametrize("value", [-29.87, float("nan"), 1e9])
def test_a_numerical_failure_is_refused(monkeypatch, value):
    from dp_accounting import gaussian_mechanism

    monkeypatch.setattr(gaussian_mechanism, "get_epsilon_gaussian", lambda *_: value)
    with pytest.raises(accounting.AccountingError, match="numerical failure"):
        gaussian_epsilon(1.0, DELTA)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gaussian_epsilon(-1.0, DELTA), "noise_multiplier = -1.0"),
        (lambda: gaussian_epsilon(math.nan, DELTA), "noise_multiplier = nan"),
        (lambda: gaussian_epsilon(1.0, 0.0), "delta = 0.0"),
        (lambda: gaussian_epsilon(1.0, 1.0), "delta = 1.0"),
        (lambda: epsilon(1.0, -1, DELTA), "rounds = -1"),
        (lambda: epsilon(1.0, 1, DELTA, sampling_rate=0.0), "sampling_rate = 0.0"),
        (lambda: epsilon(1.0, 1, DELTA, accountant="prv"), "accountant = 'prv'"),
        (lambda: epsilon(1.0, 1, DELTA, mechanism="laplace"), "mechanism = 'laplace'"),
        (lambda: skellam(1.0, 1, accountant="pld"), "accountant = 'pld' must be 'rdp' for mech"),
        (lambda: skellam(1.0, 1, sensitivity=0.1), "sensitivity = 0.1"),
        (lambda: skellam(1.0, 1, total_variation=-1e-9), "total_variation = -1e-09"),
        (lambda: skellam(3.35, 20, total_variation=1e-8), "20 rounds leaves nothing of delta"),
        (
            lambda: calibrate(9.0, 20, DELTA, mechanism="skellam", total_variation=1e-10),
            "nothing of delta = 3e-06 at epsilon = 9.0",
        ),
        (lambda: calibrate(0.0, 1, DELTA), "target_epsilon = 0.0"),
        (lambda: calibrate(1.0, 0, DELTA), "rounds = 0"),
        (lambda: calibrate(1e9, 1, DELTA), "target_epsilon = 1000000000.0 is above"),
        (lambda: calibrate(1e-9, 1, 1e-12), "target_epsilon = 1e-09 is below"),
    ],
)
def test_errors_name_value_and_bound(call, words):
    with pytest.raises(ValueError, match=words):
        call()
