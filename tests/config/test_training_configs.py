"""The papers' configurations of DP-FedAvg and DP-FTRL: their numbers, noise and data; the grids."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.config import ConfigError, RunConfig, load_config
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.server_apps.promised import promised, statement
from scripts import grid
from tests.privacy.published import kairouz_restart_epsilon, zcdp

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
PAPERS = CONFIGS / "papers"
PRETEXT = [f"{d}-eps{e}" for d in ("jobs", "forums", "microblog", "code") for e in (1.29, 7.58)]
# name -> POPri's Table 3: sigma_1 (DP-FedAvg), sigma_2 (DP-FTRL); App. C.1: rounds; clients a round
POPRI = {
    "biorxiv-eps1": (19.3, 19.5, 20, 72_000),
    "biorxiv-eps7": (3.35, 3.35, 20, 72_000),
    "congress-eps1": (19.3, 19.5, 20, 133_000),
    "congress-eps7": (3.35, 3.35, 20, 133_000),
    "partial-1000": (3.4, 19.5, 50, 1_000),
    "partial-5000": (15.5, 30.8, 50, 5_000),
    "partial-10000": (30.6, 30.8, 50, 10_000),
}
GBOARD = {"en-us": (0.5, 6.55), "en-in": (0.42, 5.95)}  # App. C.3 (3c): zCDP, epsilon
METHODS = ("dp-fedavg", "dp-ftrl")
NAMES = [
    *(f"{method}-pretext-{name}" for method in METHODS for name in PRETEXT),
    *(f"{method}-popri-{name}" for method in METHODS for name in POPRI),
    *(f"dp-fedavg-popri-pubmed-eps{epsilon}" for epsilon in (1, 4)),
    *(f"dp-ftrl-gboard-{name}" for name in GBOARD),
]


def load(name: str) -> RunConfig:
    return load_config(PAPERS / f"{name}.toml")


def test_every_paper_configuration_is_tested() -> None:
    shipped = {path.stem for path in PAPERS.glob("dp-f*.toml")}
    assert shipped == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_method_is_the_names(name: str) -> None:
    config = load(name)
    assert config.method == ("dp-ftrl" if "ftrl" in name else "dp-fedavg")
    assert config.trusts_aggregator == (config.method == "dp-ftrl")


# Those of other data are the same numbers, and Gboard's have a test of their own.
PRICED = [name for name in NAMES if "popri" in name or "-jobs-" in name]


@pytest.mark.parametrize("name", PRICED)
def test_it_keeps_its_epsilon_and_wastes_little(name: str) -> None:
    config = load(name)
    claimed = statement(config).epsilon  # raises where it does not
    # The papers' sigmas were accounted by Renyi DP, which is up to a tenth looser than exact.
    slack = 0.1 if "popri" in name else 6e-3
    assert (1 - slack) * config.epsilon <= claimed <= config.epsilon


@pytest.mark.parametrize("name", NAMES)
def test_a_header_says_whom_one_trusts_and_how_to_run_it(name: str) -> None:
    text = (PAPERS / f"{name}.toml").read_text("utf-8")
    assert f"privsyn run configs/papers/{name}.toml" in text
    assert ("TRUSTED" in text) == ("ftrl" in name)
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize("name", PRETEXT)
@pytest.mark.parametrize("method", METHODS)
def test_the_numbers_of_pretexts_baselines(method: str, name: str) -> None:
    config, paper = load(f"{method}-pretext-{name}"), load(f"pretext-{name}")
    assert (config.epsilon, config.delta) == (paper.epsilon, paper.delta)
    same = {"development_users": 0}
    assert config.data.model_copy(update=same) == paper.data.model_copy(update=same)
    training, jobs = config.training, load(f"{method}-pretext-jobs-eps{config.epsilon:g}")
    for key in ("rounds", "delta", "noise_multiplier", "sampler", "training", "ftrl"):
        assert getattr(config, key) == getattr(jobs, key), key
    assert (training.batch_size, training.server_momentum) == (4, 0.9)
    assert (training.server_optimizer, training.parameters) == ("fedavgm", "full")
    assert config.rounds == 100
    # "The model of c4-only": App. D.2 (1).
    tuning = config.evaluation
    assert training.public_steps == round(20 * 87_000 / tuning.batch_size)
    assert (tuning.start, tuning.epochs, tuning.batch_of) == ("public", 20, "texts")
    if method == "dp-ftrl":
        assert (config.ftrl.mechanism, config.ftrl.min_separation) == ("tree-restart", 1)


@pytest.mark.parametrize("name", POPRI)
def test_popris_dp_fedavg_is_charged_as_popri_is(name: str) -> None:
    config, paper = load(f"dp-fedavg-popri-{name}"), load(f"popri-{name}")
    for key in ("epsilon", "delta", "noise_multiplier", "rounds", "sampler", "sampling_rate"):
        assert getattr(config, key) == getattr(paper, key), key
    assert config.data == paper.data
    stated, _, rounds, _ = POPRI[name]
    assert config.rounds == rounds and config.training.batch_size == 2
    assert config.noise_multiplier == stated


@pytest.mark.parametrize("name", POPRI)
def test_popris_sigma_2_is_that_of_a_tree_an_epoch(name: str) -> None:
    config = load(f"dp-ftrl-popri-{name}")
    _, stated, rounds, clients = POPRI[name]
    assert (config.noise_multiplier, config.rounds) == (stated, rounds)
    epoch = config.data.users // clients
    assert config.ftrl.min_separation == config.ftrl.restart_every == epoch
    epochs = [1] * (rounds // epoch)
    theirs, _ = kairouz_restart_epsilon(epoch, epochs, stated, config.delta, completion=False)
    left = gaussian_delta(config.delta)
    _, exact = kairouz_restart_epsilon(epoch, epochs, stated, left, completion=False)
    # As the authors of DP-FTRL account for it, Table 3's sigma_2 gives the epsilon of its column.
    assert theirs == pytest.approx(config.epsilon, rel=0.015) and theirs <= config.epsilon
    assert promised(config).epsilon == pytest.approx(exact, rel=1e-9)
    comment = f"by Renyi DP (App. D.1), exactly it costs {float(f'{exact:.3f}'):g}\n"
    assert comment in (PAPERS / f"dp-ftrl-popri-{name}.toml").read_text("utf-8")
    one_tree, _ = kairouz_restart_epsilon(
        epoch, [len(epochs)], stated, config.delta, completion=False
    )
    assert one_tree > 1.5 * config.epsilon or len(epochs) == 1


@pytest.mark.parametrize("name", GBOARD)
def test_gboards_privacy(name: str) -> None:
    config = load(f"dp-ftrl-gboard-{name}")
    rho, stated = GBOARD[name]
    assert (config.epsilon, config.delta, config.rounds) == (stated, 1e-10, 1200)
    budget = promised(config)
    ours = budget.main.sensitivity**2 / (2 * budget.main.multiplier**2)
    assert round(ours, 2) == rho
    assert budget.epsilon == pytest.approx(zcdp(ours, gaussian_delta(config.delta)), rel=1e-9)
    assert budget.epsilon == pytest.approx(stated, abs=0.02)
    assert config.ftrl.max_participations == math.ceil(1200 / config.ftrl.min_separation)
    assert (config.ftrl.mechanism, config.training.server_momentum) == ("tree", 0.9)
    assert (config.training.server_optimizer, config.models.downstream) == ("fedavgm", "lstm")
    assert config.data.users % config.ftrl.min_separation == 0  # as many answer in every round


GRIDS = [
    ("pretext", "papers/dp-fedavg-pretext-jobs-eps7.58", 3 * 3 * 4),
    ("popri", "papers/dp-fedavg-popri-partial-1000", 3 * 3 * 2),
    ("demo", "dp-fedavg-demo", 12),
    ("ablation-popri-score", "papers/popri-biorxiv-eps1", 3),
    ("ablation-popri-cdpo", "papers/popri-biorxiv-eps7", 4),
    ("ablation-popri-rank", "papers/popri-biorxiv-eps1", 3),
    ("ablation-pretext-lookahead", "papers/pretext-jobs-eps7.58", 2),
    ("ablation-pretext-size", "papers/pretext-jobs-eps7.58", 5),
]


@pytest.mark.parametrize(("name", "config", "size"), GRIDS)
def test_every_point_of_a_grid_can_be_run(
    name: str, config: str, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(CONFIGS / "grids" / f"{name}.toml"), str(CONFIGS / f"{config}.toml")]
    assert grid.main([*arguments, "--dry-run"], run=lambda _: pytest.fail("it was run")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(set(lines)) == size
    assert all("epsilon" in line and "refused" not in line for line in lines)


def test_the_shipped_grids_are_tested() -> None:
    assert {path.stem for path in (CONFIGS / "grids").glob("*.toml")} == {g for g, _, _ in GRIDS}


ABLATIONS = {  # grid -> configuration and its own value, the paper's setting
    "ablation-popri-score": ("popri-biorxiv-eps1", "popri.score"),
    "ablation-popri-rank": ("popri-biorxiv-eps1", "popri.rejected-rank"),
    "ablation-pretext-lookahead": ("pretext-jobs-eps7.58", "pretext.lookahead"),
    "ablation-pretext-size": ("pretext-jobs-eps7.58", "expand.samples"),
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_papers_setting_is_in_its_ablation(name: str) -> None:
    config, key = ABLATIONS[name]
    values = tomllib.loads((CONFIGS / "grids" / f"{name}.toml").read_text("utf-8"))
    assert load(config).flat()[key] in values[key]


def test_the_papers_values_are_in_the_grids() -> None:
    def values(name: str) -> dict[str, Any]:
        return tomllib.loads((CONFIGS / "grids" / f"{name}.toml").read_text("utf-8"))

    pretext, popri = values("pretext"), values("popri")
    assert pretext["training.clip-norm"] == [1.0, 0.1, 0.01, 0.001]
    assert pretext["rounds"] == [10, 20, 100]
    assert popri["training.clip-norm"] == [1.0, 0.1, 0.01]
    for one, config in ((pretext, "pretext-jobs-eps7.58"), (popri, "popri-biorxiv-eps1")):
        assert one["training.learning-rate"] == [0.1, 0.01, 0.001]
        training = load(f"dp-fedavg-{config}").training
        assert training.learning_rate in one["training.learning-rate"]
        assert training.clip_norm in one["training.clip-norm"]


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """A grid of four points, one of which no ledger can pay for."""
    (tmp_path / "grid.toml").write_text('rounds = [4, 9]\n"training.clip-norm" = [0.5, 0.25]\n')
    config = 'method = "dp-fedavg"\nepsilon = 2.0\nnoise-multiplier = 5.0\nspare-rounds = 0\n'
    (tmp_path / "config.toml").write_text(config)
    paths = [str(tmp_path / "grid.toml"), str(tmp_path / "config.toml")]
    return [*paths, "--out", str(tmp_path / "out")]


class Privsyn:
    """Stands for the command: a run's loss is its bound; it fails where it is told to."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.failing = False

    def __call__(self, command: Sequence[str]) -> int:
        self.commands.append(list(command))
        if command[1] == "--resume":
            folder, loss = Path(command[2]), 9.0
        else:
            given = dict(item.split("=", 1) for item in command if "=" in item)
            folder = Path(json.loads(given["run-folder"]))
            loss = float(given["training.clip-norm"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text("")
        if self.failing:
            return 1
        measured = {"trained": loss, "random_public": 4.5}
        summary = {"benchmark": {"accuracy": measured, "loss": measured}, "epsilon": 1.5}
        (folder / "summary.json").write_text(json.dumps(summary))
        return 0


def test_a_grid_is_run_on_development_users_and_kept(
    small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    privsyn = Privsyn()
    assert grid.main([*small, "--set", "rounds=3", "--set", "seed=5"], privsyn) == 1
    # nine rounds of this noise cost more than epsilon; the grid's rounds beat --set's
    assert len(privsyn.commands) == 2
    for command in privsyn.commands:
        for setting in ('evaluation.on="development"', "benchmark=true", "seed=5", "rounds=4"):
            assert setting in command
        assert "rounds=3" not in command
    out = capsys.readouterr().out
    assert out.count("refused: noise-multiplier = 5.0") == 2
    lines = [line.split(" | ") for line in out.splitlines() if line.startswith("| rounds")]
    assert [line[0] for line in lines] == [
        "| rounds=4,training.clip-norm=0.25",
        "| rounds=4,training.clip-norm=0.5",
        "| rounds=9,training.clip-norm=0.5",
        "| rounds=9,training.clip-norm=0.25",
    ]
    assert lines[0][1:] == ["0.2500", "0.2500", "4.5000", "4.5000", "1.500 |"]
    grid.main(small, privsyn)
    assert len(privsyn.commands) == 2  # finished runs are kept


def test_an_unfinished_point_is_resumed(small: list[str]) -> None:
    privsyn = Privsyn()
    privsyn.failing = True
    assert grid.main(small, privsyn) == 1
    privsyn.failing = False
    grid.main(small, privsyn)
    assert [command[1] for command in privsyn.commands[2:]] == ["--resume", "--resume"]
    assert grid.main(small, privsyn) == 1  # two points can still not be paid for
    assert len(privsyn.commands) == 4


def test_a_grid_without_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="rounds = 4 in a grid"):
        grid.points({"rounds": 4})
