"""Dense answers of a node: padded sums, whose noise they carry, the question's schedule."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps.answers import Kind, Participants, guarded
from privsyn_flower.client_apps.answers import reply as answered
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.schedule import Schedule
from privsyn_flower.privacy.encoding.dense import dense_numbers, encode_dense
from privsyn_flower.privacy.encoding.quantize import SENSITIVITY
from privsyn_flower.privacy.encoding.sizing import least_sensitivity
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.release import ReleaseRefused, TooFewSurvivors, release
from privsyn_flower.protocol.greeting import Hello, answer_hello, is_hello
from privsyn_flower.protocol.noise import Noise, Source, encoded_bound
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.server_apps.costs import read_timings
from privsyn_flower.strategies.engine.aggregation import Attempt, PlainSum, SecureAggregation
from tests.conftest import node_context

LENGTH, USERS, NODES = 300, 5, 4
WEIGHT = float(USERS * NODES)


def vector_of(user: str) -> Any:
    """A unit vector that is this user's alone."""
    node, number = map(int, user.split("-"))
    vector = np.zeros(LENGTH)
    vector[10 * node + number] = 1.0
    return vector


def user_updates(
    query: Query, users: Any, participants: Participants, plan: Any, node: Node
) -> Any:
    total = np.zeros(plan.padded_length, dtype=np.int64)
    for name, takes in zip(users, participants.sampled, strict=True):
        if takes:
            total += encode_dense(vector_of(name), plan, query.rotation)
    return total


UPDATE = Kind(lambda query, node: None, user_updates)


class Trainer:
    """A node of five users with one handler for everything that arrives as `train`."""

    def __init__(self, folder: Path, index: int, policy: Policy | None = None) -> None:
        self.users = {f"{index}-{number}": ["text"] for number in range(USERS)}
        self.context = node_context({}, node_id=100 + index)
        self.node = Node(
            facts=Hello(USERS, index, deployed=policy is not None),
            cache=folder / f"node-{index}",
            embedder="none",
            device="cpu",
            policy=policy,
            noise_seed=None,
            load=lambda: self.users,
        )
        self.kind = UPDATE

    def __call__(self, message: Message) -> Message:
        if is_hello(message):
            return answer_hello(message, self.node.facts)
        return guarded(message, lambda: answered(message, self.context, self.node, self.kind))


def question(**options: Any) -> Query:
    return Query.update(
        np.ones(16, np.uint8),
        length=LENGTH,
        bound=1.0,
        model="m",
        rotation=bytes(range(32)),
        options={name.replace("_", "-"): value for name, value in options.items()},
    )


def numbers(multiplier: float = 1e-6, source: Source = "nodes", min_weight: float = 15.0) -> Noise:
    added = multiplier if source == "nodes" else 0.0
    least = least_sensitivity(LENGTH, multiplier, min_weight, 1.0) if added else SENSITIVITY
    plan = dense_numbers(1.0, LENGTH, added, WEIGHT, min_weight, max(SENSITIVITY, least))
    return Noise(
        multiplier, plan.sensitivity, plan.bits, min_weight, scale=plan.scale, source=source
    )


def collect(grid: Any, query: Query, noise: Noise, way: Any = PlainSum, **ticket: int) -> Any:
    cohort = {100 + i: Hello(USERS, i, deployed=False) for i in range(NODES)}
    named = Ticket("run", "update", ticket.get("round", 1), ticket.get("attempt", 1))
    attempt = Attempt(grid, cohort, query, named, noise, 0.5, 0.5, lambda n, of: None, lambda: None)
    got = way().collect(attempt)
    multiplier = noise.multiplier if noise.source == "nodes" else 0.0
    return replace(got, total=got.total.decoded(multiplier))


def trainers(folder: Path, policy: Policy | None = None) -> dict[int, Trainer]:
    return {100 + i: Trainer(folder, i, policy) for i in range(NODES)}


def refused(*arguments: Any, **ticket: int) -> bool:
    """Whether so many nodes refuse that nothing is left to release."""
    with pytest.raises(TooFewSurvivors):
        collect(*arguments, **ticket)
    return True


def codes(replies: list[Message]) -> list[str]:
    """With which codes the nodes answered."""
    return [
        str(dict(reply.content.get("secagg", reply.content.get("answer")))["code"])
        for reply in replies
    ]


def who(vector: Any) -> set[str]:
    """The users whose coordinates are in a sum."""
    return {f"{i}-{j}" for i in range(NODES) for j in range(USERS) if abs(vector[10 * i + j]) > 0.5}


