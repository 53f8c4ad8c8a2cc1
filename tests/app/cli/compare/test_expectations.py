"""Whether a grid's runs bear out what the papers lead one to expect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privsyn_flower.app.cli.compare.estimates import Bounds, Difference, Estimate
from privsyn_flower.config.grid import GridConfig, load_grid
from scripts.expectations import expectations

GRID = GridConfig.model_validate({
    "against": "pretext",
    "axes": {"epsilon": [7.58, 1.29]},
    "methods": [
        {"name": name, "label": label, "config": "a.toml"}
        for name, label in (("pretext", "PrE-Text"), ("popri", "POPri"), ("dp-fedavg", "DP-FedAvg"))
    ],
})  # fmt: skip


def pair(name: str, epsilon: str, bounds: Bounds | None, measure: str = "accuracy") -> Difference:
    """A method minus PrE-Text."""
    methods = {method.name: method for method in GRID.methods}
    middle = 0.0 if bounds is None else sum(bounds) / 2
    estimate = Estimate(middle, bounds, None, 1)
    return Difference(methods[name], methods["pretext"], {"epsilon": epsilon}, measure, estimate)


def test_every_answer_is_of_an_interval() -> None:
    found = expectations(GRID, [
        pair("popri", "7.58", (0.002, 0.004)),
        pair("popri", "1.29", (-0.001, 0.004)),
        pair("popri", "1.29", (0.5, 0.6), "loss"),
        pair("dp-fedavg", "7.58", (0.001, 0.003)),
        pair("dp-fedavg", "1.29", (-0.006, -0.002)),
    ])  # fmt: skip
    assert [one.verdict for one in found] == [
        "confirmed", "not decided", "confirmed", "confirmed",
    ]  # fmt: skip
    said = found[0].sentence()
    assert "eps 7.58: **confirmed** (+0.0030 [+0.0020, +0.0040] in accuracy)" in said
    assert found[2].bounds == (0.002, 0.006), "of what is expected to be ahead"
    assert "between eps 1.29 and eps 7.58" in found[3].says


@pytest.mark.parametrize(
    ("small", "large", "verdict"),
    [
        ((-0.2, -0.1), (-0.2, -0.1), "not confirmed"),
        ((0.1, 0.2), (0.1, 0.2), "not confirmed"),
        ((-0.2, -0.1), (-0.1, 0.1), "not decided"),
        ((-0.1, 0.1), (0.1, 0.2), "not decided"),
        (None, (0.1, 0.2), "not decided"),
    ],
)
def test_a_crossing_needs_both_ends(small: Bounds | None, large: Bounds, verdict: str) -> None:
    """DP-FedAvg minus PrE-Text."""
    found = expectations(GRID, [pair("dp-fedavg", "1.29", small), pair("dp-fedavg", "7.58", large)])
    assert found[-1].verdict == verdict


def test_how_far_training_moves_is_told_beside_a_crossing() -> None:
    """Where neither end is decided the change between them may be: it is of the same seeds."""
    found = expectations(GRID, [
        replace(
            pair("dp-fedavg", epsilon, (-0.1, 0.1), measure),
            figures=[[0.2 + gain, 0.3 + gain], [0.2, 0.3]], seeds=[0, 1],
        )
        for measure in ("accuracy", "loss") for epsilon, gain in (("7.58", 0.02), ("1.29", -0.01))
    ])  # fmt: skip
    assert found[-1].verdict == "not decided"
    told = "training minus text is greater at the latter by +0.0300 [+0.0300, +0.0300] in accuracy"
    assert told in found[-1].sentence()
    assert "in loss, of which less is better" in found[-2].sentence()


def test_what_was_not_run_is_named() -> None:
    nothing = expectations(GRID, [])
    assert {one.verdict for one in nothing} == {"not run"}
    assert nothing[0].sentence().endswith("**not run**, for want of POPri and PrE-Text")
    found = expectations(GRID, [pair("dp-fedavg", "1.29", (-0.2, -0.1))])
    assert [one.verdict for one in found] == ["not run", "not run", "confirmed", "not run"]
    assert [one.missing for one in found[:2]] == ["POPri and PrE-Text", "POPri"]
    assert found[3].missing == "PrE-Text and DP-FedAvg at eps 7.58"
    alone: Any = [
        SimpleNamespace(method=GRID.methods[0], point={"epsilon": "7.58"}, reference=name)
        for name in ("", "private")
    ]
    found = expectations(GRID, [], alone)
    assert [one.missing for one in found[:2]] == ["POPri", "POPri and PrE-Text"]
    assert expectations(GRID, [], alone[1:])[0].missing == "POPri and PrE-Text"  # (c) is no run


def test_the_grid_on_chats_has_all_methods_of_the_expectations() -> None:
    path = Path(__file__).parents[4] / "configs" / "compare-chats.toml"
    found = expectations(load_grid(path), [])
    assert len(found) == 2 + 1 + 1
