"""`privsyn report --checklist`: every item of appendix C.3, from a run's summary alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.app.report.forms import checklist, fact_sheets
from privsyn_flower.app.report.guarantee import claim_of
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.privacy.wording import CHOSEN_TEXT, at_least
from privsyn_flower.server_apps.privacy_plan import baseline, statement

ROOT = Path(__file__).resolve().parents[3]
ITEMS = ["1 ", "2a ", "2b ", "2c ", "2d ", "3a ", "3b ", "3c ", "3d "]
AGGREGATOR = {"method": "dp-ftrl", "training.noise": "aggregator"}
RIVAL = {"method": "popri", "benchmark": True, "evaluation.rival": "pretext"}


def summary_of(config: RunConfig, **more: Any) -> dict[str, Any]:
    """The part of a summary that a checklist reads, through JSON."""
    said: Any = baseline(config) or statement(config)
    found = {
        "version": "0.0.9",
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


@pytest.mark.slow
def test_sampling_has_no_rho() -> None:
    items = of(**{"sampler": "poisson", "sampling-rate": 0.5, "rounds": 1})
    assert "PLD" in items["3a"] and "No rho-zCDP is claimed" in items["3a"]
    assert "zCDP" not in items["3c"]
    assert "of probability 0.5" in items["3b"] and "is enrolled" in items["2d"]


def test_a_trusted_aggregator_and_chosen_text() -> None:
    items = of(**AGGREGATOR, **{"proximity.filter": True})
    assert "Central" in items["1"] and CHOSEN_TEXT in items["2b"]
    assert "has to be trusted" in items["3d"] and "no node can check" in items["3b"]
    assert items["3c"].endswith("-zCDP.")


@pytest.mark.slow
def test_noise_of_each_kind_of_question() -> None:
    """A histogram may have far less of it than the rounds."""
    ctcl = {"method": "ctcl", "training.noise": "nodes", "epsilon": 7.58}
    given: dict[str, Any] = {**ctcl, "ctcl.histogram-multiplier": 1.0}
    items, claim = of(**given), statement(RunConfig.from_flat(given))
    assert claim.noise_multiplier > 2
    rounds = f"In the rounds, the nodes' noise is at least {at_least(claim.noise_multiplier)} times"
    assert rounds in items["3b"]
    assert (
        "In 2 releases of 'topics', the nodes' noise is at least 1 times the bound." in items["3b"]
    )
    drawn = {"sampler": "poisson", "sampling-rate": 0.5, "ctcl.histogram-multiplier": 3.0}
    poisson_sample = of(**ctcl, **drawn)
    assert "of probability 0.5 (the rounds), decides" in poisson_sample["3b"]
    measured = of(**AGGREGATOR, **{"training.evaluate": True})
    assert "), and in each evaluation." in measured["3b"]


def test_a_run_that_only_measures_has_no_rounds() -> None:
    given = {"method": "evaluation", "measure.models": "a=downstream", "spare-rounds": 1}
    items = of(**given)
    assert (
        ": 1 evaluation of models on the nodes, 1 spare (1 evaluation was released)." in items["2a"]
    )
    assert "In the evaluations, the nodes' noise" in items["3b"]
    assert "rounds" not in items["2a"].partition("The nodes keep")[0]


@pytest.mark.parametrize(
    "values",
    [{}, AGGREGATOR, RIVAL, {"data.source": "files"}],
)
def test_nothing_is_left_out_that_the_statement_leaves_out(values: dict[str, Any]) -> None:
    items, said = of(**values), statement(RunConfig.from_flat(values))
    assert said.not_covered() in items["2a"] and said.not_covered() in said.sentence()
    assert "whether they answer in time" in items["2a"]
    assert ("on the aggregator's disk" in items["2a"]) == (said.noise_source == "aggregator")
    assert ("on first use" in items["2a"]) == (said.aggregation == "secure")
    assert ("the rival method" in items["2a"]) == said.rival


def test_the_version_is_that_of_the_run() -> None:
    summary = summary_of(RunConfig())
    assert "Open source: privsyn-flower 0.0.9." in checklist(summary)
    del summary["version"]
    assert "privsyn-flower of a version that noted no number." in checklist(summary)


def test_what_claims_nothing() -> None:
    items = of(**{"simulation-seeded-noise": True})
    assert "NO PRIVACY IS CLAIMED" in items["3c"]
    seeded = of(**{"data.near-duplicates": "remove", "benchmark": True})
    assert "DOES NOT COVER THE SPLIT" in seeded["2a"]
    nobody = checklist(summary_of(RunConfig.from_flat({"method": "public-only"})))
    assert "No item applies" in nobody and "Epsilon = 0" in nobody and "3c" not in nobody


def test_without_rounds_private_text_may_be_opened_all_the_same() -> None:
    upper = of(method="expand-private", benchmark=True)
    assert "epsilon is infinite" in upper["3c"] and "users' own texts" in upper["2a"]
    local = {"method": "dp-prompt", "benchmark": True}
    items = of(**local)
    assert "Local" in items["1"] and "Replace-one" in items["2d"]
    assert "as local privacy" in items["3c"] and "NO PRIVACY" not in items["3c"]
    assert "NO PRIVACY IS CLAIMED" in of(**local, **{"simulation-seeded-noise": True})["3c"]


def test_no_place_is_told() -> None:
    """A form is for others: of a file of private text, its name is enough."""
    summary = summary_of(RunConfig(), dataset="files:/home/alice/patients.jsonl")
    for form in (checklist(summary), fact_sheets([summary])):
        title = form.splitlines()[0]
        assert title.endswith("patients.jsonl**") and "alice" not in title
    hub = summary_of(RunConfig(), dataset="hub:owner/name")
    assert "hub:owner/name**" in checklist(hub)


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
