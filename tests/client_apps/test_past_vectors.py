"""Rows of a matrix on a node: C X for its own users, whatever is asked, lost, damaged or raced."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps.answers import Kind
from privsyn_flower.client_apps.node.lifetime import cost
from privsyn_flower.client_apps.node.past_vectors import store_vector
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.schedule import Schedule
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.protocol.noise import (
    encoded_length,
    total_variation,
)
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal
from tests.rigs.past_vectors import (
    MATRIX,
    POLICY,
    ROUNDS,
    WEIGHT,
    Rig,
    Z,
    device,
    drawn,
    noise,
    question,
    refused,
    rig,
)

__all__ = ["device", "drawn", "rig"]  # pytest finds fixtures by name


def test_answers_are_rows_of_the_matrix_with_noise_for_them(rig: Rig, drawn: Any) -> None:
    for rnd in range(1, ROUNDS + 1):
        assert np.array_equal(rig.ask(rnd), rig.row(rnd))
        assert len(rig.files) == min(rnd, 3)
    taken = [rnd for rnd in rig.said if "ann" in rig.said[rnd]]
    assert taken == [1, 3, 5, 7]  # two apart, four at most; all other rounds were answered too
    sensitivity = 64 * noise(question()).sensitivity
    assert drawn == [(WEIGHT, WEIGHT, Z, sensitivity, None)] * ROUNDS


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(st.integers(0, 8), min_size=0, max_size=4),
    asked=st.lists(
        st.tuples(st.integers(1, 3), st.sets(st.sampled_from("abc")), st.integers(0, 3)),
        max_size=7,
    ),
    apart=st.integers(1, 4),
    most=st.integers(0, 3),
    policy=st.sampled_from([POLICY, None]),
)
def test_rows_and_limits_hold_whatever_is_asked(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[int],
    asked: list[tuple[int, set[str], int]],
    apart: int,
    most: int,
    policy: Policy | None,
) -> None:
    """Rounds are left out, users come and go, rows are asked again; compared with C X by numpy."""
    coefficients = [8]
    for step in steps:
        coefficients.append(max(0, coefficients[-1] - step))
    if policy:
        policy = policy.model_copy(update={"max_past_vectors": 4})
    matrix = IntegerMatrix(tuple(coefficients), Participation(24, apart, most))
    rig, query = Rig(tmp_path_factory.mktemp("node"), policy), question(matrix)
    band = sum(np.diag([float(a)] * (24 - j), -j) for j, a in enumerate(coefficients))
    rnd = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            answers, "node_noise_integers", lambda length, *_: np.zeros(length, dtype=np.int64)
        )
        for step, users, again in asked:
            rnd, rig.users = rnd + step, sorted(users)
            for attempt in range(1, again + 2):
                row = rig.ask(rnd, attempt, query)
                everything = np.array([rig.total(t) for t in range(1, 25)])
                assert np.array_equal(row, (band @ everything)[rnd - 1])
    for user in "abc":
        taken = [t for t in sorted(rig.said) if user in rig.said[t]]
        assert all(b - a >= apart for a, b in itertools.pairwise(taken))
        assert not most or len(taken) <= most


# --- what it costs ------------------------------------------------------------------------------


def expected(first: int, again: int) -> Any:
    """Of so many participations and repeated rows; a vector's noise is in three rows."""
    distance = total_variation(question(), noise(question()))
    one = cost(MATRIX.participation_multiplier(Z), 3 * distance)
    more = cost(MATRIX.repeat_multiplier(Z), distance)
    sums = [first * a + again * b for a, b in zip(one, more, strict=True)]
    return pytest.approx(sums, rel=1e-9, abs=0.0)


def test_a_participation_is_charged_for_all_its_rows_and_a_repeated_row_once_more(
    device: Rig,
) -> None:
    device.ask(1)
    assert device.spent("ann") == expected(1, 0)
    device.ask(1, 2)
    device.ask(1, 7)
    assert device.spent("ann") == expected(1, 2)
    device.users = ["bob"]
    device.ask(3)  # of ann, round 1 is still in it: paid for
    assert device.spent("ann") == expected(1, 2)
    device.ask(3, 2)
    assert [device.spent(u) for u in ("ann", "bob")] == [
        expected(1, 3),
        expected(2, 3),
    ]
    device.ask(4)
    device.ask(4, 2)  # round 1 is not in row 4
    assert device.spent("ann") == expected(1, 3)
    assert device.spent("bob") == expected(2, 4)
    # All that was released of a user cost no more than this: C of the worst participations.
    worst = MATRIX.toeplitz.sensitivity_by_count(MATRIX.participation)
    for count, sensitivity in enumerate(worst, start=1):
        one = cost(MATRIX.participation_multiplier(Z), 0.0)
        assert count * one.gaussian >= (sensitivity / Z) ** 2 * (1 - 1e-12)


