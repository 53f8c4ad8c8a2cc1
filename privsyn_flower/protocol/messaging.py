"""Messages out to nodes and replies back, over Flower's grid: the same for every protocol here."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

logger = logging.getLogger("privsyn_flower")

Arrived = Callable[[int, int], None]
_EXPIRED = (3, 4)  # Flower's codes: a message, or its answer, that nobody fetched in time
_GONE = tuple(
    f"<class 'ray.exceptions.{name}"
    for name in ("ActorDied", "ActorUnavailable", "NodeDied", "OutOfMemory", "RayActor", "Worker")
)


@dataclass(frozen=True)
class Absence:
    """Why a node's answer is not in a sum, in words that follow "3 of 4 nodes". Public.

    code, key: of its refusal, and the policy key that refused; "" when it did not refuse. lost: the
    simulation's process that was to answer for it is gone.
    """

    text: str
    code: str = ""
    key: str = ""
    lost: bool = False

    @classmethod
    def refusal(cls, code: str, key: str = "") -> Absence:
        """The node refused."""
        return cls(f"refused: {code}{f' ({key})' if key else ''}", code, key)

    @classmethod
    def failure(cls, error: Error) -> Absence:
        """Flower answered for the node; of its error only the code may be told.

        Its reason may hold a user's data, but begins with the name of a class: one of Ray's where,
        in a simulation, a worker is gone (what an app raises in it has another name).
        """
        if (error.reason or "").startswith(_GONE):
            return cls(f"were lost (Flower error code {error.code})", lost=True)
        return cls(f"failed (Flower error code {error.code})")

    @classmethod
    def silence(cls, seconds: float) -> Absence:
        """No reply came in time."""
        return cls(f"sent nothing within {seconds:g} s")


def tally(absent: Mapping[int, Absence], node_count: int) -> str:
    """How many of `node_count` nodes are missing, by reason, the most frequent first."""
    counts = Counter(absence.text for absence in absent.values())
    ranked = counts.most_common()
    return "; ".join(f"{count} of {node_count} nodes {text}" for text, count in ranked)


def log_absent(where: str, absent: Mapping[int, Absence], node_count: int) -> None:
    """Tell the log who is missing, and why; nothing when nobody is."""
    if absent:
        logger.warning("%s: %s", where, tally(absent, node_count))
    for node, absence in absent.items():
        logger.info("%s: node %d %s", where, node, absence.text)


_IN_PROCESS: ContextVar[bool] = ContextVar("in_process", default=False)


@contextmanager
def in_process() -> Iterator[None]:
    """Messages made inside belong to no Flower run: for a grid whose nodes are functions here."""
    token = _IN_PROCESS.set(True)
    try:
        yield
    finally:
        _IN_PROCESS.reset(token)


def outgoing(
    content: RecordDict, node_id: int, message_type: str, *, ttl: float, group_id: str = ""
) -> Message:
    """A message to one node; it expires after `ttl` seconds."""
    if _IN_PROCESS.get():  # Message(...) reads the run's number from Flower's process
        metadata = Metadata(
            run_id=0,
            message_id=secrets.token_hex(8),
            src_node_id=0,
            dst_node_id=node_id,
            reply_to_message_id="",
            group_id=group_id,
            created_at=time.time(),
            ttl=ttl,
            message_type=message_type,
        )
        make: Callable[..., Message] = Message  # its declared signatures leave out metadata
        return make(content=content, metadata=metadata)
    return Message(content, node_id, message_type, ttl=ttl, group_id=group_id)


def send_and_wait(
    grid: Grid, messages: list[Message], timeout: float, arrived: Arrived, poll: float
) -> dict[int, Message]:
    """Send messages, wait for all replies or `timeout` seconds; destination node -> reply.

    Replies are matched by message id, because an expired message is answered by Flower itself
    under another node id; its node is silent, as one that was too slow. poll: seconds between two
    looks; a look at many nodes takes the SuperLink long, so that there are four times as many
    between two. The last look is at the deadline: what has arrived by then counts.
    """
    destination = dict(
        zip(
            grid.push_messages(messages),
            (message.metadata.dst_node_id for message in messages),
            strict=True,
        )
    )
    waiting = {key: node for key, node in destination.items() if key}
    replies: dict[int, Message] = {}
    began, deadline = time.monotonic(), time.monotonic() + timeout
    while waiting:
        last = began >= deadline
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None and not (reply.has_error() and reply.error.code in _EXPIRED):
                replies[node] = reply
                arrived(len(replies), len(messages))
        if last or not waiting:
            break
        now = time.monotonic()
        time.sleep(max(0.0, min(max(poll, 4 * (now - began)), deadline - now)))
        began = time.monotonic()
    return replies


def record_bytes(content: RecordDict) -> int:
    """Bytes of a message's arrays and config values, as Flower counts them."""
    arrays = sum(record.count_bytes() for record in content.array_records.values())
    return arrays + sum(map(_config_bytes, content.config_records.values()))


def _config_bytes(record: ConfigRecord) -> int:
    """Flower's count raises on an empty string, which travels like any other value."""
    empty = {key for key, value in record.items() if isinstance(value, str | bytes) and not value}
    rest = ConfigRecord({key: value for key, value in record.items() if key not in empty})
    return rest.count_bytes() + sum(map(len, empty))
