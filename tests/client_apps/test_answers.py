"""Every stage of a secure round through the real handlers, and what nodes refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from privsyn_flower.client_apps.answers import contribution
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.privacy.release import TooFewSurvivors
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.secure import stage_of
from privsyn_flower.server_apps.costs import read_timings
from privsyn_flower.strategies.engine.aggregation import Attempt, SecureAggregation
from tests.rigs.answers import USERS, Device, expected, question

TICKET = Ticket("run", "votes", 1, 1)
NOISE = Noise(1e-6, 2.0**26, 32, 15.0)  # hardly any, and yet many integers


def collect(
    grid: Any, query: Query, noise: Noise = NOISE, heavy: int = 5, **ticket: int
) -> tuple[Any, list[str]]:
    """heavy: the weight of node 3."""
    log: list[str] = []
    cohort = {100 + i: Hello(heavy if i == 3 else 5, i, deployed=False) for i in range(4)}
    attempt = Attempt(
        grid,
        cohort,
        query,
        Ticket("run", "votes", ticket.get("round", 1), ticket.get("attempt", 1)),
        noise,
        timeout=0.5,
        stage_timeout=0.5,
        arrived=lambda n, of: None,
        revealing=lambda: log.append("revealing"),
    )
    got = SecureAggregation().collect(attempt)
    return replace(got, total=got.total.decoded(noise.multiplier)), log


def test_the_sum_of_all(tmp_path: Path, loopback: Any) -> None:
    query = question()
    devices = {100 + i: Device(tmp_path, i) for i in range(4)}
    got, log = collect(loopback(devices), query)
    assert np.allclose(got.total.vector, expected(query, [0, 1, 2, 3]), atol=20 / 4096)
    assert (got.total.weight, got.nodes_answered, log) == (20.0, 4, ["revealing"])
    assert devices[100].stages == ["advertise", "share", "mask", "confirm", "unmask"]


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "confirm", "unmask"])
def test_a_node_that_dies_in_any_stage(tmp_path: Path, loopback: Any, stage: str) -> None:
    query = question()
    devices = {100 + i: Device(tmp_path, i) for i in range(4)}
    devices[102].dies_at = stage
    got, _ = collect(loopback(devices), query)
    arrived = stage in ("confirm", "unmask")  # its masked vector had
    alive = [0, 1, 2, 3] if arrived else [0, 1, 3]
    assert np.allclose(got.total.vector, expected(query, alive), atol=20 / 4096)


@pytest.mark.parametrize("stage", ["advertise", "share", "mask"])
def test_too_few_are_never_unmasked(tmp_path: Path, loopback: Any, stage: str) -> None:
    devices = {100 + i: Device(tmp_path, i) for i in range(4)}
    devices[101].dies_at = devices[102].dies_at = stage
    grid = loopback(devices)
    with pytest.raises(TooFewSurvivors, match=r"W_min|at least 3"):
        collect(grid, question())
    assert "unmask" not in devices[100].stages + devices[103].stages


@pytest.mark.parametrize("deployed", [False, True])
def test_a_device_writes_no_timings(tmp_path: Path, deployed: bool) -> None:
    node = Device(tmp_path, 0).node
    node = replace(node, facts=replace(node.facts, deployed=deployed))
    node.cache.mkdir()
    contribution(question(), TICKET, NOISE, node, VOTES)
    assert len(read_timings(tmp_path, "run")) == (0 if deployed else 1)


def test_a_ticket_is_answered_once(tmp_path: Path, loopback: Any) -> None:
    grid = loopback({100 + i: Device(tmp_path, i) for i in range(4)})
    query = question()
    collect(grid, query, round=2)
    for again in ({"round": 2}, {"round": 1}):
        with pytest.raises(TooFewSurvivors):
            collect(grid, query, **again)
    collect(grid, query, round=2, attempt=2)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"sensitivity": 40.0}, "malformed-query", "sensitivity = 40 is noise of standard"),
        ({"noise-multiplier": 1e-9}, "malformed-query", "noise_multiplier = 1e-09"),
        ({"min-weight": 1e12}, "malformed-query", "where W_min = 1e+12"),
        ({"protocol": 4}, "protocol-version", f"protocol 4, this side speaks {wire.PROTOCOL}"),
    ],
)
def test_integers_that_are_no_gaussian_noise_are_refused(
    tmp_path: Path, loopback: Any, caplog: Any, change: dict[str, Any], code: str, words: str
) -> None:
    """Before a text is opened; the node's owner reads the numbers, the server a code."""
    device = Device(tmp_path, 0)
    object.__setattr__(device.node, "load", lambda: pytest.fail("private text was opened"))
    message = wire.ask(question(), TICKET, Noise(1.5, 4096.0, 32, 15.0), 100, 5, 60.0)
    message.content.config_records["ask"].update(change)
    reply = device(message)
    assert reply is not None
    assert dict(reply.content.config_records["answer"])["code"] == code
    assert words in caplog.text


