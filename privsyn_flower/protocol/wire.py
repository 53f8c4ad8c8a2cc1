"""Query and answer <-> Flower's RecordDict. The only file that knows a query's record keys.

A query is PUBLIC (candidates, bound, noise); an answer is one node's noisy integer vector, or a
refusal code. Nothing else may travel: no counts, metrics or error texts. `greeting.py` has the
nodes' public facts, `secure.py` what secure aggregation adds to these records.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from privsyn_flower.common.arrays import U64
from privsyn_flower.privacy.encoding.quantize import pack, unpack
from privsyn_flower.protocol.messaging import Absence, outgoing, record_bytes
from privsyn_flower.protocol.noise import (
    Noise,
    Source,
    encoded_length,
    integer_plan,
    total_variation,
)
from privsyn_flower.protocol.packing import unpack_rows
from privsyn_flower.protocol.question import METRICS, OptionValue, Query, Ticket
from privsyn_flower.secagg.cohort import Session

PROTOCOL = 9
TRAIN = "train"  # the message type of updates: what Flower's own training rounds travel as
EVALUATE = "evaluate"  # and of evaluations by an app's own metrics: what Flower's evaluations do
LARGEST_SCALE = 1e9  # of a row: its norm must be finite in float32


class Refusal(StrEnum):
    """Why a node does not answer; only causes that do not depend on a user's data."""

    PROTOCOL = "protocol-version"
    MALFORMED = "malformed-query"
    KIND = "unknown-query-kind"
    EMBEDDER = "embedder-mismatch"
    MODEL = "missing-model"
    MEMORY = "out-of-memory"
    POLICY = "policy"
    SETUP = "node-setup"


# The keys of a node's policy that a refusal may name: each compares public numbers of a question,
# or of a sum's members, with what the node's owner set. A user's own limits never refuse. "peer": a
# member's key or weight is not the one that the node saw first.
POLICY_KEYS = frozenset(
    {
        "aggregation",
        "queries",
        "trusted-aggregator",
        "min-noise-multiplier",
        "min-surviving-weight",
        "max-surviving-weight",
        "max-population",
        "max-member-share",
        "min-cohort",
        "min-colluding-share",
        "max-candidates",
        "max-parameters",
        "max-past-vectors",
        "max-neighbors",
        "max-tokens",
        "allowed-models",
        "max-rounds-per-run",
        "roster",
        "peer",
    }
)


class WireError(ValueError):
    """A message does not follow the protocol; `code` and, of the code POLICY, `key` (one of
    POLICY_KEYS, or "") are what may be told to the other side."""

    def __init__(self, code: Refusal, text: str, key: str = "") -> None:
        super().__init__(f"{code.value}: {text}")
        self.code = code
        self.key = policy_key(code.value, key)


class Absent(WireError):
    """A reply without an answer: the node refused, or Flower says that it failed."""

    def __init__(self, code: Refusal, absence: Absence) -> None:
        super().__init__(code, absence.text, absence.key)
        self.absence = absence


def policy_key(code: str, key: object) -> str:
    """The policy key of a refusal; whatever is not on the list is nobody's to tell."""
    return key if code == Refusal.POLICY and isinstance(key, str) and key in POLICY_KEYS else ""


@dataclass(frozen=True)
class Answer:
    """One node's answer: noisy residues (length,) mod 2^bits (PRIVATE: plain aggregation)."""

    ticket: Ticket
    residues: U64
    bytes_up: int


def message_type(kind: str, options: Mapping[str, OptionValue] = {}) -> str:
    """Flower's message type of a query of this kind, by which its handler gets it."""
    if kind == "evaluation" and METRICS in options:
        return EVALUATE
    return TRAIN if kind == "update" else f"query.{kind}"


def kind_of(type_: str) -> str:
    """The kind of query that travels under a message type. Raises WireError(KIND)."""
    if type_ == EVALUATE:
        return "evaluation"
    for kind in ("update", type_.removeprefix("query.")):
        if message_type(kind) == type_:
            return kind
    raise WireError(Refusal.KIND, f"message type {type_!r} is that of no query")


def checked(record: RecordDict, key: str) -> ConfigRecord:
    """A config record of this protocol version. Raises WireError."""
    try:
        config = record.config_records[key]
    except KeyError:
        raise WireError(Refusal.MALFORMED, f"record {key!r} is missing") from None
    if config.get("protocol") != PROTOCOL:
        raise WireError(
            Refusal.PROTOCOL, f"protocol {config.get('protocol')!r}, this side speaks {PROTOCOL}"
        )
    return config


