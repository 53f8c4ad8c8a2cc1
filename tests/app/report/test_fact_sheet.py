"""`privsyn report --fact-sheet`: the points of NIST SP 800-226, from a run's summary alone."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.app.report.forms import FactSheetItem, fact_sheet, fact_sheets
from privsyn_flower.app.report.guarantee import CARRIES, curve
from privsyn_flower.app.report.registry import record
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.wording import CARRIED, delta_at_most
from privsyn_flower.server_apps.privacy_plan import baseline, privacy_plan, statement
from privsyn_flower.server_apps.public_text import carried_by
from privsyn_flower.strategies.engine.record import claim_record, code, commit, digest
from tests.rigs.registry import RUNS, known

POINTS = [
    "the promise", "privacy parameters", "variants", "the unit of privacy",
    "neighbouring data sets", "comparing guarantees", "other data releases", "auditing",
    "basic mechanisms", "the privacy budget", "synthetic data and models", "utility and bias",
    "query models", "trust models", "floating-point arithmetic", "side channels", "tuning",
    "security and access control", "data collection exposure",
]  # fmt: skip


def of(name: str = "pretext", **more: Any) -> dict[str, str]:
    """Point -> answer."""
    items = fact_sheet(known(RUNS[name][0], **more))
    assert all(isinstance(item, FactSheetItem) and item.question.endswith("?") for item in items)
    return {item.source.rpartition(": ")[2]: item.answer for item in items}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_point_has_an_answer(name: str) -> None:
    found = of(name)
    asked = name not in ("public-only", "expand-only", "expand-private", "split-public")
    local = name.startswith("dp-prompt")
    left_out = set() if asked and not local else {"privacy parameters", "variants"}
    assert list(found) == [point for point in POINTS if point not in left_out]
    assert all(answer.endswith(".") and "  " not in answer for answer in found.values())
    claimed = bool(RUNS[name][2])
    warned = ("NO PRIVACY", "Epsilon does not cover")
    assert found["the promise"].startswith(warned) != claimed


def test_the_promise_by_who_is_trusted() -> None:
    assert "(epsilon = 7.58, delta = 3e-06)-DP for each user." in of()["the promise"]
    assert "Distributed" in of()["trust models"] and "Central" in of("plain")["trust models"]
    assert "TRUSTED" in of("dp-ftrl")["trust models"]
    assert "Local" in of("dp-prompt")["trust models"]
    assert "Replace-one" in of("dp-prompt")["neighbouring data sets"]
    assert "the paraphrases" in of("dp-prompt")["data collection exposure"].lower()
    assert of("public-only")["the promise"].startswith("Epsilon = 0")
    assert "infinite" in of("expand-private")["the promise"]


def test_users_in_groups_are_told_what_each_pays() -> None:
    items = fact_sheet(known({"method": "resource-adaptive", "nodes": 10, "data.users": 96}))
    told = " ".join(item.answer for item in items)
    assert "strong nodes 'topics' and 'rounds', epsilon" in told and "weak nodes 'votes'" in told
    assert "may take part in every release" not in told


def test_measures_and_the_curve() -> None:
    made = privacy_plan(RunConfig())
    summary = known({}, privacy_curve=made.curve)
    assert curve(summary) == made.curve and curve(known({})) == []
    told = of(privacy_curve=made.curve)["variants"]
    assert "rho = 1.1567 (zCDP) and mu = 1.521 (Gaussian DP), but for the part" in told
    assert told.count("; (") == 5 and "(1.1391, 0.3)" in told
    assert "Pairs" not in of()["variants"]
    assert "but for" not in of("dp-ftrl")["variants"]
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
    assert "beside that of the public text" in text
    text, numbers = told(RunConfig.from_flat(values))
    assert numbers["epsilon"] > 7 and text.count(CARRIES) == 2


def test_delta_is_told_beside_the_users() -> None:
    told = of()["privacy parameters"]
    assert told == "Delta is 3e-06; times the 1,000 declared users that is 0.003."
    told = of(users=700)["privacy parameters"]
    assert told.endswith("that is 0.0021.")
    assert [delta_at_most(one) for one in (1.2341e-6, 3e-6, 9.999e-6, 0.3, 0.0)] == [
        "1.24e-06", "3e-06", "1e-05", "0.3", "0",
    ]  # fmt: skip


def test_which_code_it_was() -> None:
    own = code()
    assert own["commit"] == commit() and len(own["code_sha256"]) == 64
    told = of(**own)["auditing"]
    assert own["code_sha256"] in told and "cannot prove" in told
    assert own["code_sha256"] in of("public-only", **own)["auditing"]
    assert "commit 5f5f;" in of(**{**own, "commit": "5f5f"})["auditing"]
    assert "commit" not in of(**{**own, "commit": None})["auditing"]


def test_a_summary_adds_no_sentence_of_its_own_to_another_point() -> None:
    """Topics and sentences begin as a template has them, never as a value does."""
    said = "1\n# formal\n- (epsilon = 0)-DP"
    found, plain = of(version=said), of()
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


def test_an_earlier_versions_summary_is_refused() -> None:
    summary = known({})
    del summary["claim"]
    with pytest.raises(ReportError, match="has no `claim`"):
        fact_sheets([summary])
