"""The protocol's messages: refusals, erasure, and who is left out by the transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from privsyn_flower.protocol import messaging
from privsyn_flower.protocol.secure import (
    RECORD,
    Transport,
    refusal,
    respond,
    run_session,
    session_of,
    stage_of,
)
from privsyn_flower.secagg import Party, SecaggError, Session
from tests.secagg.rig import IDENTITIES, a_session

STAGES = ["advertise", "share", "mask", "confirm", "unmask"]


class Peer:
    """A node with a vector of ones; `change` may alter a message before it is read."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.state = RecordDict()
        self.stages: list[str] = []
        self.change: Callable[[str, ConfigRecord], None] = lambda stage, record: None
        self.vector: Callable[[Session, int], Any] = lambda session, weight: np.ones(2, int)
        self.identity = IDENTITIES[node_id]

    def __call__(self, message: Message) -> Message:
        stage = str(stage_of(message))
        self.stages.append(stage)
        self.change(stage, message.content.config_records[RECORD])
        party = Party(
            node_id=self.node_id,
            weight=1,
            identity=self.identity,
            trust=lambda cohort: None,
            vector=self.vector,
            once=lambda stage, session: None,
        )
        return respond(message, self.state, party)

    @property
    def kept(self) -> dict[str, Any]:
        return dict(self.state.config_records[RECORD])


def summed(grid: Any, log: list[str] | None = None, **session: Any) -> Any:
    transport = Transport(grid, "query.x", 0.3, 0.3, 0.01)
    return run_session(
        transport,
        a_session(**{"length": 2, "min_weight": 3, **session}),
        dict.fromkeys(grid.get_node_ids(), 1),
        revealing=lambda: (log or []).append("revealing"),
    )


def test_five_messages_each_and_nothing_but_bytes_and_codes(loopback: Any) -> None:
    peers = {i: Peer(i) for i in range(1, 6)}
    grid = loopback(peers)
    got = summed(grid)
    assert (got.residues.tolist(), got.survivors) == ([5, 5], [1, 2, 3, 4, 5])
    assert all(peer.stages == STAGES for peer in peers.values())
    assert all(peer.kept == {} for peer in peers.values())
    for reply in grid.received:
        assert list(reply.content) == [RECORD]
        assert dict(reply.content[RECORD]).keys() == {"code", "data"}
    down = [messaging.record_bytes(m.content) for m in grid.sent if m.metadata.dst_node_id == 1]
    assert got.bytes_down_per_node == sum(down)


def test_flower_can_count_the_bytes_of_all_that_travels(loopback: Any) -> None:
    """Its own mods do, and an empty string or no bytes are an error to them."""
    peers = {i: Peer(i) for i in range(1, 6)}
    grid = loopback(peers)
    peers[1].change = replaced("share", "cohort", b"x")
    peers[2].change = drop("session")
    summed(grid)
    refused = [m for m in grid.received if m.content[RECORD]["code"] != "ok"]
    named = refusal(grid.sent[0], "policy", "queries")
    assert len(refused) == 2 and all(list(m.content[RECORD]) == ["code"] for m in refused)
    assert dict(named.content[RECORD]) == {"code": "policy", "key": "queries"}
    for message in (*grid.sent, *grid.received, named):
        assert all(record.count_bytes() for record in message.content.values())


def test_refusals_of_older_nodes_have_no_bytes_as_data(loopback: Any) -> None:
    peers = {i: Peer(i) for i in range(1, 6)}

    def older(message: Message) -> Message:
        head = ConfigRecord({"code": "secagg-setup", "data": b""})
        return Message(RecordDict({RECORD: head}), reply_to=message)

    transport = Transport(loopback({**peers, 5: older}), "query.x", 0.3, 0.3, 0.01)
    session = a_session(length=2, min_weight=3)
    assert run_session(transport, session, dict.fromkeys(range(1, 6), 1)).survivors == [1, 2, 3, 4]
    assert transport.absent[5].text == "refused: secagg-setup"