PLAIN = Policy(
    aggregation=("plain",),
    queries=("update",),
    min_noise_multiplier=1e-7,
    min_surviving_weight=1.0,  # turns are small here
    lifetime_epsilon=1e15,
)
EVERYBODY = {f"{i}-{j}" for i in range(NODES) for j in range(USERS)}


@pytest.mark.parametrize("way", [SecureAggregation, PlainSum])
@pytest.mark.parametrize("source", ["nodes", "aggregator"])
def test_the_sum_of_all(tmp_path: Path, loopback: Any, way: Any, source: Source) -> None:
    noise = numbers(source=source)
    grid = loopback(trainers(tmp_path))
    got = collect(grid, question(), noise, way)
    expected = sum(vector_of(user) for user in EVERYBODY)
    assert got.total.vector.shape == (LENGTH,)
    # 20 roundings of a standard deviation of 1/2 at most, or in float32, and the noise.
    error = 6 * (20 / 4) ** 0.5 / noise.scale
    if source == "nodes":
        error += 4e-6 + 6 * noise.multiplier * (20 / 15) ** 0.5
    assert np.abs(got.total.vector - expected).max() < error
    assert {message.metadata.message_type for message in grid.sent} == {"train"}
    assert got.nodes_answered == NODES and got.total.weight == WEIGHT
    assert got.total.bound == encoded_bound(question(), noise) == noise.sensitivity / noise.scale


@pytest.mark.parametrize("policy", [None, PLAIN])
def test_a_simulated_answer_is_timed_on_the_node(
    tmp_path: Path, loopback: Any, policy: Policy | None
) -> None:
    grid = loopback(trainers(tmp_path, policy))
    collect(grid, question(), numbers(), round=4)
    entries = read_timings(tmp_path, "run")
    assert len(entries) == (0 if policy else NODES)
    assert all(entry["round"] == 4 and entry["users"] == USERS for entry in entries)


def test_nodes_add_the_noise_that_is_promised(tmp_path: Path, loopback: Any) -> None:
    noise = numbers(2.0)
    nodes = trainers(tmp_path)
    for node in nodes.values():
        node.users = {}
    got = collect(loopback(nodes), question(), noise).total
    ratio = (got.vector.std() / got.noise_std) ** 2
    assert got.noise_std == pytest.approx(2.0, rel=0.011) and got.noise_std >= 2.0
    assert 0.7 < ratio * 15.0 / WEIGHT < 1.35  # chi-square of 300: 6 standard deviations down


def test_a_sum_without_noise_is_not_released(tmp_path: Path, loopback: Any) -> None:
    noise = numbers(2.0, source="aggregator")
    got = collect(loopback(trainers(tmp_path)), question(), noise).total
    assert got.noise_std == 0.0
    ledger = Ledger.open(
        tmp_path / "ledger.jsonl", population="p", total_epsilon=None, total_delta=None
    )
    charge = ledger.reserve(run="run", query="update", round=1, attempt=1, noise_multiplier=2.0)
    with pytest.raises(ReleaseRefused, match="noise_std"):
        release(got, ledger=ledger, charge_id=charge, store=lambda array: None)


