"""Flat vectors of named arrays, and the numbers of a local training run."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privsyn_flower.config import TrainingConfig
from privsyn_flower.training import Layout, LocalTraining, trained_layout
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


CHOSEN = LocalTraining("sgd", 0.05, 0.9, 1e-4, 3, 16, 40, 128, 7, "*.up,*.down", "bos-eos")


def test_options_travel_and_come_back() -> None:
    options = CHOSEN.to_options()
    assert options == {
        "training.optimizer": "sgd",
        "training.learning-rate": 0.05,
        "training.momentum": 0.9,
        "training.weight-decay": 1e-4,
        "training.epochs": 3,
        "training.batch-size": 16,
        "training.max-steps": 40,
        "training.sequence-length": 128,
        "training.seed": 7,
        "training.trained": "*.up,*.down",
        "training.special-tokens": "bos-eos",
    }
    others = {"clip-norm": 1.0, "encoding": "dense", "config.lr": 3}
    assert LocalTraining.from_options(options | others) == CHOSEN


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer", "adam"),
        ("optimizer", 1),
        ("learning-rate", 0.0),
        ("learning-rate", -0.1),
        ("learning-rate", float("nan")),
        ("learning-rate", float("inf")),
        ("learning-rate", "0.1"),
        ("learning-rate", True),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("weight-decay", -1e-9),
        ("epochs", 0),
        ("epochs", 1001),
        ("epochs", 2.0),
        ("batch-size", 0),
        ("batch-size", 1 << 17),
        ("max-steps", -1),
        ("max-steps", 0),
        ("max-steps", True),
        ("sequence-length", 1),
        ("sequence-length", 2049),
        ("seed", -1),
        ("seed", 1 << 63),
        ("trained", " , "),
        ("trained", 3),
        ("special-tokens", "eos"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_key(key: str, value: Any) -> None:
    options = CHOSEN.to_options() | {f"training.{key}": value}
    with pytest.raises(ValueError, match=f"training.{key} = "):
        LocalTraining.from_options(options)


def test_momentum_has_no_use_under_adamw() -> None:
    with pytest.raises(ValueError, match=r"training\.momentum = 0\.9"):
        replace(CHOSEN, optimizer="adamw")
    assert replace(CHOSEN, optimizer="adamw", momentum=0.0).optimizer == "adamw"


def test_what_the_configuration_decides_has_no_second_default() -> None:
    own = {field.name for field in fields(LocalTraining) if field.default is not MISSING}
    assert own == {"seed", "trained", "special_tokens"}
    assert own.isdisjoint(TrainingConfig.model_fields)


def test_nothing_is_assumed_and_nothing_passed_over() -> None:
    options = CHOSEN.to_options()
    missing = {key: value for key, value in options.items() if key != "training.seed"}
    for others in (missing, options | {"training.gamma": 1.0}):
        with pytest.raises(ValueError, match="missing or not known"):
            LocalTraining.from_options(others)


def test_importing_the_package_loads_no_model_library() -> None:
    import subprocess
    import sys

    code = (
        "import sys, privsyn_flower.training, privsyn_flower.client_apps.updates;"
        "print(sorted({'torch', 'transformers', 'peft', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
