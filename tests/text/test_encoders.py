"""Rows from ONNX Runtime: those of torch, one text at a time, whoever else is embedded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.common.python_path import asset
from privsyn_flower.text import encoders
from privsyn_flower.text.embedders import (
    ModelUnavailableError,
    embedder_fingerprint,
    embedder_libraries,
    load_embedder,
    model_folder,
    shipped,
)
from privsyn_flower.text.encoders import OnnxEmbedder, SentenceEmbedder
from privsyn_flower.text.export import PROBES
from privsyn_flower.text.fingerprints import FACTS, folder_fingerprint
from privsyn_flower.text.tiny.assets import MANIFEST, PACKAGE_ASSETS

TEXTS = [
    *PROBES,
    "Fit the model to the training data and return it.",
    "[CLS] [MASK] [SEP] ##ing \x00 \ufffd \u200b",
    "word " * 400,  # longer than the model takes
    "a",
    "MiXeD CaSe and\r\n\r\nblank lines",
]


@pytest.fixture(scope="module")
def exact() -> SentenceEmbedder:
    return SentenceEmbedder(model_folder("minilm"), progress=False)


def exported(folder: Path) -> Path:
    """A copy of the shipped int8 folder that a test may spoil."""
    source = shipped("minilm-int8")
    assert source is not None
    return shutil.copytree(source, folder)


def test_minilm_on_a_cpu_is_onnx_and_gives_the_rows_of_torch(exact: SentenceEmbedder) -> None:
    embedder = load_embedder("minilm", "cpu", progress=False)
    assert isinstance(embedder, OnnxEmbedder)
    assert embedder.fingerprint == exact.fingerprint
    np.testing.assert_allclose(embedder.embed(TEXTS), exact.embed(TEXTS), atol=1e-6)


def test_the_graph_is_only_for_its_own_weights(tmp_path: Path, exact: SentenceEmbedder) -> None:
    """Another model of the same shape goes through torch, or its rows would be MiniLM's."""
    other = shutil.copytree(model_folder("minilm"), tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-3}))
    embedder = load_embedder(str(other), "cpu", progress=False)
    assert isinstance(embedder, SentenceEmbedder)
    assert np.abs(embedder.embed(TEXTS[:1]) - exact.embed(TEXTS[:1])).max() > 1e-5
    same = shutil.copytree(model_folder("minilm"), tmp_path / "same")
    assert isinstance(load_embedder(str(same), "cpu", progress=False), OnnxEmbedder)


def test_without_onnxruntime_minilm_goes_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privsyn_flower.text.embedders.can_import", lambda name: False)
    assert embedder_libraries("minilm") == ("torch", "sentence_transformers")
    assert isinstance(load_embedder("minilm", "cpu", progress=False), SentenceEmbedder)


def test_int8_rows_are_near_and_are_an_embedder_of_their_own(exact: SentenceEmbedder) -> None:
    embedder = load_embedder("minilm-int8", progress=False)
    assert embedder.fingerprint == embedder_fingerprint("minilm-int8") != exact.fingerprint
    assert embedder.dimension == 384
    cosines = (embedder.embed(TEXTS) * exact.embed(TEXTS)).sum(axis=1)
    assert cosines.min() > 0.998
    assert cosines.max() < 1 - 1e-6, "not quantised at all"


@pytest.mark.parametrize("name", ["minilm", "minilm-int8"])
def test_a_row_depends_on_its_text_alone(name: str) -> None:
    """To the last bit: a flipped near-tie would move another user's vote."""
    one = load_embedder(name, "cpu", progress=False)
    many = OnnxEmbedder(model_folder(name), graph=shipped(name), progress=False, workers=3)
    rows = one.embed(TEXTS)
    np.testing.assert_array_equal(many.embed(TEXTS[::-1])[::-1], rows)
    for i in (0, 1, 7):
        np.testing.assert_array_equal(one.embed([TEXTS[i]])[0], rows[i])


def test_a_text_that_fails_ends_the_others_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads too: the error is the caller's, and the texts that wait are left."""
    embedder = OnnxEmbedder(model_folder("minilm-int8"), progress=False, workers=2)
    asked = []

    class Failing:
        def row(self, text: str) -> Any:
            asked.append(text)
            raise RuntimeError("no row")

    monkeypatch.setattr(embedder, "model", Failing())
    with pytest.raises(RuntimeError, match="no row"):
        embedder.embed(["text"] * 1000)
    assert len(asked) < 1000


def test_an_exported_folder_runs_on_the_cpu_alone() -> None:
    with pytest.raises(ModelUnavailableError, match=r"models\.device = 'cuda:0'.*cpu"):
        load_embedder("minilm-int8", "cuda:0")


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_changed_file_is_named(name: str, tmp_path: Path) -> None:
    folder = exported(tmp_path / "model")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}: .*expected sha256"):
        folder_fingerprint(folder)
    with pytest.raises(ModelUnavailableError, match=name):
        load_embedder(str(folder))
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name}: no such file"):
        folder_fingerprint(folder)


def test_a_folder_of_another_format_says_so(tmp_path: Path) -> None:
    folder = exported(tmp_path / "model")
    facts = json.loads((folder / FACTS).read_text())
    (folder / FACTS).write_text(json.dumps({**facts, "format": 2}))
    with pytest.raises(ModelUnavailableError, match=r"format 2.*reads 1.*export"):
        load_embedder(str(folder))


def test_a_package_without_the_int8_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privsyn_flower.text.embedders.shipped", lambda name: None)
    with pytest.raises(ModelUnavailableError, match=r"minilm-int8.*privsyn-flower-models \d"):
        embedder_fingerprint("minilm-int8")
    assert isinstance(load_embedder("minilm", "cpu", progress=False), SentenceEmbedder)


def test_an_app_that_flower_carried_finds_the_installed_assets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FAB holds code alone, and stands first on the path."""
    found = shipped("minilm")
    assert found is not None
    monkeypatch.setattr("privsyn_flower.common.python_path.PACKAGE", tmp_path / "privsyn_flower")
    assert shipped("minilm") == found
    manifest = asset(MANIFEST)  # where the tiny models are looked up
    assert manifest is not None and manifest.parent == found.parent == PACKAGE_ASSETS
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert shipped("minilm") is None


def test_what_fails_on_a_text_is_raised_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """An index out of its table is a token of a private text, and stderr is not the node's log."""
    model = OnnxEmbedder(model_folder("minilm-int8"), progress=False).model
    with pytest.raises(Exception, match="indices element out of data bounds"):
        model.session.run([encoders.ROW], {encoders.IDS: np.array([[101, 10**7, 102]])})
    assert capfd.readouterr() == ("", "")


def test_rows_that_are_no_numbers_are_an_error() -> None:
    """Else each would become the row of equal entries, and look whole."""
    with pytest.raises(ValueError, match="not finite"):
        encoders.unit(np.array([[1.0, np.nan], [0.0, 0.0]]))


def test_code_that_an_embedder_brings_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "modeling_own.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path)!r}, 'ran').touch()\nclass Own: ...\n"
    )
    module = {"idx": 0, "name": "0", "path": "", "type": "modeling_own.Own"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"'modeling_own.Own' is code of its own"):
        SentenceEmbedder(tmp_path)
    assert not (tmp_path / "ran").exists()
