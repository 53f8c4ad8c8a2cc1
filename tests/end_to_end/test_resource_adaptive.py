"""Resource-adaptive synthesis by a real `flwr run`: the run charges the larger of both groups.

Its strong nodes do what CTCL asks of all; CTCL alone: tests/server_apps/test_ctcl_pipeline.py.
"""

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

METHOD = """
method = "resource-adaptive"
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


def test_strong_nodes_train_and_weak_nodes_vote(mini: Path, causal_folder: Path) -> None:
    text = (mini / "mini.toml").read_text()
    for before, after in {
        "samples = 0\n": "samples = 60\nmin-words = 1\nmax-tokens = 12\n",
        "nodes = 3": "nodes = 6",
        'embedder = "ngram-64"': f'embedder = "ngram-64"\nconditional = "{causal_folder}"',
    }.items():
        assert before in text
        text = text.replace(before, after)
    path, folder = mini / "adaptive.toml", mini / "adaptive"
    path.write_text(METHOD.format(mini=text))
    code, out, err = finish(privsyn("run", path, "--set", f"run-folder={folder}", cwd=mini))
    assert code == NOT_USABLE, "\n".join(err)  # the conditional was trained on nothing
    assert out[-1] == str(folder)

    summary = json.loads((folder / "summary.json").read_text())
    assert "of the written words are in no public text" in summary["unusable"][0]
    assert (summary["method"], summary["rounds"]) == ("resource-adaptive", 2)
    rows = read_jsonl(folder / "ledger.jsonl")
    groups = [row["group"].rpartition("/")[2] for row in rows if row["kind"] == "reserve"]
    assert groups == ["strong", "strong", "strong", "weak"]  # the histogram, two rounds, the vote
    assert sum(row["kind"] == "commit" for row in rows) == 4
    assert summary["epsilon_ledger"] <= summary["epsilon"] <= 50.0
    resources = json.loads((folder / "checkpoints" / "resources.json").read_text())
    assert sorted(resources.values()) == ["strong"] * 3 + ["weak"] * 3
    # All users write of mathematics, which is a quarter of the public text: the histogram says so.
    topics = load_topics(folder / "topics")
    shares = np.array(json.loads((folder / "topics" / "shares.json").read_text())["shares"])
    theirs = [not set(MATHS).isdisjoint(words) for words in topics.keywords]
    assert 0 < sum(theirs) < len(topics) and shares[theirs].sum() > 0.9
    pool = read_jsonl(folder / "synthetic-pool.jsonl")
    assert np.mean([theirs[row["topic"]] for row in pool]) > 0.9
    texts = [row["text"] for row in read_jsonl(folder / "synthetic.jsonl")]
    assert 0 < len(texts) == len(set(texts)) == summary["synthetic_samples"]
    assert set(texts) <= {row["text"] for row in pool}
    check_nothing_private(folder, mini)

    ledger = (folder / "ledger.jsonl").read_bytes()
    code, out, err = command("generate", folder, "--samples", "20", cwd=mini)
    assert code == 0, "\n".join(err)
    said = summary["privacy_short"].removesuffix("privacy.md.")
    assert f"{said}{folder / 'privacy.md'}." in "\n".join(err)
    assert 15 < len(read_jsonl(Path(out[-1]))) <= 20
    assert (folder / "ledger.jsonl").read_bytes() == ledger
