"""What was checked of a run, in lines that every form of a report shares."""

from __future__ import annotations

from typing import Any

import pytest

from privsyn_flower.app.report.summaries import (
    checked,
    quality_line,
    quality_notes,
    quality_rows,
    text_lines,
)
from privsyn_flower.app.report.tables import report
from tests.app.report.pages import HOSTILE, QUALITY, benchmark
from tests.rigs.tables import SECURE, summary

LINE = (
    "3.1% of the words unknown (1.1% in public text), 4.2% repetitive (0.2% in public text), 25.0% "
    "copies of public text; written by smollm2 (134.5 million parameters)"
)


def test_a_line_has_the_signals_beside_public_text() -> None:
    assert quality_line({"quality": QUALITY}) == LINE
    assert quality_line({}) == "" and text_lines({}) == quality_rows({}) == []
    alone = {"synthetic": {"repetitive": 0.5}, "public": {}, "copies": 0.0, "writer": {}}
    assert quality_line({"quality": alone}) == "50.0% repetitive"
    told = report([summary("pretext", SECURE, quality=QUALITY | {"sentences": ["odd"]})])
    assert f"text: {LINE}" in told and "text: odd" in told


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("/home/me/models/own", "own"),
        ("~/own/", "own"),
        ("C:\\models\\own", "own"),
        ("openai-community/gpt2", "openai-community/gpt2"),
    ],
)
def test_a_model_without_a_size_is_named_and_no_place_is(model: str, told: str) -> None:
    found = {**QUALITY, "writer": {"model": model, "parameters": None}}
    line = quality_line({"quality": found})
    assert line.endswith(f"; written by {told} (an unknown number of parameters)")


def test_what_makes_a_result_useless_is_not_said_twice() -> None:
    found = {"quality": {"sentences": ["a", "b"]}}
    assert quality_notes(found) == ["a", "b"]
    assert quality_notes({**found, "unusable": ["a"]}) == ["b"]


def test_what_was_measured_and_what_was_not() -> None:
    assert checked({}) == ([], [])
    trained = checked({"parameters": 3, "synthetic_samples": 0})
    assert trained.done == [] and len(trained.missing) == 1  # no text to compare
    plain = checked({"synthetic_samples": 4, "quality": QUALITY})
    assert len(plain.done) == 1 and "no private text was read" in plain.done[0]
    assert any("copies of private text" in line for line in plain.missing)
    whole = checked({"quality": QUALITY, "benchmark": benchmark(), "verdict": {"signal": "x"}})
    assert sum("not covered by epsilon" in line for line in whole.done) == 3
    assert whole.missing == ["whether what the texts say is true or decent"]
    assert any("epsilon covers" in line for line in checked({"measured": {"models": {}}}).done)


@pytest.mark.parametrize("wrong", [None, [], "x", 3, {"synthetic": {"words": 3}}, *HOSTILE[:3]])
def test_values_that_no_run_writes_break_nothing(wrong: Any) -> None:
    for changed in ({"quality": wrong}, {"quality": QUALITY | {"synthetic": wrong}},
                    {"quality": QUALITY | {"writer": wrong}}, {"unusable": wrong},
                    {"benchmark": wrong}, {"verdict": wrong}):  # fmt: skip
        assert isinstance(text_lines(changed), list) and isinstance(quality_rows(changed), list)
        assert checked(changed)
