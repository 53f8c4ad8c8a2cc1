"""The rows of a question, in eight bits, <-> the bytes in which they travel. PUBLIC.

The reader of the bytes trusts nobody.

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

from privsyn_flower.common.arrays import F16, F32, I8, U8

MOST_EXPANSION = 8  # bytes that one byte of a message may become
LARGEST = 1 << 27  # entries of a question, as it is multiplied with: 512 MB in float32
_SHAPE = struct.Struct("<II")  # m, d
_WINDOW = -15  # deflate without zlib's header and checksum: messages have their own
_STEP = 2.0**-11  # of a projected entry times the root of its direction's eigenvalue, at most 1
_COARSE = 255  # fine steps in a coarse one: what is left lies within -127..127


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


# --- public embeddings as int8 rows -------------------------------------------------------------


def int8_rows(
    matrix: F32,
) -> tuple[I8, F32]:
    """Finite rows (m, d) -> int8 rows and their scales (m,): row i is about rows[i] * scales[i]."""
    peak = np.abs(matrix).max(axis=1, initial=0.0)
    # Rows too small for a float32 scale are zero to every use of them.
    scales = np.where(peak > 1e-35, peak / 127.0, 1.0).astype(np.float32)
    return np.rint(matrix / scales[:, None]).clip(-127, 127).astype(np.int8), scales


def projected(candidates: F32, dimension: int) -> tuple[I8, F32, F16]:
    """Unit candidates in r = `dimension` of d dimensions: rows (m, c) int8 and scales (m,) as of
    any question, and the projection (d, c) that lifts them again. Public.

    Onto their own principal directions, not centred: the r dimensions that keep most of their
    inner products with each other, and so with texts that are like them. An error along a direction
    costs what texts have along it, about the root of its eigenvalue: so each has a step of its
    own, in inverse proportion to that. Entries are then small where they matter little, and take
    few bits (`pack_rows`). Directions with too many steps for int8 have two columns, c > r.
    Raises ValueError on a dimension outside 1..d - 1.
    """
    if not 0 < dimension < candidates.shape[1]:
        raise ValueError(
            f"dimension = {dimension} must be above 0 and below the embedder's, "
            f"{candidates.shape[1]} (key popri.dimension; 0 sends all of it)"
        )
    lengths = np.linalg.norm(candidates, axis=1, keepdims=True)
    units = (candidates / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    values, directions = np.linalg.eigh((units.T @ units).astype(np.float64) / len(units))
    directions = directions[:, ::-1][:, :dimension]  # (d, r)
    # float16 has no room for weights that are further apart.
    kept = np.maximum(values[::-1][:dimension], 1e-4 * values[-1])  # (r,)
    weights = np.sqrt(kept) if values[-1] > 0 else np.ones(dimension)  # zeros: any will do
    entries = (units @ directions.astype(np.float32)).astype(np.float64) * weights  # (m, r)
    whole = np.rint(entries / _STEP)  # (m, r)
    wide = np.flatnonzero(np.abs(whole).max(axis=0) > 127)
    coarse = np.rint(whole[:, wide] / _COARSE)
    whole[:, wide] -= _COARSE * coarse
    lifts = directions * (weights[-1] / weights)  # (d, r)
    rows = np.concatenate([coarse, whole], axis=1).astype(np.int8)
    projection = np.concatenate([_COARSE * lifts[:, wide], lifts], axis=1).astype(np.float16)
    return rows, np.full(len(rows), _STEP / weights[-1], dtype=np.float32), projection