def test_another_question_than_the_session_is_refused(tmp_path: Path, loopback: Any) -> None:
    devices = {100 + i: Device(tmp_path, i) for i in range(4)}

    def weaker(message: Message) -> None:
        head = message.content.config_records.get("ask")
        if head is not None and stage_of(message) == "mask":
            head["noise-multiplier"] = 1e-9

    for device in devices.values():
        device.tamper = weaker
    with pytest.raises(TooFewSurvivors):
        collect(loopback(devices), question())
    for device in devices.values():
        assert dict(device.context.state["secagg"]) == {}  # the secrets are gone


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        {"min_noise_multiplier": 2.0},
        {"min_surviving_weight": 16.0},
        {"min_cohort": 5},
        {"max_candidates": 9},
        {"aggregation": ("plain",)},
        {"min_colluding_share": 0.1},
        {"allowed_models": ("another",)},
        {"queries": ()},
        {"max_surviving_weight": 14.9, "min_surviving_weight": 1.0},
        {"max_population": 19},
        {"max_member_share": 0.24},
    ],
)
def test_the_owners_policy_holds(
    tmp_path: Path, loopback: Any, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = {"min_noise_multiplier": 1e-7, "min_surviving_weight": 15.0, "lifetime_epsilon": 1e3}
    good = {"min_noise_multiplier": 1.0, "min_surviving_weight": 15.0}
    noise = Noise(1.5, 4096.0, 32, 15.0)
    devices = {100 + i: Device(tmp_path, i, Policy(**good)) for i in range(4)}
    got, _ = collect(loopback(devices), question(), noise)
    assert got.nodes_answered == 4
    strict = {100 + i: Device(tmp_path, i, Policy(**{**allowed, **policy})) for i in range(4)}
    with pytest.raises(TooFewSurvivors):
        collect(loopback(strict), question(), noise, round=2)
    assert "policy" in caplog.text


@pytest.mark.slow
def test_users_beyond_their_lifetime_epsilon_contribute_nothing(
    tmp_path: Path, loopback: Any
) -> None:
    policy = Policy(min_noise_multiplier=1.0, lifetime_epsilon=3.0, lifetime_delta=1e-6)
    noise = Noise(5.0, 4096.0, 32, 15.0)
    devices = {100 + i: Device(tmp_path, i, policy) for i in range(4)}
    grid = loopback(devices)
    rounds = 12
    for rnd in range(1, rounds + 1):
        got, _ = collect(grid, question(), noise, round=rnd)
        assert got.total.weight == 20.0  # the noise stays, whoever is over the limit
    status = devices[100].node.records.status(1e-6)
    assert 2.0 < status["max_spent_epsilon"] <= 3.0
    assert 0 < status["max_participations"] < rounds


def test_withdrawn_users_are_gone(tmp_path: Path, loopback: Any) -> None:
    policy = Policy(min_noise_multiplier=1e-7, lifetime_epsilon=1e9)
    query = question()
    devices = {100 + i: Device(tmp_path, i) for i in range(4)}
    for user in USERS[2]:
        devices[102].node.records.forget(user)
    object.__setattr__(devices[102].node, "policy", policy)
    got, _ = collect(loopback(devices), query)
    assert got.total.weight == 20.0  # the node's noise stays: who withdrew is nobody's business
    assert np.allclose(got.total.vector, expected(query, [0, 1, 3]), atol=20 / 4096)


def test_min_cohort_counts_those_who_are_left(tmp_path: Path, loopback: Any) -> None:
    """Four nodes join, three are left: not enough for an owner who wants four."""
    policy = Policy(min_noise_multiplier=1.0, min_cohort=4)
    devices = {100 + i: Device(tmp_path, i, policy) for i in range(4)}
    devices[102].dies_at = "mask"
    grid = loopback(devices)
    with pytest.raises(TooFewSurvivors):
        collect(grid, question(), Noise(1.5, 4096.0, 32, 15.0))
    assert "confirm" in devices[100].stages and "unmask" not in devices[100].stages


@pytest.mark.parametrize(
    ("heavy", "min_weight", "stage"),
    [
        (985, 700.0, "share"),  # of 1,000 declared users: the others' noise would be 2 % of it
        (10**9, 7e8, "advertise"),
        (10**8, 15.0, "share"),  # alone it is the guaranteed weight, whoever else is left
    ],
)
def test_a_colluder_of_a_huge_weight_takes_nobodys_noise_off(
    tmp_path: Path, loopback: Any, heavy: int, min_weight: float, stage: str
) -> None:
    devices = {100 + i: Device(tmp_path, i, Policy()) for i in range(3)}
    grid = loopback({**devices, 103: Device(tmp_path, 3, weight=heavy)})
    with pytest.raises(TooFewSurvivors):
        collect(grid, question(), Noise(1.5, 4096.0, 56, min_weight), heavy)
    assert {device.stages[-1] for device in devices.values()} == {stage}


def test_a_weight_is_kept_with_the_key(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    noise = Noise(1.5, 4096.0, 32, 15.0)
    devices = {100 + i: Device(tmp_path, i, Policy()) for i in range(3)}
    collect(loopback({**devices, 103: Device(tmp_path, 3)}), question(), noise)
    grown = {**devices, 103: Device(tmp_path, 3, weight=6)}
    with pytest.raises(TooFewSurvivors):
        collect(loopback(grown), question(), noise, 6, round=2)
    assert "'103' shows another weight than the first time" in caplog.text
    collect(loopback({**devices, 103: Device(tmp_path, 3)}), question(), noise, round=3)
