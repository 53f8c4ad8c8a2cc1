"""Stages in words, and counts that say of what."""

from __future__ import annotations

from privsyn_flower.app.report.stages import counted, named


def test_stages_are_named_with_their_unit() -> None:
    assert named("rounds") == ("asking the users", "rounds")
    assert named("round 12: nodes") == ("round 12: answers", "nodes")
    assert named("round 1: something new") == ("round 1: something new", "")
    assert named("fine-tuning on random_public") == ("fine-tuning on random public", "steps")
    assert named("evaluation-0003") == ("evaluation-0003", "")


def test_counts_say_of_what() -> None:
    assert counted(3, 8, "nodes") == "3 of 8 nodes"
    assert counted(1500.0, 12000.0, "texts") == "1,500 of 12,000 texts"
    assert counted(0.5, 2, "") == "0.5 of 2"
    assert counted(0, 1, "") == "" and counted(0, 0, "texts") == ""
