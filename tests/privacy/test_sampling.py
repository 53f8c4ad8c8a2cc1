"""Samplers claim a rate only against those from whom the sample is hidden."""

from __future__ import annotations

import itertools
import math
import os

import numpy as np
import pytest

from privsyn_flower.privacy.accounting import epsilon
from privsyn_flower.privacy.accounting.sampling import (
    FixedSize,
    Full,
    NodePoisson,
    coins,
    parse_sampler,
    sampling_sentence,
)

EVERYWHERE = list(itertools.product(("server", "observer", "own-node"), ("plain", "secure")))


def test_only_secret_coins_amplify_and_only_against_those_who_see_sums():
    claimed = {where: NodePoisson(0.1).rate_against(*where) for where in EVERYWHERE}
    hidden = {("observer", "plain"), ("observer", "secure"), ("server", "secure")}
    assert {where for where, rate in claimed.items() if rate == 0.1} == hidden
    assert {claimed[where] for where in set(EVERYWHERE) - hidden} == {1.0}
    for sampler in (Full(), FixedSize(125)):
        assert {sampler.rate_against(*where) for where in EVERYWHERE} == {1.0}


@pytest.mark.parametrize("sampler", [Full(), NodePoisson(0.1), FixedSize(125)])
def test_the_event_is_that_of_the_claimed_rate(sampler):
    from dp_accounting.pld import PLDAccountant

    for where in EVERYWHERE:
        rate = sampler.rate_against(*where)
        accountant = PLDAccountant(value_discretization_interval=1e-3)
        accountant.compose(sampler.privacy_event(3.4, *where), 20)
        assert accountant.get_epsilon(3e-6) == pytest.approx(
            epsilon(3.4, 20, 3e-6, sampling_rate=rate), abs=0.02
        )
    unsampled = Full().privacy_event(3.4)
    assert sampler.privacy_event(3.4) == unsampled, "nothing is amplified unless it was asked for"


@pytest.mark.parametrize("rate", [0.03, 0.5, 0.9])
def test_coins_have_their_rate(rate):
    tossed = coins(200_000, rate)
    assert tossed.shape == (200_000,) and tossed.dtype == np.bool_
    assert abs(tossed.mean() - rate) < 6 * math.sqrt(rate * (1 - rate) / 200_000)


def test_coins_compare_exactly_and_round_down(monkeypatch):
    rate = 0.1
    threshold = math.floor(rate * 2.0**64)

    def words(size):
        values = [threshold - 1, threshold, 0, 2**64 - 1]
        return np.array(values, dtype="<u8").tobytes()[:size]

    monkeypatch.setattr(os, "urandom", words)
    assert coins(4, rate).tolist() == [True, False, True, False]
    assert coins(3, 2.0**-65).tolist() == [False, False, False]  # rounded down to never
    assert coins(4, np.nextafter(1.0, 0.0)).tolist() == [True, True, True, False]


def test_coins_of_everybody_and_nobody():
    assert coins(5, 1.0).tolist() == [True] * 5
    assert coins(0, 0.5).shape == (0,)
    first, second = coins(256, 0.5), coins(256, 0.5)
    assert (first != second).any()


def test_parsing():
    assert parse_sampler("full") == Full()
    assert parse_sampler("poisson", 0.2) == NodePoisson(0.2)
    assert parse_sampler("fixed", size=125) == FixedSize(125)


def test_sentences_say_against_whom():
    plain, secure = (NodePoisson(0.1).sentence(kind) for kind in ("plain", "secure"))
    assert "probability 0.1" in plain and "own node" in plain
    assert "server" not in plain and "work is the same" not in plain
    assert "against the server, which sees only sums, and answers whose work is the same" in secure
    for sampler in (Full(), FixedSize(3), NodePoisson(1.0)):
        assert "no amplification" in sampler.sentence("secure")
    assert "knows which" in FixedSize(3).sentence()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: NodePoisson(0.0), "rate = 0.0"),
        (lambda: NodePoisson(1.5), "rate = 1.5"),
        (lambda: FixedSize(0), "size = 0"),
        (lambda: Full().rate_against("nobody"), "adversary = 'nobody'"),
        (lambda: Full().rate_against("server", "open"), "aggregation = 'open'"),
        (lambda: coins(-1, 0.5), "count = -1"),
        (lambda: coins(1, math.nan), "rate = nan"),
        (lambda: parse_sampler("some"), "sampler = 'some'"),
        (lambda: parse_sampler("full", 0.1), "sampling rate = 0.1 belongs to sampler = 'poisson'"),
        (lambda: parse_sampler("fixed", 0.1, 10), "sampling rate = 0.1"),
        (lambda: parse_sampler("fixed"), "size = 0"),
        (lambda: parse_sampler("poisson", 0.1, 10), "size = 10 belongs to sampler = 'fixed'"),
        (lambda: sampling_sentence("poisson", 0.0), "sampling rate = 0.0"),
    ],
)
def test_errors_name_value_and_bound(call, words):
    with pytest.raises(ValueError, match=words):
        call()
