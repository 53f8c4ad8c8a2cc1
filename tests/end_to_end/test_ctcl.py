"""CTCL by a real `flwr run`: the users' topics are found, and more text comes of the run folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.app.cli.ending import NOT_USABLE
from privsyn_flower.runs import read_jsonl
from privsyn_flower.text.topics import load_topics
from tests.end_to_end.conftest import MATHS, privsyn
from tests.rigs.run import check_nothing_private, command, finish
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

CTCL = """
method = "ctcl"
stage-timeout = 300.0
{mini}
[ctcl]
topic-count = 4
topic-threshold = 1.0
histogram-multiplier = 0.0
max-source = 60

[training]
parameters = "layers"
layers = "*norm*"
learning-rate = 0.5
batch-size = 4
clip-norm = 0.5

[evaluation]
sequence-length = 32
"""
EXPAND = "samples = 60\nmin-words = 1\nmax-tokens = 12\n"


def test_topics_training_and_text(mini: Path, causal_folder: Path) -> None:
    text = (mini / "mini.toml").read_text().replace("samples = 0\n", EXPAND)
    text = text.replace(
        'embedder = "ngram-64"', f'embedder = "ngram-64"\nconditional = "{causal_folder}"'
    )
    path, folder = mini / "ctcl.toml", mini / "ctcl"
    path.write_text(CTCL.format(mini=text))
    code, out, err = finish(privsyn("run", path, "--set", f"run-folder={folder}", cwd=mini))
    assert code == NOT_USABLE, "\n".join(err)  # the conditional was trained on nothing
    assert out[-1] == str(folder)

    summary = json.loads((folder / "summary.json").read_text())
    assert "of the written words are in no public text" in summary["unusable"][0]
    assert (summary["method"], summary["rounds"]) == ("ctcl", 2)
    commits = [row for row in read_jsonl(folder / "ledger.jsonl") if row["kind"] == "commit"]
    assert len(commits) == 3  # the histogram, and two rounds
    # All users write of mathematics, which is a quarter of the public text: the histogram says so.
    topics = load_topics(folder / "topics")
    shares = np.array(json.loads((folder / "topics" / "shares.json").read_text())["shares"])
    theirs = [not set(MATHS).isdisjoint(words) for words in topics.keywords]
    assert 0 < sum(theirs) < len(topics) and shares[theirs].sum() > 0.9
    rows = read_jsonl(folder / "synthetic.jsonl")
    assert len(rows) == summary["synthetic_samples"] > 50
    assert np.mean([theirs[row["topic"]] for row in rows]) > 0.9
    check_nothing_private(folder, mini)

    ledger = (folder / "ledger.jsonl").read_bytes()
    code, out, err = command("generate", folder, "--samples", "20", cwd=mini)
    assert code == 0, "\n".join(err)
    said = summary["privacy_short"].removesuffix("privacy.md.")
    assert f"{said}{folder / 'privacy.md'}." in "\n".join(err)
    assert 15 < len(read_jsonl(Path(out[-1]))) <= 20
    assert (folder / "ledger.jsonl").read_bytes() == ledger
