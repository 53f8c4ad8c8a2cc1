"""Grid files of `privsyn compare`: what they may say, and the shipped ones."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.cli.compare.cells import cells_of
from privsyn_flower.app.report.summaries import DISTRIBUTED, TRUSTED, trust_of
from privsyn_flower.config import ConfigError, load_config
from privsyn_flower.config.grid import load_grid
from privsyn_flower.server_apps.privacy_plan import statement

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

GRID = """
seeds = [0, 1]
[set]
benchmark = true
expand.samples = 5
[axes]
epsilon = [1.29, 7.58]
data.users = [40, 80]
size = [{ name = "small", set = { rounds = 2 } }, { name = "large", set = { rounds = 3 } }]
[[methods]]
name = "a"
config = "a.toml"
set = { expand.samples = 6 }
only = { size = ["large"] }
[[methods.at]]
where = { epsilon = "1.29", size = "large" }
set = { rounds = 4 }
[[methods]]
name = "b"
config = "b.toml"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return path


def test_points_and_their_settings(tmp_path: Path) -> None:
    grid = load_grid(written(tmp_path, GRID))
    one, two = grid.methods
    assert [tuple(point.values()) for point in grid.points(one)] == [
        ("1.29", "40", "large"),
        ("1.29", "80", "large"),
        ("7.58", "40", "large"),
        ("7.58", "80", "large"),
    ]
    assert len(list(grid.points(two))) == 8
    first, *_, last = grid.points(one)
    common = {"benchmark": True, "expand.samples": 6}
    # `at` beats the axes, the axes beat --set, and that the method's own
    assert grid.settings(one, first, {"nodes": 5, "expand.samples": 7}) == {
        **common, "epsilon": 1.29, "data.users": 40, "rounds": 4, "nodes": 5, "expand.samples": 7,
    }  # fmt: skip
    assert grid.settings(one, last, {}) == {
        **common, "epsilon": 7.58, "data.users": 80, "rounds": 3,
    }  # fmt: skip
    assert grid.varying_keys() == {"epsilon", "data.users", "rounds"}


