"""The pages say what the trainings do: their tables, figures, examples and metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flwr.app import MetricRecord

from privsyn_flower.config import AveragingConfig, load_config
from privsyn_flower.privacy.correlated import Participation, epsilon_correlated, factorization
from privsyn_flower.server_apps.privacy_plan import privacy_plan, statement
from privsyn_flower.strategies import DPFedAvg
from privsyn_flower.strategies.engine.aggregation import PlainSum
from tests.privacy.published import kairouz_restart_epsilon, zcdp
from tests.rigs.docs import ROOT, blocks, metrics_of_the_page, text_of
from tests.strategies.training_rig import record, trainers


def test_the_server_optimiser_of_your_own_trains(tmp_path: Path, loopback: Any) -> None:
    page: dict[str, Any] = {}
    for name, code in blocks("python"):
        if name.startswith("extending.md") and "WarmUp" in code:
            exec(compile(code, name, "exec"), page)
    strategy = page["strategy"]
    assert isinstance(strategy, DPFedAvg)
    strategy.clip_norm = 10.0  # the nodes of the test go further than half
    result = strategy.start(
        loopback(trainers()),
        record(),
        num_rounds=2,
        epsilon=8.0,
        delta=1e-5,
        users=4,
        folder=tmp_path,
        aggregation=PlainSum(),
    )
    first, second = result.metrics
    assert first["step_norm"] == pytest.approx(first["update_norm"] / 10)
    assert second["step_norm"] == pytest.approx(second["update_norm"] / 5)


def test_the_sentence_of_an_aggregator_is_that_of_the_demo() -> None:
    page = text_of(ROOT / "docs" / "privacy.md")
    start = "<!-- aggregator-sentence:start -->\n> "
    quoted = page.partition(start)[2].partition("\n<!--")[0]
    demo = ROOT / "configs" / "dp-ftrl-demo.toml"
    config = load_config(demo, {"training.noise": "aggregator"})
    assert quoted in statement(config).sentence()
    assert "TRUSTED" in quoted and "claims nothing against the server" in quoted


def test_every_metric_of_a_training_is_explained(tmp_path: Path, loopback: Any) -> None:
    result = DPFedAvg(AveragingConfig(clip_norm=0.5, adaptive_clipping=True)).start(
        loopback(trainers()),
        record(),
        num_rounds=1,
        epsilon=8.0,
        delta=1e-5,
        users=4,
        folder=tmp_path,
        aggregation=PlainSum(),
        evaluate_fn=lambda *_: MetricRecord({"accuracy": 0.5}),
    )
    (row,) = result.metrics
    assert "fraction_within" in row and "evaluate.accuracy" in row
    assert set(row) - {"evaluate.accuracy"} - metrics_of_the_page() == set()
    kept = {path.stem for path in (tmp_path / "models").glob("*.safetensors")}
    page = text_of(ROOT / "docs" / "run-folder.md")
    assert {"training-start", "training-0001"} == kept
    assert all(f"`{name}.safetensors`" in page for name in ("training-start", "training-0003"))


def test_the_table_of_trainings_is_that_of_the_configurations() -> None:
    page = text_of(ROOT / "docs" / "results" / "papers.md")
    counts = r"(\S+) \| (\d+) \| ([\d,]+)(?: of ([\d,]+))?"
    shown = {}
    for method in ("DP-FedAvg", "DP-FTRL"):
        table = page.partition(f"\n## {method}, in other papers\n")[2].partition("\n## ")[0]
        rows = re.findall(
            rf"^\| \[(\S+)\]\((\S+)\) \| (\S+), [^|]* \| [^|]* \| [^|]* \| {counts} \| "
            r"([\d.]+) \| `.*` \|$",
            table,
            re.MULTILINE,
        )
        for name, path, paper, *numbers, noise in rows:
            epsilon, rounds, participants, users = (float(n.replace(",", "") or 0) for n in numbers)
            assert Path(path).name == f"{name}.toml"
            config = shown[name] = load_config(ROOT / "docs" / "results" / path)
            assert (config.epsilon, config.rounds) == (epsilon, rounds), name
            assert config.data.users == (users or participants), name
            share = config.sampling_rate / config.ftrl.min_separation
            assert config.data.users * share == participants, name
            assert config.method == method.lower(), name
            assert paper.lower().replace("-", "") in name, name
            calibrated = config.noise_multiplier or privacy_plan(config).main.multiplier
            assert float(noise) == pytest.approx(calibrated, rel=1e-3), name
            if config.noise_multiplier:
                assert float(noise) == config.noise_multiplier, name
    files = {path.stem for path in (ROOT / "configs").rglob("dp-f*.toml")}
    assert set(shown) == {name for name in files if not name.endswith(("-demo", "-test"))}


def test_the_papers_noise_costs_what_the_page_says() -> None:
    page = text_of(ROOT / "docs" / "results" / "papers-noise.md").partition("## DP-FTRL")[2]
    numbers = r" \| ".join([r"([\d.]+)"] * 6)
    rows = re.findall(rf"^\| {numbers} \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for row in rows:
        rounds, every, z, theirs, exact, single = map(float, row)
        users = Participation(int(rounds), int(every))
        trees = [1] * users.most
        found = kairouz_restart_epsilon(int(every), trees, z, 3e-6, completion=False)
        assert found[0] == pytest.approx(theirs, abs=6e-4)
        assert found[1] == pytest.approx(exact, abs=6e-4)
        one = epsilon_correlated(z, 3e-6, factorization("tree", int(rounds)), users)
        assert one == pytest.approx(single, rel=3e-4)


def test_the_cost_of_the_keyboards_training_is_that_of_the_page() -> None:
    page = " ".join(text_of(ROOT / "docs" / "methods.md").split())
    assert "separations of 400 and 352, at which a tree costs 0.418-zCDP and 0.5-zCDP" in page
    for country, apart, rho in (("in", 400, 0.418), ("us", 352, 0.5)):
        config = load_config(next((ROOT / "configs").rglob(f"dp-ftrl-gboard-en-{country}.toml")))
        assert (config.ftrl.min_separation, config.noise_multiplier) == (apart, 7.0)
        users = Participation(1200, apart)
        found = factorization("tree", 1200).sensitivity(users) ** 2 / (2 * 7.0**2)
        assert found == pytest.approx(rho, abs=5e-4)
        assert zcdp(found, config.delta) <= config.epsilon


def test_what_equal_parts_would_miss_is_what_the_page_says() -> None:
    page = " ".join(text_of(ROOT / "docs" / "privacy.md").split())
    words = "with 1,200 rounds of `tree` and four participations, by up to 12 % in mu²"
    assert words in page
    tree = factorization("tree", 1200)
    costs = [tree.sensitivity(Participation(1200, 352, k)) ** 2 for k in (1, 2, 3, 4)]
    missed = [cost / (costs[-1] * k / 4) for k, cost in enumerate(costs, start=1)]
    assert 1.11 < max(missed) < 1.12 and max(costs) == costs[-1]