@pytest.mark.parametrize("seed", [None, 5])
def test_nothing_is_drawn_where_the_aggregator_adds_noise(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    def drawn(*arguments: Any) -> None:
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(answers, "node_noise_integers", drawn)
    nodes = trainers(tmp_path)
    for node in nodes.values():
        node.node = replace(node.node, noise_seed=seed)
    got = collect(loopback(nodes), question(), numbers(source="aggregator"))
    assert who(got.total.vector) == EVERYBODY
    grid = loopback(nodes)
    assert refused(grid, question(), numbers(), round=2)
    assert codes(grid.received) == ["node-setup"] * NODES


@pytest.mark.parametrize(
    ("policy", "source", "allowed"),
    [
        ({}, "nodes", True),
        ({}, "aggregator", False),
        ({"trusted_aggregator": True}, "aggregator", True),
        ({"trusted_aggregator": True, "min_noise_multiplier": 2.5}, "aggregator", False),
        ({"queries": ("votes",)}, "nodes", False),
        ({"max_parameters": LENGTH - 1}, "nodes", False),
        ({"max_parameters": LENGTH, "max_candidates": 1}, "nodes", True),
    ],
)
def test_the_owners_policy_holds(
    tmp_path: Path, loopback: Any, policy: dict[str, Any], source: Source, allowed: bool
) -> None:
    fixed = {"aggregation": ("plain",), "queries": ("update",), "lifetime_epsilon": 1e3}
    owner = Policy(**fixed | policy)
    grid = loopback(trainers(tmp_path, owner))
    if allowed:
        assert collect(grid, question(), numbers(2.0, source)).nodes_answered == NODES
        return
    assert refused(grid, question(), numbers(2.0, source))
    assert codes(grid.received) == ["policy"] * NODES


def turns_of(
    nodes: dict[int, Trainer], loopback: Any, cycle: int, rounds: int, **options: int
) -> list[set[str]]:
    """Who takes part in each round of a rota."""
    query = question(cycle=cycle, **options)
    found = []
    for rnd in range(1, rounds + 1):
        got = collect(loopback(nodes), query, numbers(), round=rnd)
        assert got.nodes_answered == NODES
        found.append(who(got.total.vector))
    return found


@pytest.mark.parametrize("policy", [None, PLAIN])
def test_a_rota_over_users(tmp_path: Path, loopback: Any, policy: Policy | None) -> None:
    nodes, limits = trainers(tmp_path, policy), {"min_separation": 3, "max_participations": 2}
    turns = turns_of(nodes, loopback, 3, 6, **limits)
    assert turns[:3] == turns[3:] and set().union(*turns) == EVERYBODY
    assert sum(map(len, turns[:3])) == len(EVERYBODY)
    grid, query = loopback(nodes), question(cycle=3, **limits)
    assert refused(grid, query, numbers(), round=7)  # everybody's third
    assert codes(grid.received) == ["policy"] * NODES


@pytest.mark.parametrize(("least", "allowed"), [(5.0, True), (5.1, False)])
def test_the_owners_least_weight_is_that_of_a_turn(
    tmp_path: Path, loopback: Any, least: float, allowed: bool
) -> None:
    """All nodes answer, and W_min = 15 of their users; a third of them is in the sum."""
    owner = PLAIN.model_copy(update={"min_surviving_weight": least})
    grid = loopback(trainers(tmp_path, owner))
    if allowed:
        assert collect(grid, question(cycle=3), numbers()).nodes_answered == NODES
    else:
        assert refused(grid, question(cycle=3), numbers())


def test_a_simulated_rota_is_the_same_in_every_folder(tmp_path: Path, loopback: Any) -> None:
    """Place = the first 32 bits of the id's SHA-256, plus the node's partition."""
    turns = turns_of(trainers(tmp_path / "a"), loopback, 3, 3)
    assert turns == turns_of(trainers(tmp_path / "b"), loopback, 3, 3)
    for rnd, turn in enumerate(turns):
        due = set()
        for name in EVERYBODY:
            number = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
            if (number + int(name[0])) % 3 == rnd:
                due.add(name)
        assert turn == due


@pytest.mark.parametrize("policy", [None, PLAIN])
def test_nobody_moves_another_users_turn(
    tmp_path: Path, loopback: Any, policy: Policy | None
) -> None:
    """Users who join, and leave or cannot be read, and a file in another order."""
    nodes = trainers(tmp_path, policy)
    before = turns_of(nodes, loopback, 5, 5)
    nodes[100].users = {f"0-{number}": ["text"] for number in (4, 3, 2, 1)}  # 0-0 is gone
    nodes[101].users = {"0": ["text"], **nodes[101].users}  # sorts before everybody

    def unreadable(
        query: Query, users: Any, participants: Participants, plan: Any, node: Node
    ) -> Any:
        rest = {name: texts for name, texts in users.items() if name != "0"}
        return user_updates(
            query,
            rest,
            Participants(participants.eligible[1:], participants.sampled[1:]),
            plan,
            node,
        )

    nodes[101].kind = Kind(UPDATE.check, unreadable)
    query = question(cycle=5)
    for rnd, turn in enumerate(before):
        got = collect(loopback(nodes), query, numbers(), round=6 + rnd)
        assert who(got.total.vector) == turn - {"0-0"}


def test_devices_whose_users_have_one_name_have_turns_of_their_own(tmp_path: Path) -> None:
    rota, turns = Schedule(cycle=4), []
    for index in range(12):
        node = Trainer(tmp_path, index, PLAIN).node
        due = [answers._due({"user": []}, rota, rnd, node).tolist() for rnd in range(1, 5)]
        assert sorted(due) == [[False]] * 3 + [[True]]
        turns.append(due.index([True]))
    assert len(set(turns)) > 1  # by chance they are all one in 4 million


@pytest.mark.parametrize("way", [SecureAggregation, PlainSum])
def test_asked_too_soon_a_node_refuses(tmp_path: Path, loopback: Any, way: Any) -> None:
    grid = loopback(trainers(tmp_path))
    query = question(min_separation=2)
    for attempt in (1, 2):  # of one round: the same participation
        got = collect(grid, query, numbers(), way, attempt=attempt)
        assert who(got.total.vector) == EVERYBODY
    assert refused(grid, query, numbers(), way, round=2)
    assert codes(grid.received[-NODES:]) == ["policy"] * NODES
    assert who(collect(grid, query, numbers(), way, round=3).total.vector) == EVERYBODY


def test_in_another_cycle_nobody_comes_too_soon(tmp_path: Path, loopback: Any) -> None:
    """The server may change the rota; the node's records keep the separation."""
    nodes, query = trainers(tmp_path / "a"), question(cycle=4, min_separation=3)
    (*_, third) = turns_of(nodes, loopback, 3, 3, min_separation=3)
    others = loopback(trainers(tmp_path / "b"))
    due = who(collect(others, query, numbers(), round=5).total.vector)
    assert due & third
    assert who(collect(loopback(nodes), query, numbers(), round=5).total.vector) == due - third


def test_who_withdraws_leaves_the_others_their_turns(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(tmp_path, PLAIN)
    before = turns_of(nodes, loopback, 5, 5)
    nodes[100].node.records.forget("0-1")
    query = question(cycle=5, min_separation=5)
    after = [
        who(collect(loopback(nodes), query, numbers(), round=rnd).total.vector)
        for rnd in range(6, 11)
    ]
    assert after == [turn - {"0-1"} for turn in before]
    assert set().union(*after) == EVERYBODY - {"0-1"}


@pytest.mark.parametrize(
    "options", [{"cycle": 2, "min_separation": 3}, {"cycle": -1}, {"max_participations": 1.5}]
)
def test_a_schedule_that_is_none_is_malformed(
    tmp_path: Path, loopback: Any, options: dict[str, Any]
) -> None:
    grid = loopback(trainers(tmp_path))
    assert refused(grid, question(**options), numbers())
    assert codes(grid.received) == ["malformed-query"] * NODES


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text"),
        MemoryError(),
        BaseException("panic"),
        WireError(Refusal.MEMORY, "no room beside the texts"),
        WireError(Refusal.MODEL, "no room for the model beside the texts"),
    ],
)
def test_what_a_users_data_raises_becomes_zeros(
    tmp_path: Path, loopback: Any, error: BaseException
) -> None:
    def fails(*arguments: Any) -> Any:
        raise error

    nodes = trainers(tmp_path)
    nodes[101].kind = Kind(UPDATE.check, fails)
    nodes[102].users = {"x": ["cannot be a vector"]}
    got = collect(loopback(nodes), question(), numbers())
    assert got.nodes_answered == NODES
    assert {name[0] for name in who(got.total.vector)} == {"0", "3"}


