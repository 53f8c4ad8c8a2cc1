"""Every shipped configuration, accounted once: its noise, its plan, and the integers of its rounds,
which are fine enough, and of few bits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.preflight.numbers import check_privacy, integers, keys, noise_of
from privsyn_flower.config import RunConfig, absolute_paths, load_config, without_benchmark
from privsyn_flower.privacy.accounting.calibration import DOUBTFUL_SHARE
from privsyn_flower.privacy.noise.integer_noise import (
    LEAST_NODE_STD,
    LEAST_STD,
    allowed_distance,
    node_variance,
)
from privsyn_flower.protocol.noise import matrix_options, total_variation, unit_of
from privsyn_flower.protocol.question import Query
from privsyn_flower.server_apps.privacy_plan import baseline, privacy_plan
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import integer_noise
from tests.app.preflight.test_plan import it_has_a_plan
from tests.config.test_ctcl_configs import noise_is_that_of_appendix_e

CONFIGS = Path(__file__).parents[2] / "configs"
GRIDS = {*CONFIGS.glob("compare-*.toml"), *CONFIGS.glob("*-public.toml")}  # no runs
FILES = [*sorted({*CONFIGS.glob("*.toml")} - GRIDS), *sorted(CONFIGS.glob("papers/*.toml"))]
SHIPPED = {path.stem: load_config(path) for path in FILES}
OF_NODES = [
    name
    for name, config in SHIPPED.items()
    if baseline(config) is None and not config.trusts_aggregator
]
# Bits of a coordinate with the Skellam noise of earlier versions, where anybody runs them.
BEFORE = 24
IN_USE = ("docstrings-demo", "popri-demo", "dp-fedavg-demo", "test", "popri-test", "dp-fedavg-test")
DISTILGPT2 = 81_912_576  # parameters
TINY_LORA = 5_248  # trained coordinates of the shipped model for each rank, factors "up"


def question(config: RunConfig) -> Query:
    """One of the lengths that the rounds ask for: the longest."""
    rows, scales = np.zeros((0, 0), dtype=np.int8), np.zeros(0, dtype=np.float32)
    if config.trains:
        lengths = {"tiny": TINY_LORA * config.training.lora_rank, "lstm": config.models.lstm_words}
        length = lengths.get(config.models.downstream, DISTILGPT2)
        dense: dict[str, Any] = {"encoding": "dense", "rotation": "00" * 32}
        matrix = privacy_plan(config).main.matrix
        dense |= matrix_options(matrix) if matrix else {}
        return Query("update", rows, scales, length, config.training.clip_norm, "model", dense)
    if config.method == "popri":
        length = config.popri.prompts * config.popri.responses
        return Query("scores", rows, scales, length, config.popri.score_bound, "model")
    own = config.evolution
    return Query("votes", rows, scales, own.candidates, own.vote_bound, "m")


def plan_of(config: RunConfig) -> RoundPlan:
    return RoundPlan(
        run="run",
        users=config.data.users,
        noise_multiplier=privacy_plan(config).main.multiplier,
        spare_rounds=config.spare_rounds,
        min_surviving_weight=config.min_surviving_weight,
        colluding_weight=config.colluding_weight,
        nodes=config.nodes,
        sampling_rate=config.sampling_rate,
        cohort_nodes=config.cohort_nodes,
        distance=privacy_plan(config).distance,
    )


def test_the_papers_models_and_the_miniatures_are_among_them() -> None:
    assert set(IN_USE) < set(OF_NODES)
    assert {SHIPPED[name].models.downstream for name in OF_NODES if SHIPPED[name].trains} == {
        "tiny",
        "distilbert/distilgpt2",
        "prajjwal1/bert-small",
        "lstm",
        "FacebookAI/roberta-base",
    }


def integers_are_so_fine_that_all_releases_fit(config: RunConfig) -> None:
    plan, query = plan_of(config), question(config)
    noise = integer_noise(plan, query)  # raises where 32 or 56 bits do not hold the sum
    together = privacy_plan(config).releases * total_variation(query, noise)
    assert 0 < together <= allowed_distance(config.delta)
    size = noise.sensitivity * unit_of(query)
    variance = node_variance(noise.multiplier, 1.0, noise.min_weight, size)
    assert math.sqrt(variance) >= LEAST_NODE_STD
    assert noise.multiplier * size >= LEAST_STD
    assert noise.bits <= (40 if config.data.users > 1_000_000 else 32)


@pytest.mark.parametrize("name", IN_USE)
def test_the_gaussians_price_costs_no_bytes(name: str) -> None:
    config = SHIPPED[name]
    assert integer_noise(plan_of(config), question(config)).bits <= BEFORE


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_configuration_is_sound(path: Path, tmp_path: Path) -> None:
    its_benchmark_can_be_switched_off(path)
    own = load_config(path, {"cache": str(tmp_path / "cache")})
    config = absolute_paths(own, tmp_path / "run")
    if path.parent.name == "papers":
        it_has_a_plan(path.stem, config, tmp_path)
        # Where text is written, it alone is the result.
        assert config.expand.include_seeds is False or not config.expand.samples
    if baseline(config) is None:
        it_is_far_from_both_limits(config)
        assert not any(one.fatal for one in [*check_privacy(config), *integers(config)])
        assert not any(one.fatal for one in keys(config)) or config.measures  # it has no models
    if path.stem in OF_NODES:
        integers_are_so_fine_that_all_releases_fit(config)
    if "ctcl" in path.stem and path.parent.name == "papers":
        noise_is_that_of_appendix_e(path.stem, config)


def it_is_far_from_both_limits(config: RunConfig) -> None:
    assert config.delta * config.data.users < 0.5
    noise, answers, _ = noise_of(config)
    assert 0 < noise < DOUBTFUL_SHARE / 10 * answers


def its_benchmark_can_be_switched_off(path: Path) -> None:
    """With what its file chooses by private text, and nothing else."""
    off = {"benchmark": False}
    back = without_benchmark(path, off)
    found, before = load_config(path, {**off, **back}), load_config(path)
    assert found.data.chosen_by_text == "" and not found.benchmark
    assert back == {} or before.benchmark
    changed = {key for key, value in found.flat().items() if before.flat()[key] != value}
    assert changed - {"benchmark"} == set(back)
