"""Is there more than noise in a release? The stated rate of false alarms, and signals that show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privsyn_flower.evaluation.verdict import (
    TOLERANCE,
    Excess,
    excess,
    excess_of,
    p_value,
    warn_if_drowned,
)
from privsyn_flower.privacy.noise.integer_noise import seeded_discrete_gaussian
from privsyn_flower.protocol.question import Query

ALPHA, RUNS = 0.01, 4000


def found(released: np.ndarray, std: float, groups: list[int] | None = None) -> Excess:
    result = excess(released, std, groups or [])
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("dimension", "groups"), [(40, []), (40, [40]), (12, [4, 4, 4]), (5000, [])]
)
def test_pure_noise_passes_for_a_signal_as_often_as_is_said(
    dimension: int, groups: list[int]
) -> None:
    rng = np.random.default_rng(dimension)
    runs = RUNS if dimension < 1000 else RUNS // 4
    rounds = [
        [found(rng.normal(7.0 if groups else 0.0, 2.5, dimension), 2.5, groups) for _ in range(3)]
        for _ in range(runs)
    ]
    values = np.array([[one.value for one in run] for run in rounds])
    degrees = dimension - len(groups)
    assert rounds[0][0].error == math.sqrt(2 / degrees)
    assert values.std() == pytest.approx(math.sqrt(2 / degrees), rel=0.08)
    assert abs(values.mean()) < 5 * math.sqrt(2 / degrees / values.size)
    for independent in (True, False):
        alarms = np.mean([p_value(run, independent=independent) < ALPHA for run in rounds])
        # Five standard deviations of a binomial share.
        assert alarms < ALPHA + 5 * math.sqrt(ALPHA * (1 - ALPHA) / runs)
        if dimension < 1000:  # and no less either; where noise is averaged, TOLERANCE is more
            assert alarms > ALPHA - 4 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


def test_noise_that_is_the_same_in_every_round_is_no_signal() -> None:
    """The worst correlation that there is: Bonferroni holds, adding up does not."""
    rng = np.random.default_rng(1)
    runs = [[found(rng.normal(0, 1, 30), 1.0)] * 8 for _ in range(RUNS)]
    alarms = [
        np.mean([p_value(run, independent=how) < ALPHA for run in runs]) for how in (False, True)
    ]
    assert alarms[0] <= ALPHA < 0.05 < alarms[1]


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_a_signal_shows_with_its_size(ratio: float) -> None:
    rng, dimension, std = np.random.default_rng(2), 4000, 0.7
    signal = rng.normal(size=dimension)
    signal *= ratio * std * math.sqrt(dimension) / np.linalg.norm(signal)
    run = [found(signal + rng.normal(0, std, dimension), std) for _ in range(3)]
    assert p_value(run) < 1e-3 and p_value(run, independent=False) < 1e-2
    for one in run:
        assert one.signal_to_noise == pytest.approx(ratio, rel=0.25)


def test_what_all_candidates_have_in_common_is_no_signal() -> None:
    rng = np.random.default_rng(3)
    noise, levels = rng.normal(0, 1, 600), np.repeat([5.0, -9.0, 2.0], [100, 300, 200])
    grouped = found(noise + levels, 1.0, [100, 300, 200])
    assert grouped == found(noise, 1.0, [100, 300, 200]) or math.isclose(
        grouped.value, found(noise, 1.0, [100, 300, 200]).value, abs_tol=1e-9
    )
    assert grouped.degrees == 597 and p_value([grouped]) > ALPHA
    assert p_value([found(noise + levels, 1.0)]) < 1e-6


def test_integer_noise_and_the_users_rounding_are_no_signal() -> None:
    """A million coordinates see a thousandth: what users round away must stay below it."""
    rng, users, sensitivity, multiplier = np.random.default_rng(4), 10_000, 4096.0, 1.0
    std = multiplier * sensitivity
    noise = seeded_discrete_gaussian(200_000, std**2, rng).astype(np.float64)
    rounding = rng.normal(0, math.sqrt(users / 4), 200_000)  # at most, of fair coins
    assert users / 4 / std**2 < TOLERANCE
    assert p_value([found(noise + rounding, std)]) > ALPHA


def test_questions_are_read_by_their_kind() -> None:
    rng = np.random.default_rng(5)
    released = rng.normal(10, 1, 12)
    rows = np.eye(12, 4, dtype=np.float32) + 0.1
    votes = excess_of(Query.votes(rows, bound=1.0, model="m"), released, 1.0)
    assert votes == excess(released, 1.0, [12]) and votes is not None and votes.degrees == 11
    scores = Query.scores(rows, bound=1.0, groups=[4, 8], model="m")
    assert excess_of(scores, released, 1.0) == excess(released, 1.0, [4, 8])
    for indicator, degrees in ((0.0, 12), (0.5, 11)):
        update = Query.update(
            np.zeros(4, dtype=np.uint8), length=12, bound=1.0, model="m", rotation=bytes(32),
            options={"indicator": indicator},
        )  # fmt: skip
        read = excess_of(update, released, 1.0)
        assert read == excess(released[:degrees], 1.0) and read is not None
        assert read.degrees == degrees
    other = Query(kind="evaluation", rows=np.zeros((0, 0), np.int8), scales=np.zeros(0, np.float32),
                  length=12, bound=1.0, model="m", options={}, extra={})  # fmt: skip
    assert excess_of(other, released, 1.0) is None


def test_nothing_to_tell() -> None:
    assert excess(np.array([3.0]), 1.0, [1]) is None
    assert excess(np.array([3.0]), 0.0) is None
    assert p_value([]) == 1.0


SIGMA = 3.0


def first_round(votes: np.ndarray) -> Excess:
    query = Query.votes(np.zeros((len(votes), 2)), bound=1.0, clip="normalised", model="m")
    found = excess_of(query, votes, SIGMA)
    assert found is not None
    return found


def test_noise_alone_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """By its own rate: of 400 noises about four escape."""
    rng = np.random.default_rng(0)
    for _ in range(400):
        warn_if_drowned("rounds, round 1: the votes", first_round(rng.normal(5.0, SIGMA, 64)))
    assert 385 <= len(caplog.records) < 400
    text = caplog.records[0].getMessage()
    assert text.startswith("rounds, round 1: the votes cannot be told from pure noise (p = 0.")
    assert "a signal below 0.01" in text and "fewer candidates" in text


def test_a_preference_is_not(caplog: pytest.LogCaptureFixture) -> None:
    noise = np.random.default_rng(1).normal(0.0, SIGMA, 64)
    warn_if_drowned(
        "rounds, round 1: the votes", first_round(noise + np.repeat([0.0, 60.0], [60, 4]))
    )
    assert not caplog.records


def test_what_all_candidates_have_in_common_is_no_preference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Votes that are spread evenly choose nothing, however many there are."""
    noise = np.random.default_rng(2).normal(0.0, SIGMA, 64)
    warn_if_drowned("rounds, round 1: the votes", first_round(noise + 1000.0))
    assert len(caplog.records) == 1
