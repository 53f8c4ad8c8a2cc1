"""The configurations of rows without rounds: their numbers, and their table in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from privsyn_flower.app.preflight.numbers import keys
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.privacy_plan import baseline

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "configs" / "papers"
SETS = ("jobs", "forums", "microblog", "code")
EPSILONS = ("1.29", "7.58")
ROWS = ("public-only", "expand-only", "expand-private")
NAMES = [
    *(f"{row}-pretext-{data}" for row in ROWS for data in SETS),
    *(f"expand-private-pretext-llama2-{data}" for data in SETS),
    *(f"dp-prompt-pretext-{data}-eps{epsilon}" for data in SETS for epsilon in EPSILONS),
    *(f"public-only-popri-{data}" for data in ("biorxiv", "congress", "openreview")),
]


def load(name: str) -> RunConfig:
    return load_config(PAPERS / f"{name}.toml")


def test_every_row_is_tested() -> None:
    shipped = [path for row in (*ROWS, "dp-prompt") for path in PAPERS.glob(f"{row}-*.toml")]
    assert {path.stem for path in shipped} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_asks_nobody_and_says_what_it_claims(name: str) -> None:
    config, text = load(name), (PAPERS / f"{name}.toml").read_text("utf-8")
    assert name.startswith(config.method) and f"Run: privsyn run configs/papers/{name}" in text
    assert not recipe_of(config).phases(config) and not list(keys(config))
    claim = baseline(config)
    assert claim is not None
    assert ("NO PRIVACY" in text) == claim.sentence().startswith("NO PRIVACY")
    assert ("LOCAL privacy" in text) == claim.threat_model.startswith("local")


@pytest.mark.parametrize("name", [name for name in NAMES if "pretext" in name])
def test_a_row_has_the_data_of_its_table(name: str) -> None:
    data = name.split("-pretext-")[1].partition("-eps")[0]
    config, paper = load(name), load(f"pretext-{data}-eps7.58")
    assert config.data.samples_per_user == (128 if data.endswith("code") else 8)  # App. C
    # App. D.2 (5): PrE-Text alone takes 16 of CODE; the test set is the same.
    assert (paper.data.held_out_samples or 8) == config.data.samples_per_user
    caps = {"samples_per_user": 8, "held_out_samples": 0}
    assert config.data.model_copy(update=caps) == paper.data.model_copy(update=caps)
    assert config.models.downstream == paper.models.downstream
    if config.method.startswith("expand"):
        assert config.expand == paper.expand and config.evaluation == paper.evaluation
        assert config.models.generator == paper.models.generator
    else:
        assert (config.evaluation.batch_size, config.evaluation.epochs) == (256, 20)


@pytest.mark.parametrize("data", SETS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_dp_prompts_epsilon_is_of_a_user(data: str, epsilon: str) -> None:
    claim = baseline(load(f"dp-prompt-pretext-{data}-eps{epsilon}"))
    assert claim is not None and claim.epsilon == pytest.approx(float(epsilon))
    assert vars(claim)["texts"] == (128 if data == "code" else 8)


def test_popris_bounds_have_the_data_and_the_model_of_its_runs() -> None:
    for name in ("biorxiv", "congress", "openreview"):
        config, paper = load(f"public-only-popri-{name}"), load(f"popri-{name}-eps1")
        left_out = {"public_validation": 0} if name == "openreview" else {}
        assert config.data == paper.data.model_copy(update=left_out)
        assert config.models.downstream == paper.models.downstream
        assert config.evaluation.task == paper.evaluation.task
        assert config.popri.labels == paper.popri.labels


def test_the_table_of_the_page_is_that_of_the_configurations() -> None:
    page = (ROOT / "docs" / "results" / "papers.md").read_text("utf-8")
    table = page.partition("\n## Baselines without client queries")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \[(\S+)\]\(\S+\) \|.*\| ([^|]+) \| `.*` \|$", table, re.MULTILINE)
    assert {name for name, _ in rows} == set(NAMES)
    for name, epsilon in rows:
        claim = baseline(load(name))
        assert claim is not None
        if claim.threat_model.startswith("local"):
            assert epsilon == f"{claim.epsilon:g}, local"
        else:
            assert epsilon.startswith({0.0: "0"}.get(claim.epsilon, "infinite")), name
