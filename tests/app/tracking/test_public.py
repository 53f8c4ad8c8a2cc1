"""Nothing but listed numbers and a few words passes the border to trackers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.tracking.public import (
    ENDED,
    FACTS,
    ROUND,
    WORDS,
    public_facts,
    public_result,
    public_row,
    public_settings,
    public_stage,
)
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.run import public_settings as settings_of

ROOT = Path(__file__).parents[3]
SECRET = "what the user wrote"


def test_what_is_public_passes() -> None:
    facts = {"users": 10, "unit": "user"}
    assert public_facts(facts) == facts
    values = {"noise_std": 1.5, "evaluation.accuracy-low": 0.2, "nodes_asked": 8}
    assert public_row(values) == values
    assert public_stage("no_private_step", 1.0) == {"no_private_step": 1.0}
    assert public_result({"rounds": 2}) == {"rounds": 2}


def test_a_float_of_numpy_is_a_number() -> None:
    (value,) = public_row({"noise_std": np.float64(1.0)}).values()
    assert type(value) is float and value == 1.0


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        [0.5, 0.25],
        {"node-1": 2.0},
        np.ones(3),
        np.float32(1.0),
        None,
        math.nan,
        math.inf,
    ],
)
def test_other_values_are_left_out(value: Any) -> None:
    assert public_row({"noise_std": value, "evaluation.loss": value}) == {}
    assert public_facts({"users": value}) == {} == public_result({"rounds": value})
    assert public_stage("rounds", value) == {}


@pytest.mark.parametrize("key", ["votes_of_user_7", "benchmark", "accuracy", "text", "charge"])
def test_other_names_are_left_out(key: str) -> None:
    assert public_row({key: 1.0}) == {} == public_facts({key: 1.0}) == public_result({key: 1.0})


@pytest.mark.parametrize(
    "found",
    [
        lambda: public_facts({"unit": "two\nlines"}),
        lambda: public_facts({"unit": "x" * 2001}),
        lambda: public_facts({"unit": 3}),
        lambda: public_settings({"data.path": "/home/me/users.jsonl"}),
        lambda: public_settings({"popri.instruction": SECRET}),
        lambda: public_settings({"A key": 1.0}),
        lambda: public_row({f"evaluation.{'x' * 99}": 1.0}),
        lambda: public_stage("Stage\n", 1.0),
    ],
)
def test_forms_are_checked(found: Any) -> None:
    assert found() == {}


def test_a_row_gives_its_public_numbers() -> None:
    row = {"round": 3, "charge": "4", "released": [1.0, 2.0], "noise_std": 2.0,
           "evaluate.loss": None, "evaluation.loss": 0.5, "made_up": 7}  # fmt: skip
    assert public_row(row) == {"noise_std": 2.0, "evaluation.loss": 0.5}


def test_settings_are_numbers_and_choices_of_the_methods_tables() -> None:
    flat = {"rounds": 3, "data.path": "/p.jsonl", "data.source": "files", "population-name": "us",
            "models.generator": "/m", "data.public-path": "/q.jsonl"}  # fmt: skip
    config = RunConfig.from_flat(flat)
    told = settings_of(config)
    assert told["rounds"] == 3 and told["pretext.clip"] == "normalised"
    assert {"data.path", "models.generator", "run-folder", "population-name"}.isdisjoint(told)
    assert not [value for value in told.values() if "/" in str(value)]
    assert not [key for key in told if key.startswith(("popri.", "training.", "ctcl."))]
    assert public_settings(told) == told
    for method in (
        "popri",
        "dp-rft",
        "ctcl",
        "dp-fedavg",
        "pe",
        "evaluation",
        "dp-prompt",
        "expand-only",
    ):
        own = settings_of(RunConfig.from_flat({"method": method}))
        assert public_settings(own)["method"] == method


def test_the_page_lists_every_name() -> None:
    page = (ROOT / "docs" / "tracking.md").read_text(encoding="utf-8")
    for name in (*ROUND, *FACTS, *WORDS, *ENDED):
        assert f"`{name}`" in page, name
