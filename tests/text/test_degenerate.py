"""The filter of degenerate texts: the published code's cases, and each rule at its limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privsyn_flower.text.words import degenerate

GOLDEN = Path(__file__).parents[1] / "golden" / "ctcl_generation.json"


def test_it_keeps_what_the_published_code_keeps() -> None:
    cases = json.loads(GOLDEN.read_text("utf-8"))["filter"]
    assert len(cases["inputs"]) == 7
    assert [text for text in cases["inputs"] if not degenerate(text)] == cases["kept"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("word " + "a" * 25, False),
        ("word " + "a" * 26, True),
        ("loop " * 20, False),
        ("loop Loop LOOP " * 7, True),  # 21, in any case
        ("The the, a. " * 50 + "end", False),  # articles, commas and full stops may repeat
        ("words and " + "( " * 21, True),
        ("f(x) " * 11, False),  # brackets count each for themselves: 11
        ("well-known 3.5 don't", False),
        ("3.5 :: 12", True),  # no word of letters
        (" \n\t", True),
        ("日本語 text", False),
        ("今天天气很好，我们去公园散步吧，然后回家吃饭看电视，最后早点休息", False),
        ("公园" * 21, True),
        ("नमस्ते दुनिया", False),
    ],
)
def test_each_rule_at_its_limit(text: str, expected: bool) -> None:
    assert degenerate(text) is expected
