"""Query and answer <-> Flower's RecordDict. The only file that knows record keys.

A query is PUBLIC (candidates, bound, noise); an answer is one node's noisy vector and its
public weight, or a refusal code. Nothing else may travel: no counts, metrics or error texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

PROTOCOL = 1
HELLO = "query.hello"

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
OptionValue = str | int | float


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


class WireError(ValueError):
    """A message does not follow the protocol; `code` is what may be told to the other side."""

    def __init__(self, code: Refusal, text: str) -> None:
        super().__init__(f"{code.value}: {text}")
        self.code = code


@dataclass(frozen=True)
class Ticket:
    """What every message, charge and release is bound to."""

    run: str
    query: str
    round: int
    attempt: int


@dataclass(frozen=True)
class Noise:
    """What each node must add: N(0, weight * std^2 / min_weight) to every coordinate.

    std is the guaranteed standard deviation of the sum, min_weight is W_min: with survivors of
    at least that weight the sum carries at least std (ARCHITECTURE, rule 6).
    """

    std: float
    min_weight: float


@dataclass(frozen=True)
class Query:
    """One public question to every node; each user answers with a vector of L2 norm <= bound.

    rows (m, d) int8 and scales (m,) float32: row i of the question is rows[i] * scales[i].
    Quantising costs no privacy because the question is public, and the quantised question is
    the one that is stored, sent and answered, so that all sides see the same numbers.
    """

    kind: str
    rows: np.ndarray[Any, np.dtype[np.int8]]
    scales: np.ndarray[Any, np.dtype[np.float32]]
    length: int
    bound: float
    model: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)

    @classmethod
    def votes(
        cls,
        candidates: Floats,
        *,
        bound: float,
        model: str,
        clip: str = "normalised",
        samples_cap: int = 8,
        neighbors: int = 1,
        metric: str = "l2",
    ) -> Query:
        """Candidates (m, d), public: which are nearest to your texts? Answer: votes (m,).

        model is the embedder's fingerprint; a node with another embedder refuses.
        Raises ValueError when candidates are not a finite matrix or fewer than neighbors.
        """
        matrix = np.asarray(candidates, dtype=np.float32)
        if matrix.ndim != 2 or not np.isfinite(matrix).all() or len(matrix) < max(1, neighbors):
            raise ValueError(
                f"candidates of shape {matrix.shape} must be a finite (m, d) matrix with "
                f"m >= neighbors = {neighbors}"
            )
        peak = np.abs(matrix).max(axis=1, initial=0.0)
        # Rows too small for a float32 scale are zero to every use of them.
        scales = np.where(peak > 1e-35, peak / 127.0, 1.0).astype(np.float32)
        rows = np.rint(matrix / scales[:, None]).clip(-127, 127).astype(np.int8)
        options: dict[str, OptionValue] = {
            "clip": clip,
            "samples-cap": samples_cap,
            "neighbors": neighbors,
            "metric": metric,
        }
        return cls("votes", rows, scales, len(rows), float(bound), model, options)

    def question(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The decoded question (m, d) float32, public."""
        return self.rows.astype(np.float32) * self.scales[:, None]


@dataclass(frozen=True)
class Hello:
    """A node's public facts: the number of users it stands for, its place, its kind."""

    weight: int
    partition: int
    deployed: bool
    seeded: bool = False  # the node's noise comes from the run's seed (simulation only)


@dataclass(frozen=True)
class Answer:
    """One node's answer: vector (length,) float64, noisy (PRIVATE under plain aggregation)."""

    ticket: Ticket
    vector: Floats
    bytes_up: int


def _config(record: RecordDict, key: str) -> ConfigRecord:
    try:
        config = record.config_records[key]
    except KeyError:
        raise WireError(Refusal.MALFORMED, f"record {key!r} is missing") from None
    if config.get("protocol") != PROTOCOL:
        raise WireError(
            Refusal.PROTOCOL, f"protocol {config.get('protocol')!r}, this side speaks {PROTOCOL}"
        )
    return config


def _number(config: ConfigRecord, key: str, low: float = 0.0) -> float:
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
        round=int(_number(config, "round", 1)),
        attempt=int(_number(config, "attempt", 1)),
    )


def _ticket_fields(ticket: Ticket) -> dict[str, OptionValue]:
    return {
        "protocol": PROTOCOL,
        "run": ticket.run,
        "query": ticket.query,
        "round": ticket.round,
        "attempt": ticket.attempt,
    }


def ask(
    query: Query, ticket: Ticket, noise: Noise, node_id: int, weight: int, ttl: float
) -> Message:
    """The message that puts `query` to one node; it expires after `ttl` seconds.

    weight: the number of users this node stands for in the run; it refuses another one, because
    its share of the noise goes by it.
    """
    head = ConfigRecord(
        {
            **_ticket_fields(ticket),
            "length": query.length,
            "bound": query.bound,
            "model": query.model,
            "noise-std": noise.std,
            "min-weight": noise.min_weight,
            "weight": weight,
            **{f"option.{key}": value for key, value in query.options.items()},
        }
    )
    body = ArrayRecord([query.rows, query.scales])
    content = RecordDict({"ask": head, "question": body})
    return Message(content, node_id, f"query.{query.kind}", ttl=ttl, group_id=str(ticket.round))


