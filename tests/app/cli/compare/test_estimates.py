"""What a grid's runs come to."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from privsyn_flower.app.cli.compare import figures
from privsyn_flower.app.cli.compare.cells import Cell, Outcome
from privsyn_flower.app.cli.compare.details import details
from privsyn_flower.app.cli.compare.estimates import (
    Difference,
    Estimate,
    Line,
    change,
    completed,
    crossings,
    differences,
    estimate,
    keep_pairs,
    lines_of,
    load_pairs,
    numeric,
    paired,
    perplexity,
    place,
)
from privsyn_flower.app.cli.compare.figures import draw, plain
from privsyn_flower.app.cli.compare.tables import differences_csv, markdown, runs_csv, table_csv
from privsyn_flower.app.report.summaries import DISTRIBUTED, NONE, TRUSTED
from privsyn_flower.config import ConfigError
from privsyn_flower.config.grid import GridConfig, GridMethod, Point
from privsyn_flower.evaluation.intervals import save_user_sums

TOKENS = np.array([40.0, 60.0, 100.0, 20.0])
SKILL = np.array([0.5, 1.0, 1.2, 1.0])  # users differ; their mean by tokens is 1


def grid_of(users: Sequence[str] = ("250", "1000", "4000")) -> GridConfig:
    return GridConfig.model_validate({
        "seeds": [0, 1, 2],
        "against": "train",
        "axes": {"users": [{"name": n, "set": {"data.users": int(n)}} for n in users]},
        "methods": [
            {"name": "text", "config": "a.toml", "references": ["private"]},
            {"name": "train", "config": "b.toml"},
        ],
    })  # fmt: skip


def outcome(
    method: GridMethod,
    point: Point,
    seed: int,
    accuracy: float,
    folder: Path | None = None,
    **summary: Any,
) -> Outcome:
    """A finished run whose result has this accuracy. folder: where users' sums are kept."""
    name = "synthetic" if method.name == "text" else "trained"
    if folder is not None:
        sums = np.stack([TOKENS * SKILL * accuracy, TOKENS], axis=1)
        save_user_sums(folder, ["a", "b", "c", "d"], {"accuracy": {name: sums}})
    figures = {name: accuracy, "private": 0.5}
    told = {
        "epsilon": 2.0, "delta": 1e-6, "threat_model": "honest-but-curious server",
        "accountant": "exact", "unit": "user", "adjacency": "zero-out", "rounds": 2, "users": 9,
        "bytes_down_per_user_round": 1_000_000, "bytes_up_per_user_round": 500_000,
        "participations_per_user": 2,
        "benchmark": {
            "held_out": "test", "held_out_users": 4, "held_out_tokens": 220,
            "task": "next-token", "methods": {name: "(b)", "private": "(c)"},
            "accuracy": figures,
            "accuracy_interval": {k: [v - 0.01, v + 0.02] for k, v in figures.items()},
            "costs": {"client_cpu_seconds_per_user": 0.5},
        },
        **summary,
    }  # fmt: skip
    cell = Cell(method, point, seed, None, "", Path(f"{method.name}-{seed}"), None)
    return Outcome(cell, told, folder=folder)


def outcomes_of(grid: GridConfig, values: dict[str, list[list[float]]]) -> list[Outcome]:
    """values: method -> for each point the accuracies of the seeds."""
    return [
        outcome(method, point, seed, accuracy)
        for method in grid.methods
        for point, own in zip(grid.points(method), values[method.name], strict=True)
        for seed, accuracy in enumerate(own)
    ]


