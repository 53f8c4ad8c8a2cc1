"""A row without rounds under a real `privsyn run`: it asks nobody, and ends with a summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.conftest import privsyn
from tests.rigs.run import command, finish


@pytest.mark.slow
@pytest.mark.e2e
def test_a_row_without_rounds_runs(mini: Path, tmp_path: Path) -> None:
    """Without a benchmark, which the pipeline's own tests run; and what must be refused is."""
    settings = ["--set", "method=public-only", "--set", f"run-folder={tmp_path / 'run'}"]
    code, out, err = finish(privsyn("run", mini / "mini.toml", *settings, cwd=tmp_path))
    assert code == 0, err
    assert out[-1] == str(tmp_path / "run")
    assert "Epsilon = 0: no user was asked anything" in " ".join(" ".join(out).split())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["method"], summary["epsilon"], summary["rounds"]) == ("public-only", 0, 0)
    lines = (tmp_path / "run" / "synthetic.jsonl").read_text().splitlines()
    assert len(lines) == summary["synthetic_samples"] == 200

    code, shown, err = command("run", "--resume", tmp_path / "run", cwd=tmp_path)
    assert code == 0 and shown == out, err

    wrong = ["--set", "method=expand-private", "--set", f"run-folder={tmp_path / 'wrong'}"]
    code, _, err = command("run", mini / "mini.toml", *wrong, cwd=tmp_path)
    told = " ".join(err)
    assert code != 0 and "benchmark = true" in told
    assert "the seeds are the private texts" in told and not (tmp_path / "wrong").exists()

    code, table, err = command("report", tmp_path / "run", cwd=tmp_path)
    assert code == 0 and "Public text alone: nobody was asked" in "\n".join(table), err
