"""Intervals of paired differences that stay when users' figures do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privsyn_flower.app.cli.compare.estimates import Difference, differences, lines_of
from privsyn_flower.app.cli.compare.pairs import completed, keep_pairs, load_pairs, place
from tests.app.cli.compare.test_estimates import grid_of, outcome

POINT = {"users": "250"}


def found_of(folder: Path | None, accuracy: float = 0.3) -> list[Difference]:
    """The one difference of two runs; folder: of their users' figures."""
    grid = grid_of(["250"])
    text, train = grid.methods
    runs = [
        outcome(text, POINT, 0, accuracy, folder and folder / "text"),
        outcome(train, POINT, 0, 0.2, folder and folder / "train"),
    ]
    return differences(grid, lines_of(grid, runs))


def test_the_interval_of_the_same_runs_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "users.pairs.json"
    measured = found_of(tmp_path)
    assert measured[0].estimate.users is not None and measured[0].sign == 1
    keep_pairs(measured, {}, file)
    alone = found_of(None)
    assert alone[0].estimate.users is None and alone[0].sign == 0
    again = completed(alone, load_pairs(file))
    assert again[0].estimate == measured[0].estimate and again[0].sign == 1
    # it is kept on from what was kept
    keep_pairs(again, load_pairs(file), file)
    assert completed(found_of(None), load_pairs(file)) == again
    # and stays where its runs are not here at all
    keep_pairs([], load_pairs(file), file)
    assert completed(found_of(None), load_pairs(file)) == again


def test_an_interval_of_other_runs_counts_for_nothing(tmp_path: Path) -> None:
    file = tmp_path / "users.pairs.json"
    keep_pairs(found_of(tmp_path), {}, file)
    other = completed(found_of(None, accuracy=0.31), load_pairs(file))
    assert other[0].estimate.users is None
    # nor does it take the place of one that was just drawn
    drawn = found_of(tmp_path / "new")
    wider = replace(drawn[0], estimate=replace(drawn[0].estimate, users=(-1.0, 1.0)))
    assert completed([wider], load_pairs(file)) == [wider]


def test_a_grid_that_keeps_nothing_has_no_file_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    grid = grid_of(["250"])
    assert place(grid, tmp_path / "users.toml") is None and load_pairs(None) == {}
    keep_pairs(found_of(tmp_path), {}, None)
    kept = place(grid.model_copy(update={"kept": "docs"}), tmp_path / "users.toml")
    assert kept == tmp_path / "docs" / "users.pairs.json" and load_pairs(kept) == {}
    kept.parent.mkdir()
    for damaged in ("{", "[]"):
        kept.write_text(damaged)
        with pytest.raises(ValueError, match=r"users\.pairs\.json is damaged"):
            load_pairs(kept)
