"""Valid messages of a run, changed in any of the ways that a server could change them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import strategies as st

from privsyn_flower.protocol import wire

Draw = Callable[[Any], Any]

TYPES = ("query.hello", "query.votes", "query.scores", "query.evaluation", "train", "evaluate")
WHOLE = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
REAL = (0.0, -0.0, 0.5, 1.5, -1.0, 5e-324, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"))
TEXT = (
    "", " ", "x", "1", "0", "nan", "[]", "{}", "null", "[" * 100_000, '["a", "a"]', "a,b", "\x00",
    "../../etc/passwd", "x" * 100_000, "\u202e\U0001f600", "votes", "dense", "nodes", "aggregator",
    "advertise", "share", "mask", "confirm", "unmask", "9" * 5000, '{"run": 1}', "1e999",
)  # fmt: skip
OPTIONS = (
    "option.cycle", "option.min-separation", "option.max-participations", "option.encoding",
    "option.rotation", "option.neighbors", "option.samples-cap", "option.labels", "option.metrics",
    "option.dimension", "option.server-round", "option.arrays", "option.config.lr", "weight",
    "option.condition.topics", "option.condition.labels", "option.condition.max-source", "extra",
    "protocol", "stage", "session", "cohort", "list", "sealed", "signers", "signatures",
    "option.matrix", "option.rounds",
)  # fmt: skip
RECORDS = ("ask", "question", "secagg", "hello", "answer", "odd", "")


@st.composite
def changes(draw: Any) -> Callable[[Message], Message]:
    """A change of a message: some steps, each drawn for what is there when it is made."""
    steps = draw(st.lists(st.sampled_from(STEPS), min_size=0, max_size=4))
    numbers = st.integers(0, 2**32 - 1)
    seeds = [draw(numbers) for _ in steps]

    def change(message: Message) -> Message:
        for step, seed in zip(steps, seeds, strict=True):
            step(message, np.random.default_rng(seed))
        return message

    return change


def _one(rng: np.random.Generator, values: Any) -> Any:
    values = list(values)
    return values[int(rng.integers(len(values)))]


def _value(rng: np.random.Generator, old: Any) -> Any:
    """Another value for a config record, near the old one or far from it."""
    near: list[Any] = []
    if isinstance(old, int | float):
        near = [old + 1, old - 1, -old, float(old), str(old), bool(old), [old, old], old * 2]
        near = [v for v in near if not (type(v) is int and abs(v) >= 2**63)]
    elif isinstance(old, str):
        near = [old + "x", old[:-1], old.upper(), old.encode(), [old], old * 2]
    elif isinstance(old, bytes):
        near = [old[:-1], old + b"\0", old[::-1], bytes(len(old)), old * 2, _flipped(rng, old)]
    far = [_one(rng, WHOLE), _one(rng, REAL), _one(rng, TEXT), True, False, rng.bytes(40), b"",
           [], [1, 2], [float("nan")], ["a"], [b"a"]]  # fmt: skip
    return _one(rng, near if near and rng.random() < 0.5 else far)


def _flipped(rng: np.random.Generator, data: bytes) -> bytes:
    if not data:
        return b"\1"
    at = int(rng.integers(len(data)))
    return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]


def _configs(message: Message) -> list[ConfigRecord]:
    return [record for record in message.content.config_records.values() if record]


def _arrays(message: Message) -> list[ArrayRecord]:
    return [record for record in message.content.array_records.values() if record]


def set_value(message: Message, rng: np.random.Generator) -> None:
    """One number, text or bytes of a config record becomes another."""
    if found := _configs(message):
        record = _one(rng, found)
        key = _one(rng, record)
        record[key] = _value(rng, record[key])


def set_unknown(message: Message, rng: np.random.Generator) -> None:
    """A key that is not there, or is not for this message."""
    if found := _configs(message):
        _one(rng, found)[_one(rng, OPTIONS)] = _value(rng, None)


def drop_value(message: Message, rng: np.random.Generator) -> None:
    if found := _configs(message):
        record = _one(rng, found)
        del record[_one(rng, record)]


def drop_record(message: Message, rng: np.random.Generator) -> None:
    if message.content:
        del message.content[_one(rng, message.content)]


def put_record(message: Message, rng: np.random.Generator) -> None:
    """A record more, or one of another type in place of one."""
    made = [ConfigRecord({"a": 1}), MetricRecord({"a": 1.0}), ArrayRecord([np.zeros(2)]),
            ArrayRecord(), ConfigRecord()]  # fmt: skip
    names = [*RECORDS, *message.content]
    message.content[_one(rng, names)] = _one(rng, made)


def rename_record(message: Message, rng: np.random.Generator) -> None:
    if message.content:
        name = _one(rng, message.content)
        record = message.content[name]
        del message.content[name]
        message.content[_one(rng, RECORDS)] = record


def retype(message: Message, rng: np.random.Generator) -> None:
    """Another message type, than which Flower's routing would have another handler."""
    message.metadata.message_type = _one(rng, TYPES)


