"""`privsyn ledger`: what the runs of a population were charged, and copies that forget nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
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


def copied(*places: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["ledger", "copy", *map(str, places)])
    return result.exit_code, result.output


def test_a_backup_is_put_back_unless_it_is_older(tmp_path: Path, ledger: Ledger) -> None:
    backup, older = tmp_path / "backup", tmp_path / "older"
    code, out = copied(ledger.path, older)
    day = (
        f"{datetime.now(UTC):%Y-%m}"  # of the last row: who restores must know what may be missing
    )
    assert code == 0 and out.startswith(f"{older}: 3 charges until {day}") and "later runs" in out
    charge = ledger.reserve(run="c", query="votes", round=1, attempt=1, noise_multiplier=8.0)
    assert copied(ledger.path, backup)[0] == 0
    latest = ledger.path.read_bytes()
    code, out = copied(older, ledger.path)
    assert code == 2 and "older copy" in out and ledger.path.read_bytes() == latest
    ledger.path.unlink()
    assert copied(backup, ledger.path)[0] == 0
    assert ledger.path.read_bytes() == latest and ledger.path.stat().st_mode & 0o777 == 0o600
    ledger.mark_sent(charge)
    older.write_bytes(older.read_bytes() + b'{"torn')
    assert copied(ledger.path, older)[0] == 0  # brought up to date
    assert older.read_bytes() == ledger.path.read_bytes()


def test_another_ledger_or_a_runs_copy_is_not_put_back(tmp_path: Path, ledger: Ledger) -> None:
    other = Ledger.open(tmp_path / "other", population="staff").path
    assert copied(other, ledger.path)[0] == copied(tmp_path / "none", ledger.path)[0] == 2
    usage.export(ledger, "a", tmp_path / "ledger.jsonl")
    code, out = copied(tmp_path / "ledger.jsonl", tmp_path / "new")
    assert code == 2 and "is no ledger" in out and not (tmp_path / "new").exists()
