"""DP-RFT's own logic, and its loop in process: real handlers, toy generator, toy trainer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.strategies import DPRFT, NothingLearned
from privsyn_flower.strategies.dp_rft.config import DpRftConfig
from privsyn_flower.strategies.dp_rft.strategy import advantages, rewards
from privsyn_flower.text import load_embedder
from privsyn_flower.text.protocols import Trained
from tests.conftest import WORDS, sentences
from tests.rigs.strategies_popri import (
    EMBEDDER,
    PRIVATE_WORDS,
    PUBLIC,
    Killed,
    ToyGenerator,
    ToyTrainer,
    config,
    distance_to_users,
    federation,
    start,
)

# Votes to advantages ---------------------------------------------------------------------------


def test_rewards_and_advantages_by_hand() -> None:
    votes = np.array([5.0, 1.0, 3.0, 0.5, 0.0, -2.0, 9.0, 8.0, 9.0])
    assert rewards(votes, 1.0).tolist() == [4, 0, 2, 0, 0, 0, 8, 7, 8]
    sizes = [3, 3, 1, 2]
    by_group = advantages(rewards(votes, 1.0), sizes, "group")
    spread = np.sqrt(8 / 3)  # of 4, 0, 2 around 2
    assert by_group == pytest.approx([2 / spread, -2 / spread, 0, 0, 0, 0, 0, -1, 1])
    by_round = advantages(rewards(votes, 1.0), sizes, "round")
    spread = np.sqrt((4 + 4 + 0.25 + 0.25) / 9)
    assert by_round == pytest.approx(
        [2 / spread, -2 / spread, 0, 0, 0, 0, 0, -0.5 / spread, 0.5 / spread]
    )
    assert advantages(np.zeros(4), [2, 2], "round").tolist() == [0] * 4


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=5),
    st.sampled_from(["group", "round"]),
)
def test_a_prompts_advantages_sum_to_nothing_and_keep_the_order(
    groups: list[list[int]], scale: Any
) -> None:
    values = np.array([value for group in groups for value in group], dtype=np.float64)
    found = advantages(values, [len(group) for group in groups], scale)
    first = 0
    for group in groups:
        own = found[first : first + len(group)]
        first += len(group)
        assert abs(own.sum()) < 1e-6
        assert (own == 0).all() == (len(set(group)) == 1)
        order = np.argsort(group, kind="stable")
        assert (np.diff(own[order]) >= -1e-9).all()
    assert advantages(3.0 * values, [len(group) for group in groups], scale) == pytest.approx(found)


# The loop --------------------------------------------------------------------------------------


class PolicyTrainer(ToyTrainer):
    """Logits move by the advantages of the completions that have a word."""

    def train(
        self, pairs: Sequence[Mapping[str, Any]], *, start: Path | None, work: Path, seed: int
    ) -> list[Trained]:
        self.starts.append(start)
        self.pairs.append(list(pairs))
        self.seeds.append(seed)
        known = (start / "logits.json").read_text() if start else json.dumps([0.0] * len(WORDS))
        logits = np.array(json.loads(known))
        for pair in pairs:
            for word, count in Counter(pair["completion"].split()).items():
                logits[WORDS.index(word)] += self.rate * pair["advantage"] * count / 8
        work.mkdir(parents=True, exist_ok=True)
        (work / "logits.json").write_text(json.dumps(logits.tolist()))
        if self.killed:
            raise Killed
        return [Trained(work, {"loss": 0.5})]


def make(rounds: int = 3, *, learning: DpRftConfig | None = None, **options: Any) -> DPRFT:
    settings = {"config": config(), "generator": ToyGenerator(), "trainer": PolicyTrainer()}
    embedder = load_embedder(EMBEDDER, "cpu")
    given = {**settings, **options}
    return DPRFT(PUBLIC, embedder=embedder, rounds=rounds, learning=learning, **given)


def attached(method: DPRFT, path: Path) -> DPRFT:
    method.attach(RunFolder(path))
    return method


def test_three_rounds_bring_the_policy_to_the_users(tmp_path: Path, loopback: Any) -> None:
    method = make(validation=sentences(200, 3, PRIVATE_WORDS))
    result = start(method, federation(tmp_path, loopback), tmp_path / "run")
    base = [one.text for one in attached(make(), tmp_path / "base").synthesise(200)]
    assert distance_to_users([one.text for one in result.texts]) < 0.8 * distance_to_users(base)
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert all(0 < row["candidates_alive"] < row["responses_asked"] == 240 for row in rows)
    assert all(row["threshold_votes"] == row["noise_std"] for row in rows)
    rewarded = {p["completion"] for p in method.trainer.pairs[-1] if p["advantage"] > 0}
    assert rewarded <= set(result.seeds) <= {p["completion"] for p in method.trainer.pairs[-1]}


def test_what_is_trained_on_is_what_was_voted_on(tmp_path: Path) -> None:
    """Text by text and in order, each once in a prompt, by the state that wrote it."""

    class Repeating(ToyGenerator):
        def complete(self, prompts: Sequence[str], n: int, rng: Any) -> list[list[str]]:
            rows = super().complete(prompts, n, rng)
            return [[row[0], "too short", *row[:-2]] for row in rows]

    own = config(prompts=4, responses=5)
    method = attached(make(generator=Repeating(), config=own), tmp_path)
    query = method.ask(1)
    votes = np.random.default_rng(0).uniform(2.0, 9.0, query.length)
    calls = list(method.generator.calls)
    facts = method.learn(1, votes, 1.0)
    assert method.generator.calls == calls == [(None, 20)], "nothing is sampled anew"
    rows = method.trainer.pairs[0]
    assert query.kind == "votes" and len(rows) == query.length == 12
    embedded = method.embedder.embed([row["completion"] for row in rows])
    assert np.abs(query.question() - embedded).max() < 0.01
    written = json.loads((tmp_path / "popri" / "round-0001.json").read_text())
    owners = [prompt["text"] for prompt in written["prompts"] for _ in range(3)]
    assert [row["prompt"] for row in rows] == owners
    weights = advantages(votes - 1.0, [3] * 4, "group")
    assert [row["advantage"] for row in rows] == pytest.approx(weights.tolist())
    assert (facts["candidates_alive"], facts["prompts_taught"]) == (12, 4)


def test_a_killed_training_is_repeated_with_the_same_lessons(tmp_path: Path, loopback: Any) -> None:
    grid = federation(tmp_path, loopback, users=20)
    options = {"users": 60, "samples": 20}
    first = make(1)
    first.trainer.killed = True
    with pytest.raises(Killed):
        start(first, grid, tmp_path / "run", **options)
    sent = len(grid.sent)
    again = make(1)
    result = start(again, grid, tmp_path / "run", **options)
    assert result.rounds == 1 and len(grid.sent) == sent
    assert [size for _, size in again.generator.calls if size == 240] == []
    assert again.trainer.pairs == first.trainer.pairs and again.trainer.seeds == first.trainer.seeds


def test_votes_within_the_noise_teach_nothing(tmp_path: Path) -> None:
    method = attached(make(learning=DpRftConfig(threshold=2.0)), tmp_path)
    quiet = np.full(method.ask(1).length, 2.9)
    with pytest.raises(NothingLearned, match=r"round 1.*lower dp-rft\.threshold"):
        method.learn(1, quiet, 1.5)
    loud = quiet.copy()
    loud[0] = 9.0
    assert method.learn(1, loud, 1.5)["prompts_taught"] == 1
    (lessons,) = method.trainer.pairs
    assert [row["advantage"] > 0 for row in lessons] == [True, *[False] * 7]
    seeds = list(method.seeds)
    facts = method.learn(2, np.full(method.ask(2).length, 2.9), 1.5)
    assert facts["prompts_taught"] == 0 and method.adapter(2) == method.adapter(1)
    assert method.seeds == seeds == [lessons[0]["completion"]]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"popri.labels": "a,b"}, "popri.labels = 'a,b' is of no use to method = 'dp-rft'"),
        ({"popri.training": "sft"}, "popri.training = 'sft' is of no use"),
        ({"popri.score": "centred"}, "popri.score = 'centred': method = 'dp-rft' asks for votes"),
        ({"popri.checkpoint": "private"}, "popri.checkpoint = 'private' chooses by private text"),
        ({"generation.backend": "openai"}, "adapters that dp-rft trains"),
        ({"dp-rft.clip": 1.0}, "dp-rft.clip = 1.0"),
        ({"dp-rft.threshold": -1.0}, "dp-rft.threshold = -1.0"),
        ({"method": "popri", "dp-rft.clip": 0.1}, "keys of dp-rft belong to method = 'dp-rft'"),
    ],
)
def test_keys_that_cannot_work(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_flat({"method": "dp-rft", **keys})


def test_the_arguments_of_popri_are_noted_beside_its_own() -> None:
    noted = make(learning=DpRftConfig(threshold=2.0)).arguments
    found = {name: noted[name] for name in ("learning.threshold", "rounds", "config.prompts")}
    assert found == {"learning.threshold": "2.0", "rounds": "3", "config.prompts": "30"}
    assert noted["trainer"] == "PolicyTrainer" and noted["prompts"].startswith("60 texts")


def test_adapters_are_of_popris_rank() -> None:
    found = RunConfig.from_flat({"method": "dp-rft", "popri.lora-rank": 3})
    assert (found.lora_rank, found.teaches_generator, found.uses("popri")) == (3, True, True)