def test_both_intervals_of_a_mean(tmp_path: Path) -> None:
    grid = grid_of(["250"])
    text = grid.methods[0]
    runs = [
        outcome(text, {"users": "250"}, seed, value, tmp_path / str(seed))
        for seed, value in enumerate((0.20, 0.22, 0.24))
    ]
    line = Line(text, "", {"users": "250"}, runs)
    found = estimate(line, "accuracy")
    assert found is not None and found.exact
    assert found.value == pytest.approx(0.22)
    # 4.303 of Student's t at two degrees of freedom, times .02 / sqrt 3
    assert found.seeds == pytest.approx((0.22 - 0.04968, 0.22 + 0.04968), abs=1e-5)
    assert found.users is not None
    # no resample of users is outside of the worst and the best user's share
    assert 0.5 * 0.22 <= found.users[0] < 0.22 < found.users[1] <= 1.2 * 0.22
    alone = estimate(Line(text, "", line.point, runs[:1]), "accuracy")
    assert alone is not None and alone.seeds is None and alone.users is not None
    assert estimate(line, "loss") is None


def test_without_users_figures_the_bounds_are_means(tmp_path: Path) -> None:
    grid = grid_of(["250"])
    text = grid.methods[0]
    runs = [outcome(text, {"users": "250"}, 0, 0.2), outcome(text, {"users": "250"}, 1, 0.3)]
    found = estimate(Line(text, "", {"users": "250"}, runs), "accuracy")
    assert found is not None and not found.exact
    assert found.users == pytest.approx((0.24, 0.27))


def test_pairs_have_the_same_seed_and_held_out_users(tmp_path: Path) -> None:
    grid, point = grid_of(["250"]), {"users": "250"}
    text, train = grid.methods
    ones = [outcome(text, point, s, 0.2 + 0.1 * s, tmp_path / f"t{s}") for s in (0, 1, 2)]
    twos = [outcome(train, point, s, 0.1 + 0.1 * s, tmp_path / f"f{s}") for s in (1, 2, 3)]
    found = paired(Line(text, "", point, ones), Line(train, "", point, twos), "accuracy")
    assert found is not None and found.estimate.count == 2
    assert found.figures == [pytest.approx([0.3, 0.4]), pytest.approx([0.2, 0.3])]
    gained = found.estimate
    assert gained.value == pytest.approx(0.1) and gained.seeds == pytest.approx((0.1, 0.1))
    # the same users are better in both: the difference varies less than either
    assert gained.users is not None and gained.users[0] > 0.05
    others = [
        outcome(train, point, 1, 0.2, benchmark={**twos[0].benchmark, "held_out_users": 5}),
    ]
    assert paired(Line(text, "", point, ones), Line(train, "", point, others), "accuracy") is None
    # other users of the same number, as the kept sums say: no pair
    sums = np.stack([TOKENS * 0.2, TOKENS], axis=1)
    save_user_sums(tmp_path / "f1", ["a", "b", "c", "z"], {"accuracy": {"trained": sums}})
    assert (
        paired(Line(text, "", point, ones[1:2]), Line(train, "", point, twos[:1]), "accuracy")
        is None
    )
    found = paired(Line(text, "", point, ones), Line(train, "", point, twos), "accuracy")
    assert found is not None
    assert found.estimate.count == 1 and found.estimate.users is not None


def test_no_privacy_and_strange_names_in_tables() -> None:
    given = grid_of(["250"])
    text = given.methods[0].model_copy(update={"label": "a | b\n# c"})
    grid = given.model_copy(update={"methods": [text]})
    runs = [outcome(grid.methods[0], {"users": "250"}, 0, 0.2, epsilon=None, threat_model="none")]
    lines = lines_of(grid, runs)
    page = markdown(grid, lines, [], runs)
    assert "| a \\| b \\# c |" in page and "\n# c" not in page
    (row,) = csv.DictReader(io.StringIO(runs_csv(runs)))
    assert row["epsilon"] == "inf"


