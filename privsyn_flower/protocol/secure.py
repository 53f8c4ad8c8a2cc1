"""The secure sum over Flower messages: five stages under one message type.

Each message carries the record "secagg" (stage, session, payload) beside whatever the
application sends along; each reply carries it alone: a stage's bytes or a refusal code, and
nothing else (no counts, metrics or error texts).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from privsyn_flower.common.arrays import U64
from privsyn_flower.protocol.messaging import (
    Absence,
    Arrived,
    log_absent,
    outgoing,
    record_bytes,
    send_and_wait,
)
from privsyn_flower.secagg import node
from privsyn_flower.secagg.cohort import SecaggError, Session

logger = logging.getLogger("privsyn_flower")

RECORD = "secagg"
OK = "ok"
Stage = str
Along = Callable[[Stage], RecordDict]


def respond(message: Message, state: RecordDict, party: node.Party) -> Message:
    """A node's reply to any stage; `state` is Flower's Context.state of this node.

    Refusals become codes. Whatever `party` raises beyond SecaggError is not caught here; see
    `node.answer` for what becomes of the session.
    """
    asked = message.content.config_records.get(RECORD, ConfigRecord())
    if RECORD not in state:
        state[RECORD] = ConfigRecord()
    try:
        return _reply(message, OK, node.answer(asked, state.config_records[RECORD], party))
    except SecaggError as error:
        logger.warning("refused: %s", error)  # public causes only: protocol, policy, peers
        return refusal(message, error.code)


def refusal(message: Message, code: str, key: str = "") -> Message:
    """A node's refusal to take further part. key: what the application says beside its code."""
    return _reply(message, code, b"", key)


def forget(state: RecordDict) -> None:
    """Leave whatever session this node is in: its secrets are erased."""
    if RECORD in state:
        state.config_records[RECORD].clear()


def stage_of(message: Message) -> Stage | None:
    """The stage a message asks for, None when it is no message of this protocol."""
    record = message.content.config_records.get(RECORD)
    return None if record is None else str(record.get("stage", ""))


def session_of(message: Message, state: RecordDict) -> Session:
    """The session that a message's stage belongs to. Raises SecaggError."""
    asked = message.content.config_records[RECORD]
    return node.session_of(asked, state.config_records.get(RECORD, ConfigRecord()))


def _reply(message: Message, code: str, data: bytes, key: str = "") -> Message:
    said: dict[str, str | bytes] = {"code": code, "data": data, "key": key}
    # Flower cannot count the bytes of an empty string, or of no bytes.
    head = ConfigRecord({name: value for name, value in said.items() if value})
    return Message(RecordDict({RECORD: head}), reply_to=message)


@dataclass(frozen=True)
class Summed:
    """residues: the exact sum mod 2^bits (length,), PRIVATE until released, of the survivors'
    vectors. survivors: their node ids. Bytes are of the largest message sum per node."""

    residues: U64
    survivors: list[int]
    bytes_down_per_node: int
    bytes_up_per_node: int


@dataclass
class Transport:
    """How stages travel. mask_timeout bounds the stage in which nodes compute, stage_timeout the
    others, in seconds. arrived(n, of): progress. key_filter(code, key): the keys that a refusal of
    the application may name; all others are dropped. absent: who left, and why."""

    grid: Grid
    message_type: str
    mask_timeout: float = 600.0
    stage_timeout: float = 60.0
    poll: float = 0.1
    arrived: Arrived = lambda n, total: None
    key_filter: Callable[[str, object], str] = lambda code, key: ""
    absent: dict[int, Absence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.down: dict[int, int] = {}
        self.up: dict[int, int] = {}

    def stage(
        self, name: Stage, payload: Mapping[int, Mapping[str, bytes | str]], along: RecordDict
    ) -> dict[int, bytes]:
        """Send one stage to each node; node -> its bytes. Who refuses or is silent is missing."""
        timeout = self.mask_timeout if name == "mask" else self.stage_timeout
        messages = []
        for node_id, fields in payload.items():
            content = RecordDict({**along, RECORD: ConfigRecord({"stage": name, **fields})})
            self.down[node_id] = self.down.get(node_id, 0) + record_bytes(content)
            messages.append(outgoing(content, node_id, self.message_type, ttl=timeout))
        silent: Arrived = lambda n, total: None  # noqa: E731 - progress shows one bar a round
        arrived = self.arrived if name == "mask" else silent
        found: dict[int, bytes] = {}
        absent = dict.fromkeys(payload, Absence.silence(timeout))
        replies = send_and_wait(self.grid, messages, timeout, arrived, self.poll)
        for node_id, reply in replies.items():
            data = self._data(reply)
            if isinstance(data, Absence):
                absent[node_id] = data
                continue
            found[node_id] = data
            del absent[node_id]
            self.up[node_id] = self.up.get(node_id, 0) + record_bytes(reply.content)
        log_absent(f"stage {name}", absent, len(payload))
        self.absent |= absent
        return found

    def _data(self, reply: Message) -> bytes | Absence:
        """What a reply carries. Codes and keys come from an untrusted side."""
        if not reply.has_content():  # Flower's error text may hold a traceback: the code is kept
            return Absence.failure(reply.error)
        record = reply.content.config_records.get(RECORD, ConfigRecord())
        code, data = record.get("code"), record.get("data")
        if code == OK and isinstance(data, bytes):
            return data
        known = isinstance(code, str) and len(code) < 40 and code.replace("-", "").isalnum()
        code = str(code) if known else "?"
        return Absence.refusal(code, self.key_filter(code, record.get("key")))


def run_session(
    transport: Transport,
    session: Session,
    weights: Mapping[int, int],
    along: Along = lambda stage: RecordDict(),
    revealing: Callable[[], None] = lambda: None,
) -> Summed:
    """All five stages with the nodes of these public weights (node id -> users).

    along(stage): the application's records for a stage. revealing() is called right before the
    first node is asked to unmask: until then nothing about any vector can be known, after it
    the sum must count as revealed. Raises SecaggError when the sum cannot be had.
    """
    from privsyn_flower.secagg.server import SecureSum, members_of  # a device needs none

    secure, digest = SecureSum(session), session.digest

    def ask(stage: Stage, payload: Mapping[int, Mapping[str, bytes | str]]) -> dict[int, bytes]:
        return transport.stage(stage, payload, along(stage))

    adverts = ask("advertise", {i: {"session": session.to_json()} for i in weights})
    cohort = secure.gather(members_of(adverts, weights))
    members = [member.id for member in secure.cohort.members]
    dealt = ask("share", {i: {"session": digest, "cohort": cohort} for i in members})
    relayed = secure.relay(dealt)
    masked = ask(
        "mask", {i: {"session": digest, "list": a, "sealed": b} for i, (a, b) in relayed.items()}
    )
    survivors = secure.survive(masked)
    alive = [m.id for m, here in zip(secure.cohort.members, secure.survivors, strict=True) if here]
    confirmed = ask("confirm", {i: {"session": digest, "list": survivors} for i in alive})
    signers, signatures = secure.confirm(confirmed)
    proof = {"session": digest, "signers": signers, "signatures": signatures}
    revealing()
    given = ask("unmask", dict.fromkeys(confirmed, proof))
    total = secure.total(given)
    if wrong := sorted(secure.wrong):
        logger.warning("%d node(s) gave wrong shares, others were used: %s", len(wrong), wrong)
    down, up = transport.down.values(), transport.up.values()
    return Summed(total, alive, max(down, default=0), max(up, default=0))