def set_array(message: Message, rng: np.random.Generator) -> None:
    """One array becomes another: of another type or shape, with odd numbers, or no array."""
    if not (found := _arrays(message)):
        return
    record = _one(rng, found)
    key = _one(rng, record)
    try:
        old = wire._decoded(record[key])
    except Exception:  # it was changed before
        old = np.zeros(3)
    with np.errstate(all="ignore"):
        record[key] = _one(rng, _odd_arrays(rng, old))


def _odd_arrays(rng: np.random.Generator, old: np.ndarray[Any, Any]) -> list[Array]:
    # It may have been changed before.
    old = np.nan_to_num(old) if old.dtype.kind in "biuf" else np.zeros(3)

    def changed(value: float) -> Any:
        new = old.astype(np.float32)
        new.reshape(-1)[: 1 + new.size // 2] = value
        return new

    plain = [
        old[:-1] if old.ndim else old[None], old[None], old.reshape(-1), old.T, np.zeros(0),
        np.concatenate([old, old]) if old.ndim else old, old.astype(np.float64),
        old.astype(np.complex64), old.astype(bool), np.array("text"), np.array(["a", "b"]),
        np.array([b"a"]), np.zeros((0, 5), dtype=old.dtype), np.zeros((1,) * 30, dtype=old.dtype),
        changed(np.nan), changed(np.inf), changed(1e38), old.astype(">f4"), old.astype("M8[s]"),
        np.zeros(old.shape, dtype=[("a", "i4"), ("b", "f8")]),
    ]  # fmt: skip
    made = [Array(np.ascontiguousarray(array)) for array in plain]
    data = Array(old).data
    kind = "numpy.ndarray"
    return [
        *made,
        Array("float32", (2**31 - 1,), kind, b""),
        Array("float32", (2,), kind, data[:-3]),
        Array("float32", (2,), kind, _flipped(rng, data)),
        Array("float32", (2,), kind, rng.bytes(200)),
        Array("float32", (2,), kind, _claim("<f4", (2**40,))),
        Array("int8", (2,), kind, _claim("|i1", (2**20, 2**20))),
        Array("float32", (2,), kind, _claim("<f4", (-1,))),
        Array("float32", (2,), kind, _claim("|O", (1,))),
        Array("float32", (2,), "torch.Tensor", data),
        Array("", (), "", b""),
    ]


def _claim(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The head of an .npy file that claims to be followed by very much."""
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text = head.encode().ljust(117) + b"\n"
    out = io.BytesIO()
    out.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64))
    return out.getvalue()


def drop_array(message: Message, rng: np.random.Generator) -> None:
    if found := _arrays(message):
        record = _one(rng, found)
        del record[_one(rng, record)]


def put_array(message: Message, rng: np.random.Generator) -> None:
    if found := _arrays(message):
        record = _one(rng, found)
        record[_one(rng, ["extra", "0", "2", "99"])] = _one(rng, list(record.values()))


STEPS = (
    *(set_value,) * 8, *(set_array,) * 4, set_unknown, set_unknown, drop_value, drop_record,
    put_record, rename_record, retype, drop_array, put_array,
)  # fmt: skip


def copied(message: Message) -> RecordDict:
    """A message's content, for a message of its own."""
    return RecordDict(dict(message.content))