def number(config: ConfigRecord, key: str, low: float = 0.0) -> float:
    """A finite number of at least `low`. Raises WireError(MALFORMED)."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError(Refusal.MALFORMED, f"{key} = {value!r} is not a number")
    if not math.isfinite(value) or value < low:
        raise WireError(Refusal.MALFORMED, f"{key} = {value!r} is below {low} or not finite")
    return float(value)


def _ticket(config: ConfigRecord) -> Ticket:
    return Ticket(
        run=str(config.get("run", "")),
        query=str(config.get("query", "")),
        round=int(number(config, "round", 1)),
        attempt=int(number(config, "attempt", 1)),
    )


def _ticket_fields(ticket: Ticket) -> dict[str, OptionValue]:
    return {
        "protocol": PROTOCOL,
        "run": ticket.run,
        "query": ticket.query,
        "round": ticket.round,
        "attempt": ticket.attempt,
    }


def ask_records(query: Query, ticket: Ticket, noise: Noise, *, question: bool = True) -> RecordDict:
    """What a node is asked: the head, and the question's arrays (only where it computes)."""
    head = ConfigRecord(
        {
            **_ticket_fields(ticket),
            "length": query.length,
            "bound": query.bound,
            "model": query.model,
            "noise-multiplier": noise.multiplier,
            "sensitivity": noise.sensitivity,
            "bits": noise.bits,
            "min-weight": noise.min_weight,
            "colluding": noise.colluding,
            "sampling-rate": noise.sampling_rate,
            "scale": noise.scale,
            "noise-source": noise.source,
            **{f"option.{key}": value for key, value in query.options.items()},
        }
    )
    if query.extra:  # Flower cannot count the bytes of an empty string
        head["extra"] = ",".join(sorted(query.extra))
    records = RecordDict({"ask": head})
    if question:
        records["question"] = ArrayRecord(query.packed)
    return records


def ask(
    query: Query, ticket: Ticket, noise: Noise, node_id: int, weight: int, ttl: float
) -> Message:
    """The message that puts `query` to one node under plain aggregation.

    weight: the number of users this node stands for in the run; it refuses another one, because
    its share of the noise goes by it.
    """
    content = ask_records(query, ticket, noise)
    content.config_records["ask"]["weight"] = weight
    return outgoing(
        content,
        node_id,
        message_type(query.kind, query.options),
        ttl=ttl,
        group_id=str(ticket.round),
    )


def question_digest(query: Query, ticket: Ticket, noise: Noise) -> str:
    """What a secure sum is bound to: every number and array of the question, hex SHA-256."""
    asked = ask_records(query, ticket, noise, question=False).config_records["ask"]
    # 20 and 20.0 are the same number to both sides, so they are the same text here.
    head = {k: float(v) if isinstance(v, int | float) else v for k, v in asked.items()}
    state = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for array in query.arrays():
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def session_for(query: Query, ticket: Ticket, noise: Noise) -> Session:
    """The secure sum that answers a query, bound to all of its question."""
    return Session(
        run=ticket.run,
        query=ticket.query,
        round=ticket.round,
        attempt=ticket.attempt,
        length=encoded_length(query),
        bits=noise.bits,
        min_weight=float(noise.min_weight),
        colluding=float(noise.colluding),
        context=question_digest(query, ticket, noise),
    )


def read_head(message: Message) -> tuple[Query, Ticket, Noise]:
    """The node's side of the head alone: a query whose rows are empty. Raises WireError."""
    config = checked(message.content, "ask")
    query = Query(
        kind=kind_of(message.metadata.message_type),
        rows=np.zeros((0, 0), dtype=np.int8),
        scales=np.zeros(0, dtype=np.float32),
        length=int(number(config, "length", 1)),
        bound=number(config, "bound"),
        model=str(config.get("model", "")),
        options={
            key.removeprefix("option."): value
            for key, value in config.items()
            if key.startswith("option.") and isinstance(value, str | int | float)
        },
    )
    noise = Noise(
        multiplier=number(config, "noise-multiplier"),
        sensitivity=number(config, "sensitivity"),
        bits=int(number(config, "bits", 8)),
        min_weight=number(config, "min-weight"),
        colluding=number(config, "colluding"),
        sampling_rate=number(config, "sampling-rate"),
        scale=number(config, "scale"),
        source=_source(config),
    )
    if message_type(query.kind, query.options) != message.metadata.message_type:
        raise WireError(Refusal.MALFORMED, f"option {METRICS!r} is what {EVALUATE!r} is about")
    positive = (noise.multiplier, noise.sensitivity, noise.min_weight, query.bound)
    if min(positive) <= 0 or not 0 < noise.sampling_rate <= 1:
        raise WireError(
            Refusal.MALFORMED,
            "noise-multiplier, sensitivity, min-weight and bound must be positive, sampling-rate "
            "above 0 and at most 1",
        )
    _check_encoding(query, noise)
    return query, _ticket(config), noise


def _source(config: ConfigRecord) -> Source:
    for source in get_args(Source):
        if config.get("noise-source") == source:
            return cast(Source, source)
    raise WireError(Refusal.MALFORMED, f"noise-source is none of {get_args(Source)}")


def _check_encoding(query: Query, noise: Noise) -> None:
    """Updates are dense and nothing else is; the numbers make an encoding. Raises WireError."""
    encoding = query.options.get("encoding", "")
    if encoding != ("dense" if query.kind == "update" else ""):
        raise WireError(Refusal.MALFORMED, f"{query.kind!r} in the encoding {encoding!r}")
    try:
        integer_plan(query, noise)
        total_variation(query, noise)
        if query.dense:
            _ = query.rotation
    except ValueError as error:
        raise WireError(Refusal.MALFORMED, str(error)) from None


