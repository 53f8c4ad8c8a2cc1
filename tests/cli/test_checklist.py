"""`privsyn report --checklist`: every item of appendix C.3, from a run's summary alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.cli.checklist import checklist, claim_of
from privsyn_flower.cli.main import app
from privsyn_flower.cli.report import ReportError
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.privacy.wording import CHOSEN_TEXT
from privsyn_flower.server_apps.promised import baseline, statement

ROOT = Path(__file__).resolve().parent.parent.parent
ITEMS = ["1 ", "2a ", "2b ", "2c ", "2d ", "3a ", "3b ", "3c ", "3d "]
AGGREGATOR = {"method": "dp-ftrl", "training.noise": "aggregator"}


def summary_of(config: RunConfig, **more: Any) -> dict[str, Any]:
    """The part of a summary that a checklist reads, through JSON."""
    said: Any = baseline(config) or statement(config)
    found = {
        "method": config.method,
        "dataset": "docstrings:scipy",
        "rounds": config.rounds,
        "epsilon": said.epsilon,
        "threat_model": said.threat_model,
        "claim": None if baseline(config) else asdict(said),
        "privacy": said.sentence(),
    }
    return dict(json.loads(json.dumps({**found, **more})))


def of(**values: Any) -> dict[str, str]:
    """Item -> what is said of it."""
    lines = checklist(summary_of(RunConfig.from_flat(values))).splitlines()[2:]
    assert [line[4 : 4 + len(item)] for line, item in zip(lines, ITEMS, strict=True)] == ITEMS
    return {item.strip(): line for item, line in zip(ITEMS, lines, strict=True)}


@pytest.mark.parametrize(
    ("name", "formal", "apart"),
    [
        ("en-us", "(epsilon = 6.5481, delta = 1e-10)-DP for each user. 0.5-zCDP.", "4 rounds, 352"),
        ("en-in", "(epsilon = 5.9396, delta = 1e-10)-DP for each user. 0.4184-zCDP.",
         "3 rounds, 400"),
    ],
)  # fmt: skip
def test_gboards_own(name: str, formal: str, apart: str, tmp_path: Path) -> None:
    """Appendix C.3: 0.5-zCDP and (6.55, 1e-10), 0.42-zCDP and (5.95, 1e-10), 1,200 rounds."""
    config = load_config(ROOT / "configs" / "papers" / f"dp-ftrl-gboard-{name}.toml")
    (tmp_path / "summary.json").write_text(json.dumps(summary_of(config)))
    found = CliRunner().invoke(app, ["report", "--checklist", str(tmp_path)])
    assert found.exit_code == 0, found.stderr
    assert formal in found.stdout and f"at most {apart} or more apart" in found.stdout
    assert "1200 rounds" in found.stdout and "correlated over the rounds (tree)" in found.stdout
    assert "- **1 DP setting.** Central" in found.stdout
    assert "- **3a Type of accounting.** The exact privacy curve" in found.stdout
    assert "the figures under `benchmark`" in found.stdout


def test_noise_of_the_nodes() -> None:
    items = of()
    assert "Distributed" in items["1"] and "Honest-but-curious server" in items["1"]
    assert "8 rounds, 1 spare" in items["2a"]
    assert items["3c"].endswith("-zCDP, but for the part of delta that pays for integers.")
    assert "may take part in every release" in items["3b"] and "85 %" in items["3b"]
    plain = of(aggregation="plain")
    assert "Central" in plain["1"]


def test_coins_have_no_rho() -> None:
    items = of(**{"sampler": "poisson", "sampling-rate": 0.5, "rounds": 1})
    assert "PLD" in items["3a"] and "No rho-zCDP is claimed" in items["3a"]
    assert "zCDP" not in items["3c"]
    assert "of probability 0.5" in items["3b"] and "is enrolled" in items["2d"]


def test_a_trusted_aggregator_and_chosen_text() -> None:
    items = of(**AGGREGATOR, **{"proximity.filter": True})
    assert "Central" in items["1"] and CHOSEN_TEXT in items["2b"]
    assert "has to be trusted" in items["3d"] and "no node can check" in items["3b"]
    assert items["3c"].endswith("-zCDP.")


def test_what_claims_nothing() -> None:
    items = of(**{"simulation-seeded-noise": True})
    assert "NO PRIVACY IS CLAIMED" in items["3c"]
    seeded = of(**{"data.near-duplicates": "remove", "benchmark": True})
    assert "THE SPLIT" in seeded["2a"]
    nobody = checklist(summary_of(RunConfig.from_flat({"method": "public-only"})))
    assert "No item applies" in nobody and "Epsilon = 0" in nobody and "3c" not in nobody


def test_a_claim_comes_back_as_it_was() -> None:
    config = RunConfig.from_flat({"method": "ctcl", "training.noise": "nodes"})
    said = statement(config)
    assert said.others and claim_of(summary_of(config)) == said


def test_summaries_without_a_claim() -> None:
    summary = summary_of(RunConfig())
    with pytest.raises(ReportError, match="damaged"):
        checklist({**summary, "claim": {**summary["claim"], "unit": "device"}})
    del summary["claim"]
    with pytest.raises(ReportError, match=r"earlier version wrote it; .* privacy\.md"):
        checklist(summary)