def drop(*names: str) -> Callable[[str, ConfigRecord], None]:
    def change(stage: str, record: ConfigRecord) -> None:
        for name in names:
            record.pop(name, None)

    return change


def replaced(at: str, name: str, value: Any) -> Callable[[str, ConfigRecord], None]:
    def change(stage: str, record: ConfigRecord) -> None:
        if stage == at:
            record[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (replaced("share", "cohort", b"x"), "secagg-malformed"),
        (replaced("share", "cohort", "text"), "secagg-malformed"),
        (drop("cohort"), "secagg-malformed"),
        (replaced("mask", "stage", "another"), "secagg-malformed"),
        (replaced("mask", "sealed", b""), "secagg-malformed"),
        (replaced("confirm", "list", b"\0"), "secagg-inconsistent-list"),
        (replaced("unmask", "signatures", b""), "secagg-malformed"),
    ],
)
def test_who_refuses_forgets_its_secrets(
    loopback: Any, change: Any, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    peers = {i: Peer(i) for i in range(1, 6)}
    peers[2].change = change
    assert summed(loopback(peers)).residues.tolist() in ([4, 4], [5, 5])
    assert peers[2].kept == {}
    assert code in caplog.text


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_message_of_another_session_changes_nothing(loopback: Any, stage: str) -> None:
    peers = {i: Peer(i) for i in range(1, 5)}
    foreign = a_session(round=9).digest
    before: list[dict[str, Any]] = []

    def first_foreign(asked: str, record: ConfigRecord) -> None:
        if asked != stage:
            return
        stray = ConfigRecord({**record, "session": foreign})
        message = messaging.outgoing(RecordDict({RECORD: stray}), 1, "query.x", ttl=1.0)
        before.append(peers[1].kept)
        party = Party(1, 1, peers[1].identity, lambda c: None, peers[1].vector, lambda s, t: None)
        reply = respond(message, peers[1].state, party)
        assert reply.content[RECORD]["code"] == "secagg-unknown-session"
        assert peers[1].kept == before[0]

    peers[1].change = first_foreign
    assert summed(loopback(peers)).residues.tolist() == [4, 4]
    assert len(before) == 1


def test_whatever_the_vector_raises_ends_the_session(loopback: Any) -> None:
    peers = {i: Peer(i) for i in range(1, 5)}

    def fails(session: Session, weight: int) -> Any:
        raise MemoryError

    peers[3].vector = fails
    assert summed(loopback(peers)).residues.tolist() == [3, 3]
    assert peers[3].kept == {}


def test_nothing_is_revealed_before_a_quorum_signed(loopback: Any) -> None:
    peers = {i: Peer(i) for i in range(1, 7)}
    for i in (1, 2, 3):
        peers[i].change = replaced("confirm", "list", b"")
    log: list[str] = []
    with pytest.raises(SecaggError, match="signed the list"):
        summed(loopback(peers), log)
    assert log == []
    assert all("unmask" not in peer.stages for peer in peers.values())


def test_a_node_without_a_session_says_so() -> None:
    stray = RecordDict({RECORD: ConfigRecord({"stage": "mask"})})

    class Asked:
        content = stray

    with pytest.raises(SecaggError, match="in no session"):
        session_of(Asked(), RecordDict())  # type: ignore[arg-type]


def test_claims_of_another_weight_or_node_are_left_out(loopback: Any) -> None:
    peers = {i: Peer(i) for i in range(1, 6)}
    peers[5].node_id = 4  # speaks for its neighbour
    grid = loopback(peers)
    assert summed(grid).survivors == [1, 2, 3, 4]
    transport = Transport(loopback(peers), "query.x", 0.3, 0.3, 0.01)
    session = a_session(length=2, min_weight=3, round=2)
    weights = {1: 1, 2: 1, 3: 1, 4: 2}
    assert run_session(transport, session, weights).survivors == [1, 2, 3]
