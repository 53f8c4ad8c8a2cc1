"""Hello: a node's public facts, asked once a run, before any question."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from privsyn_flower.protocol.messaging import outgoing
from privsyn_flower.protocol.wire import PROTOCOL, WireError, accepted, checked, number, refuse

HELLO = "query.hello"
_RECORD = "hello"  # under any message type: an app with one handler tells it from a question
RESOURCES = ("", "strong", "weak")  # what a node may be of


@dataclass(frozen=True)
class Hello:
    """A node's public facts: the number of users it stands for, its place, its kind.

    resources: its group, by its owner's configuration, where methods ask nodes different things.
    """

    weight: int
    partition: int
    deployed: bool
    seeded: bool = False  # the node's noise comes from the run's seed (simulation only)
    resources: str = ""


def hello(node_id: int, ttl: float, message_type: str = HELLO) -> Message:
    """Ask a node for its public facts; message_type "train" for apps that only train."""
    head = ConfigRecord({"protocol": PROTOCOL})
    return outgoing(RecordDict({_RECORD: head}), node_id, message_type, ttl=ttl)


def is_hello(message: Message) -> bool:
    """Whether a message is a greeting, whatever its type."""
    return _RECORD in message.content.config_records


def answer_hello(message: Message, facts: Hello) -> Message:
    """A node's reply to `hello`; refuses another protocol version."""
    try:
        checked(message.content, _RECORD)
    except WireError as error:
        return refuse(message, error.code)
    head = ConfigRecord(
        {
            "protocol": PROTOCOL,
            "code": "ok",
            "weight": facts.weight,
            "partition": facts.partition,
            "deployed": facts.deployed,
            "seeded": facts.seeded,
        }
    )
    if facts.resources:  # Flower cannot count the bytes of an empty string
        head["resources"] = facts.resources
    return Message(RecordDict({"answer": head}), reply_to=message)


def read_hello(message: Message) -> Hello:
    """The server's side of `answer_hello`. Raises WireError for refusals and errors."""
    config = accepted(message)
    return Hello(
        weight=int(number(config, "weight", 1)),
        partition=int(number(config, "partition", 0)),
        deployed=config.get("deployed") is not False,
        seeded=config.get("seeded") is not False,
        resources=str(group) if (group := config.get("resources")) in RESOURCES else "",
    )