METHOD = '[[methods]]\nname = "a"\nconfig = "a.toml"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metods = 3\n", "metods = 3"),
        ("seeds = []\n" + METHOD, r"seeds = \[\]"),
        ("seeds = [1, 1]\n" + METHOD, "seeds: 1 stands there twice"),
        ("[set]\nbenchmrk = true\n" + METHOD, "'benchmrk'; did you mean 'benchmark'"),
        ("[set]\nseed = 4\n" + METHOD, "seed = 4: leave it out"),
        ('[axes]\n"x/y" = [{ name = "a", set = { rounds = 2 } }]\n' + METHOD, "axis 'x/y': a name"),
        ("[axes]\nrounds = 4\n" + METHOD, "rounds = 4 in a grid: expected a list of values"),
        ("[axes]\nrounds = []\n" + METHOD, r"rounds = \[\] in a grid"),
        ("[axes]\nepsilom = [4.0]\n" + METHOD, "'epsilom'; did you mean 'epsilon'"),
        ("[axes]\nrounds = [2, 2]\n" + METHOD, "axes.rounds: 2 stands there twice"),
        (METHOD + METHOD, "methods: a stands there twice"),
        (METHOD.replace('"a"', '"a b"'), "methods.0.name = 'a b'"),
        (METHOD + 'only = { rounds = ["2"] }\n', "there is no axis 'rounds'"),
        (
            "[axes]\nrounds = [2]\n" + METHOD + 'only = { rounds = ["3"] }\n',
            r"methods.a.only: rounds = '3' is no value of an axis; axes has rounds = \['2'\]",
        ),
        ('against = "b"\n' + METHOD, "against = 'b' is none of the methods"),
        (METHOD + 'references = ["synthetic"]\n', "references.0 = 'synthetic'"),
        ("seeds = [0]\n", r"names no \[\[methods\]\]"),
        ("seeds = [0\n", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_grid(written(tmp_path, text))
    assert "grid.toml" in str(caught.value)


def test_a_grid_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file at .*none\.toml"):
        load_grid(tmp_path / "none.toml")


def test_what_a_configuration_refuses_is_the_cells_alone(tmp_path: Path) -> None:
    text = "[axes]\nnodes = [2, 8]\n[[methods]]\nname = 'a'\nconfig = 'a.toml'\n"
    grid = load_grid(written(tmp_path, text))
    (tmp_path / "a.toml").write_text("benchmark = true\n")
    one, two = cells_of(grid, tmp_path / "grid.toml", tmp_path)
    assert one.config is None and "secure aggregation needs at least 3" in one.error
    assert two.config is not None and two.config.nodes == 8
    (tmp_path / "a.toml").write_text("benchmark = false\n")
    cells = cells_of(grid, tmp_path / "grid.toml", tmp_path)
    assert "nothing would be compared" in cells[1].error
    (tmp_path / "a.toml").unlink()
    assert "no configuration file at" in cells_of(grid, tmp_path / "grid.toml", tmp_path)[1].error


SHIPPED: list[tuple[str, str, int]] = [
    ("grids/pretext", "papers/dp-fedavg-pretext-jobs-eps7.58", 3 * 3 * 4),
    ("grids/popri", "papers/dp-fedavg-popri-partial-1000", 3 * 3 * 2),
    ("grids/demo", "dp-fedavg-demo", 12),
    ("compare-results", "", 5 * 2 * 3),
    ("grids/ablation-popri-score", "papers/popri-biorxiv-eps1", 3),
    ("grids/ablation-popri-cdpo", "papers/popri-biorxiv-eps7", 4),
    ("grids/ablation-popri-rank", "papers/popri-biorxiv-eps1", 3),
    ("grids/ablation-pretext-lookahead", "papers/pretext-jobs-eps7.58", 2),
    ("grids/ablation-pretext-size", "papers/pretext-jobs-eps7.58", 5),
    ("compare-demo", "", 3 * 3 * 3 + 2 * 3 + 3 * 3),
    ("compare-chats", "", (2 + 13 * 2) * 3),
    ("compare-ctcl", "", 5 * 2 * 3),
    ("compare-dp-rft", "", 3 * 2 * 3),
    ("compare-classes", "", 2),
    ("compare-users", "", 3 * 3 * 2 * 3),
    ("grids/ctcl", "papers/ctcl-pubmed-eps1", 10),
    ("grids/ctcl-rates", "papers/dp-fedavg-ctcl-openreview-eps1", 6),
    ("grids/ctcl-sizes", "papers/ctcl-pubmed-eps1", 6),
    ("grids/gboard", "papers/dp-ftrl-gboard-en-us", 9),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config", "size"), SHIPPED)
def test_every_point_of_a_shipped_grid_can_be_run(
    name: str, config: str, size: int, tmp_path: Path
) -> None:
    path = CONFIGS / f"{name}.toml"
    grid = load_grid(path, [CONFIGS / f"{config}.toml"] if config else [])
    cells = cells_of(grid, path, tmp_path)
    assert [cell.error for cell in cells if cell.error] == []
    assert len(cells) == len({cell.folder for cell in cells}) == size
    for cell in cells:
        assert cell.config is not None and cell.config.benchmark
        # to choose settings nobody reads the test users
        tuned = path.parent.name == "grids"
        assert (cell.config.evaluation.on == "development") is tuned


@pytest.mark.slow
def test_the_curator_of_the_chats_is_trusted_and_nobody_s_rival(tmp_path: Path) -> None:
    path = CONFIGS / "compare-chats.toml"
    cells = cells_of(load_grid(path), path, tmp_path)
    trust = dict[str, set[str]]()
    for cell in cells:
        if cell.method.name in ("central", "dp-fedavg", "dp-ftrl") and cell.config is not None:
            claim = statement(cell.config)
            told = trust_of({"threat_model": claim.threat_model})
            trust.setdefault(cell.method.name, set()).add(told)
            if cell.method.name == "central":
                assert claim.samples and claim.epsilon <= cell.config.epsilon, "it is amplified"
    assert trust == {"central": {TRUSTED}, "dp-ftrl": {TRUSTED}, "dp-fedavg": {DISTRIBUTED}}


def test_all_shipped_grids_are_tested() -> None:
    found = {*(CONFIGS / "grids").glob("*.toml"), *CONFIGS.glob("compare-*.toml")}
    assert found == {CONFIGS / f"{name}.toml" for name, _, _ in SHIPPED}


def test_the_papers_values_are_in_the_grids() -> None:
    def values(name: str) -> dict[str, Any]:
        return tomllib.loads((CONFIGS / "grids" / f"{name}.toml").read_text("utf-8"))["axes"]

    pretext, popri = values("pretext"), values("popri")
    assert pretext["training"]["clip-norm"] == [1.0, 0.1, 0.01, 0.001]
    assert pretext["rounds"] == [10, 20, 100]
    assert popri["training"]["clip-norm"] == [1.0, 0.1, 0.01]
    for one, config in ((pretext, "pretext-jobs-eps7.58"), (popri, "popri-biorxiv-eps1")):
        assert one["training"]["learning-rate"] == [0.1, 0.01, 0.001]
        training = load_config(CONFIGS / "papers" / f"dp-fedavg-{config}.toml").training
        assert training.learning_rate in one["training"]["learning-rate"]
        assert training.clip_norm in one["training"]["clip-norm"]


ABLATIONS = {  # grid -> configuration and its own value, the paper's setting
    "ablation-popri-score": ("popri-biorxiv-eps1", "popri.score"),
    "ablation-popri-rank": ("popri-biorxiv-eps1", "popri.rejected-rank"),
    "ablation-pretext-lookahead": ("pretext-jobs-eps7.58", "pretext.lookahead"),
    "ablation-pretext-size": ("pretext-jobs-eps7.58", "expand.samples"),
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_papers_setting_is_in_its_ablation(name: str) -> None:
    config, key = ABLATIONS[name]
    path = CONFIGS / "papers" / f"{config}.toml"
    grid = load_grid(CONFIGS / "grids" / f"{name}.toml", [path])
    own = load_config(path).flat()[key]
    assert own in [value.set[key] for axis in grid.axes.values() for value in axis]


def test_the_demo_compares_at_the_papers_epsilons() -> None:
    grid = load_grid(CONFIGS / "compare-demo.toml")
    assert [value.name for value in grid.axes["epsilon"]] == ["1.29", "7.58", "1000"]
    smaller = [m.at[0].set for m in grid.methods if m.at]  # what the demos' headers say
    for method, own in zip(("dp-fedavg", "dp-ftrl"), smaller, strict=True):
        head = (CONFIGS / f"{method}-demo.toml").read_text("utf-8").partition("\nmethod")[0]
        said = head.replace("\n# ", " ")
        for key, value in own.items():
            assert f"--set {key}={value:g}" in said
