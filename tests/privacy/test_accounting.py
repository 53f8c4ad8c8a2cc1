"""Accounting numbers: the papers' settings, other public accountants, and the safe end."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.config import RunConfig
from privsyn_flower.privacy import calibrate, compose_gaussians, epsilon, gaussian_epsilon
from privsyn_flower.privacy.accounting import composition as accounting
from privsyn_flower.privacy.accounting.calibration import most_releases
from privsyn_flower.privacy.accounting.composition import (
    Releases,
    composed_epsilon,
    gaussian_mu,
    tightest,
)
from privsyn_flower.privacy.accounting.curve import renyi_epsilon
from privsyn_flower.privacy.ledger import Charge
from privsyn_flower.privacy.ledger.filters import Kind, charged_epsilon, new_header
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.server_apps.privacy_plan import statement
from tests.rigs.accounting import by_dp_accounting, exact_delta

GOLDEN = Path(__file__).parents[1] / "golden"
DELTA = 3e-6
LEFT = gaussian_delta(DELTA)


# --- what is published ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "sigma", "rdp", "pld"),
    [(20, 19.3, 0.9973, 0.9195), (20, 3.35, 6.9622, 6.4993), (50, 30.6, 0.9943, 0.9167)],
)
def test_unsampled_rounds_of_the_papers(rounds: int, sigma: float, rdp: float, pld: float) -> None:
    assert epsilon(sigma, rounds, DELTA) == pytest.approx(pld, abs=6e-5)
    assert renyi_epsilon(sigma, rounds, DELTA) == pytest.approx(rdp, abs=6e-5)


@pytest.mark.parametrize(
    ("sigma", "rate", "rdp", "pld"), [(3.4, 0.1, 0.9927, 0.9034), (15.5, 0.5, 0.991, 0.913)]
)
def test_sampled_rounds_of_the_papers(sigma: float, rate: float, rdp: float, pld: float) -> None:
    assert epsilon(sigma, 50, DELTA, sampling_rate=rate) == pytest.approx(pld, abs=5e-4)
    found = renyi_epsilon(sigma, 50, DELTA, sampling_rate=rate)
    assert found == pytest.approx(rdp, abs=5e-4)


@pytest.mark.parametrize(
    ("target", "rounds", "rate", "noise"),
    [
        (1.29, 11, 1.0, 10.490),
        (7.58, 11, 1.0, 2.181),
        (7.58, 9, 1.0, 1.973),
        (1.0, 20, 1.0, 17.87),
        (1.0, 50, 0.1, 3.129),
        (1.0, 50, 0.5, 14.27),
    ],
)
def test_noise_of_the_papers_settings(
    target: float, rounds: int, rate: float, noise: float
) -> None:
    """With what the nodes' integers leave of delta: what a run draws."""
    assert calibrate(target, rounds, LEFT, sampling_rate=rate) == pytest.approx(noise, rel=5e-4)


@pytest.mark.parametrize(("target", "rdp"), [(1.29, 11.28), (7.58, 2.310)])
def test_the_papers_own_noise_is_what_renyi_orders_say(target: float, rdp: float) -> None:
    assert renyi_epsilon(rdp, 11, DELTA) == pytest.approx(target, rel=1e-3)
    assert calibrate(target, 11, DELTA) < 0.95 * rdp


@pytest.mark.parametrize(("sigma", "published"), [(3.01, 3.990), (5.49, 1.992), (10.3, 0.995)])
def test_ctcl_training_without_histogram(sigma: float, published: float) -> None:
    users = 75316
    delta = 1 / (users * math.log(users))
    found = epsilon(sigma, 2000, delta, sampling_rate=4096 / users)
    assert found == pytest.approx(published, abs=6e-4)


@pytest.mark.parametrize(("rho", "published"), [(0.42, 5.952), (0.5, 6.548)])
def test_gboard_zcdp_as_one_gaussian(rho: float, published: float) -> None:
    assert gaussian_epsilon(1 / math.sqrt(2 * rho), 1e-10) == pytest.approx(published, abs=6e-4)


def test_golden_pld_table() -> None:
    for key, published in json.loads((GOLDEN / "accounting_pld.json").read_text()).items():
        sigma, rounds, rate = key.split(",")
        found = epsilon(float(sigma), int(rounds), DELTA, sampling_rate=float(rate))
        assert found == pytest.approx(published, rel=1e-6), key


