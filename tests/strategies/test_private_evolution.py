"""PE's and Aug-PE's own logic, line by line, with a character embedder and a toy variation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, PeConfig, RunConfig
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies import NothingSurvived, PrivateEvolution
from privsyn_flower.text import load_embedder
from tests.conftest import sentences
from tests.rigs.private_evolution import Numbered, calls

GOLDEN = Path(__file__).parents[1] / "golden"


def strategy(rounds: int = 3, seed: int = 0, **options: Any) -> PrivateEvolution:
    config = PeConfig(**{"population": 6, "lookahead": 1, "threshold": 0.0, **options})
    return PrivateEvolution(
        sentences(64, 0),
        embedder=load_embedder("ngram-64"),
        variation=Numbered(),
        rounds=rounds,
        config=config,
        seed=seed,
    )


def test_pe_draws_by_votes_and_replaces_all() -> None:
    """Lin et al., Algorithm 1: P = hist / sum, N_syn draws from it, each varied once."""
    method = strategy()
    first, votes = list(method.population), np.array([0.0, 3.0, -2.0, 1.0, 0.0, 4.0])
    method.learn(1, votes, 1.0)
    shares = np.maximum(votes, 0) / np.maximum(votes, 0).sum()
    places = seeded(0, 1, "survivors").choice(6, size=6, p=shares)
    assert calls(method) == [[first[i] for i in places]]
    assert method.population == Numbered().vary(calls(method)[0], seeded(0, 1, "variation"))
    assert method.seeds == list(dict.fromkeys(method.population))


def test_pe_returns_the_last_variations() -> None:
    """S_T is the last generation: nothing of the rounds before is kept."""
    method = strategy(rounds=2)
    method.learn(1, np.arange(6.0), 1.0)
    before = list(method.population)
    method.learn(2, np.arange(6.0), 1.0)
    assert method.seeds == list(dict.fromkeys(method.population))
    assert not set(method.seeds) & set(before)
    assert all(any(text.startswith(f"{old} v") for old in before) for text in method.seeds)


def test_aug_pe_takes_the_best_by_rank_and_keeps_them() -> None:
    """N_syn of L x N_syn by rank; the next are they and L - 1 variations of each."""
    method = strategy(selection="rank", copies=3)
    first = list(method.population)
    assert len(first) == 18
    votes = np.zeros(18)
    votes[[17, 4, 9]] = [7.0, 9.0, 8.0]
    facts = method.learn(1, votes, 1.0)
    # of equal votes the first: 0, 1, 2
    wanted = [first[i] for i in (4, 9, 17, 0, 1, 2)]
    assert method.seeds == method.population[:6] == wanted
    assert calls(method) == [[text for text in wanted for _ in range(2)]]
    assert method.population[6:] == Numbered().vary(calls(method)[0], seeded(0, 1, "variation"))
    assert len(method.population) == 18
    assert facts["survivors"] == 6 and facts["candidates_alive"] == 3


def test_aug_pe_ends_with_its_survivors() -> None:
    method = strategy(rounds=2, selection="rank", copies=2)
    method.learn(1, np.arange(12.0), 1.0)
    before = list(method.population)
    method.learn(2, np.arange(12.0), 1.0)
    assert method.seeds == before[:5:-1]
    assert len(calls(method)) == 1  # nothing is varied after the last round


def test_the_reference_code_ranks_alike() -> None:
    """DPSDA's and Aug-PE's own selection: 5 of 10 votes; ties are in order."""
    case = json.loads((GOLDEN / "selection.json").read_text())
    votes = np.array(case["dp_histogram"])
    method = strategy(population=5, selection="rank", copies=2)
    first = list(method.population)
    method.learn(1, votes, 1.0)
    for name in ("rank_thrNone", "rank_thr0.0", "rank_thr2.0", "augpe_rank_threshold0"):
        assert method.seeds == [first[i] for i in case["selected"][name]]


@pytest.mark.parametrize("threshold", [0.0, 2.0])
def test_the_reference_code_draws_by_the_same_shares(threshold: float) -> None:
    """Its generator is numpy's legacy one: with it our shares give its draws."""
    case = json.loads((GOLDEN / "selection.json").read_text())
    method = strategy(population=5, copies=2, threshold=threshold, threshold_unit="votes")
    weights = method.votes_above_threshold(1, np.array(case["dp_histogram"]), 1.0)
    legacy = np.random.RandomState(case["seed"])
    drawn = legacy.choice(10, size=case["num_samples"], p=weights / weights.sum())
    assert drawn.tolist() == case["selected"][f"sample_thr{threshold}"]


def test_rank_and_probability_differ() -> None:
    """By rank a candidate of the most votes always survives, and once; by votes not so."""
    votes = np.full(12, 1.0)
    votes[:6] = 1.01
    ranked = strategy(selection="rank", copies=2)
    best = set(ranked.population[:6])
    ranked.learn(1, votes, 1.0)
    assert set(ranked.seeds) == best
    kept = []
    for seed in range(20):
        drawn = strategy(seed=seed, copies=2)
        good = set(drawn.population[:6])
        drawn.learn(1, votes, 1.0)
        kept.append(len(good & set(drawn.seeds)) / len(drawn.seeds))
    assert 0.3 < np.mean(kept) < 0.7  # half of the weight


