"""Given models under a real `privsyn run`: one release, a table, nothing private."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from privsyn_flower.runs import read_jsonl
from tests.end_to_end.conftest import privsyn
from tests.rigs.run import check_nothing_private, command, finish
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name


@pytest.mark.slow
@pytest.mark.e2e
def test_models_are_measured_in_one_release(
    mini: Path, causal_folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(causal_folder, other)
    weights = load_file(other / "model.safetensors")
    halved = {name: 0.5 * array for name, array in weights.items()}
    save_file(halved, other / "model.safetensors", metadata={"format": "pt"})
    config, folder = tmp_path / "measured.toml", tmp_path / "run"
    text = (mini / "mini.toml").read_text().replace("simulation-seeded-noise = true", "")
    text = text.replace("[models]", f'[models]\ndownstream = "{causal_folder}"')
    measure = '[measure]\nmodels = "whole=downstream, half=other"\n'  # relative to the command
    config.write_text(f'method = "evaluation"\nstage-timeout = 300.0\n{text}{measure}')

    code, told, err = command("plan", config, cwd=tmp_path)
    assert code == 0 and "2 releases" in "\n".join(told), err
    code, out, err = finish(privsyn("run", config, "--set", f"run-folder={folder}", cwd=tmp_path))
    assert code == 0, err
    assert "over 1 evaluation of models on the nodes and 1 spare" in (
        folder / "privacy.md"
    ).read_text("utf-8")
    summary = json.loads((folder / "summary.json").read_text())
    found = summary["measured"]
    assert list(found["models"]) == ["whole", "half"] and "whole" in "\n".join(out)
    assert found["gained"]["half"]["loss_saved"][1] < found["gained"]["half"]["loss_saved"][2]
    kinds = [row["kind"] for row in read_jsonl(folder / "ledger.jsonl")]
    assert kinds.count("commit") == 1 and not (folder / "synthetic.jsonl").exists()
    check_nothing_private(folder, mini)

    code, shown, err = command("run", "--resume", folder, cwd=tmp_path)
    assert code == 0 and shown == out, err
    code, rows, err = command("report", folder, cwd=tmp_path)
    table = "\n".join(rows)
    assert code == 0 and "| whole | " in table and "| half | " in table, err
