"""`export_embedder`: a folder that gives the model's own rows, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.text import export
from privsyn_flower.text.embedders import embedder_fingerprint, load_embedder, model_folder, shipped
from privsyn_flower.text.encoders import SentenceEmbedder
from privsyn_flower.text.export import ExportError, export_embedder
from privsyn_flower.text.fingerprints import folder_fingerprint

WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "sentence_transformers", "onnx"):
    sys.modules[name] = None
from privsyn_flower.text import load_embedder
print(load_embedder(sys.argv[1]).embed(["a text"])[0, :4].tolist())
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random encoder with a layer of its own after the pooling: no BERT of a known kind."""
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    words += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join(words))
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=80,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder / "bert")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    body = models.Transformer(str(folder / "bert"), max_seq_length=64)
    parts = [body, models.Pooling(32, "cls"), models.Dense(32, 16)]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder / "whole"))
    return folder / "whole"


@pytest.mark.slow
def test_an_exported_folder_gives_the_models_rows_without_torch(
    encoder: Path, tmp_path: Path
) -> None:
    facts = export_embedder(str(encoder), tmp_path / "out")
    exact = load_embedder(str(encoder), "cpu", progress=False)
    assert isinstance(exact, SentenceEmbedder)
    assert facts["fingerprint"] == exact.fingerprint == embedder_fingerprint(str(tmp_path / "out"))
    assert (facts["dimension"], facts["max-tokens"], facts["name"]) == (16, 64, "whole")
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "out")],
        capture_output=True, text=True, timeout=1500, check=True,
    )  # fmt: skip
    np.testing.assert_allclose(json.loads(found.stdout), exact.embed(["a text"])[0, :4], atol=1e-5)
    assert b".py" not in (tmp_path / "out" / "model.onnx").read_bytes(), "paths of this machine"
    with pytest.raises(FileExistsError, match="is there already"):
        export_embedder(str(encoder), tmp_path / "out")
    with pytest.raises(ExportError, match="exported folder already"):
        export_embedder(str(tmp_path / "out"), tmp_path / "again")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}, "something was left beside it"


@pytest.mark.slow
def test_rows_that_differ_are_no_export(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(ExportError, match="rows of the exported model"):
        export_embedder(str(encoder), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_model_without_a_tokenizer_file_is_told(tmp_path: Path, encoder: Path) -> None:
    import shutil

    folder = shutil.copytree(encoder, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ExportError, match=r"no tokenizer\.json"):
        export_embedder(str(folder), tmp_path / "out")


def test_the_shipped_graph_is_that_of_the_shipped_model() -> None:
    graph, small = shipped("minilm"), shipped("minilm-int8")
    assert graph is not None and small is not None
    for folder in (graph, small):
        assert b".py" not in (folder / "model.onnx").read_bytes(), "paths of whoever exported it"
    assert folder_fingerprint(graph) == folder_fingerprint(model_folder("minilm"))


def votes_kept(rows: np.ndarray, candidates: np.ndarray, exact: np.ndarray) -> float:
    return float(((rows @ candidates.T).argmax(axis=1) == exact).mean())


@pytest.mark.slow
def test_int8_keeps_nearly_all_votes() -> None:
    """Judged by votes: a cosine of .99 can lose a third of them."""
    import inspect
    import unittest.mock

    import numpy.linalg as module

    texts = [
        " ".join((inspect.getdoc(value) or "").split()[:40])
        for space in (np, module, unittest.mock, subprocess, json)
        for value in vars(space).values()
        if callable(value)
    ]
    texts = sorted({text for text in texts if len(text) > 60})
    samples, candidates = texts[::3], [text for i, text in enumerate(texts) if i % 3]
    assert len(samples) > 100
    exact, small = (
        load_embedder(name, "cpu", progress=False) for name in ("minilm", "minilm-int8")
    )
    nearest = (exact.embed(samples) @ exact.embed(candidates).T).argmax(axis=1)
    assert votes_kept(small.embed(samples), small.embed(candidates), nearest) >= 0.94