def read_ask(message: Message, weight: int | None = None) -> tuple[Query, Ticket, Noise]:
    """The node's side of `ask`. Raises WireError to refuse with.

    weight: the node's own, which the message must repeat (None: secure aggregation has it in the
    cohort that everybody checks).
    """
    if weight is not None and number(checked(message.content, "ask"), "weight") != weight:
        raise WireError(Refusal.SETUP, f"this node has weight {weight}, the run counts on another")
    query, ticket, noise = read_head(message)
    names = [
        name for name in str(checked(message.content, "ask").get("extra", "")).split(",") if name
    ]
    if names != sorted(set(names)) or not all(re.fullmatch("[a-z-]+", name) for name in names):
        raise WireError(Refusal.MALFORMED, "the question's extra arrays are not named in order")
    packed, *extra = _arrays(message.content, "question", 1 + len(names))
    try:
        rows, scales = unpack_rows(packed, query.length)
    except ValueError as error:
        raise WireError(Refusal.MALFORMED, f"the question: {error}") from None
    if not (np.abs(scales) <= LARGEST_SCALE).all():
        raise WireError(Refusal.MALFORMED, "the question's scales are not finite, or too large")
    if not rows.size and not names:
        raise WireError(Refusal.MALFORMED, "the question is empty")
    named = dict(zip(names, extra, strict=True))
    return replace(query, rows=rows, scales=scales, extra=named), ticket, noise


def answer(message: Message, ticket: Ticket, residues: U64, bits: int) -> Message:
    """A node's reply: its noisy vector mod 2^bits, bits / 8 bytes a coordinate."""
    vector = pack(residues, bits).tobytes()
    head = ConfigRecord({**_ticket_fields(ticket), "code": "ok", "vector": vector})
    return Message(RecordDict({"answer": head}), reply_to=message)


def refuse(message: Message, code: Refusal, key: str = "") -> Message:
    """A node's refusal: a code, bound to the ticket it was asked with, and nothing else.

    key: the policy key that refused, if it is one of POLICY_KEYS.
    """
    asked = message.content.config_records.get("ask", ConfigRecord())
    ticket = {key: asked[key] for key in ("run", "query", "round", "attempt") if key in asked}
    head = ConfigRecord({**ticket, "protocol": PROTOCOL, "code": code.value})
    if named := policy_key(code.value, key):  # Flower cannot count the bytes of an empty string
        head["key"] = named
    return Message(RecordDict({"answer": head}), reply_to=message)


def _decoded(array: Array) -> np.ndarray[Any, Any]:
    """As `array.numpy()`; nothing is allocated for a head that claims more bytes than came."""
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with io.BytesIO(array.data) as file:
        shape, _, dtype = read[np.lib.format.read_magic(file)](file)
        left = len(array.data) - file.tell()
    if math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"{left} bytes of {dtype} {shape}")
    return array.numpy()


def _arrays(content: RecordDict, key: str, count: int) -> list[np.ndarray[Any, Any]]:
    """The arrays of a record from an untrusted side; whatever is wrong with them is MALFORMED."""
    try:
        found = [_decoded(array) for array in content.array_records[key].values()]
    except Exception as error:  # a hostile array can raise anything while it is decoded
        name = type(error).__name__
        raise WireError(Refusal.MALFORMED, f"record {key!r} is unreadable ({name})") from None
    if len(found) != count or not all(isinstance(array, np.ndarray) for array in found):
        raise WireError(Refusal.MALFORMED, f"record {key!r} does not hold {count} arrays")
    return found


def read_answer(message: Message, ticket: Ticket, length: int, bits: int) -> Answer:
    """The server's side of `answer`. Raises WireError for refusals, errors and odd shapes."""
    config = accepted(message)
    if _ticket(config) != ticket:
        raise WireError(Refusal.MALFORMED, "the answer belongs to another round or attempt")
    data = config.get("vector")
    if not isinstance(data, bytes) or len(data) != length * (bits // 8):
        raise WireError(Refusal.MALFORMED, f"the answer is not {length} residues of {bits} bits")
    return Answer(ticket, unpack(data, bits, length), record_bytes(message.content))


def accepted(message: Message) -> ConfigRecord:
    """The head of a reply that is no refusal. Raises Absent for refusals and errors, WireError."""
    if not message.has_content():
        # Flower's error text may hold a user's data or a traceback: only its code is kept.
        raise Absent(Refusal.SETUP, Absence.failure(message.error))
    config = checked(message.content, "answer")
    code = str(config.get("code", ""))
    if code != "ok":
        known = code if code in {item.value for item in Refusal} else Refusal.MALFORMED.value
        raise Absent(Refusal(known), Absence.refusal(known, policy_key(known, config.get("key"))))
    return config
