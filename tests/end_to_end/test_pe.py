"""Private evolution through a real `privsyn run`: Aug-PE's selection, and SFT before the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privsyn_flower.app.cli.outcome import NOT_USABLE
from privsyn_flower.runs import read_jsonl
from tests.end_to_end.conftest import left_running, privsyn
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

PE = """
method = "pe"
{mini}
[pe]
population = 8
copies = 3
selection = "rank"
lookahead = 2
variation = "continue"
[sft]
epochs = 1
learning-rate = 1e-3
lora-rank = 2
"""


def test_a_run_from_votes_to_text(mini: Path, causal_folder: Path) -> None:
    text = (mini / "mini.toml").read_text()
    text = text.replace(
        'embedder = "ngram-64"', f'embedder = "ngram-64"\ngenerator = "{causal_folder}"'
    )
    text = text.replace("samples = 0", "samples = 6\nmin-words = 1\nmax-tokens = 16")
    path, folder = mini / "pe.toml", mini / "pe-run"
    path.write_text(PE.format(mini=text))
    process = privsyn("run", path, "--set", f"run-folder={folder}", cwd=mini)
    out, err = process.communicate(timeout=1500)
    assert process.returncode == NOT_USABLE, err  # its generator has learned nothing
    assert out.strip().splitlines()[-1] == str(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["method"], summary["rounds"], summary["synthetic_samples"]) == ("pe", 2, 6)
    # A user answers with one vote for each of L x N_syn = 24 candidates.
    assert [row["survivors"] for row in read_jsonl(folder / "metrics.jsonl")] <= [8, 8]
    query = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert 0 < query["candidates_alive"] <= 24
    assert (folder / "sft" / "synthetic" / "epoch-1").is_dir()
    assert len({row["text"] for row in read_jsonl(folder / "synthetic.jsonl")}) == 6
    assert not left_running(str(folder))