def test_candidates_are_mean_embeddings_of_their_variations() -> None:
    method = strategy(selection="rank", copies=2, lookahead=3)
    query = method.ask(1)
    repeated = [text for text in method.population for _ in range(3)]
    varied = Numbered().vary(repeated, seeded(0, 1, "lookahead"))
    rows = load_embedder("ngram-64").embed(varied).reshape(12, 3, -1).mean(axis=1)
    scale = np.abs(rows).max(axis=1, keepdims=True) / 127
    assert query.kind == "votes" and query.length == 12
    assert np.abs(query.question() - rows).max() <= scale.max() / 2 + 1e-7


@pytest.mark.parametrize("options", [{}, {"selection": "rank", "copies": 2}])
def test_a_restored_strategy_goes_on_alike(options: dict[str, Any]) -> None:
    one, two, again = (strategy(**options) for _ in range(3))
    size = len(one.population)
    votes = np.random.default_rng(0).normal(3, 2, size=(4, size))
    for rnd in (1, 2, 3):
        one.learn(rnd, votes[rnd], 1.0)
    two.learn(1, votes[1], 1.0)
    again.restore(two.state())
    for rnd in (2, 3):
        again.learn(rnd, votes[rnd], 1.0)
    assert one.state() == again.state()
    other = strategy(seed=1, **options)
    assert set(other.population) != set(strategy(**options).population)


@pytest.mark.parametrize("options", [{}, {"selection": "rank", "copies": 2}])
def test_no_votes_name_the_key(options: dict[str, Any]) -> None:
    method = strategy(**{**options, "threshold": 1.0})
    with pytest.raises(NothingSurvived, match=r"pe\.threshold.*pe\.population"):
        method.learn(1, np.full(len(method.population), -1.0), 1.0)


def test_too_few_first_texts_name_the_key() -> None:
    with pytest.raises(ValueError, match=r"64 distinct.*of 66: lower pe\.population"):
        strategy(population=11, selection="rank", copies=6)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"pe.selection": "rank"}, r"pe\.copies"),
        ({"pe.initial": "model"}, r"pe\.prompt"),
        ({"pe.prompt": "Write"}, r"pe\.initial"),
        ({"pe.variation": "rewrite", "pe.rewrite": "Again, {style}"}, r"pe\.rewrite.*\{text\}"),
        ({"pe.variation": "rewrite", "pe.styles": ""}, r"\{style\} if and only if"),
        ({"sft.epochs": 1, "expand.samples": 0}, r"sft\.epochs.*expand\.samples"),
        ({"sft.epochs": 1, "generation.backend": "openai"}, r"generation\.backend"),
        ({"sft.epochs": 1, "generation.chat": True}, r"generation\.chat"),
        (
            {"method": "popri", "generation.chat": True, "generation.backend": "vllm"},
            r"generation\.backend",
        ),
        ({"method": "popri", "sft.epochs": 1}, r"sft belong to method = 'pretext' or 'pe'"),
        ({"evaluation.rival": "pretext"}, r"evaluation\.rival.*'popri'"),
        ({"method": "pretext", "pe.copies": 2}, r"pe belong to method = 'pe'"),
    ],
)
def test_keys_that_do_not_fit(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RunConfig.from_flat({"method": "pe", **values})


@pytest.mark.parametrize(
    "options", [{}, {"copies": 3, "selection": "rank"}, {"copies": 2}], ids=["PE", "rank", "drawn"]
)
def test_rounds_are_described_by_releases_and_descent(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variation is of its first ancestor's domain; survivors are those of the run itself."""
    method, folder = strategy(**options), RunFolder(tmp_path)
    domains = {text: "ab"[i % 2] for i, text in enumerate(method.first)}
    own, survived = method.survivors, [method.first]

    def survivors(*given: Any) -> list[int]:
        places = own(*given)
        survived.append([method.population[i] for i in places])
        return places

    monkeypatch.setattr(method, "survivors", survivors)
    rng = np.random.default_rng(1)
    for rnd in (1, 2, 3):
        votes, voted = rng.normal(3.0, 2.0, len(method.population)), list(method.population)
        folder.save_release(rnd, votes)
        told = method.learn(rnd, votes, 0.5)
        folder.save_checkpoint(rnd, method.state(), {"round": rnd, "noise_std": 0.5, **told})
    found = strategy(**options).described_rounds(folder, domains)
    assert found["best"] == [
        {"round": 3, "text": voted[i], "votes": round(votes[i], 3)}
        for i in np.argsort(-votes)[:5].tolist()
    ]
    for rnd, texts in enumerate(survived):
        roots = [domains[re.sub(r"( v\d+r\d+)+$", "", text)] for text in texts]
        shares = {name: round(roots.count(name) / len(roots), 4) for name in set(roots)}
        assert found["shares"][rnd] == {"round": rnd, "shares": shares}
    # One that is a public text itself, as a retrieved one, is of its own domain.
    retrieved = domains | dict.fromkeys(voted, "c")
    last = strategy(**options).described_rounds(folder, retrieved)["shares"][-1]
    assert last == {"round": 3, "shares": {"c": 1.0}}
    assert strategy(**options).described_rounds(folder, {})["shares"] == []


def test_a_run_without_a_round_has_no_best_candidates(tmp_path: Path) -> None:
    found = strategy().described_rounds(RunFolder(tmp_path), {"x": "a"})
    assert found == {"best": [], "shares": [{"round": 0, "shares": {"": 1.0}}]}