def test_the_owner_compares_what_a_participation_costs(device: Rig) -> None:
    least = MATRIX.participation_multiplier(Z)
    assert least < 0.8 * Z
    device.policy = POLICY.model_copy(update={"min_noise_multiplier": least * 1.001})
    refused(lambda: device.ask(1), "noise multiplier")
    device.policy = POLICY.model_copy(update={"min_noise_multiplier": least})
    device.ask(1)


def test_the_owner_bounds_what_is_kept(device: Rig) -> None:
    assert Policy().max_past_vectors == 0
    device.policy = POLICY.model_copy(update={"max_past_vectors": 1})
    refused(lambda: device.ask(1), "earlier rounds kept = 2 must be <= 1: policy key max-past-vec")
    assert not device.files


def test_who_may_not_pay_again_takes_the_earlier_rounds_along(device: Rig) -> None:
    """No refusal shows it; nobody is charged for a row of zeros, and later rows are whole."""
    device.ask(1)
    device.users = ["carl"]
    device.policy = POLICY.model_copy(update={"max_participations": 1})
    device.ask(2)
    assert device.ask(2, 2).any()  # a repeat is no participation
    device.policy = POLICY.model_copy(update={"lifetime_epsilon": 1e-3})
    before = [device.spent(user) for user in ("ann", "bob", "carl")]
    assert not device.ask(2, 3).any()
    assert [device.spent(user) for user in ("ann", "bob", "carl")] == before
    assert not device.files and "left out for good" in device.log()
    assert not device.ask(2, 4).any()
    assert device.log().count("left out for good") == 1
    device.users, device.policy = ["dora"], POLICY
    assert np.array_equal(device.ask(3), 64 * device.total(3)) and device.total(3).any()
    assert np.array_equal(device.ask(4), 32 * device.total(3) + 64 * device.total(4))


def test_a_lifetime_epsilon_counts_repeated_rows(device: Rig) -> None:
    device.policy = POLICY.model_copy(update={"lifetime_epsilon": 3.0})
    device.ask(1)
    repeats = 0
    while device.ask(1, repeats + 2).any():
        repeats += 1
        assert repeats < 50
    assert repeats > 0
    assert device.node.records.status(1e-6)["max_spent_epsilon"] <= 3.0


# --- a server that changes its mind --------------------------------------------------------------

OTHER: dict[str, Callable[[], tuple[Query, dict[str, Any]]]] = {
    "matrix": lambda: (question(replace(MATRIX, coefficients=(64, 32, 15))), {}),
    "rounds": lambda: (question(replace(MATRIX, participation=Participation(13, 2, 4))), {}),
    "min_separation": lambda: (
        question(replace(MATRIX, participation=Participation(12, 3, 4))),
        {},
    ),
    "max_participations": lambda: (
        question(replace(MATRIX, participation=Participation(12, 2))),
        {},
    ),
    "cycle": lambda: (question(cycle=2), {}),
    "rotation": lambda: (question(rotation="11" * 32), {}),
    "length": lambda: (replace(question(), length=6), {}),
    "bound": lambda: (replace(question(), bound=1.01), {"scale": noise(question()).scale / 1.01}),
    "multiplier": lambda: (question(), {"multiplier": 2 * Z}),
    "sensitivity": lambda: (question(), {"sensitivity": 1.01 * noise(question()).sensitivity}),
    "scale": lambda: (question(), {"scale": 0.9 * noise(question()).scale}),
    "bits": lambda: (question(), {"bits": 24}),
    "min_weight": lambda: (question(), {"min_weight": 5.0}),
    "colluding": lambda: (question(), {"colluding": 1.0}),
}


@pytest.mark.parametrize("what", OTHER)
def test_a_run_is_bound_to_its_first_numbers(rig: Rig, what: str) -> None:
    rig.ask(1)
    query, changes = OTHER[what]()
    if what == "rotation":
        query = replace(query, options={**query.options, "rotation": "11" * 32})
    refused(lambda: rig.ask(2, 1, query, **changes), f"began with other numbers: .*{what}")
    assert np.array_equal(rig.ask(2), rig.row(2))  # and nothing of it is written down
    assert rig.ask(1, 1, query, run="another", **changes) is not None


def test_a_run_has_rows_from_its_first_round_on_or_never(rig: Rig) -> None:
    plain = replace(
        question(), options={"encoding": "dense", "rotation": "00" * 32, "min-separation": 2}
    )
    rig.ask(1)
    refused(lambda: rig.ask(3, 1, plain), "began with other numbers")
    del rig.said[1]
    rig.ask(1, 1, plain, run="independent")
    del rig.said[1]
    refused(lambda: rig.ask(3, 1, run="independent"), "began with other numbers: bits, bound")


