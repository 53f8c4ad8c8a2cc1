"""A few texts of each kind beside each other: evenly spread, cut, and none that is not there."""

from __future__ import annotations

from privsyn_flower.evaluation.side_by_side import LONGEST, SHOWN, side_by_side


def test_every_nth_text_of_each_kind() -> None:
    many = [f"text {n}" for n in range(10 * SHOWN)]
    found = side_by_side(public=many, seeds=many[:2], synthetic=[])
    assert found == {"public": many[::10], "seeds": many[:2]}
    assert list(side_by_side(seeds=many, public=many)) == ["seeds", "public"]


def test_long_texts_are_cut() -> None:
    found = side_by_side(public=["x" * (LONGEST + 1)])
    assert found == {"public": ["x" * LONGEST]}