def test_golden_gaussian_table() -> None:
    """Closed form to 1e-9; Renyi near another accountant's, whose failures are not repeated."""
    failures = 0
    for row in json.loads((GOLDEN / "accounting_gaussian.json").read_text()):
        plan = (row["noise_multiplier"], row["steps"], row["delta"])
        rdp = renyi_epsilon(*plan, sampling_rate=row["q"])
        if row["eps_analytic_gaussian"] is not None:
            assert epsilon(*plan) == pytest.approx(row["eps_analytic_gaussian"], abs=1e-9)
        assert rdp > epsilon(*plan, sampling_rate=row["q"]) > 0
        if row["eps_opacus_rdp"] < 0:
            failures += 1
        else:
            # Other orders: ours may be tighter at large delta, never by much elsewhere.
            assert rdp == pytest.approx(row["eps_opacus_rdp"], rel=2e-3)
    assert failures == 2  # the table's -29.87 and -11.86


def test_golden_noise_search_is_matched_from_the_safe_side() -> None:
    for row in json.loads((GOLDEN / "dpsda_noise_multiplier_search.json").read_text()):
        found = calibrate(row["epsilon"], row["steps"], row["delta"])
        assert found == pytest.approx(row["noise_multiplier"], rel=1e-6)
        assert epsilon(found, row["steps"], row["delta"]) <= row["epsilon"]


# --- one Gaussian ---------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(sigma=st.floats(0.05, 1e5), log_delta=st.floats(-25, -0.5))
def test_closed_form_never_understates_and_is_tight(sigma: float, log_delta: float) -> None:
    delta = 10.0**log_delta
    eps = gaussian_epsilon(sigma, delta)
    assert exact_delta(sigma, eps) <= delta * (1 + 1e-7)
    if eps > 1e-6:
        assert exact_delta(sigma, eps * (1 - 1e-4)) > delta * (1 - 1e-7)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(log_epsilon=st.floats(-4, math.log10(700)), log_delta=st.floats(-12, -1))
def test_mu_never_understates_and_is_tight(log_epsilon: float, log_delta: float) -> None:
    """Against dp_accounting, which searches the other way: for epsilon, within 1e-12."""
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian

    eps, delta = 10.0**log_epsilon, 10.0**log_delta
    mu = gaussian_mu(eps, delta)
    assert get_epsilon_gaussian(1 / mu, delta) <= eps * (1 + 1e-12) + 2e-12
    assert exact_delta(1 / mu, eps) <= delta * (1 + 1e-9)
    # Its search for sigma ends within 1e-6 of it; its epsilon is the sharper one.
    assert mu == pytest.approx(1 / get_sigma_gaussian(eps, delta), rel=1e-5)
    assert get_epsilon_gaussian(1 / (mu * (1 + 1e-8)), delta) > eps * (1 - 1e-12) - 2e-12


