"""After round 1 votes that may be noise are warned of, once in a hundred times in vain."""

from __future__ import annotations

import numpy as np
import pytest

from privsyn_flower.evaluation.verdict import Excess, excess_of, warn_if_drowned
from privsyn_flower.protocol.question import Query

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
