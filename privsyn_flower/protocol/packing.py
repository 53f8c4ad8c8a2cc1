"""The rows of a question <-> the bytes in which they travel. PUBLIC, but the reader trusts nobody.

Entries of one column of int8 rows have about the same size, and columns differ: a Huffman code for
each stretch of a column comes within 2 % of the columns' entropy. It is deflate's, from the
standard library, without a search for repetitions, since there are none but runs.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.arrays import F32, I8, U8

MOST_EXPANSION = 8  # bytes that one byte of a message may become
LARGEST = 1 << 27  # entries of a question, as it is multiplied with: 512 MB in float32
_SHAPE = struct.Struct("<II")  # m, d
_WINDOW = -15  # deflate without zlib's header and checksum: messages have their own


def pack_rows(rows: I8, scales: F32) -> U8:
    """Rows (m, d) int8 and scales (m,) float32 -> (bytes,): shape, then deflated by columns."""
    bytes_of_scales = scales.astype("<f4").view(np.uint8).reshape(-1, 4)
    raw = rows.T.tobytes() + bytes_of_scales.T.tobytes()
    packed = _deflated(raw, 9, zlib.Z_RLE)
    if len(raw) > MOST_EXPANSION * len(packed):  # next to nothing: in full, as readers want it
        packed = _deflated(raw, 0, zlib.Z_DEFAULT_STRATEGY)
    return np.frombuffer(_SHAPE.pack(*rows.shape) + packed, dtype=np.uint8)


def unpack_rows(packed: NDArray[Any], length: int) -> tuple[I8, F32]:
    """What `pack_rows` packed, from an untrusted side.

    length: of the vector that is asked for: there are no more rows. Allocates a few times
    `MOST_EXPANSION` the bytes that came, at most. Raises ValueError unless they are exactly such a
    shape and its entries.
    """
    if packed.dtype != np.uint8 or packed.ndim != 1 or packed.size < _SHAPE.size:
        raise ValueError(f"{packed.dtype} {packed.shape} are no packed rows")
    data = packed.tobytes()
    count, width = _SHAPE.unpack_from(data)
    size = count * (width + 4)
    if count > length or count * width > LARGEST:
        raise ValueError(f"{count} rows of {width} are not for a vector of {length}")
    if size > MOST_EXPANSION * len(data):
        raise ValueError(f"{len(data)} bytes claim to be {count} rows of {width}")
    reader = zlib.decompressobj(_WINDOW)
    try:
        raw = reader.decompress(data[_SHAPE.size :], size + 1)  # one more would show
    except zlib.error as error:
        raise ValueError(f"the rows are damaged ({error})") from None
    if len(raw) != size or not reader.eof or reader.unused_data:
        raise ValueError(f"the bytes are not exactly {count} rows of {width}")
    columns = np.frombuffer(raw, np.int8, count * width).reshape(width, count)
    planes = np.frombuffer(raw, np.uint8, 4 * count, count * width).reshape(4, count)
    scales = np.ascontiguousarray(planes.T).view("<f4").reshape(count)
    return np.ascontiguousarray(columns.T), scales.astype(np.float32, copy=False)


def _deflated(raw: bytes, level: int, strategy: int) -> bytes:
    writer = zlib.compressobj(level, zlib.DEFLATED, _WINDOW, 9, strategy)
    return writer.compress(raw) + writer.flush()
