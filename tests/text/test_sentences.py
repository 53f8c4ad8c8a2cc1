"""Sentences of running text."""

from __future__ import annotations

import time

import pytest

from privsyn_flower.text.words import sentences


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One here. Two there! Three? Four", ["One here.", "Two there!", "Three?", "Four"]),
        ("Dr. Smith met Mrs. Jones at 5 p.m. today. Fine.",
         ["Dr. Smith met Mrs. Jones at 5 p.m. today.", "Fine."]),
        ("J. R. Tolkien wrote it. I did not. No. 5 is here.",
         ["J. R. Tolkien wrote it.", "I did not.", "No.", "5 is here."]),
        ('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."]),
        ("It costs 3.50 euros... or so. See www.example.com. ok.",
         ["It costs 3.50 euros... or so.", "See www.example.com. ok."]),
        ("a title\n\n  a second   line  ", ["a title", "a second line"]),
        ("真的吗？是的。好", ["真的吗？", "是的。", "好"]),
        ("「真的吗？」他说。", ["「真的吗？」", "他说。"]),
        ("वह घर गया। फिर सोया।", ["वह घर गया।", "फिर सोया।"]),
        ('I met "Dr." Who there. And (Mr.) Bean.',
         ['I met "Dr." Who there.', "And (Mr.) Bean."]),
        (f"{'y' * 50}mr. No", [f"{'y' * 50}mr.", "No"]),
        ("So am I. You too.", ["So am I.", "You too."]),
        ("", []),
        (" \n\t", []),
    ],
)  # fmt: skip
def test_sentences(text: str, found: list[str]) -> None:
    assert sentences(text) == found


def test_nothing_but_white_space_is_lost() -> None:
    text = "“Oh!” she said. (He nodded.) What?! Yes… Well\u2028then. e.g. this; U.S. that."
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text",
    ["a" * 100_000 + "! A", "A. " * 30_000, "." * 100_000, ". " + "(" * 100_000,
     "!" + '"' * 100_000, "Oh! " * 25_000, "a" * 100_000 + ". A", "。" * 100_000],
    ids=lambda text: repr(text[:4]),
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    """Seconds at most, where time that grows with the square of the length would be minutes."""
    began = time.process_time()
    found = sentences(text)
    assert time.process_time() - began < 2.0
    assert "".join("".join(found).split()) == "".join(text.split())
