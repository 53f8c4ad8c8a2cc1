"""Nothing but listed numbers and a few words passes the border to trackers."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.tracking.events import (
    ENDED,
    FACTS,
    ROUND,
    WORDS,
    Ended,
    NotPublic,
    RoundReleased,
    RunStarted,
    Stage,
)
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.settings import public_settings

ROOT = Path(__file__).parents[3]
RUN = "0f" * 16
SECRET = "what the user wrote"


def test_what_is_public_passes() -> None:
    facts = {"users": 10, "unit": "user"}
    assert RunStarted(RUN, "a run", facts, {"rounds": 3}).facts == facts
    values = {"noise_std": 1.5, "evaluation.accuracy-low": 0.2, "nodes_asked": 8}
    assert RoundReleased("rounds", 1, values).values == values
    assert Stage("no_private_step", 1.0).round == 0
    assert Ended("ended early", 2, {"rounds": 2}).status == "ended early"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (SECRET, "noise_std is a str of 19"),
        ([0.5, 0.25], "noise_std is a list of 2"),
        ({"node-1": 2.0}, "noise_std is a dict of 1"),
        (np.ones(3), "noise_std is a ndarray of 3"),
        (np.float32(1.0), "noise_std is a float32"),
        (None, "noise_std is a NoneType"),
        (math.nan, "noise_std is a float"),
        (math.inf, "noise_std is a float"),
    ],
)
def test_other_values_are_refused_and_not_repeated(value: Any, told: str) -> None:
    with pytest.raises(NotPublic, match=re.escape(told)) as caught:
        RoundReleased("rounds", 1, {"noise_std": value})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("key", ["votes_of_user_7", "benchmark", "accuracy", "text", "charge"])
def test_other_names_are_refused(key: str) -> None:
    with pytest.raises(NotPublic, match="not among the public numbers"):
        RoundReleased("rounds", 1, {key: 1.0})
    with pytest.raises(NotPublic, match="not among the public numbers"):
        RunStarted(RUN, "a", {key: 1.0})
    with pytest.raises(NotPublic, match="not among the public numbers"):
        Ended("finished", 1, {key: 1.0})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RunStarted(SECRET, "a"),
        lambda: RunStarted(RUN, "two\nlines"),
        lambda: RunStarted(RUN, "a", {"unit": "two\nlines"}),
        lambda: RunStarted(RUN, "a", {"users": "many"}),
        lambda: RunStarted(RUN, "a", {}, {"data.path": "/home/me/users.jsonl"}),
        lambda: RunStarted(RUN, "a", {}, {"popri.instruction": SECRET}),
        lambda: RunStarted(RUN, "a", {}, [("rounds", 3)]),  # type: ignore[arg-type]
        lambda: RoundReleased("a b/c", 1, {}),
        lambda: RoundReleased("rounds", 1.0, {}),  # type: ignore[arg-type]
        lambda: RoundReleased("rounds", True, {}),
        lambda: RoundReleased("rounds", -1, {}),
        lambda: RoundReleased("rounds", 1, {f"evaluation.{'x' * 99}": 1.0}),
        lambda: Stage("Stage\n", 1.0),
        lambda: Ended("done", 1),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_forms_are_checked(wrong: Any) -> None:
    with pytest.raises(NotPublic):
        wrong()


def test_events_are_frozen() -> None:
    event = Stage("data", 1.0)
    with pytest.raises(FrozenInstanceError):
        event.seconds = 2.0  # type: ignore[misc]


def test_a_row_gives_its_public_numbers() -> None:
    row = {"round": 3, "charge": "4", "released": [1.0, 2.0], "noise_std": 2.0,
           "evaluate.loss": None, "evaluation.loss": 0.5, "made_up": 7}  # fmt: skip
    event = RoundReleased.of("rounds", row)
    assert (event.round, event.values) == (3, {"noise_std": 2.0, "evaluation.loss": 0.5})


def test_settings_are_numbers_and_choices_of_the_methods_tables() -> None:
    flat = {"rounds": 3, "data.path": "/p.jsonl", "data.source": "files", "population-name": "us",
            "models.generator": "/m", "data.public-path": "/q.jsonl"}  # fmt: skip
    config = RunConfig.from_flat(flat)
    told = public_settings(config)
    assert told["rounds"] == 3 and told["pretext.clip"] == "normalised"
    assert {"data.path", "models.generator", "run-folder", "population-name"}.isdisjoint(told)
    assert not [value for value in told.values() if "/" in str(value)]
    assert not [key for key in told if key.startswith(("popri.", "training.", "ctcl."))]
    assert RunStarted(RUN, "a", {}, told).settings == told
    for method in ("popri", "ctcl", "dp-fedavg", "pe", "evaluation", "dp-prompt", "expand-only"):
        own = public_settings(RunConfig.from_flat({"method": method}))
        assert RunStarted(RUN, "a", {}, own).settings["method"] == method


def test_the_page_lists_every_name() -> None:
    page = (ROOT / "docs" / "tracking.md").read_text(encoding="utf-8")
    for name in (*ROUND, *FACTS, *WORDS, *ENDED):
        assert f"`{name}`" in page, name
