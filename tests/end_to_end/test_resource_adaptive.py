"""Resource-adaptive synthesis by a real `flwr run`: the run charges the larger of both groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privsyn_flower.app.cli.outcome import NOT_USABLE
from privsyn_flower.runs import read_jsonl
from tests.end_to_end.conftest import privsyn
from tests.end_to_end.test_ctcl import CTCL, EXPAND
from tests.rigs.end_to_end_popri import finish
from tests.rigs.training import check_nothing_private
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def test_strong_nodes_train_and_weak_nodes_vote(mini: Path, causal_folder: Path) -> None:
    text = (mini / "mini.toml").read_text().replace("samples = 0\n", EXPAND)
    text = text.replace("nodes = 3", "nodes = 6").replace("rounds = 2", "rounds = 1")
    text = text.replace(
        'embedder = "ngram-64"', f'embedder = "ngram-64"\nconditional = "{causal_folder}"'
    )
    path, folder = mini / "adaptive.toml", mini / "adaptive"
    path.write_text(CTCL.format(mini=text).replace('"ctcl"', '"resource-adaptive"'))
    code, out, err = finish(privsyn("run", path, "--set", f"run-folder={folder}", cwd=mini))
    assert code == NOT_USABLE, "\n".join(err)  # the conditional was trained on nothing
    assert out[-1] == str(folder)

    summary = json.loads((folder / "summary.json").read_text())
    rows = read_jsonl(folder / "ledger.jsonl")
    groups = [row["group"].rpartition("/")[2] for row in rows if row["kind"] == "reserve"]
    assert groups == ["strong", "strong", "weak"]
    assert sum(row["kind"] == "commit" for row in rows) == 3
    assert summary["epsilon_ledger"] <= summary["epsilon"] <= 50.0
    resources = json.loads((folder / "checkpoints" / "resources.json").read_text())
    assert sorted(resources.values()) == ["strong"] * 3 + ["weak"] * 3
    texts = [row["text"] for row in read_jsonl(folder / "synthetic.jsonl")]
    assert 0 < len(texts) == len(set(texts)) == summary["synthetic_samples"]
    assert set(texts) <= {row["text"] for row in read_jsonl(folder / "synthetic-pool.jsonl")}
    check_nothing_private(folder, mini)