def read_ask(message: Message, weight: int) -> tuple[Query, Ticket, Noise]:
    """The node's side of `ask`, for a node of `weight` users. Raises WireError to refuse with."""
    config = _config(message.content, "ask")
    if _number(config, "weight") != weight:
        raise WireError(Refusal.SETUP, f"this node has weight {weight}, the run counts on another")
    rows, scales = _arrays(message.content, "question", 2)
    if rows.dtype != np.int8 or rows.ndim != 2 or scales.shape != (len(rows),):
        raise WireError(
            Refusal.MALFORMED, f"question of {rows.dtype} {rows.shape} is not int8 rows"
        )
    if scales.dtype != np.float32 or not np.isfinite(scales).all():
        raise WireError(Refusal.MALFORMED, "the question's scales are not finite float32")
    query = Query(
        kind=message.metadata.message_type.removeprefix("query."),
        rows=rows,
        scales=scales,
        length=int(_number(config, "length", 1)),
        bound=_number(config, "bound"),
        model=str(config.get("model", "")),
        options={
            key.removeprefix("option."): value
            for key, value in config.items()
            if key.startswith("option.") and isinstance(value, str | int | float)
        },
    )
    noise = Noise(_number(config, "noise-std"), _number(config, "min-weight"))
    if noise.std <= 0 or noise.min_weight <= 0 or query.bound <= 0:
        raise WireError(Refusal.MALFORMED, "noise-std, min-weight and bound must be positive")
    return query, _ticket(config), noise


def answer(message: Message, ticket: Ticket, vector: Floats) -> Message:
    """A node's reply: its noisy vector (length,), sent as float32 (4 bytes a coordinate)."""
    content = RecordDict(
        {
            "answer": ConfigRecord({**_ticket_fields(ticket), "code": "ok"}),
            "vector": ArrayRecord([np.ascontiguousarray(vector, dtype=np.float32)]),
        }
    )
    return Message(content, reply_to=message)


def refuse(message: Message, code: Refusal) -> Message:
    """A node's refusal: a code, bound to the ticket it was asked with, and nothing else."""
    asked = message.content.config_records.get("ask", ConfigRecord())
    ticket = {key: asked[key] for key in ("run", "query", "round", "attempt") if key in asked}
    head = ConfigRecord({**ticket, "protocol": PROTOCOL, "code": code.value})
    return Message(RecordDict({"answer": head}), reply_to=message)


def _arrays(content: RecordDict, key: str, count: int) -> list[np.ndarray[Any, Any]]:
    """The arrays of a record from an untrusted side; whatever is wrong with them is MALFORMED."""
    try:
        found = content.array_records[key].to_numpy_ndarrays()
    except Exception as error:  # a hostile array can raise anything while it is decoded
        name = type(error).__name__
        raise WireError(Refusal.MALFORMED, f"record {key!r} is unreadable ({name})") from None
    if len(found) != count or not all(isinstance(array, np.ndarray) for array in found):
        raise WireError(Refusal.MALFORMED, f"record {key!r} does not hold {count} arrays")
    return found


def read_answer(message: Message, ticket: Ticket, length: int) -> Answer:
    """The server's side of `answer`. Raises WireError for refusals, errors and odd shapes."""
    if not message.has_content():
        # Flower's error text may hold a user's data or a traceback: only its code is kept.
        raise WireError(Refusal.SETUP, f"the node failed (Flower error code {message.error.code})")
    config = _config(message.content, "answer")
    code = str(config.get("code", ""))
    if code != "ok":
        known = code if code in {item.value for item in Refusal} else Refusal.MALFORMED.value
        raise WireError(Refusal(known), "the node refused")
    if _ticket(config) != ticket:
        raise WireError(Refusal.MALFORMED, "the answer belongs to another round or attempt")
    declared = message.content.array_records.get("vector")
    if declared is not None and declared.count_bytes() > 8 * length + 1024:
        raise WireError(Refusal.MALFORMED, "the answer is larger than its vector can be")
    (vector,) = _arrays(message.content, "vector", 1)
    if vector.shape != (length,) or vector.dtype != np.float32 or not np.isfinite(vector).all():
        raise WireError(Refusal.MALFORMED, "the answer is not a finite float32 vector")
    return Answer(ticket, vector.astype(np.float64), record_bytes(message.content))


def hello(node_id: int, ttl: float) -> Message:
    """Ask a node for its public facts."""
    head = ConfigRecord({"protocol": PROTOCOL})
    return Message(RecordDict({"ask": head}), node_id, HELLO, ttl=ttl)


def answer_hello(message: Message, facts: Hello) -> Message:
    """A node's reply to `hello`; refuses another protocol version."""
    try:
        _config(message.content, "ask")
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
    return Message(RecordDict({"answer": head}), reply_to=message)


def read_hello(message: Message) -> Hello:
    """The server's side of `answer_hello`. Raises WireError for refusals and errors."""
    if not message.has_content():
        raise WireError(Refusal.SETUP, f"the node failed (Flower error code {message.error.code})")
    config = _config(message.content, "answer")
    code = str(config.get("code", ""))
    if code != "ok":
        known = code if code in {item.value for item in Refusal} else Refusal.MALFORMED.value
        raise WireError(Refusal(known), "the node refused")
    return Hello(
        weight=int(_number(config, "weight", 1)),
        partition=int(_number(config, "partition", 0)),
        deployed=config.get("deployed") is not False,
        seeded=config.get("seeded") is not False,
    )


def record_bytes(content: RecordDict) -> int:
    """Bytes of a message's arrays and config values, as Flower counts them."""
    arrays = sum(record.count_bytes() for record in content.array_records.values())
    return arrays + sum(record.count_bytes() for record in content.config_records.values())
