"""The whole pipeline in one process: PrE-Text's configurations start, real nodes, a classifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.config import ConfigError, RunConfig, load_config
from privsyn_flower.privacy.noise.integer_noise import allowed_distance
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.server_apps.run import Run
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.rounds import NoRelease, Rounds
from privsyn_flower.strategies.engine.run_ledger import run_id
from privsyn_flower.text.models.pretrained import classes_in
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS
from tests.conftest import config_ledger, sentences
from tests.end_to_end.conftest import MATHS, NATURE
from tests.rigs.ledger import remaining_rounds
from tests.rigs.pipeline import Asking
from tests.server_apps.in_process import (
    CONFIGS,
    deployed,
    grid_for,
    run,
    run_on,
    texts,
    write_rows,
)

PAPER = sorted((CONFIGS / "papers").glob("pretext-*.toml"))
# One of each kind: CODE and what is dealt uniformly, both downstream models, both epsilons.
STARTED = ("code-eps1.29", "jobs-eps7.58", "llama2-code-eps7.58", "llama2-jobs-eps1.29")
NUMBERS = {"epsilon", "noise-multiplier", "pretext.population", "pretext.threshold", "data.path"}


@pytest.mark.parametrize("path", PAPER, ids=lambda p: p.stem)
def test_paper_configs_are_of_few_kinds(path: Path) -> None:
    """What starts below stands for all: the others differ in values that are set there."""
    own = load_config(path).flat()
    like = [load_config(CONFIGS / "papers" / f"pretext-{name}.toml").flat() for name in STARTED]
    differing = [{key for key in own if own[key] != one[key]} for one in like]
    assert any(keys <= NUMBERS for keys in differing), differing


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTED)
def test_paper_configs_start(
    name: str, tmp_path: Path, loopback: Any, masked_folder: Path, causal_folder: Path
) -> None:
    """As shipped, but with small models, few users and a small output."""
    path = CONFIGS / "papers" / f"pretext-{name}.toml"
    paper = load_config(path)
    write_rows(tmp_path / "private.jsonl", sentences(480, 1), 16)
    write_rows(tmp_path / "public.jsonl", sentences(120, 2), 4)
    users = 20
    config = load_config(
        path,
        {
            "cache": str(tmp_path / "cache"),
            "data.path": str(tmp_path / "private.jsonl"),
            "data.public-path": str(tmp_path / "public.jsonl"),
            "data.users": users,
            "data.held-out-users": 5,
            "data.public-validation": 8,
            "data.public-pool": 80,
            "models.embedder": "ngram-32",
            "models.infiller": str(masked_folder),
            "models.generator": str(causal_folder),
            "models.device": "cpu",
            "generation.backend": "huggingface",
            "benchmark": False,
            "rounds": 2,
            "nodes": 3,
            "pretext.population": 16,
            # the noise of 1,250 users' votes is far above 20 users' votes: a round with
            # nothing alive would end the run, which is right but not what is tested here
            "pretext.threshold": 0.0,
            "expand.samples": 4,
            "expand.min-words": 1,
        },
    )
    summary, _ = run(config, loopback, tmp_path / "run")
    assert summary["epsilon"] <= paper.epsilon
    assert summary["noise_multiplier"] == paper.noise_multiplier
    assert summary["accountant"] == "exact"
    assert summary["rounds"] == 2
    assert len(texts(tmp_path / "run")) == 4
    metrics = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    # the guaranteed noise is sigma = z * B votes: 8 (16 for CODE) times the multiplier
    bound = 16 if "code" in path.stem else 8
    assert metrics[0]["guaranteed_noise_std"] == pytest.approx(paper.noise_multiplier * bound)


def test_noise_multiplier_that_overspends_is_refused() -> None:
    config = RunConfig.from_flat({"noise-multiplier": 1.0, "epsilon": 1.0})
    with pytest.raises(ConfigError, match=r"noise-multiplier = 1\.0 costs epsilon .* above"):
        privacy_plan(config)


def test_the_same_apps_run_a_deployed_federation(tmp_path: Path, loopback: Any) -> None:
    config, contexts = deployed(tmp_path)
    grid = grid_for(loopback, contexts)
    summary = run_on(grid, config, tmp_path / "run")
    assert summary["rounds"] == 2
    assert "benchmark" not in summary
    private = {
        json.loads(line)["text"]
        for i in range(3)
        for line in (tmp_path / f"node{i}.jsonl").read_text().splitlines()
    }
    seen = "".join(str(message.content) for message in grid.received)
    assert not any(text in seen for text in private)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["votes", "scores"])
def test_a_sampled_run_goes_on_with_its_plan(tmp_path: Path, loopback: Any, kind: str) -> None:
    """Votes and scores: killed after a release, resumed, and charged once for each."""
    config, contexts = deployed(tmp_path)
    asked = {"sampler": "poisson", "sampling-rate": 0.5, "epsilon": 4.0}
    config = RunConfig.from_flat({**config.flat(), **asked})
    folder, multiplier = RunFolder(tmp_path / "run"), privacy_plan(config).main.multiplier
    ledger = config_ledger(config, folder)
    assert ledger.header.plan == ((multiplier, 0.5, 3),)
    strategy = Asking(kind)
    plan = RoundPlan(
        run=run_id(folder), users=6, noise_multiplier=multiplier, nodes=3, round_timeout=5,
        node_timeout=5, sampling_rate=0.5, distance=privacy_plan(config).distance, kind="deployed",
    )  # fmt: skip

    def rounds() -> Rounds:
        return Rounds(grid_for(loopback, contexts), strategy, plan, folder, ledger)

    strategy.killed = True
    with pytest.raises(KeyboardInterrupt):
        rounds().run()
    strategy.killed = False
    assert rounds().run() == 2
    charges = ledger.charges()
    assert [(c.query, c.round, c.state) for c in charges] == [
        (kind, 1, "committed"), (kind, 2, "committed"),
    ]  # fmt: skip
    assert {(c.noise_multiplier, c.sampling_rate) for c in charges} == {(multiplier, 0.5)}
    assert sum(c.total_variation for c in charges) <= allowed_distance(config.delta)
    assert remaining_rounds(ledger, multiplier, sampling_rate=0.5) == 1  # the spare one
    assert remaining_rounds(ledger, multiplier) == 0  # a round of all is not of this plan
    assert ledger.spent_epsilon() < 4.0


def test_deployed_nodes_refuse_plain_aggregation_without_permission(
    tmp_path: Path, loopback: Any
) -> None:
    config, contexts = deployed(tmp_path)
    config = RunConfig.from_flat({**config.flat(), "aggregation": "plain"})
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(NoRelease, match=r"3 of 3 nodes refused: policy \(aggregation\)"):
        Run(config, grid_for(loopback, contexts), folder).run()
    assert not (folder.path / "releases").exists()


@pytest.mark.parametrize("key", ["benchmark", "simulation-seeded-noise"])
def test_simulation_keys_are_refused_in_deployment(tmp_path: Path, loopback: Any, key: str) -> None:
    config, contexts = deployed(tmp_path)
    config = RunConfig.from_flat({**config.flat(), key: True})
    with pytest.raises(ConfigError, match="simulation only"):
        Run(config, grid_for(loopback, contexts), RunFolder(tmp_path / "run")).run()


# A text classifier that is trained on the nodes -----------------------------------------------

USERS, HELD_OUT = 60, 20
CONFIG = f"""
method = "dp-fedavg"
rounds = 5
spare-rounds = 0
epsilon = 500.0  # so huge that five rounds of 60 users learn something
nodes = 3
benchmark = true
stage-timeout = 300.0
cache = "{{folder}}/cache"
[data]
source = "files"
path = "{{folder}}/users.jsonl"
label-column = "label"
users = {USERS}
held-out-users = {HELD_OUT}
development-users = 0
public-validation = 0
near-duplicates = "keep"
[models]
downstream = "{PACKAGE_ASSETS / "infiller"}"
device = "cpu"
[training]
task = "classification"
labels = "nature, maths"
parameters = "lora"
lora-rank = 4
lora-factors = "up"
learning-rate = 0.1
clip-norm = 0.15
[evaluation]
task = "classification"
sequence-length = 32
steps = 4
batch-size = 16
learning-rates = "3e-4"
controls = ""
"""


@pytest.mark.slow
def test_a_classifier_of_labels_is_above_the_majority(tmp_path: Path, loopback: Any) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for user in range(USERS + HELD_OUT):
        for kind in rng.choice(["nature", "maths", "other"], 5, p=[0.55, 0.35, 0.1]):
            words = rng.choice(MATHS if kind == "maths" else NATURE, 8)
            rows.append({"user_id": f"u{user}", "text": " ".join(words), "label": str(kind)})
    write_jsonl(tmp_path / "users.jsonl", rows)
    path, folder = tmp_path / "run.toml", tmp_path / "run"
    path.write_text(CONFIG.format(folder=tmp_path))
    summary, _ = run(load_config(path), loopback, folder)
    found = summary["benchmark"]
    assert (found["task"], found["classes"]) == ("classification", ["nature", "maths"])
    accuracy = found["accuracy"]
    assert accuracy["trained"] > accuracy["majority"] + 0.1, accuracy
    assert set(accuracy) == {"pretrained", "majority", "trained", "private"}
    assert classes_in(folder / "model") == ("nature", "maths")
