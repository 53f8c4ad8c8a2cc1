"""Packed rows: what comes back, how much it takes, and what a hostile side cannot do."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privsyn_flower.protocol import packing
from privsyn_flower.protocol.packing import MOST_EXPANSION, pack_rows, unpack_rows

SHAPES = st.tuples(st.integers(0, 40), st.integers(0, 9))


def deflated(raw: bytes) -> bytes:
    writer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return writer.compress(raw) + writer.flush()


def claim(count: int, width: int, data: bytes) -> Any:
    return np.frombuffer(struct.pack("<II", count, width) + data, dtype=np.uint8)


@given(SHAPES.flatmap(lambda shape: arrays(np.int8, shape)), st.data())
def test_rows_and_scales_come_back_bit_by_bit(rows: Any, data: Any) -> None:
    scales = data.draw(arrays(np.float32, len(rows), elements=st.floats(width=32)))
    found, own = unpack_rows(pack_rows(rows, scales), len(rows))
    assert found.dtype == np.int8 and found.shape == rows.shape
    assert found.tobytes() == rows.tobytes()
    assert own.dtype == np.float32 and own.tobytes() == scales.tobytes()


@given(SHAPES.flatmap(lambda shape: arrays(np.int8, shape)))
def test_whatever_is_packed_is_within_what_readers_take(rows: Any) -> None:
    packed = pack_rows(rows, np.ones(len(rows), np.float32))
    assert rows.size + 4 * len(rows) <= MOST_EXPANSION * packed.size


def test_rows_that_say_next_to_nothing_are_read_too() -> None:
    """They would be smaller than a reader believes."""
    rows = np.zeros((3000, 50), np.int8)
    found, _ = unpack_rows(pack_rows(rows, np.ones(3000, np.float32)), 3000)
    assert np.array_equal(found, rows)


def test_bytes_are_near_the_entropy_of_the_columns() -> None:
    rng = np.random.default_rng(0)
    rows = np.rint(rng.normal(size=(4000, 20)) * np.geomspace(25, 2, 20)).clip(-127, 127)
    rows, bits = rows.astype(np.int8), 0.0
    for column in rows.T:
        share = np.unique(column, return_counts=True)[1] / len(column)
        bits -= len(column) * float((share * np.log2(share)).sum())
    size = pack_rows(rows, np.ones(4000, np.float32)).nbytes
    assert bits / 8 < size < 1.05 * bits / 8 < 0.7 * rows.size


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_a_value_error(data: bytes) -> None:
    try:
        length = int.from_bytes(data[:4], "little")
        rows, scales = unpack_rows(np.frombuffer(data, dtype=np.uint8), length)
    except ValueError:
        return
    assert scales.shape == (len(rows),) and rows.nbytes <= MOST_EXPANSION * len(data)


@given(st.data())
def test_cut_or_flipped_bytes_are_never_more_than_was_claimed(data: Any) -> None:
    rows = np.arange(60, dtype=np.int8).reshape(20, 3)
    packed = pack_rows(rows, np.linspace(1, 2, 20, dtype=np.float32))
    with pytest.raises(ValueError):
        unpack_rows(packed[: data.draw(st.integers(0, packed.size - 1))], 20)
    with pytest.raises(ValueError):
        unpack_rows(np.append(packed, np.uint8(0)), 20)
    place, bit = data.draw(st.integers(8, packed.size - 1)), data.draw(st.integers(0, 7))
    changed = packed.copy()
    changed[place] ^= np.uint8(1 << bit)
    try:
        found, scales = unpack_rows(changed, 20)
    except ValueError:
        return
    assert found.shape == (20, 3) and scales.shape == (20,)


@pytest.mark.parametrize(
    ("count", "width", "data"),
    [
        (2**32 - 1, 2**32 - 1, deflated(bytes(100))),  # claims what no machine has
        (2**22, 60, deflated(bytes(2**20))),
        (1, 4, deflated(bytes(2**26))),  # claims little and is a bomb
        (100, 4, deflated(bytes(799))),
        (100, 4, deflated(bytes(801))),
        (1, 0, b"\xff\xff\xff"),
        (0, 0, b""),
    ],
)
def test_bombs_and_lies_are_refused_before_memory_is_taken(
    count: int, width: int, data: bytes
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            unpack_rows(claim(count, width, data), count)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "packed",
    [np.zeros(20, np.int8), np.zeros((4, 20), np.uint8), np.zeros(7, np.uint8), np.zeros(20)],
)
def test_other_arrays_are_refused(packed: Any) -> None:
    with pytest.raises(ValueError, match="no packed rows"):
        unpack_rows(packed, 20)


def test_rows_are_no_more_than_are_asked_about_and_no_more_than_a_device_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = pack_rows(np.ones((20, 3), np.int8), np.ones(20, np.float32))
    assert len(unpack_rows(packed, 20)[0]) == 20
    none = pack_rows(np.zeros((0, 0), np.int8), np.zeros(0, np.float32))
    assert len(unpack_rows(none, 9)[0]) == 0
    with pytest.raises(ValueError, match="20 rows of 3 are not for a vector of 19"):
        unpack_rows(packed, 19)
    monkeypatch.setattr(packing, "LARGEST", 60)  # entries, without the rows' scales
    assert len(unpack_rows(packed, 20)[0]) == 20
    monkeypatch.setattr(packing, "LARGEST", 59)
    with pytest.raises(ValueError, match="20 rows of 3"):
        unpack_rows(packed, 20)
