"""A node's records: a ticket is answered once, limits hold per user, a kill loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.client_apps.node.lifetime import Limit
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records import NodeRecords, Peer
from privsyn_flower.privacy.accounting import epsilon
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.protocol.wire import Refusal, WireError

USERS = ["ann", "bob", "ü\ud800"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "node.sqlite"


def take(path: Path, round: int, users: list[str] = USERS, **values: Any) -> list[bool]:
    given: dict[str, Any] = {
        "run": "r",
        "query": "votes",
        "attempt": 1,
        "noise_multiplier": 10.0,
        "distance": 1e-18,
        "policy": Policy(),
        **values,
    }
    mask = NodeRecords(path).take(round=round, users=users, **given)  # as a fresh process would
    assert mask.dtype == np.bool_
    return mask.tolist()


def refused(call: Callable[[], object], word: str) -> str:
    with pytest.raises(WireError, match=word) as caught:
        call()
    assert caught.value.code is Refusal.POLICY
    return caught.value.key


@settings(max_examples=8, deadline=None)
@given(asked=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=6))
def test_only_later_tickets_are_answered(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[int, int]]
) -> None:
    records = NodeRecords(tmp_path_factory.mktemp("node") / "node.sqlite")
    last = (0, 0)
    for ticket in asked:
        try:
            records.mark("r", "votes", *ticket)
        except WireError:
            assert ticket <= last
        else:
            assert ticket > last
            last = ticket


def test_runs_and_queries_have_marks_of_their_own(path: Path) -> None:
    records = NodeRecords(path)
    records.mark("r", "votes", 5, 1)
    records.mark("r", "scores", 1, 1)
    records.mark("other", "votes", 1, 1)
    refused(lambda: records.mark("r", "votes", 4, 9), "round 5, attempt 1")
    refused(lambda: take(path, 5), "not answered again")


@pytest.mark.parametrize(
    ("ticket", "word"),
    [
        (("", "q", 1, 1), "run"),
        (("r" * 257, "q", 1, 1), "257"),
        (("r", "q", 0, 1), "round = 0"),
        (("r", "q", 1, 2**63), "attempt"),
    ],
)
def test_tickets_out_of_range_are_refused(path: Path, ticket: Any, word: str) -> None:
    refused(lambda: NodeRecords(path).mark(*ticket), word)


def test_a_user_takes_part_until_the_lifetime_epsilon(path: Path) -> None:
    policy = Policy(lifetime_epsilon=8.0, lifetime_delta=3e-6)
    noise = {"noise_multiplier": 2.31, "distance": 1e-15}
    count = 0
    while take(path, count + 1, ["ann"], policy=policy, **noise)[0]:
        count += 1
    left = gaussian_delta(3e-6)
    spent, next_ = (epsilon(2.31, rounds, left) for rounds in (count, count + 1))
    assert spent <= 8.0 < next_
    status = NodeRecords(path).status(3e-6)
    assert status["max_spent_epsilon"] == pytest.approx(spent)
    assert status["max_participations"] == count
    # Another run changes nothing; what much more noise costs still fits.
    both: dict[str, Any] = {"users": ["ann", "new"], "run": "s", "policy": policy}
    assert take(path, 1, noise_multiplier=2.31, **both) == [False, True]
    assert take(path, 2, noise_multiplier=1e4, **both) == [True, True]


def test_a_user_takes_part_until_the_lifetimes_distance(path: Path) -> None:
    """Integers that are coarse use up what of delta is kept for them, whatever the noise."""
    policy = Policy(lifetime_epsilon=8.0, lifetime_delta=3e-6)
    third = Limit.of(8.0, 3e-6).distance / 3 * (1 - 1e-9)
    noise: dict[str, Any] = {"noise_multiplier": 50.0, "policy": policy}
    for rnd in (1, 2, 3):
        assert take(path, rnd, ["ann"], distance=third, **noise) == [True]
    assert take(path, 4, ["ann", "new"], distance=third, **noise) == [False, True]
    assert take(path, 5, ["ann"], run="s", distance=third / 1e6, **noise) == [False]
    assert take(path, 6, ["ann"], distance=0.0, **noise) == [True]  # an aggregator's noise
    assert NodeRecords(path).status(3e-6)["max_spent_epsilon"] < 1.0


def test_participations_are_limited_over_runs(path: Path) -> None:
    policy = Policy(max_participations=2)
    assert take(path, 1, ["a", "b"], policy=policy) == [True, True]
    assert take(path, 1, ["b", "c"], run="s", policy=policy) == [True, True]
    assert take(path, 2, ["a", "b", "c"], policy=policy) == [True, False, True]
    assert take(path, 3, ["a", "b", "c"], policy=policy) == [False] * 3


def test_separation_holds_within_a_run(path: Path) -> None:
    policy = Policy(min_separation=3)
    assert take(path, 2, policy=policy) == [True] * 3
    assert take(path, 2, attempt=2, policy=policy) == [False] * 3
    assert take(path, 1, query="scores", policy=policy) == [False] * 3
    assert take(path, 4, [*USERS, "new"], policy=policy) == [False] * 3 + [True]
    assert take(path, 4, run="s", policy=policy) == [True] * 3
    assert take(path, 5, [*USERS, "new"], policy=policy) == [True] * 3 + [False]


def test_separation_goes_by_the_latest_round(path: Path) -> None:
    assert take(path, 5) == [True] * 3
    assert take(path, 1, query="scores") == [True] * 3
    assert take(path, 6, policy=Policy(min_separation=3)) == [False] * 3


def test_answers_of_a_run_are_limited_whatever_they_are_called(path: Path) -> None:
    policy = Policy(max_rounds_per_run=3)
    take(path, 1, policy=policy)
    take(path, 1, attempt=2, policy=policy)
    take(path, 1, query="scores", policy=policy)
    refused(lambda: take(path, 2, policy=policy), "max-rounds-per-run = 3")
    assert take(path, 2, run="s", policy=policy) == [True] * 3
    status = NodeRecords(path).status(1e-6)
    assert [(mark["round"], mark["answers"]) for mark in status["runs"]] == [(1, 2), (1, 1), (2, 1)]


@pytest.mark.parametrize(
    "wrong", [{"users": ["a", "a"]}, {"noise_multiplier": 0.0}, {"distance": float("nan")}]
)
def test_a_wrong_call_records_nothing(path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"repeated|noise_multiplier|distance"):
        take(path, 1, **wrong)
    assert take(path, 1) == [True] * 3


def test_a_node_without_users_has_a_ticket_all_the_same(path: Path) -> None:
    assert take(path, 1, []) == []
    refused(lambda: take(path, 1, []), "not answered again")


def test_forgotten_users_stay_out_and_what_they_spent_stays(path: Path) -> None:
    records = NodeRecords(path)
    take(path, 1, noise_multiplier=2.0)
    spent = records.status(1e-6)["max_spent_epsilon"]
    for user in USERS:
        assert records.forget(user)
    assert not records.forget("never seen")
    assert records.forget("never seen")
    assert records.withdrawn(["new", *USERS, "never seen"]).tolist() == [False] + [True] * 4
    assert records.withdrawn([]).shape == (0,)
    assert take(path, 2, [*USERS, "new"]) == [False, False, False, True]
    status = records.status(1e-6)
    assert (status["users"], status["withdrawn"]) == (5, 4)
    assert status["max_spent_epsilon"] == spent > 0


def test_ids_have_one_spelling(path: Path) -> None:
    records = NodeRecords(path)
    assert take(path, 1, [" ann ", "bob"]) == [True, True]
    assert records.forget("ann")
    assert records.withdrawn(["ann\n", " ann", "an n"]).tolist() == [True, True, False]
    assert records.ids([" ann"]) == records.ids(["ann"])
    with pytest.raises(ValueError, match="1 of 2 users are repeated"):
        take(path, 2, ["bob", " bob"])


def test_keys_and_weights_are_trusted_on_first_use(path: Path) -> None:
    records, one = NodeRecords(path), Peer(b"k" * 32, 5)
    assert records.pin_all({"node-1": one}) == 1
    assert records.pin_all({"node-1": one, "node-2": one}) == 1
    other = {"node-1": Peer(b"x" * 32, 5)}
    assert refused(lambda: records.pin_all(other), "'node-1' shows another key") == "peer"
    for weight in (4, 6, 10**9):  # a node that grows, and one that wants all the noise
        changed = Peer(b"k" * 32, weight)
        refused(lambda new=changed: records.pin_all({"node-1": new}), "'node-1' shows another weig")
    refused(lambda: records.pin_all({"n" * 300: one}), "300")
    assert NodeRecords(path).pin_all({"node-1": one}) == 0
    # Nothing of a list with a wrong key is kept.
    wrong = {"node-4": Peer(b"m" * 32, 1), "node-2": Peer(b"x" * 32, 5)}
    refused(lambda: records.pin_all(wrong), "'node-2'")
    assert records.status(1e-6)["pins"] == 2


def test_a_run_may_be_named_like_a_stage(path: Path) -> None:
    records = NodeRecords(path)
    records.mark("study/share", "votes", 1, 1)
    records.mark("study", "votes", 2, 1)
    for stage in ("share", "confirm", "unmask"):
        records.mark_stage(stage, "study", "votes", 1, 1)
        records.mark_stage(stage, "study/share", "votes", 2, 1)
        refused(lambda s=stage: records.mark_stage(s, "study", "votes", 1, 1), "not answered again")
    refused(lambda: records.mark_stage("share", "r" * 257, "votes", 1, 1), "257")
    refused(lambda: records.mark_stage("share", "r", "votes", 0, 1), "round = 0")
    runs = records.status(1e-6)["runs"]
    assert [(row["run"], row["round"], row["answers"]) for row in runs] == [
        ("study/share", 1, 1),
        ("study", 2, 1),
    ]