@pytest.mark.parametrize("eps", [1e-9, 710.0, 715.0, 720.0, 745.0, 5000.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_mu_stays_safe_where_floats_end(eps: float, delta: float) -> None:
    """From 60 digits: what underflows must not look like privacy."""
    from mpmath import exp, mp, mpf, ncdf

    with mp.workdps(60):
        mu = mpf(gaussian_mu(eps, delta))
        found = ncdf(mu / 2 - eps / mu) - exp(mpf(eps)) * ncdf(-mu / 2 - eps / mu)
        assert 0.5 * delta < found <= delta


@settings(deadline=None, max_examples=25)
@given(target=st.floats(1e-4, 50), rounds=st.integers(1, 3000), log_delta=st.floats(-12, -2))
def test_calibration_never_exceeds_and_is_smallest(
    target: float, rounds: int, log_delta: float
) -> None:
    delta = 10.0**log_delta
    found = calibrate(target, rounds, delta)
    assert epsilon(found, rounds, delta) <= target
    assert epsilon(found * (1 - 1e-6), rounds, delta) > target - 1e-11


@pytest.mark.slow
@pytest.mark.parametrize(("target", "rounds", "rate"), [(1.0, 50, 0.1), (3.0, 10, 0.5)])
def test_sampled_calibration_never_exceeds(target: float, rounds: int, rate: float) -> None:
    found = calibrate(target, rounds, LEFT, sampling_rate=rate)
    assert by_dp_accounting({(found, rate): rounds}, LEFT) <= target
    assert epsilon(found, rounds, LEFT, sampling_rate=rate) <= target
    assert epsilon(found * 0.999, rounds, LEFT, sampling_rate=rate) > target


# --- every epsilon against another calculation ----------------------------------------------

MIXED: list[Releases] = [
    {(2.181, 1.0): 11},
    {(3.4, 0.1): 50},
    {(3.4, 0.1): 30, (15.5, 0.5): 10},
    {(3.4, 0.1): 30, (20.0, 1.0): 3},
    {(5.0, 1.0): 2, (7.0, 1.0): 4, (40.0, 1.0): 1},
    {(1.5, 0.01): 200, (9.0, 1.0): 2, (2.0, 0.3): 1},
]


@pytest.mark.slow
@pytest.mark.parametrize("releases", MIXED)
def test_composition_is_dp_accountings(releases: Releases) -> None:
    found = composed_epsilon(releases, LEFT)
    assert found == pytest.approx(by_dp_accounting(releases, LEFT), rel=2e-3)
    order = list(releases.items())
    random.Random(0).shuffle(order)
    assert composed_epsilon(dict(order), LEFT) == pytest.approx(found, rel=1e-6)
    assert composed_epsilon({**releases, (1.0, 0.5): 0, (math.inf, 0.2): 9}, LEFT) == found


@pytest.mark.slow
@pytest.mark.parametrize("releases", MIXED)
def test_charges_cost_what_dp_accounting_says(releases: Releases) -> None:
    charges = [
        Charge(str(i), "r", "q", i, 1, z, state, sampling_rate=rate)
        for (z, rate), count in releases.items()
        for i, state in enumerate(["committed"] * (count - 1) + ["reserved"] + ["void"] * 3)
    ]
    wanted = by_dp_accounting(releases, LEFT)
    assert charged_epsilon(charges, DELTA) == pytest.approx(wanted, rel=2e-3)


def charge(z: float, rate: float = 1.0) -> Charge:
    return Charge("1", "r", "q", 1, 1, z, "committed", sampling_rate=rate)


def test_a_headers_epsilon_is_dp_accountings() -> None:
    unsampled = new_header("p", 7.58, DELTA, False)
    spent = [charge(5.0)] * 3 + [charge(9.0)] * 2
    wanted = by_dp_accounting({(5.0, 1.0): 3, (9.0, 1.0): 2}, LEFT)
    assert unsampled.epsilon_of(spent) == pytest.approx(wanted, rel=2e-3)
    whole = [charge((unsampled.budget or 0) ** -0.5)]
    assert unsampled.epsilon_of(whole) == pytest.approx(7.58, rel=1e-8)
    assert unsampled.epsilon_of(whole) <= 7.58
    sampled = new_header("p", 1.0, DELTA, False, (Kind(3.4, 0.1, 50),))
    for count in (1, 20, 50):
        wanted = by_dp_accounting({(3.4, 0.1): count}, LEFT)
        assert sampled.epsilon_of([charge(3.4, 0.1)] * count) == pytest.approx(wanted, rel=2e-3)
    for header in (unsampled, sampled):
        assert header.epsilon_of([]) == 0.0


NODES: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "rounds": 6}
CENTRAL = NODES | {"training.noise": "aggregator"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "releases"),
    [
        (NODES, 7),
        (NODES | {"noise-multiplier": 12.0, "spare-rounds": 3}, 9),
        (NODES | {"sampler": "poisson", "sampling-rate": 0.1}, 7),
        (NODES | {"sampler": "poisson", "sampling-rate": 0.1, "noise-multiplier": 2.0}, 7),
        (NODES | {"method": "dp-fedavg"}, 7),
        (CENTRAL | {"method": "dp-fedavg", "epsilon": 7.58}, 6),
        (CENTRAL | {"method": "dp-fedavg", "training.evaluate": True}, 7),
        (CENTRAL | {"method": "dp-ftrl"}, 0),
        (CENTRAL | {"method": "dp-ftrl", "ftrl.min-separation": 2, "epsilon": 4.0}, 0),
    ],
)
def test_a_statements_epsilon_is_dp_accountings(values: dict[str, Any], releases: int) -> None:
    config = RunConfig.from_flat(values)
    said = statement(config)
    assert said.delta == DELTA
    if config.method == "dp-ftrl":  # as many as the user's participations, of equal cost
        releases = said.most_participations
        assert releases == math.ceil(6 / config.ftrl.min_separation)
    plan = {(said.noise_multiplier, said.sampling_rate): releases}
    assert said.epsilon == pytest.approx(by_dp_accounting(plan, LEFT), rel=2e-3)
    assert said.epsilon <= config.epsilon
    if not config.noise_multiplier:
        assert said.epsilon > 0.999 * config.epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "rate", "target"),
    [(19.3, 1.0, 0.9195), (5.0, 1.0, 7.58), (3.4, 0.1, 0.9), (6.0, 0.5, 1.5)],
)
def test_most_releases_is_the_largest_number(z: float, rate: float, target: float) -> None:
    count = most_releases(z, rate, target, LEFT)
    assert by_dp_accounting({(z, rate): count}, LEFT) <= target * (1 + 1e-3)
    assert by_dp_accounting({(z, rate): count + 1}, LEFT) > target * (1 - 1e-3)
    assert epsilon(z, count, LEFT, sampling_rate=rate) <= target
    assert epsilon(z, count + 1, LEFT, sampling_rate=rate) > target
    assert most_releases(0.5, 1.0, 0.1, LEFT) == 0