def test_room_is_tried_before_a_text_is_opened_and_a_lack_of_it_is_not_told_afterwards(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a refusal would tell how much text users have."""
    steps: list[str] = []

    def rehearse(query: Query, node: Node) -> None:
        steps.append("rehearsal")

    def load() -> Any:
        steps.append("texts")
        return {}

    def full(*arguments: Any) -> Any:
        raise MemoryError

    nodes = trainers(tmp_path)
    nodes[101].kind = replace(UPDATE, rehearse=rehearse)
    nodes[101].node = replace(nodes[101].node, load=load)
    nodes[102].kind = replace(UPDATE, rehearse=full)
    grid = loopback(nodes)
    got = collect(grid, question(), numbers())
    assert steps == ["rehearsal", "texts"] and {n[0] for n in who(got.total.vector)} == {"0", "3"}
    assert got.nodes_answered == NODES - 1 and "out-of-memory" in codes(grid.received)
    monkeypatch.setattr(answers, "_participants", full)
    total = collect(loopback(trainers(tmp_path / "again")), question(), numbers()).total
    assert total.weight == WEIGHT and not who(total.vector)


def test_a_range_that_is_too_small_is_refused(tmp_path: Path, loopback: Any) -> None:
    noise = numbers(source="aggregator")
    coarse = dense_numbers(1.0, LENGTH, 0.0, 2.0, 2.0)  # for a sum of two users
    small = replace(noise, sensitivity=coarse.sensitivity, scale=coarse.scale, bits=coarse.bits)
    for way in (SecureAggregation, PlainSum):
        grid = loopback(trainers(tmp_path / way.__name__))
        assert refused(grid, question(), small, way)
