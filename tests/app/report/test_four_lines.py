"""The four lines claim no more than the statement that they come from."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from privsyn_flower.app.report.forms import claim_lines
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.privacy import PrivacyStatement

SECURE = PrivacyStatement(1.29, 3e-6, 9.99, 8, 1, 0.85, aggregation="secure")


def told(statement: PrivacyStatement, **values: Any) -> dict[str, str]:
    return dict(claim_lines({"claim": asdict(statement), **values}))


def test_four_lines_of_secure_aggregation() -> None:
    found = told(SECURE)
    assert list(found) == ["what", "against", "assuming", "ledger"]
    assert found["what"] in SECURE.short()
    assert found["against"][1:] in SECURE.short()
    assert found["assuming"] == (
        "85 % of the weight answers honestly; the server follows the protocol; keys trusted on "
        "first use."
    )
    assert found["ledger"].startswith("This run's own; other runs on these users add theirs.")


def test_a_trusted_aggregator_is_named_and_holds_its_key() -> None:
    found = told(replace(SECURE, noise_source="aggregator", keys="roster"))
    assert "TRUSTED" in found["against"] and "sums without noise" in found["against"]
    assert "keeps the noise's key" in found["assuming"] and "roster" in found["assuming"]
    assert "answers honestly" not in found["assuming"]
    plain = told(replace(SECURE, aggregation="plain"))
    assert "each node's answer" in plain["against"] and "keys" not in plain["assuming"]


def test_what_private_text_chose_is_not_claimed() -> None:
    chosen = told(replace(SECURE, split="private", private_selection=True))
    assert "NOT the split and checkpoints, chosen by private text." in chosen["what"]
    assert chosen["against"] == "NO PRIVACY IS CLAIMED: private text chose checkpoints."
    seeded = told(replace(SECURE, simulation_seeded=True, simulated=True))
    assert seeded["against"].startswith("NO PRIVACY IS CLAIMED")
    assert seeded["assuming"].endswith("Simulated: one machine saw everything.")


def test_coins_are_an_assumption() -> None:
    tossed = told(replace(SECURE, sampler="poisson", sampling_rate=0.1))
    assert "coins stay on their nodes" in tossed["assuming"]
    assert "never a user's own node" in tossed["against"]
    beside = told(replace(SECURE, others=(("topics", 1, 3.0, "nodes", 0.5),)))
    assert "coins" in beside["assuming"]


def test_a_shared_ledger_is_told_with_what_it_has_left() -> None:
    found = told(
        replace(SECURE, ledger_scope="population"), epsilon_ledger=2.00001, epsilon_ledger_total=4.0
    )
    assert found["ledger"].startswith(
        "Of all runs that declare this population, 2.0001 of 4 charged; other ledgers add."
    )
    assert "2.0001 charged" in told(SECURE, epsilon_ledger=2.00001)["ledger"]


def test_runs_without_a_claim_keep_their_sentence() -> None:
    summary = {"claim": None, "privacy": "long", "privacy_short": "nobody was asked"}
    assert claim_lines(summary) == [("privacy", "nobody was asked")]
    assert claim_lines({"privacy": "long"}) == [("privacy", "long")]
    with pytest.raises(ReportError, match="damaged"):
        claim_lines({"claim": {"epsilon": -1}})
