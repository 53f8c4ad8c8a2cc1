"""Frechet distances, and next-token metrics."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.common.arrays import F32
from privsyn_flower.evaluation import frechet_distance, next_token_metrics
from privsyn_flower.evaluation.metrics import (
    IGNORED,
    HeldOut,
    closeness,
    frechet_by_size,
    frechet_distance,
    frontier_area,
    row_sums,
)

GOLDEN = Path(__file__).parent.parent / "golden"


def test_golden_values():
    with np.load(GOLDEN / "fid.npz") as golden:
        assert frechet_distance(golden["X"], golden["Y"]) == pytest.approx(
            float(golden["popri_fid"]), rel=1e-9
        )
        # The reference adds 1e-6 to singular covariances; that is the difference here.
        assert frechet_distance(golden["Xsing"], golden["Ysing"]) == pytest.approx(
            float(golden["popri_fid_sing"]), rel=1e-3
        )
        assert frechet_distance(golden["X"], golden["X"]) == pytest.approx(0, abs=1e-9)
        expected = float(golden["minilm_fid_syn_vs_priv"])
    with np.load(GOLDEN / "minilm_embeddings.npz") as rows:
        assert frechet_distance(rows["synthetic"], rows["private"]) == pytest.approx(
            expected, rel=1e-3
        )


def test_one_dimension_by_hand():
    # Means 1 and 4, standard deviations sqrt(2) and sqrt(8): 9 + 2 + 8 - 2 sqrt(16).
    assert frechet_distance([[0.0], [2.0]], [[2.0], [6.0]]) == pytest.approx(9 + 10 - 8)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(1, 6))
def test_symmetric_shift_and_rotation(seed, count, dimension):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, dimension))
    y = 2 * rng.normal(size=(count + 3, dimension)) + 1
    value = frechet_distance(x, y)
    assert value >= -1e-9
    assert frechet_distance(y, x) == pytest.approx(value, rel=1e-6, abs=1e-7)
    turn = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    assert frechet_distance(x @ turn + 5, y @ turn + 5) == pytest.approx(value, rel=1e-6, abs=1e-7)
    shift = rng.normal(size=dimension)
    assert frechet_distance(x, x + shift) == pytest.approx(shift @ shift, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    "x, y, named",
    [
        (np.zeros((1, 3)), np.zeros((5, 3)), "x has shape"),
        (np.zeros((5, 3)), np.zeros((5, 2)), "dimension 3"),
        (np.zeros((5, 3)), np.full((5, 3), np.nan), "not finite"),
        (np.zeros(5), np.zeros((5, 3)), "x has shape"),
    ],
)
def test_wrong_input_is_named(x, y, named):
    with pytest.raises(ValueError, match=named):
        frechet_distance(x, y)


def test_sets_are_compared_at_equal_size():
    rng = np.random.default_rng(0)
    reference, large = rng.normal(size=(400, 16)), rng.normal(size=(400, 16))
    small = rng.normal(size=(40, 16))
    assert frechet_distance(small, reference) > 3 * frechet_distance(large, reference)
    fair = frechet_by_size({"large": large, "small": small}, reference, rng, repeats=20)
    assert fair["large"] == pytest.approx(fair["small"], rel=0.25)


@pytest.fixture
def golden():
    with np.load(GOLDEN / "next_token_metrics_inputs.npz") as inputs:
        expected = json.loads((GOLDEN / "next_token_metrics.json").read_text())
        yield inputs["logits"], inputs["labels"], expected


def test_golden_next_token_values(golden):
    logits, labels, expected = golden
    found = next_token_metrics(logits, labels, top_k=(1, 3, 5, 10, 50, 100))
    assert found["loss"] == pytest.approx(expected["PrE-Text"]["avg_loss"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(expected["PrE-Text"]["top_k"]["1"])
    for k in (3, 5, 10, 50, 100):
        assert found[f"accuracy@{k}"] == pytest.approx(expected["PrE-Text"]["top_k"][str(k)])


def test_row_sums_give_the_same_means_and_the_macro_ones(golden):
    logits, labels, expected = golden
    targets = torch.from_numpy(labels)[:, 1:]
    wanted = targets != IGNORED
    sums = row_sums(torch.from_numpy(logits)[:, :-1][wanted], targets[wanted], wanted)
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
def test_wrong_logits_are_named(labels, top_k, named):
    with pytest.raises(ValueError, match=named):
        next_token_metrics(np.zeros((1, 3, 5), dtype=np.float32), labels, top_k)


def texts(count: int, seed: int, *, shift: float = 0.0, width: int = 8) -> F32:
    rows = np.random.default_rng(seed).standard_normal((count, width)) + shift
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


HELD_OUT = HeldOut(texts(120, 0, shift=0.5), np.repeat(np.arange(30), 4))


def test_texts_of_the_same_kind_are_closer_in_every_figure() -> None:
    rng = np.random.default_rng(3)
    near = closeness(texts(100, 1, shift=0.5), HELD_OUT, rng)
    far = closeness(texts(100, 2, shift=-0.5), HELD_OUT, rng)
    assert near["frechet"].high < far["frechet"].low
    for name in ("mauve", "precision", "recall"):
        assert near[name].low > far[name].high, name
        assert 0 <= far[name].low <= far[name].value <= far[name].high <= 1
    assert near["frechet"].value == pytest.approx(
        frechet_distance(texts(100, 1, shift=0.5), HELD_OUT.rows)
    )


def test_one_text_again_and_again_is_precise_and_recalls_little() -> None:
    copies = np.repeat(HELD_OUT.rows[:1], 60, axis=0) + texts(60, 4) * 1e-4
    found = closeness(copies.astype(np.float32), HELD_OUT, np.random.default_rng(0))
    assert found["precision"].value == 1.0 and found["recall"].value < 0.05
    assert found["mauve"].value < 0.2


def test_users_are_drawn_and_not_their_texts() -> None:
    """Twelve texts of one user tell as much as one of them."""
    near, far = texts(1, 1), -texts(1, 1)
    rows = np.concatenate([np.repeat(near, 60, axis=0), np.repeat(far, 60, axis=0)])
    rows = rows + texts(120, 5) * np.float32(1e-3)
    own = np.repeat(near, 20, axis=0) + texts(20, 6) * np.float32(1e-3)

    def width(users: int) -> float:
        held_out = HeldOut(rows, np.arange(120) * users // 120)
        found = closeness(own, held_out, np.random.default_rng(0), resamples=200)["frechet"]
        return found.high - found.low

    assert width(10) > 2 * width(120) > 0


def test_the_frontier_of_known_histograms() -> None:
    even = np.full(4, 0.25)
    assert frontier_area(even, even) == pytest.approx(1.0)
    apart = frontier_area(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    # KL of each to the mixture: -log of its share; exp(-5 KL) = share ** 5
    share = np.linspace(0, 1, 27)
    up, across = share**5, (1 - share) ** 5
    assert apart == pytest.approx(float(-(np.diff(across) * (up[1:] + up[:-1]) / 2).sum()))
    assert 0 < apart < 0.02


def test_too_few_texts() -> None:
    with pytest.raises(ValueError, match="3 texts: precision and recall need 4"):
        closeness(texts(3, 0), HELD_OUT, np.random.default_rng(0))
