"""The Gboard paper's filter (Wu et al. 2024, section 5) by its formula at 50 digits: there is no
public code to compare with. The word LSTM is computed from its weights by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

from privsyn_flower.app.public.proximity import Thresholds, concatenate, keep, score_texts

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402 - it imports torch

from privsyn_flower.text.models import lstm  # noqa: E402

PUBLIC = ["the river ran near the old house", "a fox and the river", "the house ran and ran"]
TEXTS = [*PUBLIC, "The RIVER near a zebra", "zebra zebra zebra fox", "fox", "a house zebra"]
RULES = (
    ("0.6", "-2.6", True, 5),
    ("0.3", "-2.6", True, 4),
    ("0.6", "-2.54", True, 4),
    ("0.6", "-2.6", False, 6),
)
LENGTH = 6  # tokens that are looked at, the start counted

Matrix = list[list[Any]]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def product(weight: Matrix, vector: list[Any]) -> list[Any]:
    return [mp.fdot(row, vector) for row in weight]


def log_likelihood(folder: Path, ids: list[int]) -> Any:
    """Mean over the tokens after the first of log softmax (section 5), coupled gates."""
    weights = {
        name: [[mpf(v) for v in row] for row in np.atleast_2d(value.double().numpy()).tolist()]
        for name, value in load_file(folder / "model.safetensors").items()
    }
    cells = len(weights["projection.weight"][0])
    state, cell = [mpf(0)] * len(weights["projection.weight"]), [mpf(0)] * cells
    total = mpf(0)
    for now, following in pairwise(ids):
        given = product(weights["input_gates.weight"], weights["embedding.weight"][now])
        back = product(weights["recurrent_gates.weight"], state)
        gates = [
            sum(part) for part in zip(given, weights["input_gates.bias"][0], back, strict=True)
        ]
        forget, out, new = (gates[i * cells : (i + 1) * cells] for i in range(3))
        cell = [
            sigmoid(f) * c + (1 - sigmoid(f)) * mp.tanh(n)
            for f, c, n in zip(forget, cell, new, strict=True)
        ]
        opened = [sigmoid(o) * mp.tanh(c) for o, c in zip(out, cell, strict=True)]
        state = product(weights["projection.weight"], opened)
        scores = product(weights["output.weight"], state)
        scores = [a + b for a, b in zip(scores, weights["output.bias"][0], strict=True)]
        total += scores[following] - mp.log(mp.fsum(mp.exp(score) for score in scores))
    return total / (len(ids) - 1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    shape: dict[str, Any] = {"words": 20, "hidden": 5, "embedding": 3}
    folders = tmp_path_factory.mktemp("before"), tmp_path_factory.mktemp("after")
    for folder, steps in zip(folders, (2, 40), strict=True):
        lstm.make_lstm(folder, PUBLIC, steps=steps, **shape)
    return folders


def test_three_numbers_and_three_conditions(models: tuple[Path, Path]) -> None:
    found = concatenate(score_texts(TEXTS, *models, length=LENGTH, device="cpu"))
    counts: dict[str, int] = {}
    for word in " ".join(PUBLIC).split():
        counts[word] = counts.get(word, 0) + 1
    listed = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: i for i, word in enumerate(["<unk>", "<pad>", "<s>", "</s>", *listed])}
    wanted = []
    with mp.workdps(50):
        for text in TEXTS:
            words = text.lower().split()[: LENGTH - 1]
            ids = [number["<s>"], *(number.get(word, number["<unk>"]) for word in words)]
            unknown = mpf(sum(word not in number for word in words)) / len(words)
            wanted.append([unknown, *(log_likelihood(folder, ids) for folder in models)])
    table = np.array(wanted, dtype=np.float64).T
    np.testing.assert_allclose(np.stack(found), table, rtol=1e-6)
    # Each condition decides about a text by itself.
    for unknown, least, gain, number_kept in RULES:
        rule = Thresholds(most_unknown=float(unknown), least_score=float(least), gain=gain)
        kept = [
            u <= mpf(unknown) and b >= mpf(least) and (b >= a or not gain) for u, a, b in wanted
        ]
        assert keep(found, rule).tolist() == kept and sum(kept) == number_kept
