"""Stages in words, and counts that say of what."""

from __future__ import annotations

from privsyn_flower.app.cli.display import progress_text, stage_in_words


def test_stages_are_named_with_their_unit() -> None:
    assert stage_in_words("rounds") == ("asking the users", "rounds")
    assert stage_in_words("round 12: nodes") == ("round 12: answers", "nodes")
    assert stage_in_words("round 1: something new") == ("round 1: something new", "")
    assert stage_in_words("fine-tuning on random_public") == (
        "fine-tuning on random public",
        "steps",
    )
    assert stage_in_words("evaluation-0003") == ("evaluation-0003", "")


def test_counts_say_of_what() -> None:
    assert progress_text(3, 8, "nodes") == "3 of 8 nodes"
    assert progress_text(1500.0, 12000.0, "texts") == "1,500 of 12,000 texts"
    assert progress_text(0.5, 2, "") == "0.5 of 2"
    assert progress_text(0, 1, "") == "" and progress_text(0, 0, "texts") == ""
