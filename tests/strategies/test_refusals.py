"""Why nodes do not answer reaches the person who runs it: codes and policy keys, with counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records import Peer
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.secure import RECORD
from privsyn_flower.protocol.wire import POLICY_KEYS, Refusal
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies import DPFedAvg
from privsyn_flower.strategies.engine.cohort import TooFewNodes
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.synthesis.evolution import NothingSurvived
from tests.rigs import secure_rounds as secure_rounds_rig
from tests.rigs.answers import Device
from tests.rigs.rounds import Counting, VotingNode, engine
from tests.strategies.training_rig import record, trainers

# What a node keeps to itself: limits of single users, and how a roster is read.
OWN = {"max-participations", "min-separation", "lifetime-epsilon", "lifetime-delta"}
OWN |= {"require-roster"}


class Refusing(VotingNode):
    """Refuses every question from round `since` on, by a code and a key."""

    def __init__(
        self, partition: int, code: Refusal = Refusal.POLICY, key: str = "queries", since: int = 1
    ) -> None:
        super().__init__(25, partition)
        self.code, self.key, self.since = code, key, since

    def __call__(self, message: Message) -> Message | None:
        reply = super().__call__(message)
        if message.metadata.message_type == greeting.HELLO or self.seen[-1][0].round < self.since:
            return reply
        return wire.refuse(message, self.code, self.key)


def refusing(*options: Any, **more: Any) -> dict[int, Any]:
    return {100 + i: Refusing(i, *options, **more) for i in range(4)}


def test_a_refusal_of_everybody_is_asked_once_and_told(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = refusing()
    run = engine(tmp_path, loopback(nodes), Counting())
    told = r"4 of 4 nodes refused: policy \(queries\)"
    with pytest.raises(NoRelease, match=told):
        run.run()
    assert [len(node.seen) for node in nodes.values()] == [1] * 4
    assert "round 1: 4 of 4 nodes refused: policy (queries)" in caplog.messages


def test_nodes_of_another_policy_end_a_secure_run_at_once(tmp_path: Path, loopback: Any) -> None:
    policy = Policy(queries=("scores",), min_cohort=3)
    devices = {100 + i: Device(tmp_path, i, policy) for i in range(4)}
    run = secure_rounds_rig.engine(tmp_path, loopback(devices), secure_rounds_rig.Asking())
    with pytest.raises(NoRelease, match=r"4 of 4 nodes refused: policy \(queries\)"):
        run.run()
    assert [device.stages for device in devices.values()] == [["advertise"]] * 4
    assert secure_rounds_rig.states(run) == [(1, 1, "void", False)]


def test_another_key_than_a_peers_first_is_told_by_its_own_key(
    tmp_path: Path, loopback: Any
) -> None:
    devices = {100 + i: Device(tmp_path, i, Policy()) for i in range(4)}
    for device in list(devices.values())[:3]:
        device.node.records.pin_all({"103": Peer(b"k" * 32, 5)})
    run = secure_rounds_rig.engine(tmp_path, loopback(devices), secure_rounds_rig.Asking())
    with pytest.raises(
        NoRelease, match=r"the last, of round 1: 3 of 4 nodes refused: policy \(peer\)"
    ):
        run.run()


def test_refusals_that_leave_too_few_end_the_run_with_what_it_has(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nodes: dict[int, Any] = {100: VotingNode(25, 0), 101: VotingNode(25, 1)}
    nodes |= {102: Refusing(2, since=2), 103: Refusing(3, Refusal.MODEL, since=2)}
    run = engine(tmp_path, loopback(nodes), Counting())
    assert run.run() == 1
    assert (
        "1 of 4 nodes refused: policy (queries); 1 of 4 nodes refused: missing" in run.ended_early
    )
    assert caplog.messages[-1] == f"ended early after 1 of 3 rounds: {run.ended_early}"


def test_a_refusal_that_may_pass_is_asked_again(tmp_path: Path, loopback: Any) -> None:
    for code, key in ((Refusal.MEMORY, ""), (Refusal.POLICY, ""), (Refusal.POLICY, "min-cohort")):
        nodes = refusing(code, key)
        run = engine(tmp_path / code / f"key {key}", loopback(nodes), Counting())
        with pytest.raises(NoRelease, match="spare-rounds = 1; the last, of round 1: 4 of 4 nodes"):
            run.run()
        assert [len(node.seen) for node in nodes.values()] == [2] * 4


def test_a_used_up_ledger_is_named(tmp_path: Path, loopback: Any) -> None:
    run = engine(tmp_path, loopback({100 + i: VotingNode(25, i) for i in range(4)}), Counting(9))
    for rnd in range(1, 5):
        run.ledger.reserve(
            run="before", query="votes", round=rnd, attempt=1, noise_multiplier=5.0,
        )  # fmt: skip
    assert run.run() == 2
    assert run.ended_early == "the ledger of population people is used up"


def test_what_says_nothing_ends_early_with_its_reason(tmp_path: Path, loopback: Any) -> None:
    class Dying(Counting):
        def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
            if rnd == 2:
                raise NothingSurvived(rnd, 9.0)
            return super().learn(rnd, released, noise_std)

    run = engine(tmp_path, loopback({100 + i: VotingNode(25, i) for i in range(4)}), Dying())
    assert run.run() == 1
    assert "round 2: no candidate has more than H = 9" in run.ended_early


def test_a_whole_run_did_not_end_early(tmp_path: Path, loopback: Any) -> None:
    run = engine(tmp_path, loopback({100 + i: VotingNode(25, i) for i in range(4)}), Counting())
    assert (run.run(), run.ended_early) == (3, "")


def test_two_nodes_are_too_few_for_a_secure_sum_at_once(tmp_path: Path, loopback: Any) -> None:
    devices = {100 + i: Device(tmp_path, i) for i in range(2)}
    run = secure_rounds_rig.engine(tmp_path, loopback(devices), secure_rounds_rig.Asking())
    object.__setattr__(run.plan, "users", 10)
    object.__setattr__(run.plan, "nodes", 2)
    with pytest.raises(TooFewNodes, match=r"needs at least 3 nodes, 2 would.*num-supernodes"):
        run.run()
    assert run.ledger.charges() == [] and all(device.stages == [] for device in devices.values())


def test_start_with_two_nodes_says_so_before_it_waits(tmp_path: Path, loopback: Any) -> None:
    nodes = trainers(2)
    with pytest.raises(TooFewNodes, match="secure aggregation needs at least 3 nodes"):
        DPFedAvg().start(
            loopback(nodes), record(), epsilon=4.0, delta=1e-5, users=2, folder=tmp_path / "run"
        )
    assert not any(node.greeted for node in nodes.values())


def test_every_policy_key_is_told_or_kept() -> None:
    keys = {name.replace("_", "-") for name in Policy.model_fields}
    assert keys <= POLICY_KEYS | OWN and not POLICY_KEYS & OWN


@pytest.mark.parametrize("key", ["my diary", "lifetime-epsilon", 7, None])
def test_only_keys_on_the_list_leave_a_node_or_are_read(
    tmp_path: Path, loopback: Any, key: Any, caplog: pytest.LogCaptureFixture
) -> None:
    message = wire.ask(*a_question(), 1, 5, 60.0)
    head = wire.refuse(message, Refusal.POLICY, key).content.config_records["answer"]
    assert "key" not in head
    assert "key" not in wire.refuse(message, Refusal.SETUP, "queries").content["answer"]

    def hostile(node: Any) -> Any:
        def answer(message: Message) -> Message | None:
            reply: Message = node(message)
            for name in ("answer", RECORD):
                if reply is not None and name in reply.content and key is not None:
                    found: ConfigRecord = reply.content.config_records[name]
                    if found["code"] == "policy":
                        found["key"] = key
            return reply

        return answer

    run = engine(tmp_path, loopback({i: hostile(n) for i, n in refusing().items()}), Counting())
    with pytest.raises(NoRelease) as plain:
        run.run()
    policy = Policy(queries=("scores",))
    devices = {100 + i: hostile(Device(tmp_path, i, policy)) for i in range(4)}
    other = secure_rounds_rig.engine(
        tmp_path / "secure", loopback(devices), secure_rounds_rig.Asking()
    )
    with pytest.raises(NoRelease) as secure:
        other.run()
    if key is not None:
        for text in (str(plain.value), str(secure.value), caplog.text):
            assert str(key) not in text.replace("attempt", "") or key == 7


def a_question() -> Any:
    from tests.rigs.wire import NOISE, TICKET, query

    return query(), TICKET, NOISE


def test_the_run_folder_keeps_what_was_logged(tmp_path: Path, loopback: Any) -> None:
    run = engine(tmp_path, loopback(refusing()), Counting())
    folder = RunFolder(tmp_path / "run")
    with folder.lock(), pytest.raises(NoRelease):
        run.run()
    text = (folder.path / "run.log").read_text()
    assert "WARNING round 1: 4 of 4 nodes refused: policy (queries)" in text