def test_what_asked_nobody_is_beside_every_epsilon() -> None:
    """It has no epsilon; the grid runs it once, and each row of the others is compared with it."""
    grid = GridConfig.model_validate({
        "against": "text",
        "axes": {"epsilon": [1.29, 7.58]},
        "methods": [
            {"name": "public", "config": "a.toml", "only": {"epsilon": ["7.58"]}},
            {"name": "text", "config": "a.toml"},
        ],
    })  # fmt: skip
    public, text = grid.methods
    nobody = {"threat_model": "nobody was asked", "epsilon": 0.0}
    runs = [
        outcome(public, {"epsilon": "7.58"}, seed, 0.1, **nobody) for seed in (0, 1)
    ] + [
        outcome(text, {"epsilon": name}, seed, value + seed / 100)
        for name, value in (("7.58", 0.3), ("1.29", 0.2)) for seed in (0, 1)
    ]  # fmt: skip
    lines = lines_of(grid, runs)
    at = {one.point["epsilon"]: one for one in differences(grid, lines)}
    assert {name: one.estimate.value for name, one in at.items()} == pytest.approx(
        {"7.58": 0.1 - 0.305, "1.29": 0.1 - 0.205}
    )
    assert all(one.alike and one.seeds == [0, 1] for one in at.values())
    moved = change(at["1.29"], at["7.58"])
    assert moved is not None and moved.value == pytest.approx(0.1) and moved.users is None
    assert change(at["1.29"], replace(at["7.58"], seeds=[8, 9])) is None
    page = markdown(grid, lines, [], runs)
    assert "|  | accuracy |" in page and "public, epsilon" not in page


def test_where_curves_cross() -> None:
    grid = grid_of()
    train = [[0.20, 0.201, 0.199]] * 3
    at = {
        "crosses": [[0.22, 0.221, 0.219], [0.21, 0.211, 0.209], [0.18, 0.181, 0.179]],
        "ahead": [[0.22, 0.221, 0.219]] * 3,
        "unclear": [[0.20, 0.24, 0.17], [0.20, 0.25, 0.16], [0.21, 0.19, 0.2]],
        "open": [[0.22, 0.221, 0.219], [0.21, 0.211, 0.209], [0.21, 0.19, 0.2]],
    }
    said = {}
    for name, text in at.items():
        lines = lines_of(grid, outcomes_of(grid, {"text": text, "train": train}))
        (said[name],) = crossings(grid, differences(grid, lines))
    assert "they cross between 1000 and 4000" in said["crosses"]
    assert "ahead at 250, ahead at 1000, behind at 4000" in said["crosses"]
    assert "they do not cross on this grid" in said["ahead"]
    assert "they cannot be told apart on this grid" in said["unclear"]
    assert "whether they cross is not decided" in said["open"], "an end that is not told apart"
    assert "ahead at 1000, not told apart at 4000" in said["open"]
    # One seed, and nobody's figures: a difference without an interval is not called a draw.
    pairs = differences(
        grid, lines_of(grid, outcomes_of(grid, {"text": at["ahead"], "train": train}))
    )
    bare = [replace(one, estimate=replace(one.estimate, users=None, seeds=None)) for one in pairs]
    (untold,) = crossings(grid, bare)
    assert untold.startswith("No order against ") and "for want of an interval" in untold
    (partly,) = crossings(grid, [*bare[:1], *pairs[1:]])
    assert "without an interval at 250, ahead at 1000" in partly
    assert "whether they cross is not decided" in partly
    assert numeric(grid, "users") == {"250": 250.0, "1000": 1000.0, "4000": 4000.0}
    named = GridConfig.model_validate({"axes": {"model": [{"name": "small"}, {"name": "big"}]}})
    assert numeric(named, "model") is None


@pytest.mark.parametrize(
    ("facts", "trust", "guaranteed", "stated"),
    [
        ({}, DISTRIBUTED, True, "2"),
        ({"epsilon": 1000.0}, DISTRIBUTED, False, "1000 (no guarantee)"),
        ({"epsilon": None, "threat_model": "none: seeded"}, NONE, False, "infinity (no guarantee)"),
        ({"threat_model": "trusted aggregator: x"}, TRUSTED, True, "2"),
    ],
)
def test_what_an_epsilon_is_worth(
    facts: dict[str, Any], trust: str, guaranteed: bool, stated: str
) -> None:
    grid, point = grid_of(["250"]), {"users": "250"}
    run = outcome(grid.methods[0], point, 0, 0.2, **facts)
    result, private = lines_of(grid, [run])
    assert (result.trust, result.guaranteed, result.stated_epsilon) == (trust, guaranteed, stated)
    assert (private.trust, private.guaranteed) == (NONE, False)
    majority = Line(grid.methods[0], "majority", point, [run])  # of the private texts' classes
    assert (majority.trust, majority.guaranteed) == (NONE, False)


