"""What runs without rounds say of themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from privsyn_flower.privacy.baseline import (
    Baseline,
    LocalParaphrases,
    NoPrivacy,
    PublicAlone,
)

LOCAL: dict[str, Any] = {"each": 0.02, "tokens": 64, "texts": 8}
EVERY = [PublicAlone(), NoPrivacy(), LocalParaphrases(**LOCAL)]


def test_public_text_costs_nothing_and_says_what_is_not_covered() -> None:
    alone = PublicAlone()
    assert alone.epsilon == alone.delta == alone.rounds == 0
    assert alone.sentence().startswith("Epsilon = 0: nothing private was used.")
    assert "Not covered" not in alone.sentence() + alone.short()
    measured = PublicAlone(simulated=True, benchmark=True)
    assert "the preparation of a simulated split" in measured.sentence()
    assert "figures under `benchmark`" in measured.sentence()
    chosen = PublicAlone(split="private")
    assert "EPSILON DOES NOT COVER THE SPLIT" in chosen.sentence()
    assert "the split, chosen by private text" in chosen.short()
    assert chosen.threat_model.endswith("the split was chosen by private text")


def test_text_made_of_private_text_says_so_everywhere() -> None:
    none = NoPrivacy(benchmark=True)
    assert none.epsilon == math.inf
    assert none.threat_model.startswith("none: epsilon is infinite")
    for text in (none.sentence(), none.short(), none.page()):
        assert "NO PRIVACY: " in text and "epsilon is infinite" in text
        assert "for comparison only" in text.lower()
    assert "there is NO guarantee" in none.sentence()


def test_a_users_epsilon_is_that_of_its_texts_and_theirs_of_their_tokens() -> None:
    local = LocalParaphrases(**LOCAL)
    assert local.per_text == pytest.approx(64 * 0.02)
    assert local.epsilon == pytest.approx(8 * 64 * 0.02)
    text = local.sentence()
    assert "Epsilon = 10.24 (delta = 0) for each user, as LOCAL" in text
    assert "a token costs at most 0.02 and a text 1.28." in text
    assert "What leaves a device is the paraphrases themselves" in text
    assert "SIMULATED" in text and "How many texts a user has leaves the device" in text
    assert local.threat_model.startswith("local: ") and local.adjacency == "replace-one"
    assert "LOCAL: 8 paraphrased texts at 1.28 each" in local.short()


def test_draws_from_the_seed_claim_nothing() -> None:
    seeded = LocalParaphrases(**LOCAL, seeded=True)
    assert seeded.threat_model.startswith("none")
    assert seeded.sentence().startswith("NO PRIVACY IS CLAIMED")
    assert seeded.short().startswith("NO PRIVACY IS CLAIMED")


@pytest.mark.parametrize("name", LOCAL)
def test_numbers_that_are_no_guarantee_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = 0"):
        LocalParaphrases(**{**LOCAL, name: 0})


@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: type(claim).__name__)
@pytest.mark.parametrize("split", ["own", "private", "unknown"])
def test_the_short_form_is_short_and_the_page_has_both(claim: Baseline, split: Any) -> None:
    facts = {**vars(claim), "split": split, "simulated": True, "benchmark": True}
    told = type(claim)(**facts)
    assert len(told.short().split()) <= 60
    assert told.short().endswith(" privacy.md.") and "privacy.md" not in told.page()
    assert " below.\n\n" in told.page() and told.sentence() in told.page()