def test_another_kind_of_question_changes_no_turn(rig: Rig) -> None:
    """Its schedule would let the server move who took part when."""
    rig.ask(1)
    vote = replace(question(), kind="evaluation", options={"max-participations": 9})
    records, users, limits = rig.node.records, ["ann", "bob"], Schedule.of(vote)
    records.schedule("r", "evaluation", 2, 1, users, limits)
    assert np.array_equal(rig.ask(2), rig.row(2)) and rig.said[2] == {}
    records.schedule("r", "evaluation", 4, 1, users, limits)
    rig.ask(3)
    assert set(rig.said[3]) == {"ann", "bob"}


def test_rounds_are_asked_in_order_and_once(rig: Rig) -> None:
    rig.ask(3, 2)
    for rnd, attempt in ((3, 2), (3, 1), (2, 9), (1, 1)):
        refused(lambda at=(rnd, attempt): rig.ask(*at), "not answered again")
    assert np.array_equal(rig.ask(5), rig.row(5))


@pytest.mark.parametrize(
    ("query", "changes", "word"),
    [
        (question(), {"source": "aggregator"}, "nodes' noise"),
        (question(), {"sampling_rate": 0.5}, "no sampling"),
        (question(matrix="[64, 65]"), {}, "not increase"),
        (question(matrix="[63]"), {}, "power of two"),
        (question(matrix="[" * 9999), {}, "not a list"),
        (question(matrix="[64, -1]"), {}, "negative"),
        (question(matrix=f"[64, {'9' * 4000}]"), {}, "malformed"),
        (question(matrix="[64, 1.5]"), {}, "whole numbers"),
        (question(rounds=2**31), {}, "rounds"),
        (question(rounds=2), {}, "bands = 3"),
        (question(), {"multiplier": 1e-320, "sensitivity": 2.0**29}, "malformed"),
    ],
)
def test_what_is_no_matrix_is_malformed(
    rig: Rig, query: Query, changes: dict[str, Any], word: str
) -> None:
    good = noise(question())

    def asked() -> None:
        ticket, kind = Ticket("r", "update", 1, 1), Kind(lambda q, n: None, rig._vectors)
        answers._check(query, ticket, replace(good, **changes), rig.node, kind, "plain", 1.0)

    refused(asked, word, Refusal.MALFORMED)


def test_no_round_follows_the_last_one(rig: Rig) -> None:
    refused(lambda: rig.ask(ROUNDS + 1), "rounds = 12", Refusal.MALFORMED)


# --- attempts that repeat and race ---------------------------------------------------------------


def test_a_row_that_is_asked_again_has_the_kept_vectors(rig: Rig) -> None:
    for rnd in (1, 2):
        rig.ask(rnd)
    rig.users = ["ann", "new"]
    first = rig.ask(3)
    for attempt in (2, 3):
        assert np.array_equal(rig.ask(3, attempt), first)
    assert np.array_equal(rig.ask(4), rig.row(4))


def test_an_attempt_that_overtakes_the_first_makes_no_second_vector(rig: Rig) -> None:
    rig.ask(1)
    inside, go = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert go.wait(60)

    rig.before = wait
    found: list[Any] = []
    slow = threading.Thread(target=lambda: found.append(rig.ask(3)))
    slow.start()
    assert inside.wait(60)
    assert np.array_equal(rig.ask(3, 2), rig.row(3, {1}))
    go.set()
    slow.join()
    assert np.array_equal(found[0], rig.row(3)) and rig.total(3).any()
    assert np.array_equal(rig.ask(4), rig.row(4))


@pytest.mark.parametrize("written", [False, True])
def test_a_kill_in_a_round_costs_that_rounds_vector_at_most(
    rig: Rig, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ask(1)

    def kill(*arguments: Any) -> None:
        if written:
            store_vector(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("privsyn_flower.client_apps.node.rows.store_vector", kill)
        rig.ask(3)
    kept = {1, 3} if written else {1}
    assert np.array_equal(rig.ask(3, 2), rig.row(3, kept))
    assert np.array_equal(rig.ask(4), rig.row(4, {*kept, 4}))


def test_whatever_users_data_raises_is_zeros_in_its_round(rig: Rig) -> None:
    rig.ask(1)

    def panic() -> None:
        raise BaseException("diary")  # as a panic in Rust

    rig.before = panic
    assert np.array_equal(rig.ask(3), rig.row(3, {1}))
    rig.before = lambda: None
    assert np.array_equal(rig.ask(3, 2), rig.row(3, {1}))  # and stays so
    assert np.array_equal(rig.ask(4), rig.row(4))
    sizes = {path.stat().st_size for path in rig.files}
    assert len(rig.files) == 2 and sizes == {32 + 4 * encoded_length(question())}
