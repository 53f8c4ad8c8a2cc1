"""What several tests share about dropin."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from privsyn_flower.privacy.encoding.dense import dense_numbers
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.noise import Noise, decode_sum, encoded_length
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.text.models.parameters import pack_parameters
from privsyn_flower.training import Layout
from tests.conftest import node_context

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3) / 10


ARRAYS: dict[str, Any] = {  # in another order than safetensors keeps: by type, then by name
    "second": WEIGHT,
    "first": np.array([1.0, -1.0], dtype=np.float32),
    "seen": np.array(7, dtype=np.int64),
}


TICKET = Ticket("run", "update", 3, 1)


CLIP = 2.0


SECRET = "the-secret-of-a-user"

LOG = ".cache/privsyn-flower/nodes/drop-in/0-of-4/node.log"  # in the home of a simulated node


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loopback: Any) -> Iterator[Path]:
    """Where a simulated node keeps its things."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME")
    yield tmp_path


def question(arrays: dict[str, Any] = ARRAYS, indicator: float = 0.0, **changes: Any) -> Query:
    layout = Layout.of(arrays)
    options = {
        "clip-norm": CLIP,
        "indicator": indicator,
        "arrays": json.dumps(list(arrays)),
        "config.lr": 0.5,
        **changes.pop("options", {}),
    }
    query = Query.update(
        pack_parameters(arrays),
        length=layout.length + (indicator > 0),
        bound=CLIP * np.sqrt(1 + indicator**2),
        model=layout.digest(),
        rotation=bytes(range(32)),
        options=options,
    )
    return replace(query, **changes)


def noise(query: Query, weight: int = 1) -> Noise:
    """None on the node: what comes out is what the users said."""
    plan = dense_numbers(query.bound, query.length, 0.0, weight, weight)
    return Noise(1.0, plan.sensitivity, plan.bits, weight, scale=plan.scale, source="aggregator")


def ask(query: Query, weight: int = 1, ticket: Ticket = TICKET) -> Message:
    return wire.ask(query, ticket, noise(query, weight), 1, weight, 60.0)


def context(number: int = 0, /, **node_config: Any) -> Any:
    return node_context({"partition-id": number, "num-partitions": 4, **node_config})


def code(reply: Message) -> str:
    return str(reply.content.config_records["answer"]["code"])


def answered(
    message: Message, change: Callable[[str, Any], Any] = lambda name, array: array, **more: Any
) -> Message:
    """An ordinary train function's reply: each array of the message, changed."""
    given = message.content.array_records["arrays"]
    arrays = {name: Array(np.array(change(name, a.numpy()))) for name, a in given.items()}
    metrics = MetricRecord({"train_loss": 0.25, "num-examples": 10_000})
    records = {"arrays": ArrayRecord(arrays), "metrics": metrics, **more}
    return Message(RecordDict(records), reply_to=message)


def plus(amount: float) -> Callable[[str, Any], Any]:
    return lambda name, array: array + np.float32(amount) if array.dtype.kind == "f" else array


def _raises(error: BaseException) -> Callable[[Message, Any], Message]:
    def train(message: Message, context: Any) -> Message:
        raise error

    return train


LAYOUT = Layout.of(ARRAYS)


def decoded(reply: Message, query: Query, weight: int = 1, ticket: Ticket = TICKET) -> Any:
    """What the server makes of a plain reply (length,)."""
    used = noise(query, weight)
    length = LAYOUT.length + (query.length > LAYOUT.length)
    padded = encoded_length(replace(query, length=length))
    residues = wire.read_answer(reply, ticket, padded, used.bits).residues
    return decode_sum(residues, query, used)


def policy(folder: Path, kind: str) -> str:
    """A device's policy that takes plain sums of questions of one kind."""
    path = folder / f"{kind}.toml"
    path.write_text(
        f'queries = ["{kind}"]\naggregation = ["plain"]\ntrusted-aggregator = true\n'
        "min-surviving-weight = 1.0\nmin-noise-multiplier = 0.5\n"
    )
    return str(path)