@lru_cache
def kinds() -> dict[tuple[float, float], float]:
    noise, rates = (3.0, 6.0), (0.05, 0.3, 1.0)
    grid = itertools.product(noise, rates)
    return {(z, q): epsilon(z, 10, LEFT, sampling_rate=q) for z, q in grid}


@pytest.mark.slow
def test_more_noise_and_fewer_users_never_cost_more() -> None:
    """What a ledger of a plan rests on: in whatever mixture such releases come."""
    for (z, q), dear in kinds().items():
        for (other, rate), cheap in kinds().items():
            if other >= z and rate <= q:
                assert cheap <= dear + 1e-4
                mixed = Counter({(z, q): 5}) + Counter({(other, rate): 5})
                assert cheap - 1e-3 <= composed_epsilon(mixed, LEFT) <= dear + 1e-3


# --- ends and errors ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_best_valid_bound_is_taken_and_named() -> None:
    """Where floats cannot tell, and where so many releases are convolved that a PLD says little."""
    least = 0.9 * accounting.SMALLEST_DELTA
    assert tightest({(3.0, 1.0): 20}, least) == (epsilon(3.0, 20, least), "exact")
    for plan, rounds, delta in ((3.0, 0.05), 20, least), ((100.0, 0.01), 10**9, 1e-6):
        found, how = tightest({plan: rounds}, delta)
        by_renyi = renyi_epsilon(plan[0], rounds, delta, sampling_rate=plan[1])
        assert how == "renyi" and by_renyi <= found <= 1.1 * by_renyi
        assert found < 0.5 * epsilon(plan[0], rounds, delta)
    assert tightest({(3.0, 0.05): 20}, 1e-12)[1] == "pld"
    assert tightest({(1.0, 0.01): 10**5}, 1e-6)[1] == "renyi"
    assert tightest({(0.01, 0.5): 10**7}, 1e-6)[1] == "exact"
    assert 40 < calibrate(1.0, 10**8, 1e-6, sampling_rate=0.001) < 50


def test_composition_is_closed_form() -> None:
    assert compose_gaussians([]) == math.inf
    assert compose_gaussians([3.0]) == pytest.approx(3.0)
    assert compose_gaussians([2.0] * 4) == pytest.approx(1.0)
    assert compose_gaussians([3.0, 4.0]) == pytest.approx(2.4)
    assert compose_gaussians([3.0, 0.0]) == compose_gaussians([3.0, 1e-200]) == 0.0
    assert gaussian_epsilon(compose_gaussians([19.3] * 20), DELTA) == pytest.approx(
        epsilon(19.3, 20, DELTA)
    )


