"""Resource-adaptive synthesis: its groups, its phases, and which texts the votes choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.data import shard_sizes
from privsyn_flower.protocol.question import Query
from privsyn_flower.server_apps.privacy_plan import federation_spec, privacy_plan, statement
from privsyn_flower.strategies.engine.one_question import OneQuestion
from privsyn_flower.strategies.resource_adaptive.strategy import ResourceAdaptive, top_by_votes

METHOD = {"method": "resource-adaptive", "nodes": 10, "data.users": 96, "rounds": 4}


def config(**values: Any) -> RunConfig:
    return RunConfig.from_flat({**METHOD, **values})


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), min_size=1, max_size=40),
    st.lists(st.integers(0, 6), min_size=4, max_size=4),
)
def test_each_topic_gives_its_texts_with_most_votes_once(
    texts: list[tuple[int, float]], wanted: list[int]
) -> None:
    numbers, votes = np.array([t for t, _ in texts]), np.array([v for _, v in texts])
    places = top_by_votes(votes, numbers, np.array(wanted)).tolist()
    assert places == sorted(set(places))
    for topic, count in enumerate(wanted):
        own = [at for at in range(len(texts)) if numbers[at] == topic]
        best = sorted(own, key=lambda at: (-votes[at], at))[:count]
        assert [at for at in places if numbers[at] == topic] == sorted(best)


@given(st.integers(6, 40), st.floats(0.01, 0.99), st.integers(0, 200))
def test_the_groups_have_the_users_that_are_dealt_to_their_nodes(
    nodes: int, share: float, more: int
) -> None:
    values = {"nodes": nodes, "data.users": nodes + more, "aggregation": "plain"}
    made = config(**values, **{"resource-adaptive.weak-share": share, "min-surviving-weight": 0.5})
    groups = federation_spec(made).groups
    sizes = shard_sizes(nodes + more, nodes)
    strong = groups["strong"][1]
    assert groups == {
        "strong": (sum(sizes[:strong]), strong),
        "weak": (sum(sizes[strong:]), nodes - strong),
    }
    assert made.round_users == groups["strong"][0]


def test_each_group_has_the_whole_budget_and_the_sentence_says_so() -> None:
    made, said = privacy_plan(config()), statement(config())
    assert {phase.name: (phase.group, phase.releases) for phase in made.phases} == {
        "topics": ("strong", 2), "rounds": ("strong", 5), "votes": ("weak", 2),
    }  # fmt: skip
    assert made.epsilon <= 7.58 and all(7.5 < own <= 7.58 for _, own, _ in said.groups)
    assert said.epsilon == max(own for _, own, _ in said.groups)
    assert "users of weak nodes 'votes' (epsilon at most 7.58)" in said.sentence()
    assert len(said.short().split()) <= 60


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"resource-adaptive.weak-share": 0.2}, r"2 weak nodes .*nodes = 10.*weak-share = 0\.2"),
        ({"resource-adaptive.weak-share": 0.9}, "1 strong node with 10 users"),
        ({"resource-adaptive.weak-users": 4}, "5 weak nodes with 4 users"),
        ({"resource-adaptive.weak-users": 96}, "5 strong nodes with 0 users"),
        ({"colluding-weight": 0.1}, r"colluding-weight = 0\.1 of all users need 53 of 50"),
        ({"sampler": "poisson", "sampling-rate": 0.5}, "sampler = 'poisson'"),
        ({"training.noise": "aggregator"}, "training.noise = 'aggregator'"),
        ({"ctcl.labels": "a,b"}, "ctcl.labels"),
        ({"ctcl.generator-training": False}, "ctcl.generator-training"),
        ({"method": "ctcl", "resource-adaptive.pool": 2}, "belong to method = 'resource-adaptive'"),
    ],
)
def test_what_no_group_could_do_is_refused_before_work_starts(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**values)


def test_start_says_what_runs_it(tmp_path: Path) -> None:
    strategy = ResourceAdaptive.__new__(ResourceAdaptive)
    with pytest.raises(ValueError, match="privsyn run"):
        strategy.start(None, folder=tmp_path)  # type: ignore[arg-type]


def test_a_released_vote_is_of_its_texts_not_of_how_they_were_rounded() -> None:
    """Another machine's embeddings differ in the last bits; what was paid for stays of use."""
    topics, texts = np.eye(4, 8, dtype=np.float32), ["a", "b"]

    def digest(rows: np.ndarray[Any, Any], names: list[str], numbers: list[int]) -> str:
        query = Query.votes(rows.astype(np.float32), bound=1.0, model="m")
        return OneQuestion(query.within_topics(topics, numbers), names, embedded=True).digest()

    rows = np.eye(2, 8)
    first = digest(rows, texts, [0, 1])
    assert digest(rows + 0.01, texts, [0, 1]) == first
    assert digest(rows, ["a", "c"], [0, 1]) != first != digest(rows, texts, [0, 2])
