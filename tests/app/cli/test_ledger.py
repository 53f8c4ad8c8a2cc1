"""`privsyn ledger show`: what the runs of a population were charged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.privacy.ledger import Ledger, usage


def show(place: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["ledger", "show", str(place), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger.open(tmp_path / "all", population="staff", total_epsilon=9.0, total_delta=1e-6)
    for run, attempts in (("a", 2), ("b", 1)):
        for attempt in range(1, attempts + 1):
            found.reserve(run=run, query="votes", round=1, attempt=attempt, noise_multiplier=8.0)
    first = found.charges()[0].id
    found.mark_sent(first)
    found.commit(first)
    found.void(found.charges()[1].id, "nobody was asked")
    return found


def test_every_run_and_all_together(tmp_path: Path, ledger: Ledger) -> None:
    before = ledger.path.read_bytes()
    lines = show(ledger.path).splitlines()
    assert lines[0].startswith("population 'staff': epsilon = ")
    assert lines[0].endswith("charged, total 9 at delta 1e-06")
    assert lines[1].startswith("run 'a': 1 released, 0 charged and not released, 1 void; epsilon")
    assert lines[2].startswith("run 'b': 0 released, 1 charged and not released, 0 void; epsilon")
    facts = json.loads(show(ledger.path, "--json"))
    assert facts["epsilon"] == pytest.approx(ledger.spent_epsilon())
    own = [row["epsilon"] for row in facts["runs"]]
    assert own == pytest.approx([ledger.spent_epsilon("a"), ledger.spent_epsilon("b")])
    assert len(facts["charges"]) == 3 and facts["whole"]
    assert ledger.path.read_bytes() == before


def test_a_runs_copy_says_that_others_are_missing(tmp_path: Path, ledger: Ledger) -> None:
    usage.export(ledger, "a", tmp_path / "ledger.jsonl")
    assert "(the run's own copy: other runs on these users are missing)" in show(
        tmp_path / "ledger.jsonl"
    )


def test_what_is_no_ledger_is_named(tmp_path: Path) -> None:
    for content in ("", "{}\n", "# text\n"):
        (tmp_path / "x").write_text(content)
        result = CliRunner().invoke(app, ["ledger", "show", str(tmp_path / "x")])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert str(tmp_path / "x") in result.stderr
    result = CliRunner().invoke(app, ["ledger", "show", str(tmp_path)])
    assert (result.exit_code, "holds no run" in result.stderr) == (2, True)
