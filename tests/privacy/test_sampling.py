"""Poisson sampling has its rate, and is claimed only against those from whom it is hidden."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

from privsyn_flower.privacy.accounting.sampling import Sampler, check_sampler, poisson_sample
from privsyn_flower.privacy.wording import sampling_sentence


@pytest.mark.parametrize("rate", [0.03, 0.5, 0.9])
def test_poisson_sample_has_its_rate(rate):
    tossed = poisson_sample(200_000, rate)
    assert tossed.shape == (200_000,) and tossed.dtype == np.bool_
    assert abs(tossed.mean() - rate) < 6 * math.sqrt(rate * (1 - rate) / 200_000)


def test_poisson_sample_compares_exactly_and_rounds_down(monkeypatch):
    rate = 0.1
    threshold = math.floor(rate * 2.0**64)

    def words(size):
        values = [threshold - 1, threshold, 0, 2**64 - 1]
        return np.array(values, dtype="<u8").tobytes()[:size]

    monkeypatch.setattr(os, "urandom", words)
    assert poisson_sample(4, rate).tolist() == [True, False, True, False]
    assert poisson_sample(3, 2.0**-65).tolist() == [False, False, False]  # rounded down to never
    assert poisson_sample(4, np.nextafter(1.0, 0.0)).tolist() == [True, True, True, False]


def test_poisson_sample_of_everybody_and_nobody():
    assert poisson_sample(5, 1.0).tolist() == [True] * 5
    assert poisson_sample(0, 0.5).shape == (0,)
    first, second = poisson_sample(256, 0.5), poisson_sample(256, 0.5)
    assert (first != second).any()


def test_sentences_say_against_whom():
    plain, secure = (sampling_sentence("poisson", 0.1, kind) for kind in ("plain", "secure"))
    assert "probability 0.1" in plain and "own node" in plain
    assert "server" not in plain and "work is the same" not in plain
    assert "against the server, which sees only sums, and answers whose work is the same" in secure
    for name in ("full", "fixed", "poisson"):
        assert "no amplification" in sampling_sentence(name, 1.0, "secure")
    assert "knows which" in sampling_sentence("fixed")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: poisson_sample(-1, 0.5), "count = -1"),
        (lambda: poisson_sample(1, math.nan), "rate = nan"),
        (lambda: check_sampler("some", 1.0), "sampler = 'some'"),
        (lambda: check_sampler("full", 0.1), "sampling rate = 0.1 belongs to sampler = 'poisson'"),
        (lambda: check_sampler("fixed", 0.1), "sampling rate = 0.1"),
        (lambda: check_sampler("poisson", 1.5), "sampling rate = 1.5"),
        (lambda: sampling_sentence("poisson", 0.0), "sampling rate = 0.0"),
    ],
)
def test_errors_name_value_and_bound(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("nodes", [2.5, True, -1, 0, "3", math.nan])
def test_a_draw_is_of_a_whole_number_of_nodes(nodes: Any) -> None:
    with pytest.raises(ValueError, match="'fixed' draws at least 1"):
        Sampler("fixed", nodes=nodes)
