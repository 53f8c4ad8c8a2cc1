"""The audit: honest releases pass, each broken part of the path is caught, bad input is named.

Faults are put in by replacing a function of the devices: no configuration and no message can.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.app.audit import (
    Audit,
    AuditError,
    audit,
    described,
    mu_lower_bound,
    variance_test,
)
from privsyn_flower.app.audit.measure import node_seats, smallest_population
from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps import scores as scores_app
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.accounting import epsilon
from privsyn_flower.privacy.encoding.sizing import WrapAround
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.protocol import messaging
from privsyn_flower.strategies.engine.cohort import RoundPlan
from tests.rigs import audit_audit as rig
from tests.rigs.audit_audit import ONE_RELEASE as SETTINGS
from tests.rigs.audit_audit import (
    TIGHT,
    TRIALS,
    calm,  # noqa: F401
    configured,
    noise_times,
    noise_with,
    sums_with,
    votes_with,
)

MANY, TIGHTER = 100_000, 0.85
SCORES = {"method": "popri"}
CLASSES = {"method": "pe", "pe__labels": "news,mail,notes", "data__label_column": "kind"}
LABELS = {**SCORES, "popri__labels": "news,mail,notes", "data__label_column": "kind"}


command = partial(rig.command, SETTINGS)


def measured(trials: int = TRIALS, **changed: Any) -> Audit:
    return audit(configured(SETTINGS, **changed), trials)


def scores_with(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """change(shard_scores, rows, users, candidates, options)."""
    sums_with(monkeypatch, scores_app, "shard_scores", change)


def clip_of_sums(real: Any, rows: Any, users: Any, candidates: Any, options: Any) -> Any:
    """In the place of an answer: the clip of the node's sum instead of each user's vector."""
    changed = {**options, "samples_cap": 10**6, "sampled": None}
    return real(rows, np.zeros_like(users), candidates, **changed)


# --- honest ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("calm")
def test_an_honest_release_passes_and_the_bound_is_tight() -> None:
    result = command("--trials", str(MANY), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found) >= {
        "kind",
        "claimed_epsilon",
        "lower_bound",
        "confidence",
        "trials",
        "noise_variance_ratio",
        "variance_p_value",
        "contradiction",
    }
    assert found["claimed_epsilon"] == epsilon(1.0, 1, gaussian_delta(RunConfig().delta))
    assert TIGHTER * found["claimed_epsilon"] < found["lower_bound"] < found["claimed_epsilon"]
    assert (found["sampling_rate"], found["sampling"]) == (1.0, None)
    assert found["noise_variance_ratio"] == pytest.approx(1.0, abs=0.02)
    assert (found["kind"], found["trials"], found["contradiction"]) == ("votes", MANY, False)


@pytest.mark.slow
@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(
    "changed",
    [
        {"aggregation": "plain"},
        {"pretext__clip": "worst-case", "pretext__vote_bound": 8.0},
        {"pretext__clip": "sqrt-count", "pretext__neighbors": 3, "pretext__metric": "cosine"},
        CLASSES,
        {**CLASSES, "pe__clip": "worst-case", "pe__vote_bound": 8.0},
        {"min_surviving_weight": 1.0},  # nobody may be lost
        {"data__users": 8, "min_surviving_weight": 0.5, "colluding_weight": 0.4},
        SCORES,
        LABELS,
        {**SCORES, "popri__score": "centred", "popri__dimension": 16},
        {**SCORES, "popri__score": "mean-cosine", "popri__score_bound": 2.0},
        {**SCORES, "popri__score": "nearest", "aggregation": "plain"},
    ],
    ids=lambda changed: "-".join(map(str, list(changed.items())[-1])),
)
def test_every_setting_of_the_path_passes(changed: dict[str, Any]) -> None:
    found = measured(**changed)
    assert not found.contradiction, found
    assert found.lower_bound > TIGHT * found.claimed_epsilon


@pytest.mark.usefixtures("calm")
def test_the_noise_of_colluders_is_not_counted() -> None:
    found = measured(colluding_weight=0.15)
    assert not found.contradiction
    assert found.noise_variance_ratio < 1.08  # with theirs it would be 1 / 0.85


# --- broken ---------------------------------------------------------------------------------


def test_noise_ten_percent_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    noise_times(monkeypatch, 0.9)
    result = command("--trials", str(TRIALS))
    assert result.exit_code == 1
    assert "less noise than is charged" in result.stdout


def test_vectors_twice_as_long_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    votes_with(monkeypatch, lambda real, *a: 2 * real(*a[:3], **a[3]))
    result = command("--trials", str(TRIALS))
    assert result.exit_code == 1
    assert "told apart" in result.stdout


def test_a_clip_of_the_node_instead_of_each_user_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    votes_with(monkeypatch, clip_of_sums)
    found = measured(20_000)
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


@pytest.mark.parametrize(
    "config", [SCORES, {**SCORES, "popri__score": "mean-cosine"}], ids=["standardised", "mean"]
)
def test_a_clip_of_the_nodes_scores_is_caught(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    scores_with(monkeypatch, clip_of_sums)
    found = measured(20_000, **config)
    assert found.kind == "scores"
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


def clip_by_class(key: str) -> Any:
    """In the place of an answer: the sum of answers about each class alone, each clipped by
    itself. key: the option that says the class of prompts or of candidates."""

    def answer(real: Any, rows: Any, users: Any, candidates: Any, options: Any) -> Any:
        labels = options.pop("sample_classes")
        parts = [
            real(rows, users, candidates, sample_classes=np.where(labels == name, name, -1),
                 **options)
            for name in np.unique(options[key])
        ]  # fmt: skip
        return np.sum(parts, axis=0)

    return answer


@pytest.mark.parametrize(
    ("kind", "sums", "key", "config"),
    [("scores", scores_with, "classes", LABELS),
     ("votes", votes_with, "candidate_classes", CLASSES)],
)  # fmt: skip
def test_a_clip_of_every_class_by_itself_is_caught(
    monkeypatch: pytest.MonkeyPatch, kind: str, sums: Any, key: str, config: dict[str, Any]
) -> None:
    sums(monkeypatch, clip_by_class(key))
    found = measured(20_000, **config)
    assert found.kind == kind
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


def test_scores_with_too_little_noise_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    noise_times(monkeypatch, 0.9)
    found = measured(2000, **SCORES)
    assert found.contradiction and found.noise_variance_ratio == pytest.approx(0.81, abs=0.03)


@pytest.mark.parametrize("sampled", [1000, 950], ids=["all users", "colluders too"])
def test_noise_shared_among_more_than_w_min_is_caught(
    monkeypatch: pytest.MonkeyPatch, sampled: int
) -> None:
    noise_with(monkeypatch, lambda draw, n, w, least, *rest: draw(n, w, sampled, *rest))
    found = measured(colluding_weight=0.1)  # W_min is 850 of 1000
    assert found.contradiction and found.noise_variance_ratio < 0.97


def test_a_node_without_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def all_but_the_first(draw: Any, length: int, *rest: Any) -> Any:
        drawn.append(length)
        return draw(length, *rest) * (len(drawn) > 1)

    noise_with(monkeypatch, all_but_the_first)
    assert measured().contradiction


def test_too_much_noise_is_said_and_is_no_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    noise_times(monkeypatch, 1.2)
    found = measured()
    assert not found.contradiction
    assert "more noise than is charged" in described(found)


# --- nothing measured is never a pass -------------------------------------------------------


def test_a_failing_or_absent_canary_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        votes_with(patch, lambda real, *a: 0 * real(*a[:3], **a[3]))
        with pytest.raises(AuditError, match="canary's vector is zero"):
            measured(200)

    def fails(*arguments: Any) -> Any:
        raise OverflowError("out of bins")

    votes_with(monkeypatch, fails)
    with pytest.raises(AuditError, match="out of bins"):
        measured(200)
    assert not messaging._IN_PROCESS.get()


def test_a_sum_that_is_not_released_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*arguments: Any) -> None:
        raise WrapAround("no")

    monkeypatch.setattr(answers, "check_range", refuses)
    result = command("--trials", "200")
    assert result.exit_code == 2
    assert "nothing was released" in result.output


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--trials", "199"], "trials = 199"),
        (["--trials", "1000001"], "trials = 1000001"),
        (["--set", "epsilom=1"], "epsilom"),
        (["--set", "epsilon=0.1"], "epsilon"),  # which noise-multiplier = 1 does not keep
        (["absent.toml"], "absent.toml"),
    ],
)
def test_wrong_input_is_named(arguments: list[str], word: str) -> None:
    result = command(*arguments)
    assert result.exit_code == 2
    assert word in result.output


# --- the statistics -------------------------------------------------------------------------


def halves(rng: np.random.Generator, mu: float, size: int) -> tuple[Any, Any]:
    return rng.normal(mu, 1.0, size), rng.normal(mu, 1.0, size)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0])
def test_the_bound_holds_at_its_confidence(mu: float) -> None:
    rng = np.random.default_rng(7)
    bounds = [mu_lower_bound(halves(rng, mu, 300), halves(rng, 0, 300), 0.95) for _ in range(300)]
    # Zero is no mistake at mu = 0; 300 audits at 5 % are wrong 27 times or more in 1 of 1000.
    assert sum(bound > mu for bound in bounds) < 27
    assert np.mean(bounds) > mu - 0.6


def test_chance_does_not_choose_the_threshold() -> None:
    rng = np.random.default_rng(5)
    bounds = [mu_lower_bound(halves(rng, 1, 2500), halves(rng, 0, 2500), 0.95) for _ in range(60)]
    assert min(bounds) > 0.74


def test_the_bound_is_zero_where_nothing_is_learned() -> None:
    same = np.zeros(100)
    assert mu_lower_bound((same, same), (same, same), 0.95) == 0.0
    assert mu_lower_bound((same, same), (same + 1, same + 1), 0.95) == 0.0


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
    # All hits, no alarm: limits (1 - level)^(1 / n) and 1 - (1 - level)^(1 / n), n = 50.
    far = (np.full(50, 9.0), np.full(50, 9.0)), (np.zeros(50), np.zeros(50))
    limit = (1 - 0.95**0.5) ** (1 / 50)
    assert mu_lower_bound(*far, 0.95) == pytest.approx(2 * NormalDist().inv_cdf(limit))


def test_the_variance_test_has_its_level() -> None:
    rng = np.random.default_rng(3)
    p_values = [variance_test(rng.normal(0, 2, (50, 4)), 2.0)[1] for _ in range(2000)]
    assert np.mean(np.array(p_values) < 0.1) == pytest.approx(0.1, abs=0.03)
    ratio, p_value = variance_test(np.full(400, 1.8), 2.0)
    assert ratio == pytest.approx(0.81) and p_value < 0.01


@settings(max_examples=200, deadline=None)
@given(users=st.integers(1, 5000), least=st.floats(0.05, 1.0), share=st.floats(0.0, 1.0))
def test_the_honest_survivors_weigh_exactly_w_min(users: int, least: float, share: float) -> None:
    users = max(users, smallest_population(least))
    plan = RoundPlan("audit", users, 1.0, min_surviving_weight=least)
    room = (users - plan.min_weight) / users
    plan = dataclasses.replace(plan, colluding_weight=share * room)
    weight = {
        role: sum(seat.weight for seat in node_seats(plan) if seat.role == role)
        for role in ("canary", "honest", "colluding", "lost")
    }
    assert weight["canary"] + weight["honest"] == plan.min_weight
    assert weight["colluding"] == plan.colluding
    assert sum(weight.values()) == users
    assert all(seat.weight >= 1 + (seat.role in ("canary", "honest")) for seat in node_seats(plan))
