"""DP-FTRL killed between rounds and resumed by a real `flwr run`: nothing private."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.runs import RunFolder, read_jsonl
from tests.end_to_end.conftest import privsyn
from tests.rigs.run import check_nothing_private, finish, wait_for
from tests.server_apps import in_process
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

ROUNDS, SEPARATION, MEASURED = 8, 2, (0, 2, 5)
FTRL = f"""
method = "dp-ftrl"
stage-timeout = 300.0
{{mini}}
[training]
parameters = "layers"
layers = "*norm*"
learning-rate = 0.5
batch-size = 4
clip-norm = 0.5
noise = "aggregator"
public-steps = 0
evaluate-rounds = "{",".join(map(str, MEASURED))}"

[ftrl]
mechanism = "blt"
min-separation = {SEPARATION}
"""


@pytest.fixture
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ledgers of populations, and keys of noise, are kept: the test's own folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def config(mini: Path, model: Path) -> Path:
    """The miniature federation, whose users train norms of a random Llama."""
    text = (mini / "mini.toml").read_text().replace("rounds = 2", f"rounds = {ROUNDS}")
    text = text.replace('embedder = "ngram-64"', f'embedder = "ngram-64"\ndownstream = "{model}"')
    text = text.replace("simulation-seeded-noise = true", "")
    path = mini / "dp-ftrl.toml"
    path.write_text(FTRL.format(mini=text))
    return path


def measured(folder: Path, rnd: int) -> list[float]:
    """The release of the evaluation after a round."""
    released = RunFolder(folder / "evaluations" / f"evaluation-{rnd:04d}").load_release(1)
    assert released is not None
    return released.tolist()


def test_dp_ftrl_killed_between_rounds_and_resumed(
    mini: Path, causal_folder: Path, data_home: Path
) -> None:
    folder = mini / "dp-ftrl-killed"
    path = config(mini, causal_folder)
    process = in_process.alone(path, folder)
    wait_for(folder / "metrics.jsonl", process, '"round": 3,')
    process.kill()
    finish(process)
    assert not (folder / "summary.json").exists(), "the run was over before the kill"
    keys = [file for file in data_home.glob("*/noise-keys/**/*") if file.is_file()]
    kept_outside = [file for file in data_home.rglob("*") if file.is_file()]
    assert keys and all(file.stat().st_mode & 0o077 == 0 for file in kept_outside)
    kept = [RunFolder(folder).load_release(rnd) for rnd in range(1, 4)]
    before_kill = [measured(folder, rnd) for rnd in MEASURED[:2]]

    code, out, err = finish(privsyn("run", "--resume", folder, cwd=mini))
    assert code == 0, "\n".join(err)
    assert out[-1] == str(folder)
    run = RunFolder(folder)
    for rnd, before in enumerate(kept, start=1):
        assert np.array_equal(before, run.load_release(rnd))  # type: ignore[arg-type]
    kinds = [row["kind"] for row in read_jsonl(folder / "ledger.jsonl")]
    # Every round was released once, and every evaluation between them.
    assert kinds.count("commit") == ROUNDS + len(MEASURED)
    assert [measured(folder, rnd) for rnd in MEASURED[:2]] == before_kill
    # The key of the noise, and what was made from it, are gone.
    assert [file for file in data_home.glob("*/noise-keys/**/*") if file.is_file()] == []

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["method"] == "dp-ftrl" and summary["rounds"] == ROUNDS
    assert summary["threat_model"].startswith("trusted aggregator")
    assert summary["participations_per_user"] == ROUNDS // SEPARATION
    assert summary["epsilon_ledger"] == pytest.approx(summary["epsilon"], rel=1e-6)
    assert [point["round"] for point in summary["evaluation_curve"]] == list(MEASURED)
    assert (folder / "model" / "config.json").exists()
    check_nothing_private(folder, mini)
