"""Who is due: the rota, the separation and the number of a user's rounds, kept on the node."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.client_apps.node import schedule
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records import NodeRecords
from privsyn_flower.client_apps.node.schedule import Schedule
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError

POLICY = Policy(lifetime_epsilon=1e6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "node.sqlite"


def asked(
    path: Path,
    round: int,
    users: list[str],
    limits: Schedule,
    policy: Policy | None = None,
    **at: Any,
) -> list[bool]:
    """As a fresh process would: a restart between any two rounds changes nothing."""
    records = NodeRecords(path)
    ticket = (at.get("run", "r"), at.get("query", "update"), round, at.get("attempt", 1))
    if policy is None:
        mask = records.schedule(*ticket, users, limits)
    else:
        mask = records.take(*ticket, users, 10.0, 0.0, policy, limits)
    assert mask.dtype == np.bool_ and mask.shape == (len(users),)
    found: list[bool] = mask.tolist()
    return found


def refused(path: Path, *arguments: Any, **at: Any) -> None:
    with pytest.raises(WireError, match="this node answered") as caught:
        asked(path, *arguments, **at)
    assert caught.value.code is Refusal.POLICY


def with_options(**options: Any) -> Query:
    empty = Query.votes(np.ones((2, 2)), bound=1.0, model="m")
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return replace(empty, options={**empty.options, **named})


@given(
    places=st.lists(st.integers(0, 50), max_size=8),
    cycle=st.integers(1, 9),
    start=st.integers(1, 100),
)
def test_everybody_has_one_turn_in_a_cycle(places: list[int], cycle: int, start: int) -> None:
    rota = Schedule(cycle=cycle)
    due = np.array([rota.due(np.array(places, np.int64), start + i) for i in range(cycle)])
    assert (due.sum(axis=0) == 1).all()
    for i, row in enumerate(due):
        turns = {rota.turn(start + i), *(place % cycle for place in np.array(places)[row])}
        assert turns == {(start + i - 1) % cycle}


def test_the_rota_starts_with_place_0_in_round_1() -> None:
    places = np.arange(5)
    assert Schedule(cycle=3).due(places, 1).tolist() == [True, False, False, True, False]
    assert Schedule(cycle=3).due(places, 2).tolist() == [False, True, False, False, True]
    assert Schedule(min_separation=3).due(places, 2).tolist() == [True] * 5


@settings(max_examples=40, deadline=None)
@given(
    rounds=st.lists(st.tuples(st.integers(1, 12), st.sets(st.sampled_from("abc"))), max_size=8),
    separation=st.integers(0, 4),
    most=st.integers(0, 3),
    policy=st.sampled_from([None, POLICY]),
)
def test_no_user_takes_part_too_soon_or_too_often(
    tmp_path_factory: pytest.TempPathFactory,
    rounds: list[tuple[int, set[str]]],
    separation: int,
    most: int,
    policy: Policy | None,
) -> None:
    """Users come and go, rounds come in any order the server likes, and attempts repeat."""
    path = tmp_path_factory.mktemp("node") / "node.sqlite"
    limits = Schedule(min_separation=separation, max_participations=most)
    taken: dict[str, list[int]] = {name: [] for name in "abc"}
    for attempt, (rnd, users) in enumerate(rounds, start=1):
        present = sorted(users)
        try:
            mask = asked(path, rnd, present, limits, policy, attempt=attempt)
        except WireError:
            continue
        for name, may in zip(present, mask, strict=True):
            if may:
                taken[name].append(rnd)
    for mine in taken.values():
        different = sorted(set(mine))
        assert all(b - a >= separation for a, b in itertools.pairwise(different))
        assert not most or len(different) <= most


@pytest.mark.parametrize("policy", [None, POLICY])
def test_a_separation_is_kept_over_restarts_and_attempts(path: Path, policy: Policy | None) -> None:
    limits = Schedule(min_separation=3)
    assert asked(path, 2, ["a", "b"], limits, policy) == [True, True]
    refused(path, 3, ["a", "b"], limits, policy)
    refused(path, 4, ["a", "b", "new"], limits, policy)
    # Another attempt of the same round is the same participation.
    assert asked(path, 2, ["a", "b"], limits, policy, attempt=2) == [True, True]
    assert asked(path, 5, ["a", "b"], limits, policy) == [True, True]
    assert asked(path, 5, ["a", "b"], limits, policy, attempt=2) == [True, True]
    assert asked(path, 1, ["a"], limits, policy, run="another") == [True]
    # What is refused is not written down: neither the ticket nor anybody's participation.
    assert NodeRecords(path).status(1e-6)["runs"][0]["answers"] == 4


@pytest.mark.parametrize("policy", [None, POLICY])
def test_participations_are_counted_in_rounds(path: Path, policy: Policy | None) -> None:
    limits = Schedule(max_participations=2)
    assert asked(path, 1, ["a"], limits, policy) == [True]
    assert asked(path, 1, ["a"], limits, policy, attempt=2) == [True]
    assert asked(path, 2, ["a", "b"], limits, policy) == [True, True]
    assert asked(path, 2, ["a", "b"], limits, policy, attempt=2) == [True, True]
    refused(path, 3, ["a", "b"], limits, policy)


@settings(max_examples=25, deadline=None)
@given(
    users=st.lists(st.text(max_size=6), unique=True, max_size=12),
    more=st.lists(st.text(max_size=6), max_size=4),
    first=st.integers(0, 9),
)
def test_a_place_is_that_users_alone(users: list[str], more: list[str], first: int) -> None:
    everybody = [*more, *users]
    alone = [int(schedule.places(schedule.public_ids([user]), first)[0]) for user in users]
    together = schedule.places(schedule.public_ids(everybody), first)
    assert together.dtype == np.int64 and together.shape == (len(everybody),)
    assert together.tolist()[len(more) :] == alone
    assert all(first <= place < first + 2**32 for place in alone)


def test_places_fill_the_turns_of_a_rota() -> None:
    """Binomial: 4000 users over 8 turns, 6 standard deviations (21) about 500."""
    found = schedule.places(schedule.public_ids([f"user {i}" for i in range(4000)]))
    sizes = [int(Schedule(cycle=8).due(found, rnd).sum()) for rnd in range(1, 9)]
    assert sum(sizes) == 4000 and all(374 < size < 626 for size in sizes)
    assert len(set(sizes)) > 1


def test_a_devices_ids_are_under_a_key_of_its_own(path: Path, tmp_path: Path) -> None:
    mine, other = NodeRecords(path).ids(["a", "b"]), NodeRecords(tmp_path / "other").ids(["a"])
    assert [len(id_) for id_ in mine] == [32, 32] and mine == NodeRecords(path).ids(["a", "b"])
    assert len({*mine, *other, *schedule.public_ids(["a", "b"])}) == 5


@pytest.mark.parametrize("policy", [None, POLICY])
def test_a_user_who_moved_to_another_place_is_left_out(path: Path, policy: Policy | None) -> None:
    """Whatever rota the server names: the records know the user."""
    limits = Schedule(cycle=2, min_separation=2)
    assert asked(path, 1, ["a", "c"], limits, policy) == [True, True]
    assert asked(path, 2, ["b", "c"], limits, policy) == [True, False]
    assert asked(path, 3, ["a", "b", "c"], limits, policy) == [True, False, True]


def test_another_kind_of_question_moves_nobodys_rounds(path: Path) -> None:
    """Its attendance at a later round must not be taken for an attempt of that round."""
    often, apart = Schedule(max_participations=9), Schedule(min_separation=3)
    assert asked(path, 5, ["a"], apart) == [True]
    assert asked(path, 6, ["a"], often, query="evaluation") == [True]
    refused(path, 6, ["a"], apart)
    assert asked(path, 8, ["a"], apart) == [True]


def test_refusals_do_not_depend_on_who_is_there(path: Path, tmp_path: Path) -> None:
    """A node whose users could not be read, or withdrew, refuses the same questions."""
    limits, other = Schedule(cycle=2, min_separation=2, max_participations=2), tmp_path / "b.sqlite"
    for rnd, expected in ((1, True), (2, True), (3, True), (4, True), (5, False), (6, False)):
        for file, users in ((path, ["a"]), (other, [])):
            if expected:
                asked(file, rnd, users, limits)
            else:
                refused(file, rnd, users, limits)


def test_without_limits_nothing_is_kept(path: Path) -> None:
    for limits in (Schedule(), Schedule(cycle=4), Schedule(min_separation=1)):
        for rnd in (1, 2):
            assert asked(path, rnd, ["a"], limits, query=str(limits)) == [True]
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM attendance").fetchone() == (0,)
    database.close()


def test_users_beyond_the_owners_limits_have_not_attended(path: Path) -> None:
    limits, once = Schedule(min_separation=2), Policy(max_participations=1)
    assert asked(path, 1, ["a"], limits, once, run="before") == [True]
    assert asked(path, 1, ["a", "b"], limits, once) == [False, True]
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT id FROM attendance WHERE run = 'r'").fetchall()
    database.close()
    assert sorted(len(id_) for (id_,) in rows) == [len(b"turn 0"), 32]


@pytest.mark.parametrize("policy", [None, POLICY])
def test_all_or_nothing(path: Path, policy: Policy | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off at its last step, a round is as if it had never been asked."""
    limits = Schedule(min_separation=5)
    asked(path, 1, ["a"], limits, policy, run="before")

    def killed(*arguments: Any) -> None:
        schedule.attend(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("privsyn_flower.client_apps.node.records.attend", killed)
        with pytest.raises(KeyboardInterrupt):
            asked(path, 1, ["a", "b"], limits, policy)
    assert asked(path, 2, ["a", "b"], limits, policy) == [True, True]
    status = NodeRecords(path).status(1e-6)
    assert [(mark["round"], mark["answers"]) for mark in status["runs"]] == [(1, 1), (2, 1)]
    assert status["max_participations"] == (0 if policy is None else 2)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"cycle": 2, "min_separation": 3}, "cycle = 2 is below min-separation = 3"),
        ({"cycle": -1}, "cycle"),
        ({"min_separation": 2.0}, "min-separation"),
        ({"max_participations": "3"}, "max-participations"),
        ({"max_participations": True}, "max-participations"),
        ({"cycle": 2**31}, "cycle"),
    ],
)
def test_schedules_that_are_none_are_malformed(options: dict[str, Any], word: str) -> None:
    with pytest.raises(WireError, match=word) as caught:
        Schedule.of(with_options(**options))
    assert caught.value.code is Refusal.MALFORMED


def test_schedules_come_from_the_options() -> None:
    assert Schedule.of(with_options()) == Schedule()
    query = with_options(cycle=4, min_separation=3, max_participations=2)
    assert Schedule.of(query) == Schedule(4, 3, 2)
    assert Schedule.of(with_options(cycle=3, min_separation=3)).limited
