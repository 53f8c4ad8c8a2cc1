"""Encodings that travel, and what no party accepts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.secagg import Code, Cohort, Member, SecaggError, Session
from privsyn_flower.secagg.cohort import pack_list, unpack_list
from tests.rigs.session import members
from tests.secagg.rig import a_session


def weighing(*weights: int) -> list[Member]:
    pairs = zip(members(len(weights)), weights, strict=True)
    return [replace(member, weight=weight) for member, weight in pairs]


def test_a_session_survives_its_text_and_any_change_shows() -> None:
    session = a_session(colluding=0.5, context="question")
    assert Session.from_json(session.to_json()) == session
    digests = {session.digest}
    for name, value in {
        "run": "other", "query": "q", "round": 2, "attempt": 2, "length": 6, "bits": 24,
        "min_weight": 2.0, "colluding": 0.25, "context": "",
    }.items():  # fmt: skip
        digests.add(a_session(**{"colluding": 0.5, "context": "question", name: value}).digest)
    assert len(digests) == 10


@pytest.mark.parametrize(
    "changes",
    [
        {"run": 1}, {"context": None}, {"round": 1.0}, {"round": True}, {"round": -1},
        {"attempt": 0}, {"length": 0}, {"length": 2**28 + 1}, {"bits": 12}, {"bits": 64},
        {"min_weight": -1}, {"min_weight": float("nan")}, {"colluding": float("inf")},
        {"colluding": "1"},
    ],
)  # fmt: skip
def test_sessions_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(SecaggError) as caught:
        a_session(**changes)
    assert caught.value.code == Code.MALFORMED
    values = {**json.loads(a_session().to_json()), **changes}
    with pytest.raises(SecaggError, match="malformed"):
        Session.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"run": 1}', "x" * 50])
def test_unreadable_sessions(text: str) -> None:
    with pytest.raises(SecaggError, match="unreadable"):
        Session.from_json(text)


def test_a_cohort_survives_its_bytes_in_one_order() -> None:
    session = a_session()
    cohort = Cohort.of(session, members(4))
    assert [member.id for member in cohort.members] == [6, 7, 8, 9]
    data = cohort.encode()
    assert len(data) == 4 * 176
    assert Cohort.decode(session, data) == cohort
    assert Cohort.decode(session, data).digest == cohort.digest
    swapped = data[176:352] + data[:176] + data[352:]
    for bad in (swapped, data[:-1], data + b"x"):
        with pytest.raises(SecaggError, match="malformed"):
            Cohort.decode(session, bad)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"id": 9}, Code.PEER),
        ({"identity": bytes([1, 0]) * 16}, Code.PEER),
        ({"cipher": bytes([2, 0]) * 16}, Code.PEER),
        ({"mask": bytes([3, 0]) * 16}, Code.PEER),
        ({"weight": 0}, Code.PEER),
    ],
)
def test_members_that_are_not_distinct(changes: dict[str, Any], code: Code) -> None:
    with pytest.raises(SecaggError) as caught:
        Cohort.of(a_session(), members(4, **changes))
    assert caught.value.code == code


@pytest.mark.parametrize(("n", "min_weight"), [(2, 1.0), (0, 0.0), (4, 4.5)])
def test_cohorts_that_are_too_small(n: int, min_weight: float) -> None:
    with pytest.raises(SecaggError) as caught:
        Cohort.of(a_session(min_weight=min_weight), members(n))
    assert caught.value.code == Code.COHORT


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_lists_survive_packing(listed: list[bool]) -> None:
    data = pack_list(listed)
    assert unpack_list(data, len(listed)) == listed
    for bad in (data + b"\0", data[:-1]):
        with pytest.raises(SecaggError, match="malformed"):
            unpack_list(bad, len(listed))
    if len(listed) % 8:
        padded = bytes(
            np.frombuffer(data, np.uint8) | np.array([0] * (len(data) - 1) + [1], np.uint8)
        )
        with pytest.raises(SecaggError, match="malformed"):
            unpack_list(padded, len(listed))


@given(
    weights=st.lists(st.integers(1, 50), min_size=3, max_size=7),
    colluding=st.integers(0, 20), first=st.integers(0, 127), second=st.integers(0, 127),
)  # fmt: skip
def test_two_quorums_share_an_honest_signer(
    weights: list[int], colluding: int, first: int, second: int
) -> None:
    """Whoever one dishonest member is, whatever weight it declared, and whoever weighs no more
    than the colluders together."""
    cohort = Cohort(a_session(colluding=float(colluding)), tuple(weighing(*weights)))
    lists = [[bool(bits >> i & 1) for i in range(len(weights))] for bits in (first, second)]
    try:
        for listed in lists:
            cohort.check_quorum(listed)
    except SecaggError:
        return
    both = [i for i in range(len(weights)) if lists[0][i] and lists[1][i]]
    assert len(both) > 1
    assert sum(weights[i] for i in both) > max(colluding, *(weights[i] for i in both))


def test_the_heaviest_member_needs_more_than_half_of_the_others() -> None:
    cohort = Cohort.of(a_session(), weighing(1000, 1, 1, 1, 1))
    heaviest = [member.weight > 1 for member in cohort.members]
    with pytest.raises(SecaggError, match="signed the list"):
        cohort.check_quorum(heaviest)
    with pytest.raises(SecaggError, match="signed the list"):
        cohort.check_quorum([heavy or at < 2 for at, heavy in enumerate(heaviest)])
    cohort.check_quorum([heavy or at < 3 for at, heavy in enumerate(heaviest)])


def test_a_quorum_is_more_than_half_and_the_colluders() -> None:
    cohort = Cohort.of(a_session(colluding=1.0), members(5))
    cohort.check_quorum([True] * 4 + [False])
    with pytest.raises(SecaggError, match="signed the list"):
        cohort.check_quorum([True] * 3 + [False] * 2)