def test_tables_of_one_grid(tmp_path: Path) -> None:
    grid = grid_of()
    values = {"text": [[0.2, 0.22]] * 3, "train": [[0.25, 0.26]] * 3}
    runs = outcomes_of(grid, values)
    gone = Outcome(runs.pop().cell, None, "the disk was full")
    lines = lines_of(grid, runs)
    found = differences(grid, lines)
    page = markdown(grid, lines, found, [*runs, gone])
    assert "| text | 0.2100<br>users~ [0.2000, 0.2300]<br>seeds [0.0829, 0.3371] |" in page
    assert "- train, users 4000, seed 1: the disk was full" in page
    assert page.index("Noise of the nodes") < page.index("| (c) (runs of text) |")
    row = next(r for r in table_csv(lines).splitlines() if r.startswith("train,result,4000"))
    # one of two seeds is missing: no interval over seeds; megabytes and seconds are the run's
    assert row.split(",")[3:10] == ["accuracy", "0.25", "0.24", "0.27", "", "", "1"]
    assert differences_csv(found).count("text,train,") == 3
    assert "missing,the disk was full" in runs_csv([*runs, gone])
    assert table_csv([]) == ""
    own = details(grid.methods[0], lines, "make x")
    assert "| (b) | 0.2100 [0.2000, 0.2200] |" in own and "Measured by `make x`" in own


def test_perplexity_stands_beside_the_loss() -> None:
    """e to the loss and to its bounds, however large."""
    grid = grid_of(["250"])
    runs = [outcome(grid.methods[0], {"users": "250"}, seed, 0.2) for seed in (0, 1)]
    for run, loss in zip(runs, (3.0, 3.05), strict=True):
        benchmark: Any = run.benchmark
        benchmark |= {"loss": {"synthetic": loss}, "loss_interval": {"synthetic": [2.9, 3.2]}}
    (line,) = (own for own in lines_of(grid, runs) if not own.reference)
    page = markdown(grid, [line], [], runs)
    assert "3.025<br>users~ [2.900, 3.200]" in page and "perplexity 20.6 [18.2, 24.5]" in page
    row = next(r for r in table_csv([line]).splitlines() if ",perplexity," in r)
    assert [float(x) for x in row.split(",")[4:7]] == pytest.approx(np.exp([3.025, 2.9, 3.2]))
    assert perplexity(Estimate(1e9, None, None, 1)).value < math.inf


def test_a_control_of_some_points_has_a_dash_at_the_others() -> None:
    grid = grid_of()
    runs = outcomes_of(grid, {"text": [[0.2], [0.3], [0.4]], "train": [[0.25]] * 3})
    benchmark: Any = runs[1].benchmark
    benchmark["accuracy"]["noise"] = 0.125
    benchmark["methods"]["noise"] = "(a2)"
    benchmark["accuracy_difference"] = {"synthetic-noise": [0.175, 0.15, 0.2]}
    benchmark["responses"] = {"recovery_rate": [0.25, 0.75]}
    benchmark["frechet"] = {"synthetic": {"noise": 0.75}}
    own = details(grid.methods[0], lines_of(grid, runs), "make x")
    assert "| (a2) | – | 0.1250 | – |" in own
    assert "| synthetic-noise | – | +0.1750 [+0.1500, +0.2000] | – |" in own
    assert "(mean over rounds) | – | 0.500 | – |" in own
    assert "(synthetic): noise | – | 0.7500 | – |" in own


