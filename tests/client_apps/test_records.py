"""A node's records: a ticket is answered once, limits hold per user, a kill loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.client_apps.policy import Policy
from privsyn_flower.client_apps.records import NodeRecords
from privsyn_flower.privacy.accounting import epsilon
from privsyn_flower.wire import Refusal, WireError

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
        "sensitivity": 4096.0,
        "policy": Policy(),
        **values,
    }
    mask = NodeRecords(path).take(round=round, users=users, **given)  # as a fresh process would
    assert mask.dtype == np.bool_
    return mask.tolist()


def refused(call: Callable[[], object], word: str) -> None:
    with pytest.raises(WireError, match=word) as caught:
        call()
    assert caught.value.code is Refusal.POLICY


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


@pytest.mark.parametrize("sensitivity", [4096.0, 4.0])
def test_a_user_takes_part_until_the_lifetime_epsilon(path: Path, sensitivity: float) -> None:
    policy = Policy(lifetime_epsilon=8.0, lifetime_delta=3e-6)
    noise = {"noise_multiplier": 2.31, "sensitivity": sensitivity}
    count = 0
    while take(path, count + 1, ["ann"], policy=policy, **noise)[0]:
        count += 1
    spent, next_ = (
        epsilon(2.31, rounds, 3e-6, mechanism="skellam", sensitivity=sensitivity)
        for rounds in (count, count + 1)
    )
    assert spent <= 8.0 < next_
    status = NodeRecords(path).status(3e-6)
    assert status["max_spent_epsilon"] == pytest.approx(spent)
    assert status["max_participations"] == count
    # Another run changes nothing; what much more noise costs still fits.
    both: dict[str, Any] = {"users": ["ann", "new"], "run": "s", "policy": policy}
    assert take(path, 1, noise_multiplier=2.31, **both) == [False, True]
    assert take(path, 2, noise_multiplier=1e4, **both) == [True, True]


def test_little_sensitivity_costs_more(path: Path) -> None:
    policy = Policy(lifetime_epsilon=5.5)
    assert take(path, 1, ["a"], noise_multiplier=1.0, policy=policy) == [True]
    assert take(path, 2, ["b"], noise_multiplier=1.0, sensitivity=1.0, policy=policy) == [False]


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
    "wrong", [{"users": ["a", "a"]}, {"noise_multiplier": 0.0}, {"sensitivity": float("nan")}]
)
def test_a_wrong_call_records_nothing(path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"repeated|noise_multiplier|sensitivity"):
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


def test_keys_are_trusted_on_first_use(path: Path) -> None:
    records = NodeRecords(path)
    assert records.pin("node-1", b"k" * 32)
    assert not records.pin("node-1", b"k" * 32)
    assert records.pin("node-2", b"k" * 32)
    refused(lambda: records.pin("node-1", b"x" * 32), "'node-1'")
    refused(lambda: records.pin("n" * 300, b"x" * 32), "300")
    assert not NodeRecords(path).pin("node-1", b"k" * 32)
    assert records.pin_all({"node-2": b"k" * 32, "node-3": b"l" * 32}) == 1
    # Nothing of a list with a wrong key is kept.
    refused(lambda: records.pin_all({"node-4": b"m" * 32, "node-3": b"x" * 32}), "'node-3'")
    assert records.status(1e-6)["pins"] == 3
