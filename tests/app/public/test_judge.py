"""What a model's judgement is read as."""

from __future__ import annotations

import pytest

from privsyn_flower.app.public.chats import judge_prompt, parse_judgement


@pytest.mark.parametrize(
    ("answer", "judgement"),
    [
        ("1", 1),
        (" 0.", 0),
        ("Score: 1", 1),
        ("**0**", 0),
        ("1.0", 1),
        ("0\n\nBecause nobody writes about 1 such thing", 0),
        ("10", None),
        ("0.5", None),
        ("2", None),
        ("yes", None),
        ("", None),
        ("I cannot judge that.", None),
        ("9" * 5000, None),
    ],
)
def test_the_first_number_decides(answer: str, judgement: int | None) -> None:
    assert parse_judgement(answer) == judgement


def test_the_prompt_has_the_text_as_it_is() -> None:
    text = "Ratings {0} of {text}: 100 %\nsecond line"
    assert f"Text:\n{text}\n" in judge_prompt(f"\n {text} ")