@pytest.mark.slow
def test_ends_of_the_scale() -> None:
    assert gaussian_epsilon(0.0, DELTA) == math.inf
    assert gaussian_epsilon(math.inf, DELTA) == 0.0
    assert gaussian_epsilon(1e12, 1e-300) > 0  # where the closed form loses its digits
    assert epsilon(1.0, 0, DELTA) == composed_epsilon({}, DELTA) == 0.0
    assert epsilon(0.0, 3, DELTA) == epsilon(1e-200, 3, DELTA) == math.inf
    assert epsilon(0.2, 3, DELTA, sampling_rate=0.01) <= epsilon(0.2, 3, DELTA)
    assert renyi_epsilon(1.0, 0, DELTA) == 0.0 and renyi_epsilon(0.0, 1, DELTA) == math.inf


@pytest.mark.parametrize("value", [-29.87, float("nan"), 1e9])
def test_a_numerical_failure_is_refused(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    monkeypatch.setattr(accounting, "_exact_epsilon", lambda *_: value)
    with pytest.raises(accounting.AccountingError, match="numerical failure"):
        gaussian_epsilon(1.0, DELTA)


@pytest.mark.parametrize("value", [-29.87, float("nan")])
def test_a_failure_of_other_accountants_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    from dp_accounting import pld, rdp

    accounting.pld_epsilon.cache_clear()
    monkeypatch.setattr(pld.PLDAccountant, "get_epsilon", lambda *_: value)
    with pytest.raises(accounting.AccountingError, match=r"by pld .* numerical failure"):
        epsilon(3.0, 5, DELTA, sampling_rate=0.1)
    monkeypatch.setattr(rdp.RdpAccountant, "get_epsilon_and_optimal_order", lambda *_: (value, 2.0))
    with pytest.raises(accounting.AccountingError, match=r"by Renyi orders .* numerical failure"):
        renyi_epsilon(3.0, 5, DELTA)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gaussian_epsilon(-1.0, DELTA), "noise_multiplier = -1.0 must be at least 0"),
        (lambda: gaussian_epsilon(math.nan, DELTA), "noise_multiplier = nan"),
        (lambda: gaussian_epsilon(1.0, 0.0), "delta = 0.0 must be above 0 and below 1"),
        (lambda: gaussian_epsilon(1.0, 1.0), "delta = 1.0"),
        (lambda: gaussian_mu(0.0, DELTA), "epsilon = 0.0 must be finite and above 0"),
        (lambda: gaussian_mu(math.inf, DELTA), "epsilon = inf"),
        (lambda: gaussian_mu(1.0, math.nan), "delta = nan"),
        (lambda: epsilon(1.0, -1, DELTA), "rounds = -1 must be a whole number, at least 0"),
        (lambda: epsilon(1.0, 1.5, DELTA), "rounds = 1.5"),  # type: ignore[arg-type]
        (lambda: epsilon(1.0, 1, DELTA, sampling_rate=0.0), "sampling_rate = 0.0 must be above"),
        (lambda: composed_epsilon({(1.0, 1.1): 1}, DELTA), "sampling_rate = 1.1"),
        (lambda: composed_epsilon({(-1.0, 1.0): 1}, DELTA), "noise_multiplier = -1.0"),
        (lambda: renyi_epsilon(-1.0, 1, DELTA), "noise_multiplier = -1.0"),
        (lambda: calibrate(0.0, 1, DELTA), "target_epsilon = 0.0"),
        (lambda: calibrate(1.0, 0, DELTA), "rounds = 0: at least 1"),
        (lambda: calibrate(1e9, 1, DELTA), r"target_epsilon = 1000000000.0 .* 0\.01 .*lower eps"),
        (lambda: calibrate(1e-9, 1, 1e-12), r"target_epsilon = 1e-09 .* 1e\+06: raise epsilon"),
        (
            lambda: calibrate(5000.0, 1, 0.1, sampling_rate=1e-5),
            r"smallest noise multiplier searched",
        ),
    ],
)
def test_errors_name_value_and_bound(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    "number",
    [
        lambda: gaussian_epsilon(2.0, 1e-6),
        lambda: epsilon(2.25, 3, 1e-7, sampling_rate=0.37),
        lambda: renyi_epsilon(2.0, 3, 1e-6),
    ],
)
def test_without_dp_accounting_the_extra_is_named(number: Any, monkeypatch: Any) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "dp_accounting"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install 'privsyn-flower\[strategies\]'"):
        number()
    assert gaussian_mu(1.0, 1e-6) > 0  # what a device needs comes with the standard library
