"""The privacy sentence says everything that the number depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privsyn_flower.privacy import PrivacyStatement

PLAIN = PrivacyStatement(
    epsilon=7.5799999,
    delta=3e-6,
    noise_multiplier=2.18051,
    rounds=10,
    spare_rounds=1,
    min_surviving_weight=0.85,
    colluding_weight=0.1,
)


def test_all_parts_are_there():
    text = PLAIN.sentence()
    for words in (
        "Epsilon = 7.58 at delta = 3e-06",
        "PLD",
        "10 rounds and 1 spare",
        "at least 2.1805 times",
        "two devices counts twice",
        "zero-out",
        "the aggregator is trusted",
        "claims nothing against the server",
        "85 % of the declared",
        "10 % of the weight",
        "fresh ledger",
        "tuned",
    ):
        assert words in text, words
    assert "benchmark" not in text and "NO PRIVACY" not in text
    assert "trusted aggregator" in PLAIN.threat_model


def test_variants():
    assert "Renyi" in replace(PLAIN, accountant="rdp").sentence()
    assert "`benchmark`" in replace(PLAIN, benchmark=True).sentence()
    assert "spans the runs" in replace(PLAIN, ledger_scope="population").sentence()
    assert " spare" not in replace(PLAIN, spare_rounds=0).sentence()
    seeded = replace(PLAIN, simulation_seeded=True)
    assert seeded.sentence().startswith("NO PRIVACY IS CLAIMED")
    assert seeded.threat_model.startswith("none")


def test_printed_numbers_err_on_the_safe_side():
    assert "Epsilon = 1.0001 " in replace(PLAIN, epsilon=1.00000001).sentence()
    assert "Epsilon = 1 " in replace(PLAIN, epsilon=1.0).sentence()
    assert "Epsilon = 1000 " in replace(PLAIN, epsilon=1000.0).sentence()
    assert "Epsilon = infinity" in replace(PLAIN, epsilon=float("inf")).sentence()
    assert "at least 1.9999 times" in replace(PLAIN, noise_multiplier=1.99999).sentence()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"aggregation": "secure"}, "aggregation = 'secure'"),
        ({"unit": "sample"}, "unit = 'sample'"),
        ({"epsilon": -29.87}, "epsilon = -29.87"),
        ({"delta": 0.0}, "delta = 0.0"),
    ],
)
def test_no_words_for_it(change, words):
    with pytest.raises(ValueError, match=words):
        replace(PLAIN, **change)