def test_names_are_no_markup_in_headings_and_sentences() -> None:
    given = grid_of()
    named = [
        method.model_copy(update={"label": label})
        for method, label in zip(given.methods, ("*text*\n# x", "<b>train"), strict=True)
    ]
    grid = given.model_copy(update={"methods": named, "title": "of `users`\n\n# and [more](x)"})
    values = {"text": [[0.2, 0.22]] * 3, "train": [[0.25, 0.26]] * 3}
    runs = outcomes_of(grid, values)
    gone = Outcome(runs.pop().cell, None, "it_is_damaged: *")
    lines = lines_of(grid, runs)
    page = markdown(grid, lines, differences(grid, lines), [*runs, gone])
    assert page.startswith("# of \\`users\\` \\# and \\[more\\](x)\n\n")
    assert "\n## minus \\<b\\>train\n" in page
    assert "\n- \\*text\\* \\# x and \\<b\\>train along users: " in page
    assert "\n- \\<b\\>train, users 4000, seed 1: it\\_is\\_damaged: \\*\n" in page
    heads = [line for line in page.splitlines() if line.startswith("#")]
    assert all("minus" in h or h[:3] in ("## ", "# o") for h in heads) and "# x" not in heads


@pytest.mark.slow
def test_names_in_pictures_are_no_mathematics(tmp_path: Path) -> None:
    """An unclosed group between two dollars would be an error of matplotlib's."""
    given = grid_of(["250", "1000"])
    named = [
        method.model_copy(update={"label": label})
        for method, label in zip(given.methods, ("$\\frac{$", "_train"), strict=True)
    ]
    grid = given.model_copy(update={"methods": named})
    lines = lines_of(grid, outcomes_of(grid, {name: [[0.2], [0.2]] for name in ("text", "train")}))
    assert len(draw(grid, lines, differences(grid, lines), tmp_path)) == 2
    assert plain("_train") == " _train" and plain("a $b$\nc") == r"a \$b\$ c"


@pytest.mark.slow
def test_pictures_of_one_grid(tmp_path: Path) -> None:
    grid = grid_of()
    values = {"text": [[0.2, 0.22]] * 3, "train": [[0.25, 0.26]] * 3}
    lines = lines_of(grid, outcomes_of(grid, values))
    first = draw(grid, lines, differences(grid, lines), tmp_path)
    assert [path.name for path in first] == ["accuracy-users.png", "cost.png"]
    before = [path.read_bytes() for path in first]
    assert [
        path.read_bytes() for path in draw(grid, lines, differences(grid, lines), tmp_path)
    ] == before
    assert draw(grid, [], [], tmp_path / "none") == []


def test_pictures_carry_epsilon_and_the_paired_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "save", lambda figure, path, said: drawn.append((figure, said)))
    grid = grid_of(["250", "1000"])
    # Apart by as much in both seeds, and so told apart; then by less than seeds differ.
    values = {"text": [[0.20, 0.22], [0.20, 0.22]], "train": [[0.21, 0.23001], [0.21, 0.21]]}
    lines = lines_of(grid, outcomes_of(grid, values))
    draw(grid, lines, differences(grid, lines), tmp_path)
    figure, said = drawn[0]
    assert said.startswith("epsilon of text: 2; train: 2\n") and "does not cover" in said
    below = figure.axes[1]
    assert below.get_ylabel() == "paired difference,\nminus train"
    points = [line for line in below.get_lines() if line.get_marker() == "o"]
    assert [float(point.get_ydata()[0]) for point in points] == pytest.approx([-0.010005, 0.0])
    assert [point.get_markerfacecolor() == "white" for point in points] == [False, True]


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
    kept = place(grid.model_copy(update={"archive": "docs"}), tmp_path / "users.toml")
    assert kept == tmp_path / "docs" / "users.pairs.json" and load_pairs(kept) == {}
    kept.parent.mkdir()
    for damaged in ("{", "[]"):
        kept.write_text(damaged)
        with pytest.raises(ConfigError, match=r"users\.pairs\.json is damaged"):
            load_pairs(kept)


def test_every_reference_has_a_style() -> None:
    hint = get_type_hints(GridMethod)["references"]
    (named,) = get_args(hint)
    assert set(figures.REFERENCES) == set(get_args(named))
