"""Hello: a node's public facts, asked once a run, before any question.

Somebody else's app answers it by each of its functions that the run will ask, so that a function
that is not private, and would answer with what it computes, is never sent a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from privsyn_flower.protocol.messaging import Absence, Arrived, outgoing, send_and_wait
from privsyn_flower.protocol.wire import (
    EVALUATE,
    PROTOCOL,
    TRAIN,
    Absent,
    WireError,
    accepted,
    checked,
    number,
    refuse,
)

HELLO = "query.hello"
# What makes an app's own function answer a greeting, by the greeting's message type.
PRIVATE = {TRAIN: "@private_training", EVALUATE: "@private_evaluation"}
_RECORD = "hello"  # under any message type: an app with one handler tells it from a question
RESOURCES = ("", "strong", "weak")  # what a node may be of


@dataclass(frozen=True)
class Hello:
    """A node's public facts: the number of users it stands for, its place, its kind.

    resources: its group, by its owner's configuration, where methods ask nodes different things.
    evaluates: where the app is somebody else's, whether an evaluate function of it is private.
    """

    weight: int
    partition: int
    deployed: bool
    seeded: bool = False  # the node's noise comes from the run's seed (simulation only)
    resources: str = ""
    evaluates: bool = True


@dataclass(frozen=True)
class NoFacts:
    """What a node said in place of its facts. message_type: of the greeting."""

    absence: Absence
    message_type: str


def hello(node_id: int, ttl: float, message_type: str = HELLO) -> Message:
    """Ask a node for its public facts; message_type: one of PRIVATE for somebody else's app."""
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
            "evaluates": facts.evaluates,
        }
    )
    if facts.resources:  # Flower cannot count the bytes of an empty string
        head["resources"] = facts.resources
    return Message(RecordDict({"answer": head}), reply_to=message)


def read_hello(message: Message) -> Hello:
    """The server's side of `answer_hello`. Raises WireError for refusals and errors, which says so
    where it is the evaluate function's: the train function answered."""
    try:
        config = accepted(message)
    except Absent as error:
        if message.metadata.message_type != EVALUATE:
            raise
        where = replace(error.absence, text=f"{error.absence.text} in {EVALUATE}")
        raise Absent(error.code, where) from None
    return Hello(
        weight=int(number(config, "weight", 1)),
        partition=int(number(config, "partition", 0)),
        deployed=config.get("deployed") is not False,
        seeded=config.get("seeded") is not False,
        resources=str(group) if (group := config.get("resources")) in RESOURCES else "",
        evaluates=config.get("evaluates") is not False,
    )


def greet(
    grid: Grid, nodes: list[int], types: tuple[str, ...], timeout: float, arrived: Arrived
) -> dict[int, Hello | NoFacts]:
    """Greet nodes by all message types of `types`, one after the other.

    A node is greeted by the next type once it gave its facts to the last one, and by the evaluate
    function's where that is private: another would answer with what it computes. Its facts are
    those of the first type; who was silent about one is not in the result. timeout: seconds that
    each type waits.
    """
    found: dict[int, Hello | NoFacts] = {}
    for type_ in types:
        if type_ == EVALUATE:
            plain = [node for node in nodes if node in found and not _evaluates(found[node])]
            found |= dict.fromkeys(
                plain, NoFacts(Absence(f"have no {PRIVATE[EVALUATE]}"), EVALUATE)
            )
            nodes = [node for node in nodes if node not in plain]
        messages = [hello(node, timeout, type_) for node in nodes]
        replies = send_and_wait(grid, messages, timeout, arrived, poll=0.1)
        told = {node: _facts(reply) for node, reply in replies.items()}
        for node in nodes:
            if node not in told:
                found.pop(node, None)
            elif node not in found or isinstance(told[node], NoFacts):
                found[node] = told[node]
        nodes = [node for node, facts in told.items() if isinstance(facts, Hello)]
    return found


def _evaluates(facts: Hello | NoFacts) -> bool:
    return isinstance(facts, Hello) and facts.evaluates


def _facts(reply: Message) -> Hello | NoFacts:
    try:
        return read_hello(reply)
    except WireError as error:
        odd = Absence(f"sent no facts ({error})")
        absence = error.absence if isinstance(error, Absent) else odd
        return NoFacts(absence, reply.metadata.message_type)
