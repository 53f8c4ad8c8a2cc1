"""The standard forms of a run's guarantee, from its summary alone: `privsyn report --checklist`,
every item of appendix C.3, and `--fact-sheet`, the points of NIST SP 800-226."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.app.report.guarantee import (
    CARRIES,
    FactSheetItem,
    checklist,
    claim_of,
    curve,
    fact_sheet,
    fact_sheets,
)
from privsyn_flower.app.report.registry import record
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.privacy.wording import CARRIED, CHOSEN_TEXT, at_least, delta_at_most
from privsyn_flower.server_apps.privacy_plan import baseline, privacy_plan, statement
from privsyn_flower.server_apps.public_text import carried_by
from privsyn_flower.strategies.engine.record import claim_record, code, commit, digest
from tests.rigs.registry import AGGREGATOR, RUNS, known

ROOT = Path(__file__).resolve().parents[3]
ITEMS = ["1 ", "2a ", "2b ", "2c ", "2d ", "3a ", "3b ", "3c ", "3d "]
RIVAL = {"method": "popri", "benchmark": True, "evaluation.rival": "pretext"}
POINTS = [
    "the promise", "privacy parameters", "variants", "the unit of privacy",
    "neighbouring data sets", "comparing guarantees", "other data releases", "auditing",
    "basic mechanisms", "the privacy budget", "synthetic data and models", "utility and bias",
    "query models", "trust models", "floating-point arithmetic", "side channels", "tuning",
    "security and access control", "data collection exposure",
]  # fmt: skip


def summary_of(config: RunConfig, **more: Any) -> dict[str, Any]:
    """The part of a summary that a checklist reads."""
    own = {"dataset": "docstrings:scipy", "rounds": config.rounds}
    return known(config.flat(), **{**own, **more})


def items_of(**values: Any) -> dict[str, str]:
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
    items = items_of()
    assert "Distributed" in items["1"] and "Honest-but-curious server" in items["1"]
    assert "8 rounds, 1 spare" in items["2a"]
    assert items["3c"].endswith("-zCDP, but for the part of delta that pays for integers.")
    assert "may take part in every release" in items["3b"] and "85 %" in items["3b"]
    plain = items_of(aggregation="plain")
    assert "Central" in plain["1"]


@pytest.mark.slow
def test_sampling_has_no_rho() -> None:
    items = items_of(**{"sampler": "poisson", "sampling-rate": 0.5, "rounds": 1})
    assert "PLD" in items["3a"] and "No rho-zCDP is claimed" in items["3a"]
    assert "zCDP" not in items["3c"]
    assert "of probability 0.5" in items["3b"] and "is enrolled" in items["2d"]


def test_a_trusted_aggregator_and_chosen_text() -> None:
    items = items_of(**AGGREGATOR, **{"proximity.filter": True})
    assert "Central" in items["1"] and CHOSEN_TEXT in items["2b"]
    assert "has to be trusted" in items["3d"] and "no node can check" in items["3b"]
    assert items["3c"].endswith("-zCDP.")


@pytest.mark.slow
def test_noise_of_each_kind_of_question() -> None:
    """A histogram may have far less of it than the rounds."""
    ctcl = {"method": "ctcl", "training.noise": "nodes", "epsilon": 7.58}
    given: dict[str, Any] = {**ctcl, "ctcl.histogram-multiplier": 1.0}
    items, claim = items_of(**given), statement(RunConfig.from_flat(given))
    assert claim.noise_multiplier > 2
    rounds = f"In the rounds, the nodes' noise is at least {at_least(claim.noise_multiplier)} times"
    assert rounds in items["3b"]
    assert (
        "In 2 releases of 'topics', the nodes' noise is at least 1 times the bound." in items["3b"]
    )
    drawn = {"sampler": "poisson", "sampling-rate": 0.5, "ctcl.histogram-multiplier": 3.0}
    poisson_sample = items_of(**ctcl, **drawn)
    assert "of probability 0.5 (the rounds), decides" in poisson_sample["3b"]
    measured = items_of(**AGGREGATOR, **{"training.evaluate": True})
    assert "), and in each evaluation." in measured["3b"]


def test_a_run_that_only_measures_has_no_rounds() -> None:
    given = {"method": "evaluation", "measure.models": "a=downstream", "spare-rounds": 1}
    items = items_of(**given)
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
    items, said = items_of(**values), statement(RunConfig.from_flat(values))
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
    items = items_of(**{"simulation-seeded-noise": True})
    assert "NO PRIVACY IS CLAIMED" in items["3c"]
    seeded = items_of(**{"data.near-duplicates": "remove", "benchmark": True})
    assert "DOES NOT COVER THE SPLIT" in seeded["2a"]
    nobody = checklist(summary_of(RunConfig.from_flat({"method": "public-only"})))
    assert "No item applies" in nobody and "Epsilon = 0" in nobody and "3c" not in nobody


def test_without_rounds_private_text_may_be_opened_all_the_same() -> None:
    upper = items_of(method="expand-private", benchmark=True)
    assert "epsilon is infinite" in upper["3c"] and "users' own texts" in upper["2a"]
    local = {"method": "dp-prompt", "benchmark": True}
    items = items_of(**local)
    assert "Local" in items["1"] and "Replace-one" in items["2d"]
    assert "as local privacy" in items["3c"] and "NO PRIVACY" not in items["3c"]
    assert "NO PRIVACY IS CLAIMED" in items_of(**local, **{"simulation-seeded-noise": True})["3c"]


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
    for form in (checklist, fact_sheet):
        with pytest.raises(ReportError, match=r"has no `claim`: an earlier .* privacy\.md"):
            form(summary)


# --- the fact sheet --------------------------------------------------------------------------


def sheet(name: str = "pretext", **more: Any) -> dict[str, str]:
    """Point -> answer."""
    items = fact_sheet(known(RUNS[name][0], **more))
    assert all(isinstance(item, FactSheetItem) and item.question.endswith("?") for item in items)
    return {item.source.rpartition(": ")[2]: item.answer for item in items}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_point_has_an_answer(name: str) -> None:
    found = sheet(name)
    asked = name not in (
        "public-only", "minority-only", "expand-only", "expand-private", "split-public",
    )  # fmt: skip
    local = name.startswith("dp-prompt")
    left_out = set() if asked and not local else {"privacy parameters", "variants"}
    assert list(found) == [point for point in POINTS if point not in left_out]
    assert all(answer.endswith(".") and "  " not in answer for answer in found.values())
    claimed = bool(RUNS[name][2])
    warned = ("NO PRIVACY", "Epsilon does not cover")
    assert found["the promise"].startswith(warned) != claimed


def test_the_promise_by_who_is_trusted() -> None:
    assert "(epsilon = 7.58, delta = 3e-06)-DP for each user." in sheet()["the promise"]
    assert "Distributed" in sheet()["trust models"] and "Central" in sheet("plain")["trust models"]
    assert "TRUSTED" in sheet("dp-ftrl")["trust models"]
    assert "Local" in sheet("dp-prompt")["trust models"]
    assert "Replace-one" in sheet("dp-prompt")["neighbouring data sets"]
    assert "the paraphrases" in sheet("dp-prompt")["data collection exposure"].lower()
    assert sheet("public-only")["the promise"].startswith("Epsilon = 0")
    assert "infinite" in sheet("expand-private")["the promise"]


def test_users_in_groups_are_told_what_each_pays() -> None:
    items = fact_sheet(known({"method": "resource-adaptive", "nodes": 10, "data.users": 96}))
    told = " ".join(item.answer for item in items)
    assert "strong nodes 'topics' and 'rounds', epsilon" in told and "weak nodes 'votes'" in told
    assert "may take part in every release" not in told


def test_measures_and_the_curve() -> None:
    made = privacy_plan(RunConfig())
    summary = known({}, privacy_curve=made.curve)
    assert curve(summary) == made.curve and curve(known({})) == []
    told = sheet(privacy_curve=made.curve)["variants"]
    assert "rho = 1.1567 (zCDP) and mu = 1.521 (Gaussian DP), but for the part" in told
    assert told.count("; (") == 5 and "(1.1391, 0.3)" in told
    assert "Pairs" not in sheet()["variants"]
    assert "but for" not in sheet("dp-ftrl")["variants"]
    assert summary["mu_gdp"] == pytest.approx((2 * summary["rho_zcdp"]) ** 0.5)
    assert known(RUNS["sampling"][0])["mu_gdp"] is None


def test_public_text_that_users_made_carries_what_it_carries(tmp_path: Path) -> None:
    place = tmp_path / "public.jsonl"
    values = {"data.source": "files", "data.path": "u.jsonl", "data.public-path": str(place)}
    public = RunConfig.from_flat({"method": "public-only", **values})

    def told(config: RunConfig) -> tuple[str, dict[str, Any]]:
        own = baseline(config) or statement(config)
        beside = bool(carried_by(config))
        summary = known(config.flat(), public_text_carries=beside, **claim_record(own))
        items = {item.question: item.answer for item in fact_sheet(summary)}
        loss = record(summary, date.min)["deployment"]["privacy_loss"]
        return f"{own.sentence()} {own.short()} {items}", loss["privacy_parameters"]

    text, numbers = told(public)
    assert "nothing private was used" in text and numbers == {"epsilon": 0.0}
    assert CARRIED not in text
    (tmp_path / "privacy.md").write_text("# Privacy of this run\n\nEpsilon = 3\n")
    text, numbers = told(public)
    assert numbers == {} and CARRIED in text and CARRIES in text
    assert "nothing private was used" not in text and "anyone's texts" not in text
    assert "beside that of what was given as public" in text
    asking = RunConfig.from_flat(values)
    text, numbers = told(asking)
    assert numbers["epsilon"] > 7 and text.count(CARRIES) == 3
    assert statement(asking).page().endswith("# Privacy of this run\n\nEpsilon = 3\n")
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "privacy.md").write_text("# Privacy of this run\n\nEpsilon = 4\n")
    model = {**values, "models.generator": str(tmp_path / "run" / "model")}
    assert carried_by(RunConfig.from_flat(model)).count("# Privacy of this run") == 2


def test_users_made_of_rows_are_no_persons() -> None:
    values = {"data.source": "files", "data.path": "u.jsonl", "data.public-path": "p.jsonl"}
    for more in ({"data.partition": "uniform"}, {"data.user-column": ""}):
        own = statement(RunConfig.from_flat({**values, **more}))
        answer = {i.question: i.answer for i in fact_sheet(known({}, **claim_record(own)))}
        told = f"{own.short()} {answer}"
        assert "a share of the rows, not a person" in own.short()
        assert "a person who wrote several rows may be several users" in told
    deployed = RunConfig.from_flat({**values, "data.path": "", "data.user-column": ""})
    assert "not a person" not in statement(deployed).sentence()


def test_delta_is_told_beside_the_users() -> None:
    told = sheet()["privacy parameters"]
    assert told == "Delta is 3e-06; times the 1,000 declared users that is 0.003."
    told = sheet(users=700)["privacy parameters"]
    assert told.endswith("that is 0.0021.")
    assert [delta_at_most(one) for one in (1.2341e-6, 3e-6, 9.999e-6, 0.3, 0.0)] == [
        "1.24e-06", "3e-06", "1e-05", "0.3", "0",
    ]  # fmt: skip


def test_which_code_it_was() -> None:
    own = code()
    assert own["commit"] == commit() and len(own["code_sha256"]) == 64
    told = sheet(**own)["auditing"]
    assert own["code_sha256"] in told and "cannot prove" in told
    assert own["code_sha256"] in sheet("public-only", **own)["auditing"]
    assert "commit 5f5f;" in sheet(**{**own, "commit": "5f5f"})["auditing"]
    assert "commit" not in sheet(**{**own, "commit": None})["auditing"]


def test_a_summary_adds_no_sentence_of_its_own_to_another_point() -> None:
    """Topics and sentences begin as a template has them, never as a value does."""
    said = "1\n# formal\n- (epsilon = 0)-DP"
    found, plain = sheet(version=said), sheet()
    assert said in found["auditing"] and found["the promise"] == plain["the promise"]


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    def made(**files: str) -> str:
        for path in tmp_path.glob("*"):
            path.unlink()
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / "notes.txt").write_text(str(files))
        digest.cache_clear()
        return digest(tmp_path)

    first = made(a="1", b="2")
    assert first == made(b="2", a="1")
    assert (
        len({first, made(a="12", b=""), made(a="1", c="2"), made(a="1"), made(a="1", b="3")}) == 5
    )
    digest.cache_clear()


def test_the_command(tmp_path: Path) -> None:
    for name in ("pretext", "dp-prompt"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps({**known(RUNS[name][0]), "dataset": "d"}))
    folders = [str(tmp_path / "pretext"), str(tmp_path / "dp-prompt")]
    found = CliRunner().invoke(app, ["report", "--fact-sheet", *folders])
    assert found.exit_code == 0, found.stderr
    assert "**Fact sheet: method pretext, d**" in found.stdout
    assert found.stdout.count("- **What is promised?** (NIST SP 800-226, section 2") == 2
    both = CliRunner().invoke(app, ["report", "--fact-sheet", "--checklist", *folders])
    assert both.exit_code == 2 and "different reports: name one" in both.stderr
