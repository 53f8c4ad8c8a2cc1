"""Next-token metrics: golden values of the papers' code, the shift, and single tokenisation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from privsyn_flower.evaluation import next_token_metrics
from privsyn_flower.evaluation.next_token import row_sums

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def golden():
    with np.load(GOLDEN / "next_token_metrics_inputs.npz") as inputs:
        expected = json.loads((GOLDEN / "next_token_metrics.json").read_text())
        yield inputs["logits"], inputs["labels"], expected


def test_golden_values(golden):
    logits, labels, expected = golden
    found = next_token_metrics(logits, labels, top_k=(1, 3, 5, 10, 50, 100))
    assert found["loss"] == pytest.approx(expected["PrE-Text"]["avg_loss"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(expected["PrE-Text"]["top_k"]["1"])
    for k in (3, 5, 10, 50, 100):
        assert found[f"accuracy@{k}"] == pytest.approx(expected["PrE-Text"]["top_k"][str(k)])


def test_row_sums_give_the_same_means_and_the_macro_ones(golden):
    logits, labels, expected = golden
    sums = row_sums(torch.from_numpy(logits), torch.from_numpy(labels))
    total = sums.sum(axis=0)
    assert total[0] / total[2] == pytest.approx(expected["POPri"]["avg_loss"], rel=1e-5)
    assert total[1] / total[2] == pytest.approx(expected["CTCL"]["token_accuracy"])
    assert sums[:, 0] / sums[:, 2] == pytest.approx(expected["CTCL"]["per_example_loss"], rel=1e-5)


def test_position_t_predicts_label_t_plus_one():
    logits = np.full((1, 3, 5), -9.0, dtype=np.float32)
    logits[0, 0, 2] = logits[0, 1, 4] = logits[0, 2, 0] = 9.0
    assert next_token_metrics(logits, [[0, 2, 4]], top_k=(1,))["accuracy"] == 1.0
    assert next_token_metrics(logits, [[2, 4, 0]], top_k=(1,))["accuracy"] == 0.0
    assert next_token_metrics(logits, [[0, 2, -100]], top_k=(1,))["accuracy"] == 1.0


@pytest.mark.parametrize(
    "labels, top_k, named",
    [
        ([[0, 1]], (1,), "must have shapes"),
        ([[0, -100, -100]], (1,), "no label counts"),
        ([[0, 1, 1]], (6,), "1..5"),
        ([[0, 1, 1]], (0,), "1..5"),
    ],
)
def test_wrong_input_is_named(labels, top_k, named):
    with pytest.raises(ValueError, match=named):
        next_token_metrics(np.zeros((1, 3, 5), dtype=np.float32), labels, top_k)
