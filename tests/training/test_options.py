"""The numbers of local training: what travels comes back, what is out of bounds does not."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from privsyn_flower.config import TrainingConfig
from privsyn_flower.training import LocalTraining

CHOSEN = LocalTraining("sgd", 0.05, 0.9, 1e-4, 3, 16, 40, 128, 7, "*.up,*.down")


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
    assert own == {"seed", "trained"} and own.isdisjoint(TrainingConfig.model_fields)


def test_nothing_is_assumed_and_nothing_passed_over() -> None:
    options = CHOSEN.to_options()
    missing = {key: value for key, value in options.items() if key != "training.seed"}
    for given in (missing, options | {"training.gamma": 1.0}):
        with pytest.raises(ValueError, match="missing or not known"):
            LocalTraining.from_options(given)


def test_importing_the_package_loads_no_model_library() -> None:
    import subprocess
    import sys

    code = (
        "import sys, privsyn_flower.training, privsyn_flower.client_apps.updates;"
        "print(sorted({'torch', 'transformers', 'peft', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
