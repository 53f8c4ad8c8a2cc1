"""The audit of releases whose users are sampled: honest sampling passes, any other is caught.

Faults are put in by replacing a function of the devices: no configuration and no message can.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.app.audit import Audit, AuditError, audit, described, measure
from privsyn_flower.app.audit.cases import votes_case
from privsyn_flower.app.audit.measure import audited_phase, nodes_setting
from privsyn_flower.app.audit.statistics import (
    epsilon_lower_bound,
    halves,
    independence_test,
    rate_test,
    sampled_epsilon,
    sampling_test,
)
from privsyn_flower.app.audit.trials import run_trials
from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps import scores as scores_app
from privsyn_flower.client_apps import votes as votes_app
from privsyn_flower.privacy.accounting import epsilon, gaussian_epsilon
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.strategies.engine.mechanisms import NodeNoise
from tests.rigs import audit_audit as rig
from tests.rigs.audit_audit import calm  # noqa: F401

pytestmark = pytest.mark.slow

TRIALS = 10_000
RATE = 0.25
SETTINGS: dict[str, Any] = {**rig.ONE_RELEASE, "sampler": "poisson", "sampling-rate": RATE}
configured = partial(rig.configured, SETTINGS)


def measured(trials: int = TRIALS, **changed: Any) -> Audit:
    return audit(configured(**changed), trials)


def sampled_with(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """change(sample, count, rate) is how every node samples."""
    sample = answers.poisson_sample
    monkeypatch.setattr(answers, "poisson_sample", lambda count, rate: change(sample, count, rate))


# --- honest ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("calm")
def test_an_honest_release_passes_and_the_bound_is_near_the_claim() -> None:
    result = rig.command(SETTINGS, "--trials", "100000", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    claimed = epsilon(1.0, 1, gaussian_delta(found["delta"]), sampling_rate=RATE)
    assert found["claimed_epsilon"] == claimed < 0.7 * gaussian_epsilon(1.0, found["delta"])
    assert 0.75 * claimed < found["lower_bound"] < claimed
    assert found["noise_variance_ratio"] == pytest.approx(1.0, abs=0.02)
    assert (found["contradiction"], found["sampling_rate"]) == (False, RATE)
    assert found["sampling"]["draws"] == 100_000 * 2 * 7  # six honest nodes and a lost one
    assert found["sampling"]["sampled"] == pytest.approx(RATE, abs=0.003)
    assert found["sampling"]["canary"] == pytest.approx(RATE, abs=0.02)


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(
    "changed",
    [
        {"aggregation": "plain", "min_surviving_weight": 1.0},
        {"colluding_weight": 0.15, "sampling_rate": 0.5},
        {"method": "popri", "popri__labels": "news,mail", "data__label_column": "kind"},
        pytest.param(
            {"method": "dp-fedavg", "data__users": 100, "training__noise": "nodes"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda changed: "-".join(map(str, next(iter(changed.items())))),
)
def test_every_setting_of_the_path_passes(changed: dict[str, Any]) -> None:
    found = measured(12_000, **changed)
    assert not found.contradiction, found
    assert 0.25 * found.claimed_epsilon < found.lower_bound
    assert found.noise_variance_ratio == pytest.approx(1.0, abs=0.05)


@pytest.mark.usefixtures("calm")
def test_the_table_says_who_was_sampled() -> None:
    lines = described(measured(1000)).splitlines()
    assert "with probability 0.25" in lines[0]
    assert [line for line in lines if line.startswith("sampled") and "0.25 is claimed" in line]
    assert any(line.startswith("canary sampled") for line in lines)
    assert any(line.startswith("independence") for line in lines)


def test_each_trial_samples_by_itself(tmp_path: Any) -> None:
    config = configured()
    found = run_trials(
        votes_case(config), nodes_setting(config, audited_phase(config, "votes")), 400
    )
    assert set(found.put.tolist()) == {0.0, 1.0} and not found.put[1::2].any()
    assert 10 < found.put.sum() < 90  # of 200 that the canary is there for, at a quarter
    assert len(np.unique(found.which)) == 4  # two users are sampled in four ways
    assert found.draws.shape == (400, 14)
    # What is left of the sums is noise alone, whoever was sampled.
    assert np.abs(found.noise).max() < 6.0


# --- broken ---------------------------------------------------------------------------------


def test_sampling_at_twice_the_rate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled_with(monkeypatch, lambda sample, count, rate: sample(count, 2 * rate))
    found = measured(1000)
    assert found.contradiction and "more often than is claimed" in described(found)
    assert found.sampling is not None and found.sampling.sampled == pytest.approx(
        2 * RATE, abs=0.05
    )


def test_the_bound_is_that_of_the_rate_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled_with(monkeypatch, lambda sample, count, rate: sample(count, 1.0))
    found = measured(20_000)
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


def test_sampling_a_little_too_often_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled_with(monkeypatch, lambda sample, count, rate: sample(count, 1.05 * rate))
    assert measured().contradiction


def test_sampling_too_rarely_is_no_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled_with(monkeypatch, lambda sample, count, rate: sample(count, 0.5 * rate))
    monkeypatch.setattr(measure, "NOISE_LEVEL", 1e-9)
    found = measured()
    assert not found.contradiction, found
    assert found.sampling is not None and found.sampling.sampled_p_value < 1e-9


@pytest.mark.parametrize(
    "shared",
    [
        lambda sample, count, rate: np.repeat(sample(count // 2, rate), 2),
        lambda sample, count, rate: np.random.default_rng(1).random(count) < rate,
    ],
    ids=["by the users of a node", "by the nodes"],
)
def test_dependent_sampling_is_caught(
    monkeypatch: pytest.MonkeyPatch, shared: Callable[..., Any]
) -> None:
    sampled_with(monkeypatch, shared)
    found = measured(2000)
    assert found.contradiction and "users are not sampled independently" in described(found)


def test_one_draw_for_all_users_of_a_node_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    fell = iter([True, *[False] * 20])  # the canary's node answers first
    sampled_with(monkeypatch, lambda sample, count, rate: np.full(count, next(fell)))
    found = measured(1000)
    assert found.contradiction and found.sampling is not None
    assert (found.sampling.canary, found.sampling.canary_p_value) == (
        1.0,
        pytest.approx(0, abs=1e-9),
    )


def test_a_canary_that_is_never_sampled_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled_with(monkeypatch, lambda sample, count, rate: np.zeros(count, dtype=bool))
    with pytest.raises(AuditError, match="never sampled"):
        measured(200)


@pytest.mark.parametrize("method", ["pretext", "popri"])
def test_vectors_that_ignore_sampling_are_caught(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    sums = {"pretext": (votes_app, "shard_votes"), "popri": (scores_app, "shard_scores")}[method]
    everybody = lambda real, *a: real(*a[:-1], **{**a[-1], "sampled": None})  # noqa: E731
    rig.sums_with(monkeypatch, *sums, everybody)
    found = measured(20_000, method=method)
    assert found.contradiction and found.lower_bound > found.claimed_epsilon
    assert "more of the sums than its sampling" in described(found)


def test_noise_that_only_sampled_users_add_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rig.noise_with(monkeypatch, lambda draw, n, w, *a: draw(n, RATE * w, *a))
    found = measured(1000)
    assert found.contradiction and "less noise" in described(found)
    assert found.noise_variance_ratio == pytest.approx(RATE, abs=0.03)


def test_vectors_twice_as_long_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rig.votes_with(monkeypatch, lambda real, *a: 2 * real(*a[:3], **a[3]))
    found = measured()
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


def test_a_charge_below_the_cost_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = NodeNoise.charge

    def less(*arguments: Any, **options: Any) -> dict[str, Any]:
        return charge(*arguments, **options) | {"sampling_rate": RATE / 50}

    monkeypatch.setattr(NodeNoise, "charge", less)
    found = measured(40_000)
    assert found.claimed_epsilon < 0.5 * epsilon(1.0, 1, found.delta, sampling_rate=RATE)
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


# --- the statistics -------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(mu=st.floats(0.1, 3.0), rate=st.floats(0.01, 1.0), delta=st.sampled_from([3e-6, 1e-3]))
def test_the_exact_epsilon_is_the_accountants(mu: float, rate: float, delta: float) -> None:
    exact, accounted = (
        sampled_epsilon(mu, rate, delta),
        epsilon(1 / mu, 1, delta, sampling_rate=rate),
    )
    assert exact <= accounted + 1e-9
    assert exact > accounted - 2e-3 * max(1.0, accounted)


@given(mu=st.floats(0.05, 5.0), rate=st.floats(0.01, 0.9), more=st.floats(1.01, 1.1))
@settings(max_examples=40, deadline=None)
def test_the_exact_epsilon_grows_with_mu_and_with_the_rate(
    mu: float, rate: float, more: float
) -> None:
    one = sampled_epsilon(mu, rate, 1e-5)
    assert one <= sampled_epsilon(more * mu, rate, 1e-5) + 1e-9
    assert one <= sampled_epsilon(mu, more * rate, 1e-5) + 1e-9


def test_the_exact_epsilon_is_zero_where_nothing_is_learned() -> None:
    assert sampled_epsilon(0.0, 0.5, 1e-5) == sampled_epsilon(1.0, 0.0, 1e-5) == 0.0
    assert sampled_epsilon(1.0, 1e-9, 1e-5) == 0.0  # delta is more than the rate


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_bound_holds_at_its_confidence(confidence: float) -> None:
    rng, truth, wrong, found = np.random.default_rng(7), sampled_epsilon(2.0, 0.3, 1e-5), 0, []
    present = np.arange(4000) % 2 == 0
    for _ in range(200):
        taken = present & (rng.random(4000) < 0.3)
        statistic = rng.normal(2.0 * taken, 1.0)
        parts = halves(statistic, taken), halves(statistic, ~present)
        found.append(epsilon_lower_bound(*parts, 1e-5, confidence, taken[present]))
        wrong += found[-1] > truth
    # 200 audits that are wrong as often as they may are wrong this often in less than 1 of 1000.
    assert wrong < 200 * (1 - confidence) + 3.1 * (200 * confidence * (1 - confidence)) ** 0.5
    assert np.mean(found) > 0.6 * truth


def test_the_tests_of_sampling_have_their_level() -> None:
    rng = np.random.default_rng(3)
    draws = [rng.random((500, 6)) < 0.2 for _ in range(1000)]
    rates = np.array([rate_test(int(t.sum()), t.size, 0.2) for t in draws])
    assert np.mean(rates < 0.1) == pytest.approx(0.1, abs=0.03)
    # Counts are whole numbers, and Bonferroni's bound is one.
    sharing = np.array([independence_test(t) for t in draws])
    assert 0.03 < np.mean(sharing < 0.1) < 0.12


def test_the_rates_p_value_is_exact() -> None:
    assert rate_test(0, 10, 0.5) == pytest.approx(2 / 1024)
    assert rate_test(10, 10, 0.5) == pytest.approx(2 / 1024)
    assert rate_test(5, 10, 0.5) == 1.0


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_equal_draws_say_nothing_of_dependence(share: float) -> None:
    assert independence_test(np.full((300, 12), bool(share))) == 1.0


def test_rare_sampling_is_no_dependence() -> None:
    rng = np.random.default_rng(5)
    assert min(independence_test(rng.random((1000, 14)) < 1e-3) for _ in range(200)) > 1e-4


def test_what_sampling_contradicts() -> None:
    rng = np.random.default_rng(9)
    draws = rng.random((2000, 12)) < 0.3
    assert sampling_test(draws, draws[:, 0], 0.3).faults(0.3, 1e-4) == []
    assert sampling_test(draws, draws[:, 0], 0.5).faults(0.5, 1e-4) == []
    assert len(sampling_test(draws, draws[:, 0], 0.2).faults(0.2, 1e-4)) == 2
    draws[:, 1] = draws[:, 0]
    assert sampling_test(draws, draws[:, 0], 0.3).faults(0.3, 1e-4) == [
        "users are not sampled independently"
    ]


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_one_dependent_pair_is_found(rate: float) -> None:
    rng = np.random.default_rng(11)
    for later in (0, 1):
        draws = rng.random((2000, 12)) < rate
        draws[later:, 5] = draws[: len(draws) - later, 2]
        assert independence_test(draws) < 1e-9


def test_the_rate_is_that_of_the_privacy_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever sampler a method's phase has: the configuration is not read a second time."""
    config = configured()
    made = measure.privacy_plan(config)
    half = replace(made.main, sampler=replace(made.main.sampler, rate=RATE / 2))
    other = replace(made, phases=(half, *made.phases[1:]))
    monkeypatch.setattr(measure, "privacy_plan", lambda config: other)
    setting = nodes_setting(config, audited_phase(config, "votes"))
    assert setting.plan.sampling_rate == RATE / 2 != config.sampling_rate
