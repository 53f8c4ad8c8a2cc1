"""Layouts: named arrays as one vector and back, on both sides alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privsyn_flower.training import Layout, trained_layout
from privsyn_flower.training.layout import matches

NAMES = st.text("abc.", min_size=1, max_size=6)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)
FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
ARRAYS = st.dictionaries(
    NAMES,
    st.tuples(SHAPES, FLOATS).flatmap(
        lambda given: hnp.arrays(given[1], given[0], elements=st.integers(-99, 99))
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(ARRAYS)
def test_arrays_come_back_under_their_names(arrays: dict[str, Any]) -> None:
    layout = Layout.of(arrays)
    vector = layout.flatten(arrays)
    assert vector.dtype == np.float64 and vector.shape == (layout.length,)
    back = layout.unflatten(vector)
    assert set(back) == set(arrays)
    for name, array in back.items():
        assert array.dtype == np.float32 and array.shape == arrays[name].shape
        assert np.array_equal(array, arrays[name])
    # Whatever the order in which a side holds the arrays, the vector is the same.
    assert Layout.of(dict(reversed(arrays.items()))) == layout
    assert np.array_equal(layout.flatten(dict(reversed(arrays.items()))), vector)


def test_a_vector_is_the_arrays_by_name_in_c_order() -> None:
    arrays = {"b": np.array([[1.0, 2.0], [3.0, 4.0]]).T, "a": np.float32(7.0)}
    assert Layout.of(arrays).flatten(arrays).tolist() == [7.0, 1.0, 3.0, 2.0, 4.0]


def test_what_is_no_floating_point_number_is_not_trained() -> None:
    arrays = {"weight": np.ones(3), "batches": np.array(4), "flags": np.array([True])}
    assert Layout.of(arrays).names == ("weight",)
    with pytest.raises(ValueError, match="no array of floating-point numbers"):
        Layout.of({"batches": np.array(4)})


def test_patterns_choose_what_is_trained() -> None:
    arrays = {f"layers.{i}.{part}": np.ones(i + 1) for i in range(3) for part in ("up", "down")}
    chosen = trained_layout(arrays, {"training.trained": "layers.1.*, *.2.up"})
    assert chosen.names == ("layers.1.down", "layers.1.up", "layers.2.up")
    assert chosen.length == 2 + 2 + 3
    assert trained_layout(arrays, {}) == Layout.of(arrays)
    # What is not trained is passed over on the way out, and not made on the way back.
    assert set(chosen.unflatten(chosen.flatten(arrays))) == set(chosen.names)
    assert not matches("Layers.1", "layers.*") and not matches("x", " , ")


def test_what_does_not_fit_is_named() -> None:
    layout = Layout.of({"a": np.ones(2), "b": np.ones((2, 3))})
    with pytest.raises(ValueError, match=r"'b' has shape None, expected \(2, 3\)"):
        layout.flatten({"a": np.ones(2)})
    with pytest.raises(ValueError, match=r"'b' has shape \(3, 2\), expected \(2, 3\)"):
        layout.flatten({"a": np.ones(2), "b": np.ones((3, 2))})
    with pytest.raises(ValueError, match=r"shape \(9,\), expected \(8,\)"):
        layout.unflatten(np.ones(9))
    with pytest.raises(ValueError, match="sorted and distinct"):
        Layout(("b", "a"), ((1,), (1,)))


def test_the_digest_tells_layouts_apart() -> None:
    one = Layout(("a", "b"), ((2, 3), (4,)))
    others = [
        Layout(("a", "c"), ((2, 3), (4,))),
        Layout(("a", "b"), ((3, 2), (4,))),
        Layout(("a", "b"), ((2, 3), (5,))),
        Layout(("a",), ((2, 3),)),
    ]
    assert len({layout.digest() for layout in (one, *others)}) == 5
    assert one.digest() == Layout(("a", "b"), ((2, 3), (4,))).digest()
    assert len(one.digest()) == 64


@pytest.mark.parametrize("dtype", ["bfloat16", "V2"])
def test_types_that_numpy_lacks_are_named(dtype: str) -> None:
    """As a bfloat16 array arrives in a message: two bytes without a meaning."""
    found = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype, dtype))
    with pytest.raises(ValueError, match=r"'w' has type .*bfloat16.* float32"):
        Layout.of({"b": np.zeros(2, dtype=np.float32), "w": np.zeros(3, dtype=found)})
