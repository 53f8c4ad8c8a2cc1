"""Frechet distance: golden values of the papers' code, and what must hold for any sets."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.evaluation import frechet_distance
from privsyn_flower.evaluation.distances import frechet_by_size

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
